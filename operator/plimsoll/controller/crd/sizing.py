"""Reads ``spec.sizing``: how the number is found, and what happens when it was too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.controller.crd.fields import (
    Fields,
    InvalidSpec,
    invalid,
    optional_quantity,
    quantity,
)
from plimsoll.controller.crd.types import (
    AUTO,
    ENGINE,
    FIXED,
    INPOD,
    NVML,
    STAMPED,
    TORCH,
    OnOutOfMemory,
    Sizing,
)
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

# Absent is Auto: there is no word for it, so that absence has one spelling.
MODES: Final = (STAMPED, INPOD, FIXED, ENGINE)
PROBES: Final = (NVML, TORCH)
STATE_DTYPES: Final = ("auto", "bf16", "fp16", "fp32")
SHRINK: Final = "Shrink"
OUT_OF_MEMORY_ACTIONS: Final = (SHRINK, "None")
# In the spelling of core.dtypes; what each engine stores its cache in.
KV_CACHE_DTYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "LightLLM": ("auto", "bf16", "fp16", "fp32", "fp8", "int8", "int4"),
    "VLLM": ("auto", "bf16", "fp16", "fp8", "nvfp4"),
    "SGLang": ("auto", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"),
    "TGI": ("auto", "bf16", "fp16", "fp8"),
    "TensorRTLLM": ("auto", "bf16", "fp16", "fp8", "nvfp4"),
    "LlamaCpp": (
        "auto", "bf16", "fp16", "fp32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
    ),
}  # fmt: skip
MAX_TOKENS: Final = 1_000_000_000

_FIELDS: Final = frozenset({
    "mode", "probe", "maxTotalTokenNum", "minTotalTokenNum", "kvCacheBytes", "contextLength",
    "prefillTokens", "maxConcurrentRequests", "cudaGraphs", "kvCacheDType", "stateDType",
    "prefixCaching", "extraReserve", "onOutOfMemory",
})  # fmt: skip


def parse_sizing(spec: Fields, engine: str) -> Sizing:
    """The field ``sizing`` of the spec.

    Args:
        spec: the spec.
        engine: the engine's type, which decides the cache dtypes.

    Raises:
        InvalidSpec: a field of it is unknown, of the wrong kind, or at odds with another.
    """
    sizing = spec.child("sizing", _FIELDS)
    graphs = sizing.child("cudaGraphs", {"enabled", "maxBatch"})
    found = Sizing(
        mode=sizing.choice("mode", MODES) if sizing.has("mode") else AUTO,
        probe=sizing.choice("probe", PROBES) if sizing.has("probe") else None,
        max_total_token_num=sizing.integer("maxTotalTokenNum", 1, MAX_TOKENS),
        min_total_token_num=sizing.integer("minTotalTokenNum", 1, MAX_TOKENS),
        kv_cache_bytes=optional_quantity(sizing, "kvCacheBytes"),
        context_length=sizing.integer("contextLength", 1, MAX_TOKENS),
        prefill_tokens=sizing.integer("prefillTokens", 1, MAX_TOKENS),
        max_concurrent_requests=sizing.integer("maxConcurrentRequests", 1, 65_536),
        cuda_graphs=graphs.flag("enabled", default=True),
        cuda_graph_max_batch=graphs.integer("maxBatch", 1, 65_536),
        kv_cache_dtype=sizing.choice("kvCacheDType", KV_CACHE_DTYPES[engine], "auto"),
        state_dtype=_state_dtype(sizing),
        prefix_caching=sizing.flag("prefixCaching", default=True),
        extra_reserve=quantity(sizing.at("extraReserve"), sizing.get("extraReserve", 0), least=0),
        on_out_of_memory=_on_out_of_memory(sizing),
    )
    _check(sizing, found)
    return found


def _check(sizing: Fields, found: Sizing) -> None:
    upper, lower = found.max_total_token_num, found.min_total_token_num
    fixed = found.mode == FIXED
    if fixed and (upper is None) == (found.kv_cache_bytes is None):
        need = "given when spec.sizing.mode is Fixed (or spec.sizing.kvCacheBytes, but not both)"
        raise invalid(sizing.at("maxTotalTokenNum"), upper, need)
    if not fixed and found.kv_cache_bytes is not None:
        need = "left out unless spec.sizing.mode is Fixed"
        raise invalid(sizing.at("kvCacheBytes"), found.kv_cache_bytes, need)
    if upper is not None and lower is not None and lower > upper:
        raise invalid(sizing.at("minTotalTokenNum"), lower, f"at most maxTotalTokenNum, {upper}")


def _on_out_of_memory(sizing: Fields) -> OnOutOfMemory:
    found = sizing.child("onOutOfMemory", {"action", "stepPercent", "minStep", "maxSteps"})
    return OnOutOfMemory(
        shrink=found.choice("action", OUT_OF_MEMORY_ACTIONS, SHRINK) == SHRINK,
        step_percent=found.integer("stepPercent", 1, 50, default=5),
        min_step=quantity(found.at("minStep"), found.get("minStep", GIB), least=1),
        max_steps=found.integer("maxSteps", 0, 16, default=3),
    )


def _state_dtype(sizing: Fields) -> str | None:
    """None for the engine's own choice, which has a spelling because ``kvCacheDType`` has one."""
    chosen = sizing.choice("stateDType", STATE_DTYPES, "auto")
    return None if chosen == "auto" else chosen


__all__ = ["KV_CACHE_DTYPES", "MAX_TOKENS", "MODES", "InvalidSpec", "parse_sizing"]
