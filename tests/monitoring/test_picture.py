"""The picture: made of the answers alone, honest about it, and small."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.monitoring.panels import Target, targets
from tests.monitoring.picture import CAPTION, GRAPHS, TILES, draw, number
from tests.monitoring.prometheus import Series

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "img" / "dashboard.svg"


def answer(target: Target) -> tuple[Target, list[Series]]:
    """Two servers, one of them away for a while in the middle."""
    times = [1000.0 + n for n in range(40)]
    labels = {"namespace": "a", "name": "x", "term": "weights", "instance": "i"}
    return target, [
        Series(labels, tuple((t, 3.0) for t in times)),
        Series(labels | {"name": "<y>"}, tuple((t, 5.0) for t in times if not 1010 < t < 1020)),
    ]


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_every_panel_is_drawn_from_its_own_answers() -> None:
    said = words(draw([answer(t) for t in targets()], 1000.0, 1039.0))
    for title in (*TILES, *(title for _, title in GRAPHS)):
        assert title in said
    assert CAPTION in said
    assert "a/x" in said
    assert "<y> weights" not in said  # a bar has a name and terms
    assert said.count("3 / 3") == 1  # ready and wanted; other tiles have one number


def test_a_line_is_broken_where_nothing_was_scraped() -> None:
    def lines(where: tuple[float, float]) -> int:
        answers = []
        for target, found in map(answer, targets()):
            if target.panel == "Memory" and target.row == "Operator":
                points = tuple(p for p in found[0].points if not where[0] < p[0] < where[1])
                found = [Series(found[0].labels, points)]  # noqa: PLW2901  # this one alone
            answers.append((target, found))
        return draw(answers, 1000.0, 1039.0).count("<polyline")

    assert lines((1010, 1020)) == lines((0, 0)) + 1


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (0.0123, "s", "12.3 ms"),
        (90.0, "s", "90 s"),
        (0.021, "percentunit", "2.1 %"),
        (2.5 * 2**30, "bytes", "2.5 GiB"),
        (0.0, "bytes", "0 B"),
        (24576.0, "short", "24,576"),
        (0.25, "short", "0.25"),
        (12.0, "ops", "12/s"),
    ],
)
def test_numbers_are_short(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_the_picture_in_the_docs_is_small_and_says_what_it_is() -> None:
    svg = PICTURE.read_text()
    assert len(svg) < 100_000
    said = words(svg)
    assert CAPTION in said
    assert {title for _, title in GRAPHS} <= set(said)
