"""What ``explain`` says, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli.classes import class_table
from plimsoll.cli.style import BAR, bar, printable, table, wrapped
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.cli.style import Style

_LABEL: Final = 20
_AMOUNT: Final = 18
_HUMAN: Final = 12
_TONES: Final = {"-": "dim", "W": "bold", "r": "busy", "s": "busy", "#": "good", ".": "dim"}
_LEGEND: Final = (
    ("-", "before the load"), ("W", "weights"), ("r", "reserve"), ("s", "safety"), ("#", "tokens"),
    (".", "no whole step of tokens"),
)  # fmt: skip


def text(answer: Mapping[str, Any], style: Style) -> Iterator[str]:
    """The lines."""
    number = answer["number"]
    engine = " ".join(str(word) for word in answer["engine"].values() if word)
    gpu = (answer["gpu"] or {}).get("product")
    on = f" on {gpu} (node {answer['node']})" if gpu else ""
    yield style.paint(printable(f"{answer['namespace']}/{answer['name']}: {engine}{on}"), "bold")
    yield ""
    yield from _number(number)
    if answer["terms"]:
        yield ""
        yield from _terms(answer, style)
    yield from _facts(answer)
    if answer["classes"]:
        yield ""
        yield from class_table(answer["classes"])
    if answer["levers"]:
        yield ""
        yield from _levers(answer, style)
    for note in answer["notes"]:
        yield ""
        yield from wrapped(note, "")


def _number(number: Mapping[str, Any]) -> Iterator[str]:
    tokens = number["maxTotalTokenNum"]
    if tokens is not None:
        meaning = f": {number['meaning']}" if number["meaning"] else ""
        yield printable(f"{tokens:,} tokens{meaning}")
    elif number["kvCacheBytes"] is not None:
        yield f"{number['kvCacheBytes']:,} bytes of KV cache"
    if number["from"]:
        at = f" at {number['measuredAt']}" if number["measuredAt"] else ""
        sure = f", {number['confidence']}" if number["confidence"] else ""
        yield printable(f"{number['from']}{at}{sure}")


def _terms(answer: Mapping[str, Any], style: Style) -> Iterator[str]:
    for term in answer["terms"]:
        sign = {"sum": "", "#": "= "}.get(term["mark"], "- ")
        if not term["bytes"] and sign == "- ":
            continue
        size = term["bytes"]
        label = f"{sign}{term['name']}"
        line = f"{label:<{_LABEL}}{size:>{_AMOUNT},}{format_bytes(size):>{_HUMAN}}   {term['from']}"
        yield printable(line)
    number = answer["number"]
    tokens, cell = number["maxTotalTokenNum"], number["bytesPerToken"]
    if tokens is not None and cell and number["tokenMeaning"] == "AllLayersFull":
        room = (number["kvCacheBytes"] - (number["fixedPools"] or 0)) // cell
        step = f", in steps of {number['granule']:,}" if (number["granule"] or 1) > 1 else ""
        yield f"/ {cell:,} B a token = {room:,}{step} = {tokens:,} tokens"
    yield ""
    yield from _bar(answer, style)


def _bar(answer: Mapping[str, Any], style: Style) -> Iterator[str]:
    sizes = dict.fromkeys("-Wrs#.", 0)
    for term in answer["terms"]:
        if term["mark"] != "sum":
            sizes[term["mark"]] += abs(term["bytes"])
    number = answer["number"]
    tokens, cell = number["maxTotalTokenNum"], number["bytesPerToken"]
    if tokens is not None and cell and number["tokenMeaning"] == "AllLayersFull":
        used = min(sizes["#"], tokens * cell + (number["fixedPools"] or 0))
        sizes["."], sizes["#"] = sizes["#"] - used, used
    total = answer["terms"][0]["bytes"]
    plain = bar(sizes.items(), total)
    runs, at = [], 0
    for letter in sizes:
        size = plain[1 : BAR + 1].count(letter)
        runs.append(style.paint(plain[1 + at : 1 + at + size], _TONES[letter]))
        at += size
    yield f"[{''.join(runs)}{' ' * (BAR - at)}]"
    yield " " + ", ".join(f"{letter} {name}" for letter, name in _LEGEND if letter in plain)


def _facts(answer: Mapping[str, Any]) -> Iterator[str]:
    mode, strategy, drift = answer["mode"], answer["strategy"], answer["drift"]
    number = answer["number"]
    rows = []
    at_context = number["concurrencyAtContext"]
    if at_context:
        rows.append(
            ("holds", f"{at_context['requests']} requests of {at_context['context']:,} at once")
        )
    if mode["is"]:
        rows.append(("mode", f"{mode['is']}: {mode['why']}"))
    if strategy["is"]:
        counts = ""
        if strategy["maxSurge"] is not None:
            counts = f" (surge {strategy['maxSurge']}, unavailable {strategy['maxUnavailable']})"
        why = f": {strategy['why']}" if strategy["why"] else ""
        rows.append(("turns", f"{strategy['is']}{counts}{why}"))
    rows.extend(("corrected", said) for said in answer["corrections"])
    if drift["message"]:
        percent = f"{drift['percent']} %, " if drift["percent"] is not None else ""
        rows.append(("drift", f"{percent}{drift['reason']}: {drift['message']}"))
    if rows:
        yield ""
    for label, said in rows:
        first, *more = wrapped(said, " " * 11)
        yield f"{label:<11}{first.strip()}"
        yield from more


def _levers(answer: Mapping[str, Any], style: Style) -> Iterator[str]:
    now = answer["number"]["maxTotalTokenNum"] or 0
    yield style.paint("What would raise the number", "bold")
    rows = []
    for lever in answer["levers"]:
        tokens = lever["tokens"]
        if tokens is None:
            said, times = None, None
        else:
            word = "" if lever["basis"] == "exact" else f"{lever['basis']} "
            said = f"{word}{tokens:,}"
            times = f"x {tokens / now:.2f}" if now else None
        rows.append((lever["setting"], said, times, lever["why"]))
    lines = table(("SETTING", "TOKENS", "", "WHY"), rows, frozenset({1, 2}))
    yield from (f"  {line}" for line in lines)
