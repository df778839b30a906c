"""The whole answer for one question: model, device and settings in, tokens and every term out.

Bytes first, tokens second, for the heaviest rank::

    kv = free_after_init - weights - sum(reserve) - safety      (exact in integers)

The engine's law then turns the bytes into tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.core import dtypes
from plimsoll.core.answer import SCHEMA, Fit
from plimsoll.core.arch import read_spec
from plimsoll.core.arch.stage import stage_of
from plimsoll.core.device import Device
from plimsoll.core.engines import Situation, lookup
from plimsoll.core.errors import BadArgument, BadModel, DoesNotFit, Unsupported
from plimsoll.core.kv import CacheSize, cache_size
from plimsoll.core.records import replace
from plimsoll.core.report import CONFIDENCES, Budget
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import MAX_AMOUNT
from plimsoll.core.weights import Manifest, RankWeights, check_complete, computed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines import Allocation, Engine

__all__ = ["SCHEMA", "Device", "Fit", "fit"]


def fit(
    config: Mapping[str, Any],
    tensors: Manifest | None,
    device: Device | None,
    settings: SizingRequest | None,
    *,
    weights: Sequence[int] | None = None,
) -> Fit:
    """Answer one question. Pure: the same input gives the same answer, anywhere.

    Args:
        config: Parsed config.json, or GGUF metadata.
        tensors: The checkpoint's tensors; None: computed from the config, an estimate.
        device: The device; None: the model's part alone.
        settings: The question; None or an empty engine type: the model alone.
        weights: Bytes per rank, one for all ranks or one for each; overrides ``tensors``.

    Returns:
        The answer, with ``error`` set when it does not fit.

    Raises:
        BadModel: The config or the weights make no sense.
        BadArgument: The settings make no sense.
        Unsupported: An architecture, engine, version or split that cannot be sized.
        FlagNotAllowed: The user's arguments hold a flag that Plimsoll sets.
    """
    request = (settings or SizingRequest()).validated()
    spec = read_spec(config)
    if not request.engine_type:
        if device is not None:
            raise BadArgument("a device needs an engine; name one", field="engine")
        alone = _cache(spec, request)
        return Fit(spec, request, alone, warnings=spec.notes, confidence=_model_only(spec))
    engine = lookup(request.engine_type)
    if request.mode != "Engine":  # there, the engine's own flags are the question
        engine.check_args(request.engine_args, request.engine_env)
    _check_format(engine, tensors)
    _check_stages(engine, request, spec)
    request, unknown = engine.adopt(request)
    answer = Fit(
        spec,
        request,
        _cache(spec, request),
        kv_bytes_per_rank=engine.cell(spec, request),
        state_bytes_per_rank=engine.state(spec, request),
        engine=engine,
        confidence="estimated" if unknown else _model_only(spec),
        warnings=(*spec.notes, *unknown),
    )
    if device is None:
        return answer
    return _on_device(answer, engine, device, tensors, weights, wide=bool(unknown))


def _on_device(
    answer: Fit,
    engine: Engine,
    device: Device,
    tensors: Manifest | None,
    weights: Sequence[int] | None,
    *,
    wide: bool,
) -> Fit:
    """Add budget, allocation and flags."""
    spec, request = answer.spec, answer.request
    held = _weights(engine, spec, request, tensors, weights)
    notes = _assumptions(spec, request, computed_weights=tensors is None and weights is None)
    after_init = device.free_after_init
    if after_init is None:
        after_init = device.free - engine.preinit(request, wide=wide)
    situation = Situation(
        spec=spec,
        request=request,
        device=device,
        device_total=device.total,
        free_after_init=after_init,
        weights=held.size,
        load_peak=held.load_peak,
        cell=answer.kv_bytes_per_rank or 0,
        wide=wide,
    )
    situation, allocation = _scarcest_stage(situation, engine, held)
    budget = Budget(
        device_total=device.total,
        device_free=device.free,
        free_after_init=after_init,
        weights=situation.weights,
        reserve={term: size for term, size in allocation.reserve.items() if size},
        safety=allocation.safety,
        kv=allocation.kv,
    )
    # The answer is worth what its weakest part is; CONFIDENCES is ordered from best to worst.
    parts = (
        answer.confidence,
        allocation.confidence or engine.confidence,
        "estimated" if notes or held.notes else "exact",
    )
    error = allocation.error or _below_minimum(request, allocation)
    complete = replace(
        answer,
        kv_bytes_per_rank=situation.cell if request.pipeline else answer.kv_bytes_per_rank,
        device=device,
        budget=budget,
        allocation=allocation,
        confidence=max(parts, key=CONFIDENCES.index),
        warnings=(*answer.warnings, *notes, *held.notes, *allocation.notes),
        error=error,
    )
    return complete if error or request.mode == "Engine" else _with_flags(complete, engine)


def _with_flags(answer: Fit, engine: Engine) -> Fit:
    """Add what Plimsoll writes: nothing in mode Engine, and nothing where nothing fits."""
    pinned = answer.pinned()
    return replace(
        answer,
        args=tuple(engine.pinned_args(pinned, answer.request)),
        env=tuple(engine.pinned_env(pinned, answer.request).items()),
    )


def _scarcest_stage(
    whole: Situation, engine: Engine, held: RankWeights
) -> tuple[Situation, Allocation]:
    """The pipeline stage with the fewest tokens: its number holds for all of them."""
    stages = whole.request.pipeline or 1
    if stages == 1:
        return whole, engine.allocate(whole)
    found: list[tuple[Situation, Allocation]] = []
    for index in range(stages):
        spec = stage_of(whole.spec, index, stages)
        situation = replace(
            whole,
            spec=spec,
            weights=held.stages[index] if held.stages else held.size,
            cell=engine.cell(spec, whole.request),
        )
        found.append((situation, engine.allocate(situation)))
    # A stage without a growing cache does not limit; one that does not fit does.
    return min(found, key=lambda pair: (pair[1].tokens is None, pair[1].tokens or 0))


def _check_format(engine: Engine, tensors: Manifest | None) -> None:
    if tensors is not None and tensors.format not in {*engine.formats, "computed"}:
        wanted = " or ".join(sorted(engine.formats))
        raise BadModel(
            f"{engine.type} does not load {tensors.format} weights; it needs {wanted}",
            reason="WeightsUnreadable",
            field="spec.engine.type",
            value=tensors.format,
        )


def _check_stages(engine: Engine, request: SizingRequest, spec: ModelSpec) -> None:
    stages = request.pipeline or 1
    if stages > 1 and not engine.pipelines:
        raise Unsupported(
            f"{engine.type} cannot be sized for {stages} pipeline stages; use --tensor",
            reason="UnsupportedParallelism",
            field="--pipeline",
            value=stages,
        )
    if stages > spec.layers:
        raise BadArgument(
            f"{stages} pipeline stages for {spec.layers} layers; use at most one for each layer",
            field="pipeline",
            value=stages,
        )


def _assumptions(
    spec: ModelSpec, request: SizingRequest, *, computed_weights: bool
) -> tuple[str, ...]:
    """What was assumed before the engine's law, for people."""
    notes = []
    if computed_weights:
        notes.append("no weights were given; their size is computed from the config")
    wanted, limit = request.context_length, spec.context_length
    if wanted and limit and wanted > limit:
        notes.append(f"contextLength {wanted} is more than the model's {limit}, which is used")
    return tuple(notes)


def _weights(
    engine: Engine,
    spec: ModelSpec,
    request: SizingRequest,
    tensors: Manifest | None,
    weights: Sequence[int] | None,
) -> RankWeights:
    """Bytes of the heaviest rank: as stated, from headers, or computed."""
    if weights is not None:
        ranks, stages = request.tensor, request.pipeline or 1
        if len(weights) not in {1, ranks, ranks * stages} or not all(
            0 < w <= MAX_AMOUNT for w in weights
        ):
            raise BadArgument(
                f"weights are given {len(weights)} times for {ranks * stages} ranks; give one size, or one for each",
                field="weights",
                value=len(weights),
            )
        each = weights if len(weights) == ranks * stages else [max(weights)] * ranks * stages
        of_stages = tuple(max(each[i * ranks : (i + 1) * ranks]) for i in range(stages))
        return RankWeights(max(weights), 0, of_stages)
    if tensors is None:
        compute = request.dtype if request.dtype != "auto" else spec.dtype or "bf16"
        tensors = computed(spec, dtypes.compute(compute, "dtype"))
    else:
        check_complete(tensors, spec)
    return engine.rank_weights(spec, tensors, request)


def _below_minimum(request: SizingRequest, allocation: Allocation) -> DoesNotFit | None:
    least = request.min_total_token_num
    if least is None or allocation.tokens is None or allocation.tokens >= least:
        return None
    return DoesNotFit(
        f"the KV cache holds {allocation.tokens} tokens, fewer than minTotalTokenNum {least}; "
        "use a larger GPU or lower the minimum",
        reason="BudgetTooSmall",
        field="spec.sizing.minTotalTokenNum",
        value=allocation.tokens,
    )


def _cache(spec: ModelSpec, request: SizingRequest) -> CacheSize:
    """The whole model's cache in the chosen dtype: the cache's, else the compute's, else the config's."""
    compute = spec.dtype or "bf16"
    if request.dtype.lower() not in {"auto", "none"}:
        compute = dtypes.compute(request.dtype, "dtype")
    dtype = compute
    if request.kv_cache_dtype.lower() not in {"auto", "none"}:
        dtype = dtypes.canonical(request.kv_cache_dtype, "kvCacheDType")
    return cache_size(spec, dtype, model_dtype=compute)


def _model_only(spec: ModelSpec) -> str:
    """A model whose every field was stated is exact."""
    return "estimated" if spec.notes else "exact"
