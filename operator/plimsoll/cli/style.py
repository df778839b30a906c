"""Text for people: colours where they can be seen, columns, bars. Nothing here knows what is shown."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

BAR: Final = 60
_CODES: Final = {"good": "32", "bad": "31", "busy": "33", "dim": "2", "bold": "1"}


def printable(text: object) -> str:
    """One line that moves no cursor and forges no other line: names come from strangers."""
    line = str(text)
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


@dataclass(frozen=True, slots=True)
class Style:
    """How to write.

    Attributes:
        colour: Escape sequences may be written.
        width: Columns of the terminal; 0: lines are never cut.
    """

    colour: bool = False
    width: int = 0

    def paint(self, text: str, tone: str) -> str:
        """The text in a tone: good, bad, busy, dim or bold; any other is plain."""
        code = _CODES.get(tone)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text else text


def style_of(stream: TextIO, env: Mapping[str, str] | None = None) -> Style:
    """Colours on a terminal only, and not with NO_COLOR (https://no-color.org) or TERM=dumb."""
    env = os.environ if env is None else env
    if not stream.isatty():
        return Style()
    plain = bool(env.get("NO_COLOR")) or env.get("TERM") == "dumb"
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        width = 0
    return Style(not plain, width)


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], right: frozenset[int] = frozenset()
) -> list[str]:
    """Columns as kubectl writes them: three blanks between, the last one as it is.

    Args:
        header: names of the columns.
        rows: one cell a column; None is a dash.
        right: columns that are aligned to the right.
    """
    lines = [[*header], *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return ["   ".join(_aligned(line, widths, right)).rstrip() for line in lines]


def _cell(value: object) -> str:
    return "-" if value is None else printable(value)


def _aligned(line: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> list[str]:
    return [
        cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
        for i, cell in enumerate(line)
    ]


def bar(parts: Iterable[tuple[str, int]], total: int, width: int = BAR) -> str:
    """A bar of letters, each as long as its part of the total; rounded at the ends of the parts."""
    text, reached = "", 0
    for letter, size in parts:
        reached += max(0, size)
        end = min(width, round(width * reached / total)) if total > 0 else 0
        text += letter * (end - len(text))
    return f"[{text:<{width}}]"


def wrapped(text: str, indent: str, width: int = 110) -> list[str]:
    """The text in lines of at most that width, each with the indent."""
    lines, line = [], ""
    for word in printable(text).split():
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, indent + line] if line else lines


def write(lines: Iterable[str]) -> None:
    """Print lines."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
