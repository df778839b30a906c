"""What the demo prints."""

from __future__ import annotations

import time
from typing import Any

_BEGAN = time.monotonic()
MIB = 1024**2
_MARK = {"True": "+", "False": "-", "Unknown": "?"}

AFTERWARDS_KEPT = """The cluster is still up. Look around:
    make shell                                   # then: kubectl get isrv,deploy,pods -o wide
    make shell                                   # then: kubectl describe isrv smollm2
Stop it, leaving nothing behind:
    make down
"""
AFTERWARDS_GONE = """Everything that the demo started is stopped and removed; builds are kept for the next run.
To look around in the cluster next time: KEEP=1 make demo, then make shell; make down stops it.
"""


def step(title: str) -> None:
    """A heading with the time since the demo's start."""
    print(f"\n[{time.monotonic() - _BEGAN:6.1f} s] \033[1m{title}\033[0m", flush=True)


def say(line: str) -> None:
    """One line below a heading."""
    print(f"    {line}", flush=True)


def condition(seconds: float, item: dict[str, Any]) -> str:
    """One change of a condition."""
    mark = _MARK.get(item["status"], "?")
    return f"{seconds:6.1f} s {mark} {item['type']:<18}{item.get('reason', ''):<18}{item.get('message', '')}"


def arguments(deployment: dict[str, Any]) -> None:
    """The server container's command line in the template."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    server = next(c for c in containers if c["name"] == "server")
    for argument in [*server.get("command", []), *server.get("args", [])]:
        say(argument)


def budget(capacity: dict[str, Any]) -> None:
    """A table of the terms, which adds up to the pool and to the tokens."""
    terms = capacity["breakdown"]
    rows = [("free on the GPU", terms["deviceFree"])]
    if used := terms["deviceFree"] - terms["freeAfterInit"]:
        rows.append(("- context, libraries", -used))
    rows.append(("- weights", -terms["weights"]))
    rows += [(f"- reserve: {name}", -size) for name, size in terms["reserve"].items() if size]
    rows.append(("- safety", -terms["safety"]))
    total = sum(size for _, size in rows)
    for label, size in rows:
        say(f"{label:<28}{size:>15,} B {size / MIB:>10.1f} MiB")
    say("-" * 58)
    say(f"{'= KV cache pool':<28}{total:>15,} B {total / MIB:>10.1f} MiB")
    if total != terms["kv"]:
        raise AssertionError(f"the terms add up to {total}, status says {terms['kv']}")
    per_token = int(capacity["bytesPerToken"])
    say(f"/ {per_token:,} B a token = {total // per_token:,} tokens, of which whole slots are")
    say(
        f"maxTotalTokenNum = {capacity['maxTotalTokenNum']:,} ({capacity['confidence']}, {capacity['source']})"
    )


def engine(props: dict[str, Any], capacity: dict[str, Any]) -> None:
    """The engine's own capacity beside ours."""
    slots, length = props["total_slots"], props["default_generation_settings"]["n_ctx"]
    own, ours = slots * length, capacity["maxTotalTokenNum"]
    say(f"engine:   {slots} slots x {length:,} = {own:,} tokens")
    say(f"plimsoll: {ours:,} tokens ({'equal' if own == ours else 'DIFFERENT'})")
    if own != ours:
        raise AssertionError("the engine does not hold what Plimsoll wrote")
