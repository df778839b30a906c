"""What an engine says it got: patterns of its log, its endpoints, its ways to fail. Data, and three readers.

A log is hostile input: lines are cut to a length, a pattern runs only on lines that hold its plain
text, and no pattern has a quantifier inside another or an unbounded one. Numbers may carry thousands
separators. All engines write GB, GiB or MB for multiples of 1,024, TGI's debug line excepted.

Source: the research on engines, sections 1.7, 2.6, 3.6, 4, 5 and 7, and a CPU run of vLLM 0.32.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.engines.readback_failures import FAILURES
from plimsoll.core.records import dataclass, replace
from plimsoll.core.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_LINE: Final = 4096
MAX_TEXT: Final = 4 << 20
_MAX_MESSAGE: Final = 300
_MOST: Final = 1 << 50  # beyond any memory or token count

_COUNT: Final = r"([0-9][0-9,]{0,19})"
# All digits of a float or nothing: the tail of 0.0078125 alone would be 78125.
_REAL: Final = r"(?<![0-9.])(-?[0-9]{1,9}(?:\.[0-9]{1,20})?)"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read. None: the engine did not say. Bytes are rounded as the engine printed them.

    Attributes:
        tokens: Tokens of the KV pool, as this engine and version counts them.
        pool_bytes: The pool on one rank.
        weights_bytes: The weights on one rank.
        graph_bytes: What the graphs took.
        activation_bytes: The peak that the engine measured beside weights and pool.
        cell_bytes: One token on one rank.
        blocks: Blocks of the pool.
        block_tokens: Tokens per block.
        state_slots: Slots of the state pool.
        window_tokens: Tokens of the windowed layers' pool.
        concurrency: Requests of ``context`` tokens that the pool holds, by the engine's word.
        context: Tokens per request that ``concurrency`` is for, or the longest request.
    """

    tokens: int | None = None
    pool_bytes: int | None = None
    weights_bytes: int | None = None
    graph_bytes: int | None = None
    activation_bytes: int | None = None
    cell_bytes: int | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    state_slots: int | None = None
    window_tokens: int | None = None
    concurrency: float | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of an engine's log.

    Attributes:
        anchor: Plain text that the line holds; checked before the expression runs.
        expression: One group per field.
        fields: Fields of Reading that the groups fill.
        unit: Bytes of a 1 in the log; 0 for counts.
        keep: Of several ranks' or starts' lines: first, last, least or most.
    """

    anchor: str
    expression: re.Pattern[str]
    fields: tuple[str, ...]
    unit: int = 0
    keep: str = "last"


def _row(anchor: str, text: str, fields: str, unit: int = 0, keep: str = "last") -> Pattern:
    expression = text.replace("<n>", _COUNT).replace("<x>", _REAL)
    return Pattern(anchor, re.compile(expression, re.ASCII), tuple(fields.split()), unit, keep)


PATTERNS: Final[Mapping[str, tuple[Pattern, ...]]] = {
    "LightLLM": (
        # The router's line comes in both modes and is the one that counts.
        _row(
            "is the profiled max_total_token_num",
            r"<n> is the profiled max_total_token_num",
            "tokens",
        ),
        _row("set shm_max_total_token_num", r"set shm_max_total_token_num value to <n>", "tokens"),
        _row(
            "the size of one token kv cache", r"<x> MB is the size of one token", "cell_bytes", MIB
        ),
    ),
    "SGLang": (
        _row("#tokens:", r"#tokens: <n>", "tokens", keep="first"),
        _row("max_total_num_tokens=", r"max_total_num_tokens=<n>", "tokens"),
        _row("K size:", r"K size: <x> GB, V size: <x> GB", "pool_bytes pool_bytes", GIB, "first"),
        _row("KV size:", r"KV size: <x> GB", "pool_bytes", GIB, "first"),
        _row("SWAKVPool mem usage", r"SWAKVPool mem usage: <x> GB", "pool_bytes", GIB, "first"),
        _row("Load weight end", r"mem usage=<x> GB", "weights_bytes", GIB, "first"),
        _row("CUDA graph end", r"mem usage=<x> GB", "graph_bytes", GIB, "first"),
        _row("cuda graph end", r"mem usage=<x> GB", "graph_bytes", GIB, "first"),
        _row("swa_layer_tokens=", r"swa_layer_tokens=<n>", "window_tokens"),
        _row("max_mamba_cache_size:", r"max_mamba_cache_size: <n>", "state_slots"),
        _row("context_len=", r"context_len=<n>", "context"),
    ),
    "VLLM": (
        # Any device word: GPU, CPU, XPU. One line since 0.32, two lines before; blocks alone in V0.
        _row("KV cache size:", r"KV cache size: <n> tokens", "tokens", keep="least"),
        _row(
            "Maximum concurrency for",
            r"Maximum concurrency for <n> tokens per request: <x>x",
            "context concurrency",
        ),
        _row("Available KV cache memory", r"KV cache memory: <x> GiB", "pool_bytes", GIB, "least"),
        _row("Explicitly set (", r"Explicitly set \(<x>/", "pool_bytes", GIB, "least"),
        _row("Auto set (", r"Auto set \(<x>/", "pool_bytes", GIB, "least"),
        _row("Model loading took", r"Model loading took <x> GiB", "weights_bytes", GIB, "most"),
        _row("Loading model weights took", r"weights took <x> GB", "weights_bytes", GIB, "most"),
        _row("Graph capturing finished", r"took <x> GiB", "graph_bytes", GIB, "most"),
        _row(
            "for peak activation", r"<x> GiB for peak activation", "activation_bytes", GIB, "most"
        ),
        _row("GPU blocks:", r"GPU blocks: <n>", "blocks", keep="least"),
        _row("num_gpu_blocks_override=", r"num_gpu_blocks_override=<n>", "blocks"),
        _row("Setting attention block size", r"block size to <n> tokens", "block_tokens"),
        _row("Auto-fit max_model_len", r"reduced from [0-9]{1,12} to <n>", "context"),
    ),
    "TGI": (
        _row(
            "KV-cache blocks:",
            r"KV-cache blocks: <n>, size: <n>",
            "blocks block_tokens",
            keep="least",
        ),
        _row("Setting max batch total tokens", r"total tokens to <n>", "tokens"),
    ),
    "TensorRTLLM": (
        _row("in paged KV cache", r"Allocated <x> GiB for max tokens", "pool_bytes", GIB),
        _row("in paged KV cache", r"paged KV cache \(<n>\)", "tokens"),
        _row("Estimated max memory in KV cache", r"KV cache ?: <x> GiB", "pool_bytes", GIB),
        _row("model weights (inside torch)", r"<x> GiB", "weights_bytes", GIB),
        _row("kv size per token is", r"kv size per token is <n>", "cell_bytes"),
        _row("Number of blocks in KV cache primary", r"primary pool: <n>", "blocks", keep="least"),
        _row("Number of tokens per block", r"tokens per block: <n>", "block_tokens"),
    ),
    "LlamaCpp": (
        _row("KV buffer size", r"KV buffer size = {1,8}<x> MiB", "pool_bytes", MIB, "most"),
        _row(
            "model buffer size", r"model buffer size = {1,8}<x> MiB", "weights_bytes", MIB, "most"
        ),
        _row("n_ctx ", r"n_ctx {1,12}= {1,4}<n>", "tokens"),
    ),
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a running engine tells its pool over HTTP.

    Attributes:
        path: Path on the server's port.
        kind: ``metrics`` (Prometheus text) or ``json``.
        fields: Name there -> field of Reading. In metrics ``name`` or ``name{label}``; in JSON
            keys joined by dots.
        evidence: False where the number is the flag as it was given, not what the engine made of it.
    """

    path: str
    kind: str
    fields: Mapping[str, str]
    evidence: bool = True


_CACHE_INFO: Final = "vllm:cache_config_info"
#: In the order in which they are worth asking.
ENDPOINTS: Final[Mapping[str, tuple[Endpoint, ...]]] = {
    # Its start arguments repeat the flag or lack the number, its metrics have no pool: the log tells.
    "LightLLM": (
        Endpoint("/get_server_info", "json", {"max_total_token_num": "tokens"}, evidence=False),
    ),
    "SGLang": (
        Endpoint("/server_info", "json", {"max_total_num_tokens": "tokens"}),
        Endpoint("/get_server_info", "json", {"max_total_num_tokens": "tokens"}),
        Endpoint("/metrics", "metrics", {"sglang:max_total_num_tokens": "tokens"}),
    ),
    # Nothing at all with --disable-log-stats. The token label exists in 0.32 and newer. Of these only
    # the bytes are the setting, and not what was made of it.
    "VLLM": (
        Endpoint(
            "/metrics",
            "metrics",
            {
                f"{_CACHE_INFO}{{num_gpu_blocks}}": "blocks",
                f"{_CACHE_INFO}{{block_size}}": "block_tokens",
                f"{_CACHE_INFO}{{kv_cache_size_tokens}}": "tokens",
                f"{_CACHE_INFO}{{kv_cache_memory_bytes}}": "pool_bytes",
            },
        ),
    ),
    "TGI": (Endpoint("/metrics", "metrics", {"tgi_batch_max_total_tokens": "tokens"}),),
    "TensorRTLLM": (
        Endpoint(
            "/prometheus/metrics",
            "metrics",
            {
                "trtllm_kv_cache_max_blocks": "blocks",
                "trtllm_kv_cache_tokens_per_block": "block_tokens",
                "kv_cache_max_blocks": "blocks",
                "kv_cache_tokens_per_block": "block_tokens",
            },
        ),
    ),
    # A slot is a block: total_slots of n_ctx tokens each.
    "LlamaCpp": (
        Endpoint(
            "/props",
            "json",
            {"total_slots": "blocks", "default_generation_settings.n_ctx": "block_tokens"},
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an engine gave up.

    Attributes:
        kind: OutOfMemory, PoolTooSmall, TooLittleFree, BadFlag, ContextTooLong, Unbalanced or
            WeightsUnreadable.
        message: The line that says so, cut to 300 characters, without control characters.
    """

    kind: str
    message: str


def read_log(engine: str, text: str) -> Reading:
    """Everything that this engine's log says of its memory. Lines and text beyond a limit are cut.

    Args:
        engine: Name of the engine table; an unknown one has no patterns.
        text: The log from its start, of all ranks.
    """
    values: dict[str, float] = {}
    for line in _lines(text[:MAX_TEXT]):
        for pattern in PATTERNS.get(engine, ()):
            if pattern.anchor in line:
                _take(pattern, line, values)
    return _complete(_reading(values), engine)


def read_endpoint(engine: str, path: str, body: str | Mapping[str, Any]) -> Reading:
    """What an endpoint of ``ENDPOINTS`` says: its text for metrics, the parsed document for JSON."""
    values: dict[str, float] = {}
    for endpoint in ENDPOINTS.get(engine, ()):
        if endpoint.path != path:
            continue
        if isinstance(body, str):
            _metrics(body[:MAX_TEXT], endpoint.fields, values)
        else:
            for name, attribute in endpoint.fields.items():
                _put(values, attribute, _dig(body, name))
    return _complete(_reading(values), engine)


def classify_failure(engine: str, text: str) -> Failure | None:
    """The first row of the engine's table that any line of the log's end matches, or None.

    Rows are ordered by how much they say: a stated cause before the out-of-memory error that every
    engine may end with.
    """
    lines = list(_lines(text[-MAX_TEXT:]))
    for signature, kind in (*FAILURES.get(engine, ()), *FAILURES["*"]):
        for line in lines:
            if signature in line:
                printable = "".join(c if c.isprintable() else " " for c in line.strip())
                return Failure(kind, printable[:_MAX_MESSAGE])
    return None


def _lines(text: str) -> Iterator[str]:
    return (line[:MAX_LINE] for line in text.split("\n"))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _take(pattern: Pattern, line: str, values: dict[str, float]) -> None:
    """Merge one line; groups of the same field add up (SGLang prints K and V apart)."""
    match = pattern.expression.search(line)
    if match is None:
        return
    found: dict[str, float] = {}
    for attribute, text in zip(pattern.fields, match.groups(), strict=True):
        found[attribute] = found.get(attribute, 0) + _number(text) * (pattern.unit or 1)
    for attribute, value in found.items():
        before = values.get(attribute)
        if not 0 <= value <= _MOST or (before is not None and pattern.keep == "first"):
            continue
        if before is not None and pattern.keep == "least":
            value = min(value, before)  # noqa: PLW2901 - the merged value
        elif before is not None and pattern.keep == "most":
            value = max(value, before)  # noqa: PLW2901 - the merged value
        values[attribute] = value


def _put(values: dict[str, float], attribute: str, value: object) -> None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if plain and 0 <= value <= _MOST:  # type: ignore[operator]
        values.setdefault(attribute, float(value))  # type: ignore[arg-type]


def _dig(document: object, name: str) -> object:
    for key in name.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def _metrics(text: str, fields: Mapping[str, str], values: dict[str, float]) -> None:
    """Samples and labels of Prometheus text; of several engines or ranks, the first."""
    for line in _lines(text):
        for name, attribute in fields.items():
            metric, _, label = name.rstrip("}").partition("{")
            if not line.startswith((metric + "{", metric + " ")):
                continue
            if label:
                written = re.search(rf'[{{,]{label}="([0-9]{{1,18}})"', line)
            else:
                written = re.search(r"[ }]([0-9]{1,15}(?:\.[0-9]{1,6})?(?:e\+?[0-9]{1,2})?)$", line)
            _put(values, attribute, float(written[1]) if written else None)


def _reading(values: Mapping[str, float]) -> Reading:
    whole = {name: round(value) for name, value in values.items() if name != "concurrency"}
    return Reading(**whole, concurrency=values.get("concurrency"))


def _complete(reading: Reading, engine: str) -> Reading:
    """Fill in what follows from the rest."""
    if reading.tokens is None and reading.blocks is not None:
        block = reading.block_tokens
        if block is None and engine == "VLLM":
            block = 16  # V0 prints blocks only, of 16 tokens unless told otherwise
        if block is not None:
            reading = replace(reading, tokens=reading.blocks * block, block_tokens=block)
    if reading.pool_bytes is None and reading.tokens is not None and reading.cell_bytes:
        reading = replace(reading, pool_bytes=reading.tokens * reading.cell_bytes)
    return reading
