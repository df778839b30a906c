"""What a token and a sequence cost in vLLM, and the flags that decide it. Bytes.

Source: ``v1/kv_cache_interface.py``, ``model_executor/layers/attention`` and ``layers/mamba`` of 0.33.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core import dtypes
from plimsoll.core.engines.versions import is_cpu_build, parse_release
from plimsoll.core.engines.vllm_flags import FLAGS
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import dataclass
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import CacheGroup, ModelSpec, StateGroup
    from plimsoll.core.request import SizingRequest

#: ``kvCacheDType`` -> vLLM's word.
KV_DTYPES: Final[Mapping[str, str]] = {
    "auto": "auto", "none": "auto", "bf16": "bfloat16", "bfloat16": "bfloat16",
    "fp16": "float16", "float16": "float16", "half": "float16",
    "fp8": "fp8", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "fp8_inc": "fp8_inc",
    "fp8_ds_mla": "fp8_ds_mla", "nvfp4_ds_mla": "nvfp4_ds_mla",
    "int8_per_token_head": "int8_per_token_head", "fp8_per_token_head": "fp8_per_token_head",
    "int4_per_token_head": "int4_per_token_head", "nvfp4": "nvfp4",
}  # fmt: skip
#: First release with the word; the others are older than anything known here.
KV_SINCE: Final[Mapping[str, tuple[int, int]]] = {
    "float16": (0, 22), "int8_per_token_head": (0, 22), "fp8_per_token_head": (0, 22),
    "nvfp4": (0, 22), "int4_per_token_head": (0, 32), "nvfp4_ds_mla": (0, 32),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Stored:
    """How a cache dtype is stored: bits per element, and bytes of scales."""

    bits: int
    per_row: int = 0  # per head and side, an fp32 scale
    per_16: int = 0  # per 16 elements


_STORED: Final[Mapping[str, _Stored]] = {
    "bfloat16": _Stored(16), "float16": _Stored(16), "float32": _Stored(32),
    "fp8": _Stored(8), "fp8_e4m3": _Stored(8), "fp8_e5m2": _Stored(8), "fp8_inc": _Stored(8),
    "int8_per_token_head": _Stored(8, per_row=4), "fp8_per_token_head": _Stored(8, per_row=4),
    "int4_per_token_head": _Stored(4, per_row=4), "nvfp4": _Stored(4, per_16=1),
}  # fmt: skip
#: Packed latent rows of DeepSeek's sparse attention, per token and layer.
_PACKED_ROWS: Final[Mapping[str, int]] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_PACKED_LATENT: Final = (512, 64)
_INDEX_BLOCK: Final = 128  # index keys are FP8 with one fp32 scale for so many elements
_WORDS: Final[Mapping[str, str]] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def kv_word(request: SizingRequest) -> str:
    """The word of vLLM for the wanted cache dtype, ``auto`` as it stands.

    Raises:
        BadArgument: vLLM, or this release of it, has no such cache dtype.
    """
    wanted = request.kv_cache_dtype.lower()
    word = KV_DTYPES.get(wanted)
    release = parse_release(request.engine_version)
    if word == "float16" and release and release[:2] < KV_SINCE[word]:
        word = "auto" if request.dtype.lower() in {"fp16", "float16", "half"} else None
    if word is None or (release and release[:2] < KV_SINCE.get(word, (0, 0))):
        raise BadArgument(
            f"vLLM {request.engine_version or ''} has no cache dtype {request.kv_cache_dtype[:64]!r}; "
            f"use one of {', '.join(w for w in KV_DTYPES if w not in KV_SINCE)}, or a newer release",
            field="spec.sizing.kvCacheDType",
            value=request.kv_cache_dtype,
        )
    return word


def compute_dtype(spec: ModelSpec, request: SizingRequest) -> str:
    """Dtype of weights and activations: the request's, else the config's; fp32 is taken as bf16."""
    if request.dtype.lower() != "auto":
        return dtypes.compute(request.dtype, "dtype")
    stated = dtypes.compute(spec.dtype or "bf16", "torch_dtype")
    return "bf16" if stated == "fp32" else stated


def resolved(spec: ModelSpec, request: SizingRequest) -> str:
    """The cache dtype with ``auto`` resolved: by the checkpoint, else the compute dtype."""
    word = kv_word(request)
    if word == "auto":
        return "fp8" if _checkpoint_fp8(spec) else _WORDS[compute_dtype(spec, request)]
    sparse = any(group.latent and group.index_dim for group in spec.caches)
    return "fp8_ds_mla" if sparse and word.startswith("fp8") else word


def _checkpoint_fp8(spec: ModelSpec) -> bool:
    """Whether the quantisation block asks for an FP8 cache (ModelOpt, compressed-tensors)."""
    block = spec.quantization or {}
    inner = block.get("quantization")
    names = [block.get("kv_cache_quant_algo")]
    if isinstance(inner, dict):
        names.append(inner.get("kv_cache_quant_algo"))
    scheme = block.get("kv_cache_scheme")
    scheme = scheme if isinstance(scheme, dict) else {}
    eight = (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    return eight or any(isinstance(name, str) and name.upper() == "FP8" for name in names)


def rank_heads(spec: ModelSpec, heads: int, tensor: int) -> int:
    """KV heads of one rank: divided, or replicated where there are too few.

    Raises:
        Unsupported: The query heads do not divide, or KV heads divide neither way.
    """
    even = heads % tensor == 0 or tensor % heads == 0
    if spec.heads % tensor or not even:
        raise Unsupported(
            f"vLLM cannot split {spec.heads} heads and {heads} KV heads of {spec.architecture} over {tensor} "
            "ranks; use a number of GPUs that divides them",
            reason="UnsupportedParallelism",
            field="spec.parallelism.tensor",
            value=tensor,
        )
    return max(1, heads // tensor)


def layer_bytes(spec: ModelSpec, group: CacheGroup, request: SizingRequest) -> int:
    """Bytes per token of one layer of this kind on one rank, index keys apart.

    Raises:
        Unsupported: The heads cannot be split over the ranks.
        BadArgument: A packed latent dtype for other than DeepSeek's rows.
    """
    word = resolved(spec, request)
    if word in _PACKED_ROWS:
        if not group.latent or (group.key_dim, group.value_dim) != _PACKED_LATENT:
            raise BadArgument(
                f"kvCacheDType {word} is for latent rows of 512 + 64 only; use auto or fp8",
                field="spec.sizing.kvCacheDType",
                value=word,
            )
        return _PACKED_ROWS[word]
    stored = _STORED[word]
    if group.latent:
        return ceil_div(group.row * stored.bits, 8)
    heads = rank_heads(spec, group.kv_heads, request.tensor)
    size = 0
    for dim in (group.key_dim, group.value_dim):
        size += ceil_div(dim * stored.bits, 8) + stored.per_16 * (dim // 16)
        # The CPU backend keeps no scales beside the rows.
        size += 0 if is_cpu_build(request.engine_version) else stored.per_row
    return heads * size


def index_bytes(group: CacheGroup) -> int:
    """Bytes per token of one layer's index keys: FP8 and a scale per 128."""
    return group.index_dim + ceil_div(group.index_dim, _INDEX_BLOCK) * 4 if group.index_dim else 0


def cross_bytes(spec: ModelSpec, request: SizingRequest) -> int:
    """Bytes per encoder position of one layer's cross attention on one rank."""
    if spec.encoder is None:
        return 0
    layers = max(1, sum(group.layers for group in spec.caches))
    stored = _STORED.get(resolved(spec, request), _Stored(16))
    share = ceil_div(ceil_div(spec.encoder.cross_elements, layers), min(request.tensor, spec.heads))
    return ceil_div(share * stored.bits, 8)


def cell(spec: ModelSpec, request: SizingRequest) -> int:
    """Bytes per token and rank while every layer keeps every token."""
    size = 0
    for group in spec.caches:
        here = group.layers * layer_bytes(spec, group, request)
        here += group.index_layers * index_bytes(group)
        size += here if group.stride == 1 else ceil_div(here, group.stride)
    return size


def state_of_layer(spec: ModelSpec, group: StateGroup, request: SizingRequest) -> int:
    """State of one sequence in one layer of this kind on one rank.

    The convolution keeps kernel - 1 columns in the model's dtype; recurrent states follow
    ``--mamba-ssm-cache-dtype``, else what the config demands, else fp32 for gated delta rules and the
    model's dtype for Mamba.
    """
    tensor = request.tensor if group.heads else 1
    values = FLAGS.parse(request.engine_args, owned=request.mode == "Engine").values
    model = compute_dtype(spec, request)
    conv_dtype = _dtype(values.get("mamba-cache-dtype"), model)
    wanted = values.get("mamba-ssm-cache-dtype") or request.state_dtype or group.stated_dtype
    own = conv_dtype if group.kind.startswith("mamba") else "fp32"
    recurrent = _dtype(wanted, own)
    # Groups that do not divide are extended, so that each rank has those its heads need.
    extra = tensor - group.groups if group.groups and group.groups % tensor else 0
    channels = ceil_div(group.conv_channels + max(0, extra) * group.group_channels, tensor)
    columns = max(0, group.conv_kernel - 1)
    return dtypes.bytes_of(channels * columns, conv_dtype) + dtypes.bytes_of(
        ceil_div(group.recurrent, tensor), recurrent
    )


def _dtype(text: str | None, default: str) -> str:
    if text is None or text.lower() in {"auto", "none"}:
        return default
    return dtypes.compute(text, "--mamba-ssm-cache-dtype")


def state(spec: ModelSpec, request: SizingRequest) -> int:
    """State of one sequence on one rank, all layers, as stored before any padding."""
    return sum(group.layers * state_of_layer(spec, group, request) for group in spec.states)
