"""What ``explain`` says, as a document: the status with the origin of every number. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.terms import RESERVE_TERMS
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from plimsoll.cli.levers import Lever

SCHEMA: Final = "plimsoll.dev/explain.v1"

#: What each term of the reserve is, and what it depends on.
_RESERVE: Final[Mapping[str, str]] = {
    "nonTorch": "outside the allocator, by ranks and release",
    "activation": "largest pass or logits, by prefillTokens",
    "workspace": "buffers of the attention kernels",
    "requestTables": "request tables, by maxConcurrentRequests x contextLength",
    "graphs": "decode graphs, by their largest batch",
    "draft": "the draft model",
    "encoder": "the encoder's pass and its cache",
    "lora": "LoRA adapters",
    "fragmentation": "what the allocator cannot hand out again",
}
_MEANINGS: Final[Mapping[str, str]] = {
    "AllLayersFull": "every layer keeps every token",
    "FullAttentionPool": "tokens of the layers with full attention; the windowed ones have a pool beside",
    "ConcurrencyTimesContext": "requests at once x context; shorter requests are more tokens",
    "BlocksPerGroup": "blocks of one group of layers x their size",
    "Ceiling": "a ceiling; the engine decides below it",
}
_SOURCES: Final[Mapping[str, str]] = {
    "Measured": "measured by a sizing pod",
    "Cached": "measured before",
    "UserProvided": "given by the resource, not measured",
    "InPod": "measured by each server pod itself; this is the least",
    "Engine": "predicted; the engine sizes itself",
}


def document(
    raw: Mapping[str, Any], levers: Iterable[Lever], notes: Iterable[str]
) -> dict[str, Any]:
    """The document ``plimsoll.dev/explain.v1``; every key of its first level is always present.

    Args:
        raw: the InferenceServer as read.
        levers: what would raise the number.
        notes: sentences beside them.
    """
    status, spec = raw.get("status") or {}, raw["spec"]
    capacity, effective = status.get("capacity") or {}, status.get("effective") or {}
    engine = {"type": spec["engine"]["type"], "version": effective.get("engineVersion")}
    return {
        "schema": SCHEMA,
        "name": raw["metadata"]["name"],
        "namespace": raw["metadata"].get("namespace"),
        "engine": engine,
        "model": {
            "servedName": effective.get("servedName"),
            "digest": capacity.get("modelDigest"),
            "file": capacity.get("modelFile"),
        },
        "gpu": capacity.get("gpu"),
        "node": capacity.get("node"),
        "number": _number(capacity),
        "terms": list(_terms(raw, capacity, engine)),
        "mode": {"is": effective.get("mode"), "why": _mode_why(effective)},
        "strategy": _strategy(effective),
        "corrections": list(_corrections(status, capacity)),
        "drift": _drift(status, capacity),
        "classes": list(status.get("classes") or ()),
        "levers": [lever.document() for lever in levers],
        "notes": [*_first_notes(status, capacity), *notes],
    }


def _number(capacity: Mapping[str, Any]) -> dict[str, Any]:
    meaning, source = capacity.get("tokenMeaning"), capacity.get("source")
    keys = (
        "maxTotalTokenNum", "kvCacheBytes", "bytesPerToken", "fixedPools", "granule", "blocks", "blockTokens",
        "maxSequences", "contextLength", "prefillTokens", "concurrencyAtContext", "confidence", "measuredAt",
    )  # fmt: skip
    return {
        **{key: capacity.get(key) for key in keys},
        "tokenMeaning": meaning,
        "meaning": _MEANINGS.get(str(meaning)),
        "source": source,
        "from": _SOURCES.get(str(source)),
    }


def _terms(
    raw: Mapping[str, Any], capacity: Mapping[str, Any], engine: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every term from the device to the pool, with where it comes from; ``sum`` marks in-between sums."""
    terms = capacity.get("breakdown")
    if not terms:
        return
    torch = (raw["spec"].get("sizing") or {}).get("probe") == "Torch"
    total = "CUDA (torch)" if torch else "NVML, less what the driver keeps for itself"
    table = f"{engine['type']} {engine['version'] or '(version unknown: widest)'}"
    before = terms["deviceTotal"] - terms["deviceFree"]
    start = terms["deviceFree"] - terms["freeAfterInit"]
    yield _term("device total", terms["deviceTotal"], total, mark="sum")
    yield _term("in use before", -before, f"NVML on node {capacity.get('node')}", mark="-")
    yield _term("CUDA context, NCCL", -start, f"by ranks and release; {table}", mark="-")
    yield _term("free after start", terms["freeAfterInit"], "the sum so far", mark="sum")
    digest = str(capacity.get("modelDigest") or "")[:12]
    yield _term("weights", -terms["weights"], f"tensor headers of the model ({digest})", mark="W")
    for name in RESERVE_TERMS:
        size = terms["reserve"].get(name, 0)
        if size and name == "extra":
            yield from _extra(raw, capacity, size)
        elif size:
            yield _term(name, -size, f"{_RESERVE[name]}; {table}", mark="r")
    yield _term("safety", -terms["safety"], f"margin for {engine['type']}", mark="s")
    yield _term("KV cache", terms["kv"], "what is left", mark="#")


def _extra(
    raw: Mapping[str, Any], capacity: Mapping[str, Any], size: int
) -> Iterator[dict[str, Any]]:
    """The term ``extra`` in its parts: the user's, learned, and what steps took."""
    from plimsoll.core.units import parse_quantity  # noqa: PLC0415 - rare

    asked = parse_quantity((raw["spec"].get("sizing") or {}).get("extraReserve", 0))
    learned = capacity.get("learned") or {}
    users, rest = min(size, asked), max(0, size - asked)
    if users:
        yield _term("extra: asked for", -users, "spec.sizing.extraReserve", mark="r")
    told = min(rest, learned.get("bytes", 0))
    if told:
        yield _term(
            "extra: learned",
            -told,
            f"ConfigMap plimsoll-learned, from server {learned['from']}",
            mark="r",
        )
    if rest - told:
        steps = capacity.get("shrinkSteps", 0)
        yield _term(
            "extra: found out",
            -(rest - told),
            f"{steps} steps after running out of memory",
            mark="r",
        )


def _term(name: str, size: int, origin: str, *, mark: str) -> dict[str, Any]:
    return {"name": name, "bytes": size, "from": origin, "mark": mark}


def _mode_why(effective: Mapping[str, Any]) -> str | None:
    known = effective.get("modeReason")
    if known:
        return str(known)
    return {
        "Stamped": "a sizing pod found a GPU; the number stands in the pod template",
        "Fixed": "spec.sizing says so",
        "Engine": "spec.sizing says so",
        "InPod": "each server measures its own GPU",
    }.get(str(effective.get("mode")))


def _strategy(effective: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "is": effective.get("strategy"),
        "maxSurge": effective.get("maxSurge"),
        "maxUnavailable": effective.get("maxUnavailable"),
        "why": effective.get("strategyReason"),
    }


def _corrections(status: Mapping[str, Any], capacity: Mapping[str, Any]) -> Iterator[str]:
    """What happened to the number after it was measured."""
    steps, predicted = capacity.get("shrinkSteps"), capacity.get("predictedTokens")
    if steps:
        yield f"made smaller {steps} times after the engine ran out of memory; first {predicted:,} tokens"
    learned = capacity.get("learned")
    if learned:
        yield (
            f"{format_bytes(learned['bytes'])} less at once, because server {learned['from']} needed them "
            f"on {learned['at'][:10]}"
        )
    rollout = status.get("rollout") or {}
    if rollout.get("resizes"):
        yield f"measured again {rollout['resizes']} times, because a guard met another GPU or model"
    halted = rollout.get("halted")
    if halted:
        yield f"given up: {halted.get('reason')}: {halted.get('message')}"


def _drift(status: Mapping[str, Any], capacity: Mapping[str, Any]) -> dict[str, Any]:
    verified = _condition(status, "CapacityVerified")
    return {
        "engineReportedTokens": capacity.get("engineReportedTokens"),
        "percent": capacity.get("driftPercent"),
        "reason": verified.get("reason"),
        "message": verified.get("message"),
    }


def _first_notes(status: Mapping[str, Any], capacity: Mapping[str, Any]) -> Iterator[str]:
    ready = _condition(status, "Ready")
    if not capacity:
        yield f"There is no number yet: {ready.get('message') or 'the operator has not looked at it'}"
    elif ready.get("status") != "True" and ready.get("message"):
        yield f"Not Ready: {ready['message']}"


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        (c for c in status.get("conditions") or () if c.get("type") == kind), {}
    )
    return found
