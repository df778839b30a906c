"""Write the table of values in charts/plimsoll/README.md from the comments in values.yaml.

A value is described by the comment lines right above it. Called by `make manifests`; a test holds the table current.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CHART = Path(__file__).resolve().parents[1] / "charts" / "plimsoll"
BEGIN = "<!-- values: made by `make manifests` from values.yaml; do not edit -->\n"
END = "<!-- end of values -->\n"
_KEY = re.compile(r"^( *)([A-Za-z]+):")


class Value(NamedTuple):
    """One value of the chart."""

    path: str
    default: Any
    about: str


def values(text: str) -> list[Value]:
    """Every described value, in order.

    Args:
        text: of values.yaml, in which two spaces are one level.
    """
    tree = yaml.safe_load(text)
    found: list[Value] = []
    keys: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        if match := _KEY.match(line):
            depth = len(match[1]) // 2
            keys = [*keys[:depth], match[2]]
            if comment:
                found.append(Value(".".join(keys), _at(tree, keys), " ".join(comment)))
        comment = []
    return found


def _at(tree: Any, keys: list[str]) -> Any:
    for key in keys:
        tree = tree[key]
    return tree


def table(text: str) -> str:
    """The values as a table in Markdown."""
    lines = ["| value | default | what it does |", "|---|---|---|"]
    lines += [f"| `{v.path}` | `{_shown(v.default)}` | {v.about} |" for v in values(text)]
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    text = json.dumps(default, ensure_ascii=False)
    return text.replace("|", "\\|")


def readme(old: str, text: str) -> str:
    """The README with today's table.

    Args:
        old: the README as it is.
        text: of values.yaml.

    Raises:
        ValueError: the marks around the table are not there.
    """
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md lacks the lines {BEGIN!r} and {END!r}")
    return f"{head}{begin}\n{table(text)}\n{end}{tail}"


def main() -> int:
    """Rewrite the README."""
    path = CHART / "README.md"
    path.write_text(readme(path.read_text(), (CHART / "values.yaml").read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
