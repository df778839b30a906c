"""A picture of the dashboard, drawn by hand from the answers to its own queries.

It is not Grafana's: colours and proportions are ours, and it has the panels that tell most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.monitoring.panels import Target, legend, targets
from tests.monitoring.prometheus import Series

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.monitoring.prometheus import Prometheus

CAPTION = (
    "Drawn from the answers of a real Prometheus to the dashboard's own queries, while the operator "
    "ran on the local test cluster; not a screenshot of Grafana."
)
TILES = (
    "Servers",
    "Ready",
    "Pods ready",
    "Tokens held",
    "Largest drift",
    "Waiting for a GPU",
    "Degraded",
    "Stalled",
)
GRAPHS = (
    ("Fleet", "Tokens held"),
    ("Fleet", "Servers by status"),
    ("Fleet", "Wait for a GPU"),
    ("Servers: $server", "Memory of one device"),
    ("Servers: $server", "Tokens"),
    ("Fleet", "Failed sizings"),
    ("Operator", "Passes"),
    ("Operator", "Latency of passes"),
    ("Operator", "Event loop lag"),
    ("Operator", "API requests"),
    ("Operator", "CPU"),
    ("Operator", "Memory"),
)
STACKED = frozenset({"Tokens held", "Servers by status", "Failed sizings"})
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#edc948", "#9c755f")
INK, FAINT, PAPER, CARD, LINE = "#1f2933", "#667684", "#f3f5f7", "#ffffff", "#dde3e8"

WIDTH, MARGIN, GAP = 1200, 20, 12
TILE_HEIGHT, GRAPH_WIDTH, GRAPH_HEIGHT = 66, 378.67, 196
PLOT_LEFT, PLOT_TOP, PLOT_BOTTOM = 54, 30, 46
MOST_POINTS = 120
MOST_NAMES = 8

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BINARY = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


Answer = tuple[Target, list[Series]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line of a graph."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Where something is drawn."""

    x: float
    y: float
    width: float
    height: float


def write(file: Path, prometheus: Prometheus, start: float, end: float) -> None:
    """Ask the dashboard's queries and draw the answers.

    Args:
        file: the SVG.
        prometheus: who answers.
        start: Unix time at the left.
        end: Unix time at the right.
    """
    step = max(1.0, (end - start) / MOST_POINTS)
    answers = [(t, prometheus.series(t.expression, start, end, step)) for t in targets()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(draw(answers, start, end))


def draw(answers: Sequence[Answer], start: float, end: float) -> str:
    """The SVG; the same answers make the same picture."""

    def of(row: str, title: str, kinds: frozenset[str]) -> list[Answer]:
        return [
            (target, found)
            for target, found in answers
            if (target.row, target.panel) == (row, title) and target.kind in kinds
        ]

    top = 64.0
    parts = []
    width = (WIDTH - 2 * MARGIN - GAP * (len(TILES) - 1)) / len(TILES)
    for number, title in enumerate(TILES):
        box = Box(MARGIN + number * (width + GAP), top, width, TILE_HEIGHT)
        parts.append(_tile(box, title, of("Fleet", title, frozenset({"stat"}))))
    top += TILE_HEIGHT + GAP
    for number, (section, title) in enumerate(GRAPHS):
        row, column = divmod(number, 3)
        box = Box(
            MARGIN + column * (GRAPH_WIDTH + GAP),
            top + row * (GRAPH_HEIGHT + GAP),
            GRAPH_WIDTH,
            GRAPH_HEIGHT,
        )
        mine = of(section, title, frozenset({"timeseries", "bargauge"}))
        kind = mine[0][0].kind
        parts.append((_bars if kind == "bargauge" else _graph)(box, title, mine, start, end))
    height = top + math.ceil(len(GRAPHS) / 3) * (GRAPH_HEIGHT + GAP) + 22
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif" fill="{INK}">\n'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="{PAPER}"/>\n'
        + _text(MARGIN, 38, "Plimsoll", size=20, weight=600)
        + _text(WIDTH - MARGIN, 38, f"{end - start:.0f} seconds", size=12, anchor="end", ink=FAINT)
    )
    foot = _text(MARGIN, height - 12, CAPTION, size=11, ink=FAINT)
    return head + "".join(parts) + foot + "</svg>\n"


def _tile(box: Box, title: str, answers: Sequence[Answer]) -> str:
    values = [series.points[-1][1] for _, found in answers for series in found[:1]]
    unit = answers[0][0].unit
    said = " / ".join(number(value, unit) for value in values) or "none"
    return (
        _card(box)
        + _text(box.x + 12, box.y + 22, title, size=12, ink=FAINT)
        + _text(box.x + 12, box.y + 50, said, size=22, weight=600)
    )


def _curves(answers: Sequence[Answer]) -> list[Curve]:
    """By name; those that are always 0 come last, because they say least."""
    curves = [
        Curve(legend(target.legend, series.labels) or target.panel, series.points)
        for target, found in answers
        for series in found
    ]
    return sorted(curves, key=lambda c: (not any(v for _, v in c.points), c.name))


def _graph(
    box: Box,
    title: str,
    answers: Sequence[Answer],
    start: float,
    end: float,
) -> str:
    unit, curves = answers[0][0].unit, _curves(answers)
    shown = [c for c in curves if any(v for _, v in c.points)] or curves[:1]
    plot = Box(
        box.x + PLOT_LEFT,
        box.y + PLOT_TOP,
        box.width - PLOT_LEFT - 14,
        box.height - PLOT_TOP - PLOT_BOTTOM,
    )
    layers = _stacked(shown) if title in STACKED else [(c, None) for c in shown]
    most = _ceiling(max((v for c, _ in layers for _, v in c.points), default=1.0), unit)
    parts = [_card(box), _text(box.x + 12, box.y + 20, title, size=12.5, weight=600)]
    parts += _grid(plot, most, unit)

    def at(point: tuple[float, float]) -> str:
        x = plot.x + plot.width * (point[0] - start) / (end - start)
        y = plot.y + plot.height * (1 - min(point[1], most) / most)
        return f"{x:.1f},{y:.1f}"

    for index, (curve, below) in reversed(list(enumerate(layers))):
        colour = COLOURS[index % len(COLOURS)]
        if below is not None:
            area = " ".join(map(at, (*curve.points, *reversed(below))))
            parts.append(f'<polygon points="{area}" fill="{colour}" fill-opacity=".35"/>\n')
        for part in _parts(curve.points):
            line = " ".join(map(at, part))
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6" '
                'stroke-linejoin="round"/>\n'
            )
    parts.append(_names(box, [c.name for c in shown], len(curves) - len(shown)))
    return "".join(parts)


def _stacked(
    curves: Sequence[Curve],
) -> list[tuple[Curve, tuple[tuple[float, float], ...] | None]]:
    """Each curve on top of those before it, with the line below it; where it has no number, 0."""
    times = sorted({t for curve in curves for t, _ in curve.points})
    below = tuple((t, 0.0) for t in times)
    layers: list[tuple[Curve, tuple[tuple[float, float], ...] | None]] = []
    for curve in curves:
        values = dict(curve.points)
        above = tuple((t, height + values.get(t, 0.0)) for t, height in below)
        layers.append((Curve(curve.name, above), below))
        below = above
    return layers


def _parts(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """A line, broken where it has no numbers."""
    usual = min((b[0] - a[0] for a, b in pairwise(points)), default=0.0)
    parts = [[points[0]]]
    for before, point in pairwise(points):
        if point[0] - before[0] > 1.5 * usual:
            parts.append([])
        parts[-1].append(point)
    return parts


def _grid(plot: Box, most: float, unit: str) -> list[str]:
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = plot.y + plot.height * (1 - part)
        parts.append(
            f'<path d="M{plot.x:.1f} {y:.1f}h{plot.width:.1f}" stroke="{LINE}" stroke-width="1"/>\n'
        )
        parts.append(
            _text(plot.x - 6, y + 4, number(most * part, unit), size=10, anchor="end", ink=FAINT)
        )
    return parts


def _bars(
    box: Box,
    title: str,
    answers: Sequence[Answer],
    _start: float,
    _end: float,
) -> str:
    """One bar a server, made of its terms."""
    bars: dict[str, dict[str, float]] = {}
    for _, found in answers:
        for series in found:
            labels = series.labels
            bars.setdefault(labels["name"], {})[labels["term"]] = series.points[-1][1]
    terms = ("before_load", "weights", "reserve", "safety", "kv_cache")
    longest = max(sum(bar.values()) for bar in bars.values())
    parts = [_card(box), _text(box.x + 12, box.y + 20, title, size=12.5, weight=600)]
    room = box.height - PLOT_TOP - PLOT_BOTTOM
    for index, (name, bar) in enumerate(sorted(bars.items())):
        y = box.y + PLOT_TOP + 8 + index * room / len(bars)
        x = box.x + 74
        width = box.width - 74 - 76
        parts.append(_text(x - 8, y + 14, name, size=11, anchor="end"))
        for colour, term in enumerate(terms):
            part = width * bar.get(term, 0.0) / longest
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{part:.1f}" height="20" '
                f'fill="{COLOURS[colour]}"/>\n'
            )
            x += part
        parts.append(_text(x + 6, y + 14, number(sum(bar.values()), "bytes"), size=10, ink=FAINT))
    return "".join(parts) + _names(box, terms, 0, most=len(terms))


def _names(box: Box, names: Sequence[str], hidden: int, most: int = MOST_NAMES) -> str:
    """The legend: as many names as there is room for."""
    parts, x, y = [], box.x + 12, box.y + box.height - 26
    shown: list[str] = []
    for index, name in enumerate(names[:most]):
        wide = 20 + 5.9 * len(name)
        if x + wide > box.x + box.width - 70 and index:
            if y > box.y + box.height - 20:
                break  # two lines of names are enough
            x, y = box.x + 12, y + 15
        shown.append(name)
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<rect x="{x:.1f}" y="{y - 7:.1f}" width="8" height="8" fill="{colour}"/>\n')
        parts.append(_text(x + 12, y, name, size=10.5))
        x += wide
    more = len(names) - len(shown)
    rest = ", ".join(
        text for text in (f"{more} more" * bool(more), f"{hidden} at 0" * bool(hidden)) if text
    )
    return "".join(parts) + (_text(x + 4, y, rest, size=10.5, ink=FAINT) if rest else "")


def _card(box: Box) -> str:
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="4" fill="{CARD}" stroke="{LINE}"/>\n'
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: float,
    weight: int = 400,
    anchor: str = "start",
    ink: str = INK,
) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}"'
    look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{ink}"'
    return f"<text {where} {look}>{escape(words)}</text>\n"


def _ceiling(value: float, unit: str) -> float:
    """The next round number, so that the axis has readable ones."""
    if value <= 0:
        return 1.0
    size = next(size for size, _ in _BINARY if value >= size) if unit == "bytes" else 1.0
    power = size * 10.0 ** math.floor(math.log10(value / size))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if value <= power * step * 1.0000001)


def number(value: float, unit: str) -> str:
    """A number with its unit, in as few characters as tell it."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        size, name = next(((s, n) for s, n in _BINARY if value >= s), (1.0, "B"))
        return f"{value / size:.3g} {name}"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    size, prefix = next(((s, p) for s, p in _PREFIXES if value >= s), (1.0, ""))
    text = f"{value:,.0f}" if unit == "short" and value >= 1000 else f"{value / size:.3g}{prefix}"
    return {"s": f"{text} s", "ops": f"{text}/s"}.get(unit, text)
