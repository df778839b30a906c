"""What a token and a sequence cost in SGLang, and the settings that decide it. Bytes.

Source: ``srt/model_executor/pool_configurator.py``, ``srt/mem_cache/kv_cache_configurator.py`` and
``srt/configs/mamba_utils.py`` of 0.5.23; the plain and latent cells are the same since 0.4.6.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from plimsoll.core import dtypes
from plimsoll.core.engines import sglang_defaults as defaults
from plimsoll.core.engines.peaks import cells_of_heads
from plimsoll.core.engines.sglang_flags import FLAGS
from plimsoll.core.engines.values import count, share
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import dataclass
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import CacheGroup, ModelSpec, StateGroup
    from plimsoll.core.request import SizingRequest

#: ``kvCacheDType`` -> SGLang's word.
KV_DTYPES: Final[Mapping[str, str]] = {
    "auto": "auto", "none": "auto", "bf16": "bf16", "bfloat16": "bf16", "fp16": "auto",
    "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "mxfp8": "mxfp8",
    "nvfp4": "nvfp4", "fp4_mx_block16": "fp4_mx_block16", "fp4_e2m1": "fp4_e2m1",
}  # fmt: skip
#: SGLang's word -> bits of one element, elements that share one byte of scale (0: no scales).
_BITS: Final[Mapping[str, tuple[int, int]]] = {
    "bf16": (16, 0), "fp16": (16, 0), "fp32": (32, 0), "fp8_e4m3": (8, 0), "fp8_e5m2": (8, 0),
    "mxfp8": (8, 32), "nvfp4": (4, 16), "fp4_mx_block16": (4, 16), "fp4_e2m1": (4, 16),
}  # fmt: skip
_INDEX_BLOCK: Final = 128  # index keys are FP8 with one fp32 scale for so many elements
_MAMBA_RATIO: Final = Fraction(9, 10)
_SLOTS_PER_REQUEST: Final = 3  # of the state cache with prefix caching; 5 with an extra buffer
_EAGLE_LAYERS: Final = 1
_NO_SPLIT: Final = frozenset({"NEXTN", "EAGLE", "EAGLE3", "STANDALONE", "MTP"})
_NUMBER: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))?(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
_SUFFIX: Final = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags that decide what SGLang stores, with its defaults filled in.

    Attributes:
        values: The user's flags by canonical name.
        release: How this version behaves.
        attention_ranks: Ranks that share one attention: tensor / groups of data-parallel attention.
        groups: Groups of data-parallel attention.
        kv: SGLang's word for the cache dtype, ``auto`` resolved.
        ratio: Windowed tokens per full token.
        state_ratio: State memory per KV memory.
        prefixes: Whether prefixes are cached.
        speculative: Name of the speculative algorithm; None without.
    """

    values: Mapping[str, str | None]
    release: defaults.Release
    attention_ranks: int
    groups: int
    kv: str
    ratio: Fraction
    state_ratio: Fraction
    prefixes: bool
    speculative: str | None

    def number(self, flag: str) -> int | None:
        """A whole number among the flags, with SGLang's suffixes (1k is 1,000, 1Ki 1,024)."""
        return whole(self.values.get(flag), flag) if flag in self.values else None


def whole(text: str | None, flag: str) -> int:
    """A number as SGLang's parser reads it.

    Raises:
        BadArgument: Not such a number.
    """
    match = _NUMBER.fullmatch(text or "")
    if (
        match is None
        or (match[2] and (match[3] or "").endswith("i"))
        or (match[2] and not match[3])
    ):
        raise BadArgument(
            f"--{flag} needs a whole number, not {(text or '')[:32]!r}",
            field=f"--{flag}",
            value=text,
        )
    return int(Fraction(f"{match[1]}.{match[2] or 0}") * _SUFFIX[match[3] or ""])


def settings_of(spec: ModelSpec, request: SizingRequest, product: str = "") -> Settings:
    """Read the flags once.

    Raises:
        BadArgument: A value that makes no sense, or a cache dtype that SGLang does not have.
    """
    engine_mode = request.mode == "Engine"
    values = FLAGS.parse(request.engine_args, owned=engine_mode).values
    release = defaults.release_of(request.engine_version)
    groups = 1
    if "enable-dp-attention" in values:
        groups = count(values, "dp-size", 1)
        if groups < 1 or request.tensor % groups:
            raise BadArgument(
                f"--dp-size {groups} does not divide the {request.tensor} tensor-parallel ranks",
                field="--dp-size",
                value=groups,
            )
    # What Plimsoll writes is always 0.8; SGLang itself takes another ratio for a few classes.
    own = defaults.WINDOW_RATIOS.get(spec.architecture, defaults.WINDOW_RATIO)
    ratio = own if engine_mode else defaults.WINDOW_RATIO
    return Settings(
        values=values,
        release=release,
        attention_ranks=request.tensor // groups,
        groups=groups,
        kv=_kv_word(spec, request, product),
        ratio=_fraction(values, "swa-full-tokens-ratio", ratio, most=1),
        state_ratio=_fraction(values, "mamba-full-memory-ratio", _MAMBA_RATIO, most=1000),
        prefixes="disable-radix-cache" not in values and request.prefix_caching is not False,
        speculative=values.get("speculative-algorithm"),
    )


def _fraction(
    values: Mapping[str, str | None], flag: str, default: Fraction, most: int
) -> Fraction:
    text = values.get(flag)
    if flag not in values or text is None:
        return default
    if most == 1:
        share(text, f"--{flag}")
    try:
        value = Fraction(text) if len(text) <= 16 and "/" not in text else Fraction(0)  # noqa: PLR2004
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 0 < value <= most:
        raise BadArgument(
            f"--{flag} is {text[:32]!r}; it must be above 0 and at most {most}",
            field=f"--{flag}",
            value=text,
        )
    return value


def kv_word(request: SizingRequest) -> str:
    """SGLang's word for the wanted cache dtype, ``auto`` as it stands.

    Raises:
        BadArgument: SGLang has no such cache dtype.
    """
    wanted = request.kv_cache_dtype.lower()
    if wanted not in KV_DTYPES:
        raise BadArgument(
            f"SGLang has no cache dtype {request.kv_cache_dtype[:64]!r}; use one of {', '.join(KV_DTYPES)}",
            field="spec.sizing.kvCacheDType",
            value=request.kv_cache_dtype,
        )
    return KV_DTYPES[wanted]


def _kv_word(spec: ModelSpec, request: SizingRequest, product: str) -> str:
    """The cache dtype with ``auto`` resolved: by the checkpoint, the card, the compute dtype."""
    word = kv_word(request)
    if word != "auto":
        return word
    if _checkpoint_fp8(spec):
        return "fp8_e4m3"
    sparse = any(group.latent and group.index_dim for group in spec.caches)
    if sparse and request.mode == "Engine" and defaults.is_blackwell(product):
        return "fp8_e4m3"
    return compute_dtype(spec, request)


def _checkpoint_fp8(spec: ModelSpec) -> bool:
    block = spec.quantization or {}
    inner = block.get("quantization")
    algorithms = [block.get("kv_cache_quant_algo")]
    if isinstance(inner, dict):
        algorithms.append(inner.get("kv_cache_quant_algo"))
    return any(isinstance(name, str) and name.upper() == "FP8" for name in algorithms)


def compute_dtype(spec: ModelSpec, request: SizingRequest) -> str:
    """Dtype of weights and activations: the request's, else the config's; fp32 is taken as fp16."""
    if request.dtype.lower() != "auto":
        return dtypes.compute(request.dtype, "dtype")
    stated = dtypes.compute(spec.dtype or "bf16", "torch_dtype")
    return "fp16" if stated == "fp32" else stated


@dataclass(frozen=True, slots=True)
class Cells:
    """Bytes per token and rank: of the layers that keep every token, and of those with a window."""

    full: int
    windowed: int
    window: int

    def combined(self, ratio: Fraction) -> int:
        """Bytes of one token of ``max_total_num_tokens``, rounded up."""
        if not self.full:
            return self.windowed
        size = self.full + ratio * self.windowed
        return ceil_div(size.numerator, size.denominator)


def cells(spec: ModelSpec, settings: Settings, tensor: int) -> Cells:
    """Cost of a token on one rank.

    Raises:
        Unsupported: The heads cannot be split over the ranks.
    """
    own_pool = pools_windows(spec, settings)
    missing = _rows(spec)
    full = windowed = window = 0
    for group in spec.caches:
        layers = ceil_div(group.layers * missing.numerator, missing.denominator)
        size = _group(spec, group, layers, settings, tensor)
        if own_pool and group.window is not None:
            windowed += size
            window = max(window, group.window)
        else:
            full += size
    if spec.encoder is not None:
        # Cross-attention layers have a row for every token of the one pool.
        full += _elements(ceil_div(spec.encoder.cross_elements, settings.attention_ranks), settings)
    return _with_draft(spec, settings, Cells(full, windowed, window))


def pools_windows(spec: ModelSpec, settings: Settings) -> bool:
    """Whether windowed layers get a pool of their own."""
    return (
        "windows" in settings.release.features
        and "disable-hybrid-swa-memory" not in settings.values
        and spec.architecture in defaults.WINDOW_POOLS
        and bool(spec.windowed)
    )


def _rows(spec: ModelSpec) -> Fraction:
    """Layers per cache: SGLang gives each layer a row, also where a model shares caches."""
    held = sum(group.layers for group in spec.caches)
    if spec.states or spec.encoder or not 0 < held < spec.layers:
        return Fraction(1)
    return Fraction(spec.layers, held)


def _group(spec: ModelSpec, group: CacheGroup, layers: int, settings: Settings, tensor: int) -> int:
    if group.latent:
        size = _latent(group, layers, settings)
    else:
        heads = cells_of_heads(group.kv_heads, settings.attention_ranks)
        if spec.heads % settings.attention_ranks:
            raise Unsupported(
                f"SGLang cannot split {spec.heads} heads of {spec.architecture} over {tensor} ranks; "
                "use a number of GPUs that divides them",
                reason="UnsupportedParallelism",
                field="spec.parallelism.tensor",
                value=tensor,
            )
        size = _elements(layers * heads * (group.key_dim + group.value_dim), settings)
        if group.index_dim:  # sparse attention over plain heads keeps its index keys in 16 bit
            size += group.index_layers * group.index_dim * 2
    return size if group.stride == 1 else ceil_div(size, group.stride)


def _latent(group: CacheGroup, layers: int, settings: Settings) -> int:
    """One row for all heads, on every rank; sparse ones add an index key and, in FP8, scales."""
    sparse = group.index_dim > 0
    raw = "trtllm" in {
        settings.values.get("dsa-prefill-backend"), settings.values.get("dsa-decode-backend")
    }  # fmt: skip
    if sparse and settings.kv == "fp8_e4m3" and not raw:
        row = group.key_dim + group.key_dim // _INDEX_BLOCK * 4 + group.value_dim * 2
        size = layers * row
    else:
        size = _elements(layers * group.row, settings)
    index = group.index_dim + group.index_dim // _INDEX_BLOCK * 4
    return size + (group.index_layers * index if sparse else 0)


def _elements(elements: int, settings: Settings) -> int:
    bits, block = _BITS[settings.kv]
    size = ceil_div(elements * bits, 8)
    scaled = block and ("fp4Scales" in settings.release.features or settings.kv == "mxfp8")
    return size + ceil_div(elements, block) if scaled else size


def _with_draft(spec: ModelSpec, settings: Settings, plain: Cells) -> Cells:
    """EAGLE and MTP: the draft's layers are charged at the target's size per layer."""
    name = (settings.speculative or "").upper()
    if name not in _NO_SPLIT:
        return plain
    layers = _EAGLE_LAYERS if name.startswith("EAGLE") else max(spec.draft_layers, _EAGLE_LAYERS)
    held = max(1, sum(group.layers for group in spec.caches if group.window is None))
    return Cells(plain.full + plain.full * layers // held, plain.windowed, plain.window)


def state_bytes(spec: ModelSpec, request: SizingRequest, settings: Settings) -> int:
    """State of one sequence on one rank: convolution in bf16, recurrent part in fp32 unless stated."""
    return sum(_state(group, request, settings) for group in spec.states)


def _state(group: StateGroup, request: SizingRequest, settings: Settings) -> int:
    ranks = settings.attention_ranks if group.heads else 1
    stated = settings.values.get("mamba-ssm-dtype") or request.state_dtype or group.stated_dtype
    recurrent = "fp32"
    if stated is not None and stated.lower() != "auto":
        recurrent = dtypes.compute(stated, "--mamba-ssm-dtype")
    # Groups that do not divide are extended, so that each rank has those its heads need.
    extra = ranks - group.groups if group.groups and group.groups % ranks else 0
    channels = ceil_div(group.conv_channels + max(0, extra) * group.group_channels, ranks)
    conv = dtypes.bytes_of(channels * max(0, group.conv_kernel - 1), "bf16")
    size = conv + dtypes.bytes_of(ceil_div(group.recurrent, ranks), recurrent)
    return group.layers * size


def slots_per_request(settings: Settings) -> int:
    """State slots that one running request may hold."""
    if not settings.prefixes:
        return 1
    buffered = settings.values.get("mamba-radix-cache-strategy") == "extra_buffer"
    return _SLOTS_PER_REQUEST + (2 if buffered else 0)
