"""A smaller pool for an engine that ran out of device memory: how much, and how far."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.report import token_limit
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer


# What the number of tokens means where they all have one size.
ONE_SIZE: Final = "AllLayersFull"
# What engines said of a pool, in the keys of the status.
REPORTED: Final = frozenset({"engineReportedTokens", "driftPercent"})


def step_bytes(server: InferenceServer, pool: int) -> int:
    """Bytes that the next step takes off a pool of that many bytes.

    A share of a small pool is nothing, so there is a least step; both are the user's.
    """
    policy = server.spec.sizing.on_out_of_memory
    return max(pool * policy.step_percent // 100, policy.min_step)


def shrunk(server: InferenceServer, capacity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The capacity with a pool that is one step smaller, or None where nothing useful is left."""
    used = _used(capacity)
    smaller = _with_pool(server, capacity, used - step_bytes(server, used))
    if smaller is None:
        return None
    return {**smaller, "shrinkSteps": capacity.get("shrinkSteps", 0) + 1}


def reduced(
    server: InferenceServer, capacity: Mapping[str, Any], size: int
) -> dict[str, Any] | None:
    """The capacity with that many bytes left free for the engine beside its reserve.

    None where they are free as it is, because the user set a limit, and where nothing useful is left.
    """
    pool = capacity["breakdown"]["kv"] - size
    return _with_pool(server, capacity, pool) if pool < _used(capacity) else None


def _with_pool(
    server: InferenceServer, capacity: Mapping[str, Any], pool: int
) -> dict[str, Any] | None:
    """The capacity with a smaller pool, or None where nothing useful is left.

    What the pool loses the reserve gains, as its term ``extra``: the terms still add up, and the
    status shows what was learnt.
    """
    terms = capacity["breakdown"]
    if pool <= 0:
        return None
    tokens = _tokens(capacity, pool)
    asked = server.spec.sizing
    if tokens < max(asked.min_total_token_num or 1, asked.context_length or 1):
        return None
    learnt = terms["reserve"].get("extra", 0) + terms["kv"] - pool
    reserve = {**terms["reserve"], "extra": learnt}
    context = min(capacity["contextLength"], tokens)
    return {
        # What engines reported of the larger pool says nothing about this one.
        **{key: value for key, value in capacity.items() if key not in REPORTED},
        "breakdown": {**terms, "kv": pool, "reserve": reserve},
        "kvCacheBytes": pool,
        "maxTotalTokenNum": tokens,
        "contextLength": context,
        "concurrencyAtContext": _concurrency(capacity, tokens, context),
        **({"blocks": tokens // capacity["blockTokens"]} if "blockTokens" in capacity else {}),
        **_pinned(capacity, pool, tokens, context),
    }


def _used(capacity: Mapping[str, Any]) -> int:
    """Bytes that the engine makes its pool of: less than there are, where the user set a limit.

    A step off what nobody uses would change nothing, and the same crash would come again.
    """
    most: int = capacity["breakdown"]["kv"]
    pinned = (capacity.get("pinned") or {}).get("kvCacheBytes")
    if pinned is not None:
        return min(most, int(pinned))
    if capacity["tokenMeaning"] != ONE_SIZE:
        return most
    tokens = int(capacity["maxTotalTokenNum"])
    return min(most, int(capacity["fixedPools"]) + tokens * int(capacity["bytesPerToken"]))


def _tokens(capacity: Mapping[str, Any], pool: int) -> int:
    """Tokens of the smaller pool: by the size of one, or by proportion where they have no one size."""
    before, granule = int(capacity["maxTotalTokenNum"]), int(capacity["granule"])
    if capacity["tokenMeaning"] == ONE_SIZE:
        most = token_limit(pool, capacity["fixedPools"], capacity["bytesPerToken"], granule)
        return min(before, most)
    return int(before * pool // _used(capacity) // granule * granule)


def _pinned(capacity: Mapping[str, Any], pool: int, tokens: int, context: int) -> dict[str, Any]:
    pinned = capacity.get("pinned")
    if pinned is None:
        return {}
    smaller = {"maxTotalTokenNum": tokens, "contextLength": context}
    if "kvCacheBytes" in pinned:
        smaller["kvCacheBytes"] = pool
    changed = {key: value for key, value in smaller.items() if key in pinned}
    return {"pinned": {**pinned, **changed}}


def _concurrency(capacity: Mapping[str, Any], tokens: int, context: int) -> dict[str, Any]:
    requests = min(Decimal(tokens) / context, Decimal(capacity["maxSequences"]))
    return {"context": context, "requests": str(requests.quantize(Decimal("0.01")))}


def size_of(capacity: Mapping[str, Any]) -> str:
    """The pool in the words of a message."""
    return f"{capacity['maxTotalTokenNum']} tokens"


def beside_others(pod: str, capacity: Mapping[str, Any]) -> str:
    """There is no further step, and other servers get on with the pool."""
    return (
        f"The engine of pod {pod} runs out of device memory with {size_of(capacity)}, with which "
        "other servers go on. Look at what else holds memory on its device; the kubelet tries again "
        "by itself."
    )


_TERMS: Final = (("free", "freeAfterInit"), ("weights", "weights"), ("safety", "safety"))


def exhausted(server: InferenceServer, capacity: Mapping[str, Any]) -> str:
    """Why there is no further step, with the terms of the last pool, and what to do."""
    terms, steps = capacity["breakdown"], capacity.get("shrinkSteps", 0)
    parts = [f"{word} {_gib(terms[key])}" for word, key in _TERMS]
    parts.append(f"reserve {_gib(sum(terms['reserve'].values()))}")
    most = server.spec.sizing.on_out_of_memory.max_steps
    why = f"{steps} of {most} smaller pools" if steps else "no smaller pool was allowed or possible"
    return (
        f"The engine still runs out of device memory with {size_of(capacity)} ({why}; KV cache "
        f"{_gib(terms['kv'])}, {', '.join(parts)}), so it is not started again. Raise "
        "spec.sizing.extraReserve, lower spec.sizing.prefillTokens or "
        "spec.sizing.maxConcurrentRequests, or allow more steps in spec.sizing.onOutOfMemory."
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
