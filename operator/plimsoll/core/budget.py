"""The whole answer for one question: model, device and settings in, tokens and every term out.

Bytes first, tokens second, for the heaviest rank::

    kv = free_after_init - weights - sum(reserve) - safety      (exact in integers)

The engine's law then turns the bytes into tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core import dtypes
from plimsoll.core.arch import read_spec
from plimsoll.core.device import Device
from plimsoll.core.engines import Pinned, Situation, lookup
from plimsoll.core.errors import BadArgument, BadModel, DoesNotFit
from plimsoll.core.kv import CacheSize, cache_size
from plimsoll.core.report import CONFIDENCES, Budget, Report, is_model_file
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import MAX_AMOUNT
from plimsoll.core.weights import Manifest, RankWeights, check_complete, computed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines import Allocation, Engine

__all__ = ["SCHEMA", "Device", "Fit", "fit"]

SCHEMA: Final = "plimsoll.dev/fit.v1"


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer. Without an engine, or without a device, the model's part alone.

    Attributes:
        spec: The model.
        request: The question, with the engine's sizing flags merged in.
        cache: Cache of the whole model in the cache dtype.
        kv_bytes_per_rank: KV bytes per token on one rank, as the engine stores them.
        engine: The engine, if one was named.
        device: The device, if one was given.
        budget: Every term, in bytes.
        allocation: What the engine makes of it.
        args: Exactly the flags that Plimsoll adds.
        confidence: exact, calibrated or estimated.
        warnings: Sentences for people.
        error: Why it does not fit, if it does not.
        model_file: The file that was read, below the model folder; None for a whole folder.
    """

    spec: ModelSpec
    request: SizingRequest
    cache: CacheSize
    kv_bytes_per_rank: int | None = None
    engine: Engine | None = None
    device: Device | None = None
    budget: Budget | None = None
    allocation: Allocation | None = None
    args: tuple[str, ...] = ()
    confidence: str = "exact"
    warnings: tuple[str, ...] = ()
    error: DoesNotFit | None = None
    model_file: str | None = None

    @property
    def tokens(self) -> int | None:
        """The number: 0 when nothing fits, None without a device."""
        if self.allocation is None:
            return None
        return 0 if self.error else self.allocation.tokens

    @property
    def exit_code(self) -> int:
        """0 fits (or nothing was asked), 1 does not."""
        return self.error.exit_code if self.error else 0

    def raise_for_error(self) -> None:
        """Raise the refusal, if there is one.

        Raises:
            DoesNotFit: As in ``error``.
        """
        if self.error is not None:
            raise self.error

    def pinned(self) -> Pinned:
        """The numbers that become flags. Only where it fits."""
        allocation = self._allocation()
        return Pinned(
            max_total_token_num=allocation.tokens,
            max_sequences=allocation.sequences,
            context_length=allocation.context_length,
            prefill_tokens=allocation.prefill_tokens,
        )

    def report(
        self, *, pod_uid: str, request_hash: str, model_digest: str, rank: int = 0
    ) -> Report:
        """The result as the sizing pod hands it on.

        Raises:
            DoesNotFit: There is no number to report.
            BadModel: The file's name cannot be part of a command line.
        """
        self.raise_for_error()
        allocation = self._allocation()
        if self.device is None or self.budget is None or self.engine is None:
            raise ValueError("a report needs an engine and a device")
        if self.model_file is not None and not is_model_file(self.model_file):
            raise BadModel(
                "the model file's name may hold only letters, digits, '.', '_', '-' and '/'; rename it",
                reason="WeightsUnreadable",
                file=self.model_file,
            )
        return Report(
            pod_uid=pod_uid,
            request_hash=request_hash,
            model_digest=model_digest,
            device_class=self.device.device_class(),
            driver=self.device.driver,
            devices=self.device.uuids,
            rank=rank,
            budget=self.budget,
            kv_bytes_per_rank=self.kv_bytes_per_rank or 0,
            fixed_pools=allocation.fixed_pools,
            granule=allocation.granule,
            max_total_token_num=allocation.tokens,
            token_meaning=self.engine.token_meaning,
            max_sequences=allocation.sequences,
            context_length=allocation.context_length,
            prefill_tokens=allocation.prefill_tokens,
            confidence=self.confidence,
            model_file=self.model_file,
        )

    def document(self) -> dict[str, Any]:
        """The JSON document ``plimsoll.dev/fit.v1``: every key always present."""
        spec, allocation, engine = self.spec, self.allocation, self.engine
        # As with the tokens: unknown without a device, 0 when nothing fits.
        sequences = longest = None
        if allocation is not None:
            sequences, longest = allocation.sequences, allocation.largest_request
            if self.error is not None:
                sequences = longest = 0
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "model": {
                "architecture": spec.architecture,
                "attention": spec.attention,
                "layers": spec.layers,
                "contextLength": spec.context_length,
            },
            "perToken": {
                "kvBytesAllLayersFull": self.cache.all_full,
                "kvBytesWindowsHonoured": self.cache.windows_honoured,
                "kvBytesPerRank": self.kv_bytes_per_rank,
            },
            "perSequence": {
                "stateBytes": 0,
                "stateBytesEngine": None if engine is None else 0,
                "windowBytes": self.cache.window,
            },
            "perEncoderToken": {"crossBytes": 0},
            "budget": self.budget.to_dict() if self.budget else None,
            "maxTotalTokenNum": self.tokens,
            "tokenMeaning": engine.token_meaning if engine else None,
            "maxSequences": sequences,
            "maxContextLength": longest,
            "concurrencyAtContext": self._concurrency(),
            "engine": None,
            "confidence": self.confidence,
            "warnings": list(self.warnings),
        }
        if engine is not None:
            document["engine"] = {
                "type": engine.type,
                "version": self.request.engine_version,
                "args": list(self.args),
                "env": {},
            }
        if self.error is not None:
            document["error"] = self.error.to_dict()
        return document

    def _concurrency(self) -> dict[str, Any] | None:
        """Requests of the stated context (else the model's) that the pool holds, two decimals."""
        context = self.request.context_length or self.spec.context_length
        if self.tokens is None or context is None:
            return None
        return {"context": context, "requests": round(self.tokens / context, 2)}

    def _allocation(self) -> Allocation:
        if self.allocation is None:
            raise ValueError("no device was given, so nothing was allocated")
        return self.allocation


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
        return Fit(
            spec,
            request,
            _cache(spec, request),
            warnings=spec.notes,
            confidence=_model_only(spec),
        )
    engine = lookup(request.engine_type)
    engine.check_args(request.engine_args, request.engine_env)
    _check_format(engine, tensors)
    request, unknown = engine.adopt(request)
    answer = Fit(
        spec,
        request,
        _cache(spec, request),
        kv_bytes_per_rank=engine.cell(spec, request),
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
        device_total=device.total,
        free_after_init=after_init,
        weights=held.size,
        load_peak=held.load_peak,
        cell=answer.kv_bytes_per_rank or 0,
        wide=wide,
    )
    allocation = engine.allocate(situation)
    budget = Budget(
        device_total=device.total,
        device_free=device.free,
        free_after_init=after_init,
        weights=held.size,
        reserve={term: size for term, size in allocation.reserve.items() if size},
        safety=allocation.safety,
        kv=allocation.kv,
    )
    # The answer is worth what its weakest part is; CONFIDENCES is ordered from best to worst.
    parts = (answer.confidence, engine.confidence, "estimated" if notes else "exact")
    error = allocation.error or _below_minimum(request, allocation)
    complete = replace(
        answer,
        device=device,
        budget=budget,
        allocation=allocation,
        confidence=max(parts, key=CONFIDENCES.index),
        warnings=(*answer.warnings, *notes, *allocation.notes),
        error=error,
    )
    if error is None:
        complete = replace(complete, args=tuple(engine.pinned_args(complete.pinned(), request)))
    return complete


def _check_format(engine: Engine, tensors: Manifest | None) -> None:
    if tensors is not None and tensors.format not in {*engine.formats, "computed"}:
        wanted = " or ".join(sorted(engine.formats))
        raise BadModel(
            f"{engine.type} does not load {tensors.format} weights; it needs {wanted}",
            reason="WeightsUnreadable",
            field="spec.engine.type",
            value=tensors.format,
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
        if len(weights) not in {1, request.tensor} or not all(0 < w <= MAX_AMOUNT for w in weights):
            raise BadArgument(
                f"weights are given {len(weights)} times for {request.tensor} ranks; give one size, or one for each",
                field="weights",
                value=len(weights),
            )
        return RankWeights(max(weights), 0)
    if tensors is None:
        compute = request.dtype if request.dtype != "auto" else spec.dtype or "bf16"
        tensors = computed(spec, dtypes.compute(compute, "dtype"))
    else:
        check_complete(tensors, spec)
    return engine.rank_weights(spec, tensors, request)


def _below_minimum(request: SizingRequest, allocation: Allocation) -> DoesNotFit | None:
    least = request.min_total_token_num
    if least is None or allocation.tokens >= least:
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
    if request.kv_cache_dtype.lower() not in {"auto", "none"}:
        return cache_size(spec, dtypes.canonical(request.kv_cache_dtype, "kvCacheDType"))
    if request.dtype.lower() not in {"auto", "none"}:
        return cache_size(spec, dtypes.compute(request.dtype, "dtype"))
    return cache_size(spec, spec.dtype or "bf16")


def _model_only(spec: ModelSpec) -> str:
    """A model whose every field was stated is exact."""
    return "estimated" if spec.notes else "exact"
