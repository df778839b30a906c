"""What a token and a sequence cost in LightLLM: one formula for each of its memory managers.

Source: ``lightllm/common/kv_cache_mem_manager`` and the classes of its models, main of August 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core import dtypes
from plimsoll.core.engines.versions import parse_version
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import CacheGroup, ModelSpec
    from plimsoll.core.engines.base import Engine
    from plimsoll.core.request import SizingRequest

KV_TYPE_SINCE: Final = (1, 2)

#: ``kvCacheDType`` -> ``--llm_kv_type``.
KV_TYPES: Final[Mapping[str, str]] = {
    "auto": "None", "none": "None", "bf16": "None", "fp16": "None", "fp32": "None",
    "int8": "int8kv", "int8kv": "int8kv", "int4": "int4kv", "int4kv": "int4kv",
    "fp8": "fp8kv_sph", "fp8kv_sph": "fp8kv_sph", "fp8kv_spt": "fp8kv_spt", "fp8kv_dsa": "fp8kv_dsa",
}  # fmt: skip
_PLAIN: Final = frozenset({"bf16", "fp16", "fp32"})
#: Its Mixtral class ignores llm_kv_type and keeps the compute dtype.
_NO_KV_TYPE: Final = frozenset({"mixtral"})
_QUANT_GROUP: Final = 8  # int8kv and int4kv keep one scale in the compute dtype per 8 elements
_ROW_ALIGNMENT: Final = 16  # bytes to which rows with index keys are padded
_LATENT_SCALE: Final = 2  # bytes per layer and token of a latent cache in fp8
_STATE_WORDS: Final[Mapping[str, str]] = {"fp32": "float32", "bf16": "bfloat16"}
_DSA_SCALES: Final = 16  # bytes of scales of a sparse latent row in fp8


def cell(engine: Engine, spec: ModelSpec, request: SizingRequest) -> int:
    """KV bytes per token and rank. Windows are ignored: every layer keeps every token.

    Raises:
        Unsupported: Heads that cannot be split, or a cache dtype without a formula.
        BadArgument: A cache dtype that is neither the compute dtype nor one of LightLLM's.
    """
    kv_type = "None" if spec.family in _NO_KV_TYPE else kv_type_of(request)
    element = dtypes.bytes_of(1, compute_dtype(spec, request))
    if kv_type == "None":
        _check_plain(request, compute_dtype(spec, request))
    total = 0
    rows: list[tuple[int, int]] = []  # (layers, elements) of plain attention
    for group in spec.caches:
        if group.latent:
            total += _latent(group, kv_type, element)
            continue
        heads = rank_heads(engine, spec, group.kv_heads, request.tensor)
        rows.append((group.layers, heads * (group.key_dim + group.value_dim)))
    # One buffer for all layers: where their rows differ, each is as wide as the widest.
    elements = sum(layers for layers, _ in rows) * max((row for _, row in rows), default=0)
    match kv_type:
        case "int8kv":
            return total + elements + elements // _QUANT_GROUP * element
        case "int4kv":
            return total + elements // 2 + elements // _QUANT_GROUP * element
        case "fp8kv_sph" | "fp8kv_spt" | "fp8kv_dsa":
            return total + elements
    return total + elements * element


def rank_heads(engine: Engine, spec: ModelSpec, kv_heads: int, tensor: int) -> int:
    """KV heads of one group on one rank."""
    if kv_heads == spec.kv_heads:
        return engine.rank_kv_heads(spec, tensor)
    return max(1, ceil_div(kv_heads, tensor))


def _latent(group: CacheGroup, kv_type: str, element: int) -> int:
    """A latent row serves all heads, so each rank keeps all of it."""
    if group.index_dim == 0:
        size = group.row * element if kv_type == "None" else group.row + _LATENT_SCALE
        return group.layers * size
    index = group.index_dim + ceil_div(group.index_dim, 128) * 4  # fp8, one fp32 scale per 128
    padded = ceil_div(index, _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    if kv_type == "fp8kv_dsa":
        # 512 in fp8, scales, 64 of position in bf16, the index key; the whole row is padded.
        row = group.key_dim + _DSA_SCALES + group.value_dim * 2 + index
        return group.layers * ceil_div(row, _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    return group.layers * (group.row * element + padded)


def state_word(request: SizingRequest) -> str:
    """``--linear_att_ssm_data_type``: its spelling of the states' dtype, fp32 unless stated.

    Raises:
        BadArgument: LightLLM keeps states in fp32 or bf16 only; another word is a KeyError at its start.
    """
    stated = request.state_dtype
    if stated in {None, "auto"}:
        return "float32"
    word = _STATE_WORDS.get(dtypes.compute(stated or "", "stateDType"))
    if word is None:
        raise BadArgument(
            f"LightLLM keeps recurrent states in fp32 or bf16, not in {stated}; use one of these",
            field="spec.sizing.stateDType",
            value=stated,
        )
    return word


def state(spec: ModelSpec, request: SizingRequest) -> int:
    """State bytes per sequence and rank: kernel - 1 columns, recurrent states in fp32 unless stated."""
    if not spec.states:
        return 0
    conv = dtypes.bytes_of(1, compute_dtype(spec, request))
    recurrent = dtypes.bytes_of(1, dtypes.canonical(state_word(request), "stateDType"))
    total = 0
    for group in spec.states:
        size = group.conv_channels * max(0, group.conv_kernel - 1) * conv
        size += group.recurrent * recurrent
        total += group.layers * ceil_div(size, request.tensor if group.heads else 1)
    return total


def compute_dtype(spec: ModelSpec, request: SizingRequest) -> str:
    """Dtype that the weights are cast to: the request's, else the config's, else bf16."""
    if request.dtype != "auto":
        return dtypes.compute(request.dtype, "dtype")
    return dtypes.compute(spec.dtype or "bf16", "torch_dtype")


def kv_type_of(request: SizingRequest) -> str:
    """``--llm_kv_type`` for the wanted cache dtype.

    Raises:
        BadArgument: Not one of LightLLM's.
        Unsupported: A version without the flag.
    """
    name = request.kv_cache_dtype.lower()
    name = name if name in KV_TYPES else dtypes.ALIASES.get(name, name)
    if name not in KV_TYPES:
        raise BadArgument(
            f"LightLLM has no cache dtype {request.kv_cache_dtype!r}; use one of {', '.join(KV_TYPES)}",
            field="spec.sizing.kvCacheDType",
            value=request.kv_cache_dtype,
        )
    kv_type = KV_TYPES[name]
    version = parse_version(request.engine_version)
    if kv_type != "None" and version is not None and version < KV_TYPE_SINCE:
        raise Unsupported(
            f"LightLLM {request.engine_version} has no --llm_kv_type; use 1.2 or newer, or kvCacheDType auto",
            reason="UnsupportedEngineVersion",
            field="spec.sizing.kvCacheDType",
            value=request.kv_cache_dtype,
        )
    return kv_type


def _check_plain(request: SizingRequest, compute: str) -> None:
    wanted = dtypes.ALIASES.get(request.kv_cache_dtype, request.kv_cache_dtype)
    if wanted in _PLAIN and dtypes.bytes_of(1, wanted) != dtypes.bytes_of(1, compute):
        raise BadArgument(
            f"LightLLM keeps its cache in the compute dtype {compute}; kvCacheDType {wanted} needs dtype {wanted}",
            field="spec.sizing.kvCacheDType",
            value=wanted,
        )
