"""Answers and refusals as text, JSON and YAML."""

from __future__ import annotations

import json
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.budget import SCHEMA
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.budget import Fit
    from plimsoll.core.errors import PlimsollError

_BAR: Final = 60
_LABEL: Final = 26
_AMOUNT: Final = 18


def render(answer: Fit, output: str) -> str:
    """The whole output, newline included."""
    match output:
        case "json":
            return json.dumps(answer.document(), indent=2) + "\n"
        case "yaml":
            return "".join(f"{_printable(line)}\n" for line in _yaml(answer.document(), 0))
        case "args":
            return "".join(f"{quote(arg)}\n" for arg in answer.args)
    return "".join(f"{_printable(line)}\n" for line in _text(answer))


def _printable(line: str) -> str:
    """A line that moves no cursor and forges no other line: names come from strangers' files."""
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def error_line(error: PlimsollError) -> str:
    """One line that names the field and the file."""
    places = [
        f"{name} {text}" for name, text in (("field", error.field), ("file", error.file)) if text
    ]
    where = f" ({', '.join(places)})" if places else ""
    line = f"plimsoll: {error.reason}: {error.message}{where}"
    return _printable(line)


def error_json(error: PlimsollError) -> str:
    """The document of exit codes 2 and 3."""
    return json.dumps({"schema": SCHEMA, "error": error.to_dict()}, indent=2)


def _text(answer: Fit) -> Iterator[str]:
    spec = answer.spec
    context = spec.context_length or "unknown"
    yield f"{spec.architecture}: {spec.attention}, {spec.layers} layers, context {context}"
    yield from _model(answer)
    if answer.budget is not None:
        yield ""
        yield from _budget(answer)
        yield ""
        yield from _bar(answer)
        yield ""
        yield from _result(answer)
    yield f"confidence: {answer.confidence}"
    for warning in answer.warnings:
        yield f"warning: {warning}"


def _model(answer: Fit) -> Iterator[str]:
    """What a token and a sequence cost."""
    cache = answer.cache
    yield _row("KV per token, all layers", cache.all_full, "bytes")
    if answer.spec.windowed:
        yield _row("KV per token, full layers", cache.windows_honoured, "bytes")
        yield _row("windows per sequence", cache.window, "bytes")
    if cache.state:
        yield _row("state per sequence", cache.state, "bytes")
    if cache.cross:
        yield _row("per encoder token", cache.cross, "bytes")
    if answer.engine is not None and answer.kv_bytes_per_rank is not None:
        engine = answer.engine.type
        yield _row(f"KV per token, {engine}", answer.kv_bytes_per_rank, "bytes per rank")
        if answer.state_bytes_per_rank:
            yield _row(f"state, {engine}", answer.state_bytes_per_rank, "bytes per rank")


def _result(answer: Fit) -> Iterator[str]:
    """The number, what it allows, and the flags that say so."""
    allocation = answer.allocation
    document = answer.document()
    if answer.tokens is None:
        yield "tokens: no limit, nothing grows with length"
    else:
        yield _row("tokens", answer.tokens, document["tokenMeaning"] or "")
    if allocation is not None:
        yield _row("sequences", allocation.sequences if not answer.error else 0, "at once")
        yield _row("longest request", allocation.largest_request, "tokens")
    concurrency = document["concurrencyAtContext"]
    if concurrency is not None:
        label = f"requests of {concurrency['context']:,}"
        yield f"{label:<{_LABEL}}{concurrency['requests']:>{_AMOUNT},.2f}  at once"
    for arg in answer.args:
        yield f"  {arg}"
    for name, value in answer.env:
        yield f"  {name}={value}"


def _bar(answer: Fit) -> Iterator[str]:
    """The device as a bar: what started it, weights, reserve, safety and the cache."""
    budget = answer.budget
    if budget is None:
        return
    parts = (
        ("-", budget.device_total - budget.free_after_init, "before the load"),
        ("W", budget.weights, "weights"),
        ("r", sum(budget.reserve.values()), "reserve"),
        ("s", budget.safety, "safety"),
        ("#", budget.kv, "KV cache"),
    )
    bar = ""
    reached = 0
    for letter, size, _ in parts:
        reached += max(0, size)
        bar += letter * (min(_BAR, round(_BAR * reached / budget.device_total)) - len(bar))
    yield f"[{bar:<{_BAR}}]"
    yield " " + ", ".join(f"{letter} {label}" for letter, _, label in parts)


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
