"""Markdown of generated pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOTE: Final = "<!-- Made by `make reference`. Do not edit: change what it is made from. -->"


def page(title: str, *parts: str) -> str:
    """A whole page; parts are separated by blank lines."""
    return "\n\n".join((NOTE, f"# {title}", *(part.strip("\n") for part in parts))) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are single lines of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def code(text: object) -> str:
    """Inline code, also where the text has backticks."""
    words = " ".join(str(text).split())
    return f"`` {words} ``" if "`" in words else f"`{words}`"


def plain(text: str) -> str:
    """Somebody's sentence as Markdown: nothing in it is markup."""
    return re.sub(r"([*_<>`\[\]])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
