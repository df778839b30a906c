"""The answer to one question: every term, the number, and the two documents that carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.engines.base import Pinned
from plimsoll.core.errors import BadModel, DoesNotFit, Unsupported
from plimsoll.core.records import dataclass
from plimsoll.core.report import Budget, Report, is_model_file

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.device import Device
    from plimsoll.core.engines.base import Allocation, Engine
    from plimsoll.core.kv import CacheSize
    from plimsoll.core.request import SizingRequest

SCHEMA: Final = "plimsoll.dev/fit.v1"


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer. Without an engine, or without a device, the model's part alone.

    Attributes:
        spec: The model.
        request: The question, with the engine's sizing flags merged in.
        cache: Cache of the whole model in the cache dtype.
        kv_bytes_per_rank: KV bytes per token on one rank, as the engine stores them.
        state_bytes_per_rank: State bytes per sequence on one rank, as the engine stores them.
        engine: The engine, if one was named.
        device: The device, if one was given.
        budget: Every term, in bytes.
        allocation: What the engine makes of it.
        args: Exactly the flags that Plimsoll adds.
        env: Environment variables that it adds beside them.
        confidence: exact, calibrated or estimated.
        warnings: Sentences for people.
        error: Why it does not fit, if it does not.
        model_file: The file that was read, below the model folder; None for a whole folder.
    """

    spec: ModelSpec
    request: SizingRequest
    cache: CacheSize
    kv_bytes_per_rank: int | None = None
    state_bytes_per_rank: int | None = None
    engine: Engine | None = None
    device: Device | None = None
    budget: Budget | None = None
    allocation: Allocation | None = None
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    confidence: str = "exact"
    warnings: tuple[str, ...] = ()
    error: DoesNotFit | None = None
    model_file: str | None = None

    @property
    def tokens(self) -> int | None:
        """The number: 0 when nothing fits, None without a device or where nothing grows with length."""
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
        return allocation.pinned or Pinned(
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
        if allocation.tokens is None:
            raise Unsupported(
                f"{self.spec.architecture} keeps nothing that grows with length, so it has no token budget",
                reason="UnsupportedArchitecture",
                field="model_type",
                value=self.spec.family,
            )
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
            token_meaning=allocation.meaning or self.engine.token_meaning,
            max_sequences=allocation.sequences,
            context_length=allocation.context_length,
            prefill_tokens=allocation.prefill_tokens,
            confidence=self.confidence,
            model_file=self.model_file,
            pinned=allocation.pinned,
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
                "stateBytes": self.cache.state,
                "stateBytesEngine": self.state_bytes_per_rank,
                "windowBytes": self.cache.window,
            },
            "perEncoderToken": {"crossBytes": self.cache.cross},
            "budget": self.budget.to_dict() if self.budget else None,
            "maxTotalTokenNum": self.tokens,
            "tokenMeaning": self._meaning(),
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
                "env": dict(self.env),
            }
        if self.error is not None:
            document["error"] = self.error.to_dict()
        return document

    def _meaning(self) -> str | None:
        if self.engine is None:
            return None
        stated = self.allocation.meaning if self.allocation else None
        return stated or self.engine.token_meaning

    def _concurrency(self) -> dict[str, Any] | None:
        """Requests of the stated context (else the model's) that the pool holds, two decimals."""
        context = self.request.context_length or self.spec.context_length
        if self.allocation is None or context is None:
            return None
        requests = self.allocation.concurrency
        if self.error is not None:
            requests = 0.0
        elif requests is None:
            if self.tokens is None:
                return None
            requests = self.tokens / context
        return {"context": context, "requests": round(requests, 2)}

    def _allocation(self) -> Allocation:
        if self.allocation is None:
            raise ValueError("no device was given, so nothing was allocated")
        return self.allocation
