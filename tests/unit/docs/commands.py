"""The commands that pages show, one string each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
_FENCES = re.compile(r"(?ms)^```(\w*)\n(.*?)^```")


def shown(program: str) -> list[tuple[str, str]]:
    """Page and command, for every command of that program in the docs and in README.md."""
    return sorted({(page, line) for page, line in _lines() if line.split(" ")[0] == program})


def _lines() -> Iterator[tuple[str, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for language, text in _FENCES.findall(page.read_text()):
            if language not in {"", "sh"}:
                continue
            for line in re.sub(r"\\\n\s*", "", text).splitlines():
                yield str(page.relative_to(ROOT)), line.removeprefix("$ ").strip()
