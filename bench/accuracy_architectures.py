"""How exactly the model readers know caches and parameters, against measurements in tests/data.

Three questions: the measured configs (by part and by kind of attention), random valid changes of every
family's config, and the reading by structure as if the family were not known. See bench/accuracy.py.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from plimsoll.core.arch import read_spec
from plimsoll.core.engines import ENGINES
from plimsoll.core.errors import PlimsollError, Unsupported
from plimsoll.core.kv import cache_size
from plimsoll.core.request import SizingRequest
from tests.oracle import BYTES, DATA, differences, records, strange, varied

if TYPE_CHECKING:
    from collections.abc import Iterable


def report() -> dict[str, Any]:
    """Everything, as JSON."""
    return {
        "measured": exactness(records().values()),
        "varied": exactness(varied().values()),
        "structure": structure(),
        "engineVectors": vectors(),
    }


def exactness(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counts of exact records by part and by attention, and a reason for each that is not."""
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    reasons = {}
    for record in found:
        name = f"{record['part']}/{record['name']}"
        try:
            kind = read_spec(record["config"]).attention
        except PlimsollError:
            kind = "refused"
        wrong = differences(record)
        if wrong:
            reasons[name] = "; ".join(wrong)
        for counts in (parts[record["part"]], kinds[kind]):
            counts["records"] += 1
            for key in (*BYTES, "params"):
                known = record[key] is not None
                refused = bool(wrong) and wrong[0].startswith("refused")
                missed = refused or any(text.startswith(f"{key} ") for text in wrong)
                counts[f"{key}_of"] += known
                counts[key] += known and not missed
            counts["exact"] += not wrong
    return {
        "byPart": {key: dict(value) for key, value in parts.items()},
        "byAttention": {key: dict(kinds[key]) for key in sorted(kinds)},
        "notExact": reasons,
    }


def structure() -> dict[str, Any]:
    """Each measured config under a strange model_type: right, refused, or wrong.

    Wrong without a note would be a silent guess. More than the truth is the safe side of wrong.
    """
    outcome: Counter[str] = Counter()
    wrong = {}
    for name, record in records().items():
        if record["part"] == "derived":
            continue
        config = strange(record["config"])
        try:
            spec = read_spec(config)
        except PlimsollError:
            outcome["refused"] += 1
            continue
        size = cache_size(spec, "bf16", model_dtype="bf16")
        right = all(record[key] in {None, getattr(size, key)} for key in ("all_full", "state"))
        verdict = "right" if right else "wrongButMarked" if spec.notes else "wrongAndSilent"
        outcome[verdict] += 1
        if not spec.notes:
            outcome["silent"] += 1
        if not right:
            wrong[name] = f"all_full {size.all_full} instead of {record['all_full']}"
    return {"outcome": dict(outcome), "wrong": wrong}


def vectors() -> dict[str, Any]:
    """Bytes per token and rank of each engine, against arithmetic from the engines' sources."""
    document = json.loads((DATA / "engine_vectors.json").read_text())
    outcome: Counter[str] = Counter()
    wrong = []
    for row in document["vectors"]:
        found = measured_cell(row, document["configs"][row["config"]])
        verdict = (
            "absent" if found == "absent" else "right" if found == row["expected"] else "wrong"
        )
        outcome[verdict] += 1
        if verdict == "wrong":
            wrong.append(row | {"found": found})
    return {"outcome": dict(outcome), "wrong": wrong}


def measured_cell(row: dict[str, Any], config: dict[str, Any]) -> int | str:
    """What an engine module answers for one vector: bytes, ``refused``, or ``absent``."""
    if row["engine"] not in ENGINES:
        return "absent"
    engine = ENGINES[row["engine"]]
    request = SizingRequest(
        engine_type=row["engine"],
        engine_version=row["version"],
        tensor=row["tensor"],
        kv_cache_dtype=row["kv_cache_dtype"],
    )
    try:
        return engine.cell(read_spec(config), request)
    except Unsupported:
        return "refused"
    except PlimsollError as error:
        return f"error: {error}"[:160]
