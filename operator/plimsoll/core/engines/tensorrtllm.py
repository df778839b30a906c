"""TensorRT-LLM, PyTorch backend: a share of what is free at the measured peak.

``kv = (T - peak + temporary kv) * fraction``, then the smallest of that, ``max_gpu_total_bytes`` and the
bytes of ``max_tokens``. The peak is measured with dummy requests, graphs included, so a number that is
too large does no harm. One published start fits: 0.9 * (139.80 - 17.76 + 0.13) = 109.96 GiB.

``trtllm-serve`` has no flag for ``max_gpu_total_bytes``, only a YAML file, and Plimsoll writes no files.
So the fraction is pinned, which scales with what the engine measures, and the bytes are told in a note
for whoever keeps such a file. Source: the research on engines, section 5.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, ClassVar, Final

from plimsoll.core import dtypes
from plimsoll.core.engines.base import Allocation, Pinned, Situation
from plimsoll.core.engines.common import Common
from plimsoll.core.engines.owned import adopt_owned
from plimsoll.core.engines.peaks import activation, by_ranks, cells_of_heads, logits_peak
from plimsoll.core.engines.settle import Attempt, Wish, settle
from plimsoll.core.engines.tensorrtllm_flags import FLAGS
from plimsoll.core.engines.values import share
from plimsoll.core.engines.verdict import does_not_fit
from plimsoll.core.engines.versions import parse_version
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import replace
from plimsoll.core.units import MIB, ceil_div
from plimsoll.core.weights import ShardRules, shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import CacheGroup, ModelSpec, StateGroup
    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest
    from plimsoll.core.weights import Manifest, RankWeights

_KNOWN: Final = frozenset({(1, 2), (1, 3)})
#: ``kvCacheDType`` -> its word, bits per element, elements per byte of scale (0: no scales).
_KV: Final[Mapping[str, tuple[str, int, int]]] = {
    "auto": ("auto", 0, 0), "none": ("auto", 0, 0), "bf16": ("auto", 0, 0), "fp16": ("auto", 0, 0),
    "fp8": ("fp8", 8, 0), "fp8_e4m3": ("fp8", 8, 0), "nvfp4": ("nvfp4", 4, 16),
}  # fmt: skip
_BLOCK: Final = 32
_FRACTION: Final = Fraction(9, 10)
_MOST: Final = 950  # thousandths; the rest absorbs what is allocated after the measurement
_DEFAULT_REQUESTS: Final = 256
_DEFAULT_TOKENS: Final = 8192  # --max_num_tokens
_DEFAULT_CONTEXT: Final = 4096
_SAFETY_PERCENT: Final = 1
_INDEX_BLOCK: Final = 128

_PREINIT: Final = (51, 153, 155)  # hundredths of a GiB by ranks, as for the other engines
_PREINIT_WIDEST: Final = (90, 192, 194)
_NON_TORCH: Final = (25, 208, 217)
_WORKSPACE: Final = 512 * MIB
_GRAPH_ROW: Final = 2 * MIB
_FRAGMENTATION_PERMILLE: Final = 25


class TensorRTLLM(Common):
    """See the module's first lines."""

    flags: ClassVar[FlagTable] = FLAGS
    pipelines: ClassVar[bool] = True
    type: ClassVar[str] = "TensorRTLLM"
    default_port: ClassVar[int] = 8000
    health_path: ClassVar[str] = "/health"
    default_command: ClassVar[tuple[str, ...]] = ("trtllm-serve", "serve")
    formats: ClassVar[frozenset[str]] = frozenset({"safetensors", "pytorch"})
    kv_dtypes: ClassVar[Mapping[str, str]] = {name: row[0] for name, row in _KV.items()}
    token_meaning: ClassVar[str] = "AllLayersFull"  # noqa: S105 - not a secret
    confidence: ClassVar[str] = "estimated"

    def adopt(self, request: SizingRequest) -> tuple[SizingRequest, tuple[str, ...]]:
        """See Engine."""
        notes = []
        if parse_version(request.engine_version) not in _KNOWN:
            version = request.engine_version or "(none given)"
            notes.append(
                f"TensorRT-LLM version {version} is not known here; the widest reserve is used"
            )
        parsed = FLAGS.parse(request.engine_args, owned=request.mode == "Engine")
        if request.mode == "Engine":
            request = adopt_owned(FLAGS, request, parsed.values)
        notes += FLAGS.doubts(parsed, request.engine_env)
        return request, tuple(notes)

    def pinned_args(self, pinned: Pinned, request: SizingRequest) -> list[str]:
        """See Engine."""
        args = []
        if pinned.memory_fraction is not None:
            args.append(f"--kv_cache_free_gpu_memory_fraction={pinned.memory_fraction}")
        if pinned.prefill_tokens is not None:
            args.append(f"--max_num_tokens={pinned.prefill_tokens}")
        if pinned.max_sequences is not None:
            args.append(f"--max_batch_size={pinned.max_sequences}")
        if pinned.context_length is not None:
            args.append(f"--max_seq_len={pinned.context_length}")
        word = _kv(request)[0]
        if word != "auto":
            args.append(f"--kv_cache_dtype={word}")
        return args

    def serve_args(
        self, *, model_path: str, served_name: str, host: str, port: int, request: SizingRequest
    ) -> list[str]:
        """See Engine. The model is a positional argument."""
        args = [
            model_path,
            f"--served_model_name={served_name}",
            f"--host={host}",
            f"--port={port}",
            f"--tp_size={request.tensor}",
        ]
        return args + ([f"--pp_size={request.pipeline}"] if request.pipeline else [])

    def preinit(self, request: SizingRequest, *, wide: bool) -> int:
        """See Engine."""
        return by_ranks(_PREINIT_WIDEST if wide else _PREINIT, request.tensor)

    def rank_kv_heads(self, spec: ModelSpec, tensor: int) -> int:
        """See Engine. Divided, and replicated where there are fewer heads than ranks."""
        return cells_of_heads(spec.kv_heads, tensor)

    def cell(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. Windowed layers are counted in full: their pools are split by the engine."""
        if spec.encoder is not None:
            raise Unsupported(
                f"TensorRT-LLM shares its cache with the encoder's by a fraction of its own; "
                f"{spec.architecture} is not sized",
                reason="UnsupportedArchitecture",
                field="spec.engine.type",
                value=spec.family,
            )
        return sum(_group(group, spec, request) for group in spec.caches)

    def state(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine."""
        return sum(_state(group, spec, request) for group in spec.states)

    def rank_weights(
        self, spec: ModelSpec, manifest: Manifest, request: SizingRequest
    ) -> RankWeights:
        """See Engine."""
        rules = ShardRules(
            tensor=request.tensor,
            rank_kv_heads=1 if spec.latent else self.rank_kv_heads(spec, request.tensor),
            compute=_compute(spec, request),
            pipeline=request.pipeline or 1,
            latent_split=spec.latent,
        )
        return shard(manifest, spec, rules)

    def allocate(self, situation: Situation) -> Allocation:
        """See Engine."""
        request, limit = situation.request, situation.spec.context_length
        wanted = request.context_length or limit or _DEFAULT_CONTEXT
        context = min(wanted, limit) if limit else wanted
        tokens = request.prefill_tokens or _DEFAULT_TOKENS
        if request.mode == "Engine":
            return _engine(situation, context, tokens)
        return settle(situation, Wish(context, tokens), lambda c, p: _attempt(situation, c, p))


def _engine(s: Situation, context: int, prefill: int) -> Allocation:
    """Its own share of what the peak leaves free; the peak is our estimate."""
    flag = "kv-cache-free-gpu-memory-fraction"
    text = FLAGS.parse(s.request.engine_args, owned=True).values.get(flag)
    if text is not None:
        share(text, FLAGS.spell(flag))
    fraction = Fraction(text) if text is not None else _FRACTION
    peak = _peak(s, prefill)
    free = max(0, s.free_after_init - s.weights - sum(peak.values()))
    allocation = _pool(s, peak, ceil(free * (1 - fraction)), context, prefill)
    if allocation.tokens is None or allocation.tokens > 0:
        return allocation
    error = does_not_fit(
        s, peak, tokens=0, need=f"TensorRT-LLM needs a block of {_BLOCK}", field="--max_num_tokens"
    )
    return replace(allocation, error=error)


def _attempt(s: Situation, context: int, prefill: int) -> Attempt:
    """The table of terms less 1 %, as a share of what the engine will find free."""
    peak = _peak(s, prefill)
    beside = {
        "fragmentation": max(
            ceil_div(s.device_total * _FRAGMENTATION_PERMILLE * (2 if s.wide else 1), 1000),
            logits_peak(s.spec, _requests(s)),
        ),
        "extra": s.request.extra_reserve,
    }
    free = s.free_after_init - s.weights - sum(peak.values())
    left = free - sum(beside.values())
    wanted = left - ceil_div(max(left, 0) * _SAFETY_PERCENT, 100)
    share_of_free = floor(Fraction(1000 * wanted, free)) if free > 0 else 0
    thousandths = min(max(share_of_free, 1), _MOST)
    kv = max(free, 0) * thousandths // 1000
    allocation = _pool(s, {**peak, **beside}, left - kv, context, prefill)
    pinned = Pinned(
        max_total_token_num=allocation.tokens,
        max_sequences=allocation.sequences,
        context_length=context,
        prefill_tokens=prefill,
        kv_cache_bytes=allocation.kv,
        memory_fraction=f"{thousandths / 1000:.3f}",
        block_tokens=_BLOCK,
    )
    note = f"trtllm-serve takes bytes only from a YAML file: kv_cache_config: {{max_gpu_total_bytes: {kv}}}"
    need = ""
    if allocation.kv <= 0 or wanted <= 0:
        need = f"a block has {_BLOCK}"
    elif allocation.tokens is not None and allocation.tokens < context:
        need = f"one request needs {context}"
    done = replace(allocation, pinned=pinned, notes=(note,))
    return Attempt(done, need, "spec.sizing.contextLength")


def _pool(
    s: Situation, reserve: Mapping[str, int], safety: int, context: int, prefill: int
) -> Allocation:
    """Blocks of 32 tokens, after the states of one batch."""
    kv = s.free_after_init - s.weights - sum(reserve.values()) - safety
    states = sum(_state(group, s.spec, s.request) for group in s.spec.states)
    fixed = states * _requests(s)
    tokens: int | None = None
    if s.cell:
        tokens = max(0, kv - fixed) // (s.cell * _BLOCK) * _BLOCK
        if s.request.max_total_token_num is not None:
            tokens = min(tokens, s.request.max_total_token_num) // _BLOCK * _BLOCK
    return Allocation(
        reserve=reserve,
        safety=safety,
        kv=kv,
        fixed_pools=fixed,
        granule=_BLOCK,
        tokens=tokens,
        sequences=_requests(s),
        context_length=context,
        prefill_tokens=prefill,
        largest_request=context if tokens is None else min(context, tokens),
        blocks=None if tokens is None else tokens // _BLOCK,
        block_tokens=_BLOCK,
    )


def _peak(s: Situation, prefill: int) -> dict[str, int]:
    """What the engine's own measurement finds in use beside the weights."""
    wide = 2 if s.wide and s.request.mode != "Engine" else 1
    peak = activation(s.spec, tensor=s.request.tensor, tokens=prefill, sequences=_requests(s))
    return {
        "nonTorch": by_ranks(_NON_TORCH, s.request.tensor),
        "activation": peak * wide,
        "workspace": _WORKSPACE,
        "graphs": _GRAPH_ROW * wide * _requests(s) if s.request.cuda_graphs else 0,
    }


def _group(group: CacheGroup, spec: ModelSpec, request: SizingRequest) -> int:
    _, bits, block = _kv(request)
    bits = bits or 8 * dtypes.bytes_of(1, _compute(spec, request))
    heads = 1 if group.latent else cells_of_heads(group.kv_heads, request.tensor)
    elements = group.layers * heads * (group.key_dim + group.value_dim)
    size = ceil_div(elements * bits, 8) + (ceil_div(elements, block) if block else 0)
    if group.index_dim:  # FP8 with one fp32 scale per 128
        size += group.index_layers * (group.index_dim + ceil_div(group.index_dim, _INDEX_BLOCK) * 4)
    return size if group.stride == 1 else ceil_div(size, group.stride)


def _state(group: StateGroup, spec: ModelSpec, request: SizingRequest) -> int:
    """Kernel - 1 columns in the compute dtype; the recurrent part as stated, else in the compute dtype."""
    compute = _compute(spec, request)
    ranks = request.tensor if group.heads else 1
    stated = request.state_dtype or group.stated_dtype
    recurrent = dtypes.compute(stated, "stateDType") if stated and stated != "auto" else compute
    conv = ceil_div(group.conv_channels, ranks) * max(0, group.conv_kernel - 1)
    size = dtypes.bytes_of(conv, compute)
    return group.layers * (size + dtypes.bytes_of(ceil_div(group.recurrent, ranks), recurrent))


def _requests(s: Situation) -> int:
    return s.request.max_concurrent_requests or _DEFAULT_REQUESTS


def _compute(spec: ModelSpec, request: SizingRequest) -> str:
    if request.dtype != "auto":
        return dtypes.compute(request.dtype, "dtype")
    return dtypes.compute(spec.dtype or "bf16", "torch_dtype")


def _kv(request: SizingRequest) -> tuple[str, int, int]:
    """Its word for the cache dtype, bits per element (0: the compute dtype), elements per scale.

    Raises:
        BadArgument: TensorRT-LLM has no such cache dtype.
    """
    row = _KV.get(request.kv_cache_dtype.lower())
    if row is None:
        raise BadArgument(
            f"TensorRT-LLM has no cache dtype {request.kv_cache_dtype[:64]!r}; use one of {', '.join(_KV)}",
            field="spec.sizing.kvCacheDType",
            value=request.kv_cache_dtype,
        )
    return row


if TYPE_CHECKING:
    from plimsoll.core.engines.base import Engine

    _: Engine = TensorRTLLM()
