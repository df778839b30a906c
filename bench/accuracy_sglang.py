"""How close the SGLang law comes to public start-up logs.

Run alone (``python -m bench.accuracy_sglang``) or through ``report()``. Facts: ``tests/data`` only. No
constant of the law was fitted on these lines: it is SGLang's own formula, fed with the free memory
before the weights and the weights that the line prints.

A line counts where it prints the fraction, the free memory before load, the weights and the tokens, and no
draft model. With a draft the printed free memory is that of the draft's load, when the target is in place
already, so nothing can be predicted from it; of those lines only the bytes per token are compared.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from plimsoll.core.budget import fit
from plimsoll.core.device import Device
from plimsoll.core.engines import lookup
from plimsoll.core.errors import PlimsollError
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB

DATA: Final = Path(__file__).parents[1] / "tests" / "data"
LIMIT: Final = 0.015
_TOTALS: Final = {"RTX 3090": 24_576 << 20}
_FLAGS: Final = {
    "swa_full_tokens_ratio": "--swa-full-tokens-ratio",
    "max_running_requests": "--max-running-requests",
    "cuda_graph_max_bs": "--cuda-graph-max-bs",
    "attention_backend": "--attention-backend",
}


def report() -> dict[str, Any]:
    """Errors by card type, with every line that cannot be compared named with its reason."""
    configs = json.loads((DATA / "model_configs.json").read_text())
    cards: dict[str, list[dict[str, Any]]] = defaultdict(list)
    cells: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for line in (DATA / "capacity_observations.jsonl").read_text().splitlines():
        seen = json.loads(line)
        if seen["engine"] != "sglang" or seen.get("status") != "ok":
            continue
        entry = configs.get(seen["model"])
        if entry is None:
            skipped[seen["id"]] = "no config of this model is known"
            continue
        try:
            cells.append(_cell(seen, entry["config"]))
            reason = _why_not(seen)
            if reason:
                skipped[seen["id"]] = reason
            else:
                cards[_card(seen)].append(_compare(seen, entry["config"]))
        except PlimsollError as error:
            skipped[seen["id"]] = str(error)
    return {
        "limit": LIMIT,
        "cards": {card: _summary(rows) for card, rows in sorted(cards.items())},
        "cells": _cell_summary(cells),
        "skipped": skipped,
    }


def _why_not(seen: dict[str, Any]) -> str | None:
    needed = ("mem_fraction_static", "free_gib_before_load", "weights_gib_per_gpu", "kv_tokens")
    missing = [name for name in needed if not seen.get(name)]
    if missing:
        return f"the line does not print {', '.join(missing)}"
    if seen["other_flags"].get("speculative_algorithm"):
        return "a draft model is loaded, and the printed free memory is that of its load"
    return None


def _card(seen: dict[str, Any]) -> str:
    return str(seen.get("gpu") or "not printed")


def _request(seen: dict[str, Any], mode: str) -> SizingRequest:
    flags = seen.get("other_flags") or {}
    args = []
    if mode == "Engine":
        args = [f"{flag}={flags[name]}" for name, flag in _FLAGS.items() if flags.get(name)]
        args += [f"--mem-fraction-static={seen['mem_fraction_static']}"]
        for name, flag in (("page_size", "page-size"), ("max_model_len", "context-length")):
            args += [f"--{flag}={seen[name]}"] if seen.get(name) else []
        if seen.get("chunked_prefill_size"):
            args.append(f"--chunked-prefill-size={seen['chunked_prefill_size']}")
        if flags.get("enable_dp_attention") == "True":
            args += ["--enable-dp-attention", f"--dp-size={seen['dp']}"]
    return SizingRequest(
        engine_type="SGLang",
        engine_version=seen.get("engine_version"),
        engine_args=tuple(args),
        tensor=seen.get("tp") or 1,
        kv_cache_dtype=seen.get("kv_cache_dtype") or "auto",
        mode=mode,
    )


def _device(seen: dict[str, Any]) -> Device:
    free = _bytes(seen["free_gib_before_load"])
    total = next((t for name, t in _TOTALS.items() if name in _card(seen)), free)
    return Device(_card(seen), total, total, free, free)


def _compare(seen: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """One start: predicted tokens, and the pool that Plimsoll would pin on the same card."""
    weights = [_bytes(seen["weights_gib_per_gpu"])]
    device = _device(seen)
    engine = fit(config, None, device, _request(seen, "Engine"), weights=weights)
    row: dict[str, Any] = {
        "id": seen["id"],
        "tokens": engine.tokens,
        "printed": seen["kv_tokens"],
        "error": (engine.tokens or 0) / seen["kv_tokens"] - 1,
    }
    flags = seen["other_flags"]
    if flags.get("enable_dp_attention") != "True":  # refused outside mode Engine
        pinned = fit(config, None, device, _request(seen, "Auto"), weights=weights)
        graphs = _bytes(seen.get("cuda_graph_gib") or 0)
        could = device.free - weights[0] - graphs
        kv = pinned.budget.kv if pinned.budget and pinned.error is None else 0
        row["pinnedShare"] = round(kv / could, 3)
    return row


def _cell(seen: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Bytes per token of the target's pool against the printed size over the printed tokens."""
    flags = {**(seen.get("other_flags") or {}), "speculative_algorithm": None}
    wanted = _request({"mem_fraction_static": 0.9, **seen, "other_flags": flags}, "Engine")
    result = fit(config, None, None, wanted)
    tokens, pool = seen.get("kv_tokens"), seen.get("kv_gib_per_gpu")
    printed = pool * GIB / tokens if tokens and pool else None
    cell = result.kv_bytes_per_rank or 0
    return {"id": seen["id"], "cell": cell, "ratio": printed / cell if printed and cell else None}


def _cell_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = {row["id"]: row["ratio"] for row in rows if row["ratio"]}
    off = {name: round(ratio, 4) for name, ratio in ratios.items() if abs(ratio - 1) > 0.005}
    return {"compared": len(ratios), "within half a percent": len(ratios) - len(off), "off": off}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors: list[float] = [row["error"] for row in rows]
    worst = max(*errors, -min(errors))
    good = sum(abs(error) <= LIMIT for error in errors)
    return {
        "lines": len(rows),
        "within": good,
        "share": round(good / len(rows), 3),
        "worst": round(worst if worst in errors else -worst, 5),
        "rows": rows,
    }


def _bytes(gib: float) -> int:
    return round(gib * GIB)


def main() -> None:
    """Print the report as text."""
    lookup("SGLang")  # fails early where the engine is not there
    result = report()
    for card, summary in result["cards"].items():
        print(
            f"{card}: {summary['within']} of {summary['lines']} lines within {LIMIT:.1%}, "
            f"worst {summary['worst']:+.2%}"
        )
        for row in summary["rows"]:
            share = row.get("pinnedShare")
            pinned = f", pinned pool {share:.1%} of what the run could hold" if share else ""
            print(
                f"  {row['id']}: {row['tokens']} for {row['printed']}, {row['error']:+.3%}{pinned}"
            )
    cells = result["cells"]
    print(f"bytes per token: {cells['within half a percent']} of {cells['compared']} within 0.5 %")
    for name, ratio in cells["off"].items():
        print(f"  {name}: printed / computed {ratio}")
    for name, reason in result["skipped"].items():
        print(f"  {name} left out: {reason}")


if __name__ == "__main__":
    main()
