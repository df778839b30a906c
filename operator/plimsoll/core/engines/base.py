"""What every engine module provides, and the vocabulary that they share.

An engine module answers three questions: which flags are ours (``check_args``), which flags we
write (``pinned_args``, ``serve_args``), and how many tokens a given device holds (``allocate``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from plimsoll.core.records import dataclass
from plimsoll.core.strict import MAX_INT, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.device import Device
    from plimsoll.core.errors import DoesNotFit
    from plimsoll.core.request import SizingRequest
    from plimsoll.core.weights import Manifest, RankWeights

#: Attribute of ``Pinned`` -> JSON key, least and most value.
_PINNED_NUMBERS: Final[Mapping[str, tuple[str, int, int]]] = {
    "max_total_token_num": ("maxTotalTokenNum", 1, MAX_INT),
    "max_sequences": ("maxSequences", 1, 1 << 20),
    "context_length": ("contextLength", 1, MAX_INT),
    "prefill_tokens": ("prefillTokens", 1, MAX_INT),
    "kv_cache_bytes": ("kvCacheBytes", 1, MAX_INT),
    "block_tokens": ("blockTokens", 1, MAX_INT),
    "graph_batch": ("graphBatch", 0, 1 << 20),
}
#: Attribute of ``Pinned`` -> JSON key, its form, and the form in words. Both end in a command line.
_PINNED_WORDS: Final[Mapping[str, tuple[str, re.Pattern[str], str]]] = {
    "memory_fraction": (
        "memoryFraction",
        re.compile(r"0\.(?!0+$)[0-9]{1,6}"),
        "a decimal text between 0 and 1 of at most 6 places",
    ),
    "state_dtype": (
        "stateDType",
        re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,31}"),
        "a word of letters, digits, '_' and '.'",
    ),
}
_PINNED_KEYS: Final[Mapping[str, str]] = {
    attribute: row[0] for attribute, row in (*_PINNED_NUMBERS.items(), *_PINNED_WORDS.items())
}


@dataclass(frozen=True, slots=True)
class Pinned:
    """The numbers that become flags. None leaves a flag to the engine's own default.

    Attributes:
        max_total_token_num: Tokens of the KV pool; None where the engine takes bytes only.
        max_sequences: Most requests at once.
        context_length: Longest request, in tokens.
        prefill_tokens: Tokens per prefill batch.
        kv_cache_bytes: Bytes of the KV pool per rank, for engines that take bytes.
        memory_fraction: The engine's share of memory, as the flag writes it.
        block_tokens: Tokens per block or page.
        graph_batch: Largest batch of the decode graphs; 0 without graphs.
        state_dtype: Dtype of recurrent states, as the flag writes it; None without states.
    """

    max_total_token_num: int | None = None
    max_sequences: int | None = None
    context_length: int | None = None
    prefill_tokens: int | None = None
    kv_cache_bytes: int | None = None
    memory_fraction: str | None = None
    block_tokens: int | None = None
    graph_batch: int | None = None
    state_dtype: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        """JSON keys of the report and of the status; what is None is left out."""
        pairs = ((key, getattr(self, attribute)) for attribute, key in _PINNED_KEYS.items())
        return {key: value for key, value in pairs if value is not None}

    @classmethod
    def from_mapping(cls, document: Mapping[str, Any], path: str = "pinned.") -> Pinned:
        """Read what ``to_mapping`` wrote, trusting nothing: these values become a command line.

        Args:
            document: JSON object; an absent key is None.
            path: Where it stands, for messages; with the final dot.

        Raises:
            ResultInvalid: An unknown key, or a value of another type, range or form; names the key.
        """
        reader = Reader(document, path)
        reader.keys(frozenset(), frozenset(_PINNED_KEYS.values()))
        values: dict[str, Any] = {}
        for attribute, (key, least, most) in _PINNED_NUMBERS.items():
            if key in document:
                values[attribute] = reader.integer(key, least, most)
        for attribute, (key, form, wanted) in _PINNED_WORDS.items():
            if key in document:
                values[attribute] = reader.word(key, form, wanted)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Situation:
    """One rank's device with one model on it, and what the user asked for. Bytes.

    Attributes:
        spec: The model.
        request: The question, already merged with the sizing flags among ``engine_args``.
        device: The device of this rank; its name decides some engines' defaults.
        device_total: Memory as CUDA sees it (T).
        free_after_init: Free memory once context, NCCL and cuBLAS are up (F1).
        weights: Bytes of the weights on this rank.
        load_peak: Temporary bytes while the weights are filled in.
        cell: KV bytes per token on this rank.
        wide: Something is unknown (version, flag): use the widest reserve.
    """

    spec: ModelSpec
    request: SizingRequest
    device: Device
    device_total: int
    free_after_init: int
    weights: int
    load_peak: int
    cell: int
    wide: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the engine would make of its memory. Bytes and tokens.

    Attributes:
        reserve: Named terms, see ``report.RESERVE_TERMS``.
        safety: Margin kept beside the reserve.
        kv: Bytes of the pool: ``F1 - weights - sum(reserve) - safety``; may be negative.
        fixed_pools: Bytes of the pool that hold no tokens.
        granule: Tokens are handed out in steps of this.
        tokens: The answer; 0 when it does not fit, None where nothing grows with length.
        sequences: Most requests at once.
        context_length: Longest request that the flags allow.
        prefill_tokens: Tokens per prefill batch.
        largest_request: Longest request that is served: what the pool holds, within context_length.
        notes: What was lowered and why.
        error: Why it does not fit, if so.
        meaning: What ``tokens`` counts, where it is not the engine's usual ``token_meaning``.
        concurrency: Requests of the stated context (``request.context_length``, else the model's)
            that the pool holds; None: tokens / context.
        blocks: Blocks of the pool, where the engine has blocks.
        block_tokens: Tokens per block.
        pinned: The numbers that become flags; None: tokens, sequences, context and prefill.
        confidence: What this reserve is worth, where it is not the engine's ``confidence``.
    """

    reserve: Mapping[str, int]
    safety: int
    kv: int
    fixed_pools: int
    granule: int
    tokens: int | None
    sequences: int
    context_length: int
    prefill_tokens: int
    largest_request: int
    notes: tuple[str, ...] = ()
    error: DoesNotFit | None = None
    meaning: str | None = None
    concurrency: float | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    pinned: Pinned | None = None
    confidence: str | None = None


class Engine(Protocol):
    """One LLM server program."""

    @property
    def type(self) -> str:
        """Name in ``spec.engine.type``."""

    @property
    def default_port(self) -> int:
        """Port that ``serve_args`` gets when the user names none."""

    @property
    def health_path(self) -> str:
        """HTTP path that answers 200 once the server can serve."""

    @property
    def default_command(self) -> tuple[str, ...]:
        """Command of the container; empty keeps the image's entrypoint."""

    @property
    def formats(self) -> frozenset[str]:
        """Weight formats that it loads: ``safetensors``, ``gguf``."""

    @property
    def kv_dtypes(self) -> Mapping[str, str]:
        """Spellings of ``kvCacheDType`` it knows, each with the engine's own word."""

    @property
    def token_meaning(self) -> str:
        """What its token number counts, see ``report.TOKEN_MEANINGS``."""

    @property
    def pipelines(self) -> bool:
        """Whether it spreads layers over pipeline stages, and is sized for it."""

    @property
    def confidence(self) -> str:
        """What its reserve is worth: exact, calibrated or estimated."""

    def check_args(self, args: Sequence[str], env_names: Iterable[str] = ()) -> None:
        """Refuse arguments and environment names that Plimsoll itself must set.

        Raises:
            FlagNotAllowed: Names the flag, how it was spelled, and what to use instead.
        """

    def adopt(self, request: SizingRequest) -> tuple[SizingRequest, tuple[str, ...]]:
        """Merge the sizing flags among the user's arguments into the request.

        Returns:
            The request to size, and a note for each flag, name or version whose effect on memory is
            unknown. Any note means: widest reserve, ``estimated``.

        Raises:
            BadArgument: A flag contradicts the request, or has no sensible value.
            Unsupported: A version that this arithmetic does not know how to pin.
        """

    def pinned_args(self, pinned: Pinned, request: SizingRequest) -> list[str]:
        """Exactly the flags that Plimsoll adds, ``--flag=value``, without model, host and port."""

    def pinned_env(self, pinned: Pinned, request: SizingRequest) -> dict[str, str]:
        """Environment variables that Plimsoll adds beside the flags."""

    def serve_args(
        self, *, model_path: str, served_name: str, host: str, port: int, request: SizingRequest
    ) -> list[str]:
        """Flags that name the model, the address and the ranks."""

    def argv(self, args: Sequence[str]) -> list[str]:
        """Our ``--flag=value`` notation as the engine's own parser takes it."""

    def preinit(self, request: SizingRequest, *, wide: bool) -> int:
        """Bytes that context, NCCL and cuBLAS take on each device before anything is loaded."""

    def cell(self, spec: ModelSpec, request: SizingRequest) -> int:
        """KV bytes per token and rank, as this engine stores them.

        Raises:
            Unsupported: The heads cannot be split over the ranks.
            BadArgument: A cache dtype that this engine does not have.
        """

    def state(self, spec: ModelSpec, request: SizingRequest) -> int:
        """Bytes of state per sequence and rank, as this engine stores them; 0 without states."""

    def rank_kv_heads(self, spec: ModelSpec, tensor: int) -> int:
        """KV heads on one rank: divided, replicated or refused, by this engine's rule.

        Raises:
            Unsupported: The engine refuses this split.
        """

    def rank_weights(
        self, spec: ModelSpec, manifest: Manifest, request: SizingRequest
    ) -> RankWeights:
        """Bytes of the weights on the heaviest rank, by this engine's sharding rules."""

    def absorb(self, request: SizingRequest) -> SizingRequest:
        """Move owned flags that have a field of their own from ``engine_args`` into that field.

        For ``plimsoll fit``, where the engine's own spelling of a setting is as good as ours. In a
        cluster such flags are refused instead (``check_args``).

        Raises:
            BadArgument: The flag and the field are both given and differ, or the value is no number.
        """

    def allocate(self, situation: Situation) -> Allocation:
        """Split one rank's memory by this engine's law.

        In mode Auto: what Plimsoll would write. In mode Engine (``request.mode``): what the engine
        would allocate by itself under ``request.engine_args``, read with ``FlagTable.parse``; the
        part of the device that the engine leaves unused is ``safety``.
        """


def largest(least: int, most: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number in ``[least, most]`` that fits, where fitting ends once and for all."""
    if most < least or not fits(least):
        return None
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
