"""llama.cpp's server: the context is split over a fixed number of slots.

Each slot is rounded **up** to 256 tokens by the server and capped at the trained context, so only
numbers that are already whole are asked for. Law and measurements: a CPU run of SmolLM2-135M.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from plimsoll.core import dtypes
from plimsoll.core.engines.base import Allocation, Pinned, Situation, largest
from plimsoll.core.engines.common import Common
from plimsoll.core.engines.llamacpp_flags import FLAGS
from plimsoll.core.engines.values import count
from plimsoll.core.engines.verdict import does_not_fit
from plimsoll.core.engines.versions import is_cpu_build, parse_version
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import replace
from plimsoll.core.units import GIB, MIB, ceil_div
from plimsoll.core.weights import RankWeights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest
    from plimsoll.core.weights import Manifest

#: Builds whose behaviour was tried. Others: the widest reserve.
_KNOWN_VERSIONS: Final = frozenset({(2026, 10)})

_SLOT_GRANULE: Final = 256
_DEFAULT_CONTEXT: Final = 4096  # its own --ctx-size when the file states no trained context
_DEFAULT_REQUESTS: Final = 256
_BATCH: Final = 2048
_UBATCH: Final = 512
_LEAST_UBATCH: Final = 32
_SAFETY_PERCENT: Final = 1

_PREINIT: Final = GIB // 2
_PREINIT_WIDEST: Final = 90 * GIB // 100
_COMPUTE: Final = 64 * MIB
_COMPUTE_WIDEST: Final = 128 * MIB

_DTYPE_NAMES: Final[Mapping[str, str]] = {
    "auto": "f16", "fp16": "f16", "bf16": "bf16", "fp32": "f32", "q8_0": "q8_0", "q5_1": "q5_1",
    "q5_0": "q5_0", "q4_1": "q4_1", "q4_0": "q4_0", "iq4_nl": "iq4_nl",
}  # fmt: skip


class LlamaCpp(Common):
    """See the module's first lines."""

    flags: ClassVar[FlagTable] = FLAGS
    type: ClassVar[str] = "LlamaCpp"
    default_port: ClassVar[int] = 8080
    health_path: ClassVar[str] = "/health"
    default_command: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[frozenset[str]] = frozenset({"gguf"})
    kv_dtypes: ClassVar[Mapping[str, str]] = _DTYPE_NAMES
    token_meaning: ClassVar[str] = "AllLayersFull"  # noqa: S105 - not a secret

    # No public start-up log calibrates it: never called exact.
    confidence: ClassVar[str] = "estimated"

    def adopt(self, request: SizingRequest) -> tuple[SizingRequest, tuple[str, ...]]:
        """See Engine."""
        parsed = FLAGS.parse(request.engine_args)
        notes = []
        version = request.engine_version
        if parse_version(version) not in _KNOWN_VERSIONS:
            notes.append(
                f"LlamaCpp version {version or '(none given)'} is not known here; the widest reserve is used"
            )
        notes += FLAGS.doubts(parsed, request.engine_env)
        return request, tuple(notes)

    def pinned_args(self, pinned: Pinned, request: SizingRequest) -> list[str]:
        """See Engine."""
        ubatch = pinned.prefill_tokens or _UBATCH
        kv_type = _kv_type(request)
        return [
            f"--ctx-size={pinned.max_total_token_num}",
            f"--parallel={pinned.max_sequences or 1}",
            "--n-gpu-layers=999",
            f"--batch-size={max(_BATCH, ubatch)}",
            f"--ubatch-size={ubatch}",
            f"--cache-type-k={kv_type}",
            f"--cache-type-v={kv_type}",
        ]

    def serve_args(
        self, *, model_path: str, served_name: str, host: str, port: int, request: SizingRequest
    ) -> list[str]:
        """See Engine."""
        del request  # one device: nothing to say about ranks
        return [
            f"--model={model_path}",
            f"--alias={served_name}",
            f"--host={host}",
            f"--port={port}",
        ]

    def argv(self, args: Sequence[str]) -> list[str]:
        """See Engine. Its parser knows no ``=``: flag and value are two arguments."""
        return [word for arg in args for word in arg.split("=", 1)]

    def preinit(self, request: SizingRequest, *, wide: bool) -> int:
        """See Engine. A CPU build makes no CUDA context."""
        if is_cpu_build(request.engine_version):
            return 0
        return _PREINIT_WIDEST if wide else _PREINIT

    def rank_kv_heads(self, spec: ModelSpec, tensor: int) -> int:
        """See Engine. It splits layers, not heads, by rules that were not measured: one device only."""
        if tensor != 1:
            raise Unsupported(
                f"LlamaCpp on {tensor} GPUs cannot be sized yet; use one GPU (spec.accelerator.count: 1)",
                reason="UnsupportedParallelism",
                field="spec.parallelism.tensor",
                value=tensor,
            )
        return spec.kv_heads

    def cell(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. Keys and values are rows of their own, each of whole blocks."""
        self.rank_kv_heads(spec, request.tensor)
        dtype = dtypes.canonical(_kv_type(request), "kvCacheDType")
        total = 0
        for group in spec.caches:  # windows are counted in full: the safe side of --swa-full
            keys, values = group.kv_heads * group.key_dim, group.kv_heads * group.value_dim
            if group.latent:  # one row for all heads, and its compressed part again as the values
                keys, values = keys + values, keys
            total += group.layers * (dtypes.bytes_of(keys, dtype) + dtypes.bytes_of(values, dtype))
        return total

    def state(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. Both parts of a state are kept in fp32, with kernel - 1 columns."""
        del request
        return sum(
            group.layers
            * 4
            * (group.conv_channels * max(0, group.conv_kernel - 1) + group.recurrent)
            for group in spec.states
        )

    def rank_weights(
        self, spec: ModelSpec, manifest: Manifest, request: SizingRequest
    ) -> RankWeights:
        """See Engine. Blocks stay blocks; a tied embedding is on the device once, as the head."""
        del spec, request  # one device holds everything
        return RankWeights(manifest.total, 0)

    def allocate(self, situation: Situation) -> Allocation:
        """See Engine. Lowers a defaulted context to one smaller slot, then a defaulted ubatch."""
        request = situation.request
        if situation.spec.encoder is not None or not situation.spec.caches:
            raise Unsupported(
                f"LlamaCpp cannot be sized for {situation.spec.architecture} ({situation.spec.attention}) yet",
                field="general.architecture",
                value=situation.spec.family,
            )
        if request.mode == "Engine":
            return _predict(situation)
        trained = situation.spec.context_length
        context = request.context_length or trained or _DEFAULT_CONTEXT
        if trained is not None:
            context = min(context, trained)  # the server caps each slot there
        if context < _SLOT_GRANULE:
            raise BadArgument(
                f"contextLength {context} is less than {_SLOT_GRANULE}, the smallest slot of LlamaCpp",
                field="spec.sizing.contextLength",
                value=context,
            )
        ubatch = request.prefill_tokens or _UBATCH
        answer = _attempt(situation, context, ubatch)
        if answer.tokens == 0 and request.prefill_tokens is None:
            # The largest multiple of _LEAST_UBATCH with which anything fits.
            multiple = largest(
                1,
                _UBATCH // _LEAST_UBATCH,
                lambda n: bool(_attempt(situation, context, n * _LEAST_UBATCH).tokens),
            )
            ubatch = multiple * _LEAST_UBATCH if multiple else ubatch
            answer = _attempt(situation, context, ubatch)
        if answer.tokens == 0:
            needed = _SLOT_GRANULE if request.context_length is None else context
            error = does_not_fit(
                situation,
                answer.reserve,
                tokens=_tokens_held(situation, answer.kv),
                need=f"one slot needs {needed}",
                field="spec.sizing.contextLength",
            )
            return replace(answer, largest_request=0, error=error)
        notes = []
        if answer.context_length < context - context % _SLOT_GRANULE:
            notes.append(
                f"contextLength was lowered from {context} to {answer.context_length} so that one request fits"
            )
        if ubatch < (request.prefill_tokens or _UBATCH):
            notes.append(
                f"prefillTokens was lowered from {_UBATCH} to {ubatch} so that the cache fits"
            )
        return replace(answer, notes=tuple(notes))


def _attempt(s: Situation, context: int, ubatch: int) -> Allocation:
    """The budget and the slots with this context and ubatch; 0 tokens when infeasible."""
    reserve = {
        "activation": ubatch * s.spec.vocab * 4 * (2 if s.wide else 1)
        + (_COMPUTE_WIDEST if s.wide else _COMPUTE),
        "extra": s.request.extra_reserve,
    }
    left = s.free_after_init - s.weights - sum(reserve.values())
    safety = ceil_div(max(left, 0) * _SAFETY_PERCENT, 100)
    kv = left - safety
    state = LlamaCpp().state(s.spec, s.request)
    held = _tokens_held(s, kv)  # what memory allows, before it is cut into equal slots
    most = s.request.max_concurrent_requests or _DEFAULT_REQUESTS
    slots = min(most, max(1, held // context))
    if state:  # each slot keeps a state, whether it is used or not
        fits = largest(1, slots, lambda n: (kv - n * state) // s.cell >= n * min(context, held))
        slots = fits or 1
        held = _tokens_held(s, kv - slots * state)
    if held < context and s.request.context_length is not None:
        per_slot = 0  # the user asked for this length: serving less would break the promise
    else:
        per_slot = min(held // slots, context) // _SLOT_GRANULE * _SLOT_GRANULE
    return Allocation(
        reserve=reserve,
        safety=safety,
        kv=kv,
        fixed_pools=slots * state,
        # Tokens come in whole slots; a single slot shorter than the context grows by its own steps.
        granule=_SLOT_GRANULE if held < context else max(per_slot, _SLOT_GRANULE),
        tokens=slots * per_slot,
        sequences=slots,
        context_length=per_slot,
        prefill_tokens=ubatch,
        largest_request=per_slot,
    )


def _predict(s: Situation) -> Allocation:
    """What the server takes when told nothing, or what its flags say: it never looks at memory.

    Without ``--ctx-size`` it takes the trained context, for one slot unless ``--parallel`` says more.
    """
    values = FLAGS.parse(s.request.engine_args, owned=True).values
    trained = s.spec.context_length or _DEFAULT_CONTEXT
    slots = max(1, count(values, "parallel", 1))
    asked = count(values, "ctx-size", s.request.context_length or 0) or trained
    steps = ceil_div(ceil_div(asked, slots), _SLOT_GRANULE)
    per_slot = min(steps * _SLOT_GRANULE, trained)
    reserve = {"activation": count(values, "ubatch-size", _UBATCH) * s.spec.vocab * 4 + _COMPUTE}
    state = slots * LlamaCpp().state(s.spec, s.request)
    needed = slots * per_slot * s.cell + state
    left = s.free_after_init - s.weights - sum(reserve.values())
    error = None
    if needed > left:
        need = f"--ctx-size asks for {slots * per_slot}"
        error = does_not_fit(
            s, reserve, tokens=max(0, left) // s.cell, need=need, field="--ctx-size"
        )
    return Allocation(
        reserve=reserve,
        safety=left - needed,
        kv=needed,
        fixed_pools=state,
        granule=_SLOT_GRANULE,
        tokens=0 if error else slots * per_slot,
        sequences=slots,
        context_length=per_slot,
        prefill_tokens=count(values, "ubatch-size", _UBATCH),
        largest_request=per_slot,
        error=error,
    )


def _tokens_held(s: Situation, kv: int) -> int:
    """Tokens by memory alone, below the user's upper bound."""
    tokens = max(0, kv // s.cell)
    bound = s.request.max_total_token_num
    return tokens if bound is None else min(tokens, bound)


def _kv_type(request: SizingRequest) -> str:
    name = request.kv_cache_dtype.lower()
    name = name if name in _DTYPE_NAMES else dtypes.ALIASES.get(name, name)
    if name not in _DTYPE_NAMES:
        raise BadArgument(
            f"LlamaCpp has no cache dtype {request.kv_cache_dtype!r}; use one of {', '.join(_DTYPE_NAMES)}",
            field="spec.sizing.kvCacheDType",
            value=request.kv_cache_dtype,
        )
    return _DTYPE_NAMES[name]


if TYPE_CHECKING:
    from plimsoll.core.engines.base import Engine

    _: Engine = LlamaCpp()
