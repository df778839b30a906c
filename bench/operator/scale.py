"""Many servers: what they cost at rest, and what a restart costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.operator.contenders import running
from bench.operator.lab import TENANTS, Lab, LabError, say, stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

_QUIET = 3.0
_COLD_SECONDS = 600.0


def scale(lab: Lab, sizes: Sequence[int], *, beside: bool = True) -> list[dict[str, Any]]:
    """Restarts over growing populations, made by Plimsoll; each entry is one restart of one operator.

    The Go operator is started with writes off: its caches then hold the same objects, and nothing else is
    compared. ``convergeSeconds`` is from the process's start to the end of its first work, so a cold start is in it.

    Args:
        lab: a cluster without servers.
        sizes: numbers of servers, growing.
        beside: also the Go operator.
    """
    found: list[dict[str, Any]] = []
    there = 0
    for size in sizes:
        if size > there:
            found.append(_grow(lab, there, size))
            there = size
        found.append(_restart(lab, "plimsoll", size))
        if beside:
            found.append(_restart(lab, "floor", size))
    return found


def cold(lab: Lab, who: str, size: int) -> dict[str, Any]:
    """The servers are there and their children are not: seconds from the process's start to the last child."""
    lab.load([(TENANTS[0], size, 0)], prefix="cold-", children=False)
    path, began = f"/apis/apps/v1/namespaces/{TENANTS[0]}/deployments", time.monotonic()
    with running(lab, who, wait=120) as one:
        while lab.count(path) < size:
            if time.monotonic() - began > _COLD_SECONDS:
                raise LabError(
                    f"{lab.count(path)} of {size} Deployments after a cold start of {who}"
                )
            time.sleep(0.1)
        seconds, cpu = time.monotonic() - began, one.cpu()
        one.quiet()
        peak = one.memory()["peak"]
        lab.clean()
    result = {"who": who, "what": "cold", "servers": size, "childSeconds": round(seconds, 2)}
    say(f"cold start of {who} with {size}: {seconds:.1f} s to the last child")
    return {**result, "cpuSeconds": round(cpu, 2), "peakMiB": peak}


def _grow(lab: Lab, there: int, size: int) -> dict[str, Any]:
    say(f"growing from {there} to {size} servers")
    with running(lab, "plimsoll", wait=120) as one:
        began, cpu = time.monotonic(), one.cpu()
        lab.load([(TENANTS[0], size - there, 0)], prefix=f"n{size}-", limit=1200)
        one.quiet(_QUIET)
        result = {
            "who": "plimsoll",
            "what": "grow",
            "from": there,
            "servers": size,
            "seconds": round(time.monotonic() - began, 1),
            "cpuSeconds": round(one.cpu() - cpu, 2),
            "memoryMiB": one.memory(),
        }
    say(f"{size} servers in {result['seconds']} s")
    return result


def _restart(lab: Lab, who: str, size: int) -> dict[str, Any]:
    since, began = stamp(), time.monotonic()
    with running(lab, who, frozen=True, wait=180) as one:
        busy = one.quiet(_QUIET)
        memory = one.memory()
        time.sleep(0.3)
        result: dict[str, Any] = {
            "who": who,
            "what": "restart",
            "servers": size,
            "convergeSeconds": round(busy - began, 2),
            "watchSeconds": round(one.watch_seconds, 2),
            "cpuSeconds": round(one.cpu(), 2),
            "memoryMiB": memory,
            "calls": one.calls(since, size),
        }
    say(
        f"restart of {who} with {size}: {result['convergeSeconds']} s, writes {result['calls']['writes']}, "
        f"CPU {result['cpuSeconds']} s, RSS {memory['rss']:.0f} (peak {memory['peak']:.0f}) MiB"
    )
    return result
