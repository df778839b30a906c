"""The question that a sizing answers: shared by ``plimsoll fit``, the sizer and the controller."""

from __future__ import annotations

import json
from typing import Any, Final

from plimsoll.core.errors import BadArgument
from plimsoll.core.records import dataclass, fields
from plimsoll.core.units import MAX_AMOUNT

_MAX_JSON: Final = 256 * 1024
_MAX_ITEMS: Final = 512
_MAX_TEXT: Final = 1024
_MAX_TENSOR: Final = 1024
_MAX_COUNT: Final = 1 << 40
_MAX_SEQUENCES: Final = 1 << 20

#: JSON name -> (attribute, kind, least, most); a kind ending in ? may be null.
_SCHEMA: Final[dict[str, tuple[str, str, int, int]]] = {
    "engineType": ("engine_type", "text", 0, 64),
    "engineVersion": ("engine_version", "text?", 1, 128),
    "engineArgs": ("engine_args", "texts", 0, _MAX_ITEMS),
    "engineEnv": ("engine_env", "texts", 0, _MAX_ITEMS),
    "tensor": ("tensor", "int", 1, _MAX_TENSOR),
    "dtype": ("dtype", "text", 1, 64),
    "kvCacheDType": ("kv_cache_dtype", "text", 1, 64),
    "contextLength": ("context_length", "int?", 1, _MAX_COUNT),
    "prefillTokens": ("prefill_tokens", "int?", 1, _MAX_COUNT),
    "maxConcurrentRequests": ("max_concurrent_requests", "int?", 1, _MAX_SEQUENCES),
    "cudaGraphs": ("cuda_graphs", "bool", 0, 1),
    "cudaGraphMaxBatch": ("cuda_graph_max_batch", "int?", 1, _MAX_SEQUENCES),
    "extraReserve": ("extra_reserve", "int", 0, MAX_AMOUNT),
    "maxTotalTokenNum": ("max_total_token_num", "int?", 1, _MAX_COUNT),
    "minTotalTokenNum": ("min_total_token_num", "int?", 1, _MAX_COUNT),
    "modelFile": ("model_file", "text?", 1, _MAX_TEXT),
    # Absent unless asked for: a key that every request carried would change every hash.
    "mode": ("mode", "text?", 1, 16),
    "pipeline": ("pipeline", "int?", 1, _MAX_TENSOR),
    "stateDType": ("state_dtype", "text?", 1, 64),
    "prefixCaching": ("prefix_caching", "bool?", 0, 1),
    "memoryBudget": ("memory_budget", "int?", 1, MAX_AMOUNT),
}
MODES: Final = ("Auto", "Engine")


@dataclass(frozen=True, slots=True)
class SizingRequest:
    """What is to be sized. Absent (None) means: decide by the model, the engine and the card.

    Attributes:
        engine_type: A name of the engine table, for example ``LightLLM``; empty: the model alone.
        engine_version: Version as the engine writes it; unknown widens the reserve.
        engine_args: The user's own arguments, passed through to the engine.
        engine_env: Names (never values) of the user's environment variables.
        tensor: Tensor-parallel ranks, each on a device of its own.
        dtype: Compute dtype of the weights; ``auto`` is the config's.
        kv_cache_dtype: Dtype of the cache; ``auto`` is the compute dtype.
        context_length: Longest request, in tokens.
        prefill_tokens: Tokens per prefill batch.
        max_concurrent_requests: Most requests in one decode batch.
        cuda_graphs: Whether decode graphs are captured.
        cuda_graph_max_batch: Largest captured batch.
        extra_reserve: Bytes to leave free beside everything that is computed.
        max_total_token_num: Upper bound of the answer, in tokens.
        min_total_token_num: Answer below which serving is refused, in tokens.
        model_file: File below the model folder (GGUF).
        mode: Auto (None): what Plimsoll would write. Engine: what the engine would allocate itself.
        pipeline: Pipeline stages; None is 1.
        state_dtype: Dtype of recurrent states; None is the engine's own choice.
        prefix_caching: Whether prefixes are kept; None is yes.
        memory_budget: Bytes of each device that this server may use; None is all of it.
    """

    engine_type: str = ""
    engine_version: str | None = None
    engine_args: tuple[str, ...] = ()
    engine_env: tuple[str, ...] = ()
    tensor: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    context_length: int | None = None
    prefill_tokens: int | None = None
    max_concurrent_requests: int | None = None
    cuda_graphs: bool = True
    cuda_graph_max_batch: int | None = None
    extra_reserve: int = 0
    max_total_token_num: int | None = None
    min_total_token_num: int | None = None
    model_file: str | None = None
    mode: str | None = None
    pipeline: int | None = None
    state_dtype: str | None = None
    prefix_caching: bool | None = None
    memory_budget: int | None = None

    def to_json(self) -> str:
        """Compact JSON with sorted keys, nulls omitted: equal requests give equal text."""
        document = {name: getattr(self, row[0]) for name, row in _SCHEMA.items()}
        kept = {name: value for name, value in document.items() if value is not None}
        return json.dumps(kept, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> SizingRequest:
        """Read a request, trusting nothing about its form.

        Raises:
            BadArgument: Not JSON, an unknown or repeated key, a wrong type, a value out of range.
        """
        if len(text) > _MAX_JSON:
            raise BadArgument(
                f"the sizing request has {len(text)} characters, more than {_MAX_JSON}"
            )
        try:
            document = json.loads(text, object_pairs_hook=_no_repeats)
        except (ValueError, RecursionError) as error:
            raise BadArgument(f"the sizing request is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise BadArgument("the sizing request is not a JSON object")
        if not document.get("engineType"):
            raise BadArgument("the sizing request names no engineType", field="engineType")
        values: dict[str, Any] = {}
        for name, value in document.items():
            if name not in _SCHEMA:
                raise BadArgument(f"the sizing request has the unknown key {name!r}", field=name)
            values[_SCHEMA[name][0]] = tuple(value) if isinstance(value, list) else value
        return cls(**values).validated()

    def validated(self) -> SizingRequest:
        """Return self after checking every field's type and range.

        Raises:
            BadArgument: Names the first field that is wrong.
        """
        for name, (attribute, kind, least, most) in _SCHEMA.items():
            value = getattr(self, attribute)
            if value is None and kind.endswith("?"):
                continue
            if not _fits(value, kind.rstrip("?"), least, most):
                raise BadArgument(
                    f"{name} is {_brief(value)}; it must be {_wanted(kind, least, most)}",
                    field=name,
                    value=value,
                )
        if self.mode is not None and self.mode not in MODES:
            raise BadArgument(
                f"mode is {_brief(self.mode)}; use {' or '.join(MODES)}",
                field="mode",
                value=self.mode,
            )
        return self


def _fits(value: object, kind: str, least: int, most: int) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    if kind == "text":
        return isinstance(value, str) and least <= len(value) <= most and value.isprintable()
    return (
        isinstance(value, tuple)
        and len(value) <= most
        and all(isinstance(item, str) and len(item) <= _MAX_TEXT for item in value)
    )


def _wanted(kind: str, least: int, most: int) -> str:
    match kind.rstrip("?"):
        case "bool":
            return "true or false"
        case "int":
            return f"an integer from {least} to {most}"
        case "text":
            return f"printable text of {least} to {most} characters"
    return f"a list of at most {most} texts of at most {_MAX_TEXT} characters"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:64] + "..."  # noqa: PLR2004 - a readable length


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is repeated")
    return document


if len(_SCHEMA) != len(fields(SizingRequest)):  # pragma: no cover - a guard for the programmer
    raise AssertionError("every field of SizingRequest needs a row in the schema")
