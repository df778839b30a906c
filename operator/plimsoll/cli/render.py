"""Answers and refusals as text, JSON and YAML."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.budget import SCHEMA
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.budget import Fit
    from plimsoll.core.errors import PlimsollError

_LABEL: Final = 26
_AMOUNT: Final = 18


def render(answer: Fit, output: str) -> str:
    """The whole output, newline included."""
    match output:
        case "json":
            return json.dumps(answer.document(), indent=2) + "\n"
        case "yaml":
            return "\n".join(_yaml(answer.document(), 0)) + "\n"
        case "args":
            return "".join(f"{arg}\n" for arg in answer.args)
    return "\n".join(_text(answer)) + "\n"


def error_line(error: PlimsollError) -> str:
    """One line that names the field and the file."""
    places = [
        f"{name} {text}" for name, text in (("field", error.field), ("file", error.file)) if text
    ]
    where = f" ({', '.join(places)})" if places else ""
    line = f"plimsoll: {error.reason}: {error.message}{where}"
    return "".join(c if c.isprintable() else "?" for c in line)


def error_json(error: PlimsollError) -> str:
    """The document of exit codes 2 and 3."""
    return json.dumps({"schema": SCHEMA, "error": error.to_dict()}, indent=2)


def _text(answer: Fit) -> Iterator[str]:
    spec, cache, allocation = answer.spec, answer.cache, answer.allocation
    context = spec.context_length or "unknown"
    yield f"{spec.architecture}: {spec.attention}, {spec.layers} layers, context {context}"
    yield _row("KV per token, all layers", cache.all_full, "bytes")
    if spec.windowed:
        yield _row("KV per token, full layers", cache.windows_honoured, "bytes")
        yield _row("windows per sequence", cache.window, "bytes")
    if answer.engine is not None and answer.kv_bytes_per_rank is not None:
        yield _row(
            f"KV per token, {answer.engine.type}", answer.kv_bytes_per_rank, "bytes per rank"
        )
    if answer.budget is not None and allocation is not None:
        yield ""
        yield from _budget(answer)
        yield ""
        yield _row(
            "tokens", answer.tokens or 0, answer.engine.token_meaning if answer.engine else ""
        )
        yield _row("sequences", allocation.sequences if not answer.error else 0, "at once")
        yield _row("longest request", allocation.largest_request, "tokens")
        for arg in answer.args:
            yield f"  {arg}"
    yield f"confidence: {answer.confidence}"
    for warning in answer.warnings:
        yield f"warning: {warning}"


def _budget(answer: Fit) -> Iterator[str]:
    """The terms, one a line; from free after start to KV cache they add up."""
    budget = answer.budget
    if budget is None:
        return
    yield _bytes("device total", budget.device_total)
    yield _bytes("device free", budget.device_free)
    yield _bytes("free after start", budget.free_after_init)
    yield _bytes("- weights", -budget.weights)
    for term, size in budget.reserve.items():
        yield _bytes(f"- {term}", -size)
    yield _bytes("- safety", -budget.safety)
    yield _bytes("= KV cache", budget.kv)


def _bytes(label: str, amount: int) -> str:
    return f"{label:<{_LABEL}}{amount:>{_AMOUNT},}  {format_bytes(amount):>12}"


def _row(label: str, amount: int, unit: str) -> str:
    return f"{label:<{_LABEL}}{amount:>{_AMOUNT},}  {unit}".rstrip()


def _yaml(value: dict[str, Any] | list[Any], depth: int) -> Iterator[str]:
    """Block style for maps and lists, JSON for scalars: JSON's scalars are YAML's."""
    pad = "  " * depth
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in pairs:
        head = f"{pad}-" if key is None else f"{pad}{key}:"
        if isinstance(item, dict | list) and item:
            yield head
            yield from _yaml(item, depth + 1)
        else:
            yield f"{head} {json.dumps(item)}"
