"""TGI 3.3 (legacy, in maintenance): no number and no bytes, only two shares of the card.

TGI allocates a cache for the largest prefill batch, runs it, and takes what is then free::

    blocks = floor(max(0, free - (1 - mf * wiggle) * T) / block_bytes) + batch_blocks

Graphs are captured in the share that stays free. Plimsoll chooses the shares from its table of terms,
so the number is what TGI should come to, no promise: it is reported as a ceiling. Source: the research
on engines, section 4; no start-up log calibrates the reserve.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, ClassVar, Final

from plimsoll.core import dtypes
from plimsoll.core.engines.base import Allocation, Pinned, Situation
from plimsoll.core.engines.common import Common
from plimsoll.core.engines.owned import adopt_owned
from plimsoll.core.engines.peaks import activation, logits_peak
from plimsoll.core.engines.settle import Attempt, Wish, settle
from plimsoll.core.engines.tgi_flags import FLAGS
from plimsoll.core.engines.values import share
from plimsoll.core.engines.verdict import does_not_fit
from plimsoll.core.engines.versions import parse_version
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.records import replace
from plimsoll.core.units import GIB, MIB, ceil_div
from plimsoll.core.weights import ShardRules, shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest
    from plimsoll.core.weights import Manifest, RankWeights

_KNOWN: Final = frozenset({(3, 3)})
_KV_DTYPES: Final[Mapping[str, str]] = {
    "auto": "auto", "none": "auto", "bf16": "auto", "fp16": "auto",
    "fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn", "fp8_e4m3fn": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2",
}  # fmt: skip
_WIGGLE: Final = Fraction(9, 10)
_GRAPHS: Final = "1,2,4,8,16,32"
_DEFAULT_REQUESTS: Final = 128
_DEFAULT_PREFILL: Final = 4096
_DEFAULT_CONTEXT: Final = 4096
_SAFETY_PERCENT: Final = 1
_BLOCK: Final = 1  # flashinfer, the default attention; paged 16, flashdecoding 256

_PREINIT: Final = (51, 153, 155)  # hundredths of a GiB by ranks, as for the other engines
_PREINIT_WIDEST: Final = (90, 192, 194)
_NON_TORCH: Final = GIB // 4
_WORKSPACE: Final = 512 * MIB
_GRAPH_BYTES: Final = 32 * 2 * MIB + GIB // 4
_FRAGMENTATION_PERMILLE: Final = 25


class TGI(Common):
    """See the module's first lines."""

    flags: ClassVar[FlagTable] = FLAGS
    type: ClassVar[str] = "TGI"
    default_port: ClassVar[int] = 3000
    health_path: ClassVar[str] = "/health"
    default_command: ClassVar[tuple[str, ...]] = ("text-generation-launcher",)
    formats: ClassVar[frozenset[str]] = frozenset({"safetensors", "pytorch"})
    kv_dtypes: ClassVar[Mapping[str, str]] = _KV_DTYPES
    token_meaning: ClassVar[str] = "Ceiling"  # noqa: S105 - not a secret
    confidence: ClassVar[str] = "estimated"

    def adopt(self, request: SizingRequest) -> tuple[SizingRequest, tuple[str, ...]]:
        """See Engine."""
        notes = []
        if parse_version(request.engine_version) not in _KNOWN:
            version = request.engine_version or "(none given)"
            notes.append(f"TGI version {version} is not known here; the widest reserve is used")
        parsed = FLAGS.parse(request.engine_args, owned=request.mode == "Engine")
        if request.mode == "Engine":
            request = adopt_owned(FLAGS, request, parsed.values)
        stated = parsed.values.get("dtype")
        if stated is not None:
            given = dtypes.compute(stated, "--dtype")
            if request.dtype != "auto" and dtypes.canonical(request.dtype, "dtype") != given:
                raise BadArgument(
                    f"--dtype={given} contradicts dtype {request.dtype}; give one of them",
                    field="engineArgs",
                    value=given,
                )
            request = replace(request, dtype=given)
        notes += FLAGS.doubts(parsed, request.engine_env)
        return request, tuple(notes)

    def pinned_args(self, pinned: Pinned, request: SizingRequest) -> list[str]:
        """See Engine. The number itself cannot be given."""
        args = ["--cuda-memory-fraction=1.0"]
        if pinned.context_length is not None:
            args.append(f"--max-total-tokens={pinned.context_length}")
            args.append(f"--max-input-tokens={max(1, pinned.context_length - 1)}")
        if pinned.prefill_tokens is not None:
            args.append(f"--max-batch-prefill-tokens={pinned.prefill_tokens}")
        args.append(f"--cuda-graphs={_GRAPHS if request.cuda_graphs else '0'}")
        word = _kv_word(request)
        if word != "auto":
            args.append(f"--kv-cache-dtype={word}")
        if request.dtype != "auto" and "dtype" not in FLAGS.parse(request.engine_args).values:
            name = {"bf16": "bfloat16", "fp16": "float16"}.get(request.dtype)
            args += [f"--dtype={name}"] if name else []
        return args

    def pinned_env(self, pinned: Pinned, request: SizingRequest) -> dict[str, str]:
        """See Engine. The wiggle room has no flag."""
        del request
        if pinned.memory_fraction is None:
            return {}
        return {"TGI_WIGGLE_ROOM": pinned.memory_fraction, "CUDA_MEMORY_FRACTION": "1.0"}

    def serve_args(
        self, *, model_path: str, served_name: str, host: str, port: int, request: SizingRequest
    ) -> list[str]:
        """See Engine."""
        del served_name  # TGI serves one model under any name
        return [
            f"--model-id={model_path}",
            f"--hostname={host}",
            f"--port={port}",
            f"--num-shard={request.tensor}",
        ]

    def preinit(self, request: SizingRequest, *, wide: bool) -> int:
        """See Engine."""
        ranks = request.tensor
        hundredths = _PREINIT_WIDEST if wide else _PREINIT
        return hundredths[0 if ranks == 1 else 1 if ranks == 2 else 2] * GIB // 100  # noqa: PLR2004

    def rank_kv_heads(self, spec: ModelSpec, tensor: int) -> int:
        """See Engine. A single head stays whole; others must divide."""
        if spec.heads % tensor or (spec.kv_heads % tensor and spec.kv_heads != 1):
            raise Unsupported(
                f"TGI cannot split {spec.heads} heads and {spec.kv_heads} KV heads of {spec.architecture} "
                f"over {tensor} ranks; use a number of GPUs that divides them",
                reason="UnsupportedParallelism",
                field="spec.parallelism.tensor",
                value=tensor,
            )
        return max(1, spec.kv_heads // tensor)

    def cell(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. Windows save nothing, and a latent cache is kept with all its heads."""
        if spec.states or spec.encoder is not None or not spec.caches:
            raise Unsupported(
                f"TGI sizes only models of plain attention, and {spec.architecture} is none",
                reason="UnsupportedArchitecture",
                field="spec.engine.type",
                value=spec.family,
            )
        own = self.rank_kv_heads(spec, request.tensor)
        element = dtypes.bytes_of(
            1, "fp8" if _kv_word(request) != "auto" else _compute(spec, request)
        )
        total = 0
        for group in spec.caches:
            if group.latent:
                wide = _expanded_width(spec)
                elements = group.layers * spec.heads // request.tensor * wide * 2
            else:
                heads = own
                if group.kv_heads != spec.kv_heads:
                    heads = max(1, ceil_div(group.kv_heads, request.tensor))
                elements = group.layers * heads * (group.key_dim + group.value_dim)
            total += elements * element
        return total

    def state(self, spec: ModelSpec, request: SizingRequest) -> int:
        """See Engine. No model with a state is sized."""
        del spec, request
        return 0

    def rank_weights(
        self, spec: ModelSpec, manifest: Manifest, request: SizingRequest
    ) -> RankWeights:
        """See Engine."""
        rules = ShardRules(
            tensor=request.tensor,
            rank_kv_heads=1 if spec.latent else self.rank_kv_heads(spec, request.tensor),
            compute=_compute(spec, request),
        )
        return shard(manifest, spec, rules)

    def allocate(self, situation: Situation) -> Allocation:
        """See Engine."""
        request, spec = situation.request, situation.spec
        limit = spec.context_length
        wanted = request.context_length or limit or _DEFAULT_CONTEXT
        context = min(wanted, limit) if limit else wanted
        prefill = request.prefill_tokens or _DEFAULT_PREFILL
        if request.mode == "Engine":
            return _engine(situation, context, prefill)
        return settle(situation, Wish(context, prefill), lambda c, p: _attempt(situation, c, p))


def _engine(s: Situation, context: int, prefill: int) -> Allocation:
    """What TGI would come to under the given shares; its wiggle room is taken as 0.90."""
    text = FLAGS.parse(s.request.engine_args, owned=True).values.get("cuda-memory-fraction")
    if text is not None:
        share(text, "--cuda-memory-fraction")
    kept = 1 - Fraction(text or "1") * _WIGGLE
    reserve = _measured(s, prefill)
    allocation = _pool(s, reserve, ceil(s.device_total * kept), context, prefill)
    if allocation.tokens and allocation.tokens >= min(context, prefill):
        return allocation
    error = does_not_fit(
        s, {**reserve, "extra": allocation.safety}, tokens=allocation.tokens or 0,
        need=f"TGI needs one prefill batch of {min(context, prefill)}",
        field="--max-batch-prefill-tokens",
    )  # fmt: skip
    return replace(allocation, error=error)


def _attempt(s: Situation, context: int, prefill: int) -> Attempt:
    """The table of terms; what must stay free becomes the wiggle room, rounded to a safe thousandth."""
    measured = _measured(s, prefill)
    free = {
        "graphs": _GRAPH_BYTES * (2 if s.wide else 1) if s.request.cuda_graphs else 0,
        "fragmentation": max(
            ceil_div(s.device_total * _FRAGMENTATION_PERMILLE * (2 if s.wide else 1), 1000),
            logits_peak(s.spec, _requests(s)),
        ),
        "extra": s.request.extra_reserve,
    }
    kept = sum(free.values())
    left = s.free_after_init - s.weights - sum(measured.values()) - kept
    safety = ceil_div(max(left, 0) * _SAFETY_PERCENT, 100)
    wiggle = floor(1000 * (1 - Fraction(kept + safety, s.device_total)))
    wiggle = min(max(wiggle, 1), 999)
    # The share is of the whole card, so rounding it down keeps up to a thousandth of the card more.
    safety = s.device_total - floor(Fraction(s.device_total * wiggle, 1000)) - kept
    allocation = _pool(s, {**measured, **free}, safety, context, prefill)
    pinned = Pinned(
        context_length=context,
        prefill_tokens=prefill,
        max_sequences=allocation.sequences,
        memory_fraction=f"{wiggle / 1000:.3f}",
        block_tokens=_BLOCK,
    )
    tokens = allocation.tokens or 0
    need = ""
    if tokens < prefill:
        need = f"TGI runs one prefill batch of {prefill} to measure"
    elif tokens < context:
        need = f"one request needs {context}"
    field = "spec.sizing.contextLength" if tokens >= prefill else "spec.sizing.prefillTokens"
    return Attempt(replace(allocation, pinned=pinned), need, field)


def _pool(
    s: Situation, reserve: Mapping[str, int], safety: int, context: int, prefill: int
) -> Allocation:
    kv = s.free_after_init - s.weights - sum(reserve.values()) - safety
    tokens = max(0, kv) // s.cell // _BLOCK * _BLOCK
    if s.request.max_total_token_num is not None:
        tokens = min(tokens, s.request.max_total_token_num)
    return Allocation(
        reserve=reserve,
        safety=safety,
        kv=kv,
        fixed_pools=0,
        granule=_BLOCK,
        tokens=tokens,
        sequences=_requests(s),
        context_length=context,
        prefill_tokens=prefill,
        largest_request=min(context, tokens),
        blocks=tokens // _BLOCK,
        block_tokens=_BLOCK,
    )


def _measured(s: Situation, prefill: int) -> dict[str, int]:
    """What the trial prefill leaves occupied: TGI sees it as used."""
    peak = activation(s.spec, tensor=s.request.tensor, tokens=prefill, sequences=_requests(s))
    return {
        "nonTorch": _NON_TORCH,
        "activation": peak * (2 if s.wide and s.request.mode != "Engine" else 1),
        "workspace": _WORKSPACE,
    }


def _expanded_width(spec: ModelSpec) -> int:
    """Elements of one head of a latent model once it is expanded; values are padded to it.

    The query's up-projection has as many rows per head as its keys are wide.
    """
    for group in spec.tensors:
        if group.name.endswith((".q_b_proj.weight", ".q_proj.weight")):
            return group.shape[0] // spec.heads
    return max(spec.key_dim, spec.value_dim)


def _requests(s: Situation) -> int:
    return s.request.max_concurrent_requests or _DEFAULT_REQUESTS


def _compute(spec: ModelSpec, request: SizingRequest) -> str:
    """Dtype of weights: the request's, else the config's; TGI has no fp32."""
    name = request.dtype if request.dtype != "auto" else spec.dtype or "fp16"
    dtype = dtypes.compute(name, "dtype")
    return "fp16" if dtype == "fp32" else dtype


def _kv_word(request: SizingRequest) -> str:
    """TGI's word for the cache dtype.

    Raises:
        BadArgument: TGI has no such cache dtype.
    """
    word = _KV_DTYPES.get(request.kv_cache_dtype.lower())
    if word is None:
        raise BadArgument(
            f"TGI has no cache dtype {request.kv_cache_dtype[:64]!r}; use one of {', '.join(_KV_DTYPES)}",
            field="spec.sizing.kvCacheDType",
            value=request.kv_cache_dtype,
        )
    return word


if TYPE_CHECKING:
    from plimsoll.core.engines.base import Engine

    _: Engine = TGI()
