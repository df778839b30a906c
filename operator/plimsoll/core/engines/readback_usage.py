"""How full an engine's KV cache is at the moment, and how many requests wait, by its own word. Data, and one reader.

Engines mean different things by "used": ``HELD`` are tokens of running requests (blocks that only a
prefix cache keeps count as free), ``RESERVED`` is what the running batch may grow to, ``SLOTS`` are the
whole slots of running requests. Where an engine tells nothing, there is no number.

Source: the research on engines, sections 1.7, 2.7, 3.7, 4 and 5; llama.cpp's server, tools/server/README.md
(newer builds have no gauges ``llamacpp:kv_cache_*``, and /metrics answers only with --metrics).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HELD: Final = "Held"
RESERVED: Final = "Reserved"
SLOTS: Final = "Slots"

_MAX_TEXT: Final = 4 << 20
_MOST: Final = float(1 << 50)


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine says of its cache. None: it does not say.

    Attributes:
        tokens: Tokens in use.
        fraction: Part of the pool in use, 0 to 1.
        running: Requests that run.
        waiting: Requests that wait for room.
        basis: What "in use" means: ``HELD``, ``RESERVED`` or ``SLOTS``.
    """

    tokens: int | None = None
    fraction: float | None = None
    running: int | None = None
    waiting: int | None = None
    basis: str | None = None


@dataclass(frozen=True, slots=True)
class UsagePage:
    """One page of a running engine.

    Attributes:
        path: On the server's port.
        kind: ``metrics`` (Prometheus text), ``json`` (an object) or ``slots`` (llama.cpp's list).
        names: Field of Usage -> names there, the first that exists counts.
        basis: What its number of tokens in use means.
    """

    path: str
    kind: str
    names: Mapping[str, tuple[str, ...]]
    basis: str = HELD


#: Engine -> the pages that together tell most. With several ranks or data-parallel parts, gauges of
#: requests add up and the fullest pool counts.
USAGE: Final[Mapping[str, tuple[UsagePage, ...]]] = {
    "LightLLM": (
        UsagePage("/token_load", "json", {"fraction": ("current_load",)}),
        UsagePage(
            "/metrics",
            "metrics",
            {"running": ("lightllm_num_running_reqs",), "waiting": ("lightllm_queue_size",)},
        ),
    ),
    "SGLang": (
        UsagePage(
            "/metrics",
            "metrics",
            {
                "tokens": ("sglang:num_used_tokens",),
                "fraction": ("sglang:token_usage",),
                "running": ("sglang:num_running_reqs",),
                "waiting": ("sglang:num_queue_reqs",),
            },
        ),
    ),
    "VLLM": (
        UsagePage(
            "/metrics",
            "metrics",
            {
                "fraction": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
                "running": ("vllm:num_requests_running",),
                "waiting": ("vllm:num_requests_waiting",),
            },
        ),
    ),
    "TGI": (
        UsagePage(
            "/metrics",
            "metrics",
            {
                "tokens": ("tgi_batch_current_max_tokens",),
                "running": ("tgi_batch_current_size",),
                "waiting": ("tgi_queue_size",),
            },
            RESERVED,
        ),
    ),
    "TensorRTLLM": (
        UsagePage(
            "/prometheus/metrics",
            "metrics",
            {
                "fraction": ("trtllm_kv_cache_utilization", "kv_cache_utilization"),
                "running": ("trtllm_num_requests_running", "num_requests_running"),
                "waiting": ("trtllm_num_requests_waiting", "num_requests_waiting"),
            },
        ),
    ),
    "LlamaCpp": (
        UsagePage(
            "/metrics",
            "metrics",
            {
                "tokens": ("llamacpp:kv_cache_tokens",),
                "fraction": ("llamacpp:kv_cache_usage_ratio",),
                "running": ("llamacpp:requests_processing",),
                "waiting": ("llamacpp:requests_deferred",),
            },
        ),
        UsagePage("/slots", "slots", {}, SLOTS),
    ),
}

_VALUE: Final = r"(?:\{[^}\n]{0,2000}\})? ([0-9]{1,15}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,2})?)\r?$"
_FULLEST: Final = frozenset({"fraction", "tokens"})


def read_usage(engine: str, bodies: Mapping[str, str]) -> Usage:
    """Put together what an engine's pages say. An earlier page of the table wins.

    Args:
        engine: Name of the engine table; an unknown one says nothing.
        bodies: Path of a page -> what the engine answered there; pages that failed are left out.
    """
    values: dict[str, float] = {}
    basis: str | None = None
    for page in USAGE.get(engine, ()):
        body = bodies.get(page.path, "")[:_MAX_TEXT]
        found = _READERS[page.kind](page, body)
        new = {name: value for name, value in found.items() if name not in values}
        if new.keys() & _FULLEST and basis is None:
            basis = page.basis
        elif basis is not None:  # two pages may mean different things by it
            new = {name: value for name, value in new.items() if name not in _FULLEST}
        values |= new
    fraction = values.get("fraction")
    return Usage(
        tokens=_whole(values.get("tokens")),
        fraction=fraction if fraction is None else min(fraction, 1.0),
        running=_whole(values.get("running")),
        waiting=_whole(values.get("waiting")),
        basis=basis,
    )


def _from_metrics(page: UsagePage, body: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for field, names in page.names.items():
        for name in names:
            row = re.compile(rf"^{re.escape(name)}{_VALUE}", re.MULTILINE | re.ASCII)
            _merge(found, field, (float(text) for text in row.findall(body)))
            if field in found:
                break
    return found


def _from_json(page: UsagePage, body: str) -> dict[str, float]:
    document = _parsed(body)
    found: dict[str, float] = {}
    if isinstance(document, dict):
        for field, names in page.names.items():
            told = document.get(names[0])
            _merge(found, field, told if isinstance(told, list) else [told])
    return found


def _from_slots(_page: UsagePage, body: str) -> dict[str, float]:
    """llama.cpp: each slot is ``n_ctx`` tokens, and a running request has one to itself."""
    slots = _parsed(body)
    if not isinstance(slots, list) or not slots:
        return {}
    sizes: list[int] = []
    busy: list[int] = []
    for slot in slots:
        size = slot.get("n_ctx") if isinstance(slot, dict) else None
        if (
            not isinstance(size, int)
            or not _is_number(size)
            or not isinstance(slot.get("is_processing"), bool)
        ):
            return {}
        sizes.append(size)
        busy.append(size * slot["is_processing"])
    running = float(sum(size > 0 for size in busy))
    total = sum(sizes)
    if total <= 0:
        return {}
    return {"tokens": float(sum(busy)), "fraction": sum(busy) / total, "running": running}


_READERS: Final = {"metrics": _from_metrics, "json": _from_json, "slots": _from_slots}


def _merge(found: dict[str, float], field: str, values: Iterable[object]) -> None:
    numbers = [float(value) for value in values if _is_number(value)]  # type: ignore[arg-type]
    if numbers:
        found[field] = max(numbers) if field in _FULLEST else sum(numbers)


def _is_number(value: object) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and 0 <= value <= _MOST  # type: ignore[operator]


def _parsed(body: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
