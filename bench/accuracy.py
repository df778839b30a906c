"""How accurate the arithmetic is: model readers against measurements, pools against what engines printed.

    python -m bench.accuracy [-o text|json]

Reads tests/data only. ``accuracy_architectures`` has the models' part, ``accuracy_capacity`` the pools'.
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module, util
from typing import Any, Final

#: Section -> module with ``report() -> dict``, in the order of printing.
SECTIONS: Final = {
    "architectures": "bench.accuracy_architectures",
    "capacity": "bench.accuracy_capacity",
}
WIDTH: Final = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    output = parser.parse_args().output
    document = {
        name: import_module(module).report()
        for name, module in SECTIONS.items()
        if util.find_spec(module) is not None
    }
    if output == "json":
        print(json.dumps(document, indent=1))
        return
    for name, section in document.items():
        print(f"\n# {name}")
        show(section, 0)


def show(value: Any, depth: int) -> None:  # noqa: ANN401 - plain JSON
    """Print a JSON value; objects of objects with the same keys become a table."""
    margin = "  " * depth
    if not isinstance(value, dict):
        for item in value if isinstance(value, list) else [value]:
            print(margin + (item if isinstance(item, str) else json.dumps(item))[:WIDTH])
        return
    rows = [item for item in value.values() if isinstance(item, dict)]
    if rows and len(rows) == len(value) and all(flat(row) for row in rows):
        table(value, margin)
        return
    for key, item in value.items():
        if isinstance(item, dict | list):
            print(
                f"{margin}{key}: {len(item)}" if key in {"notExact", "wrong"} else f"{margin}{key}:"
            )
            show(item, depth + 1)
        else:
            print(f"{margin}{key}: {item}"[:WIDTH])


def flat(row: dict[str, Any]) -> bool:
    """Whether a row has something, and nothing that is longer than a cell."""
    return bool(row) and not any(
        isinstance(item, dict | list) or len(str(item)) > 24 for item in row.values()
    )


def table(rows: dict[str, dict[str, Any]], margin: str) -> None:
    """Rows under their common columns; ``x`` beside ``x_of`` is written x/x_of."""
    columns = list(dict.fromkeys(
        key for row in rows.values() for key in row if not key.endswith("_of")
    ))  # fmt: skip
    cells = [["", *columns]]
    for name, row in rows.items():
        texts = [
            f"{row.get(key, '-')}/{row[f'{key}_of']}" if f"{key}_of" in row else row.get(key, "-")
            for key in columns
        ]
        cells.append([name, *(str(text) for text in texts)])
    widths = [max(len(line[index]) for line in cells) for index in range(len(cells[0]))]
    for line in cells:
        padded = (text.rjust(wide) for text, wide in zip(line[1:], widths[1:], strict=True))
        print(margin + "  ".join([line[0].ljust(widths[0]), *padded]))


if __name__ == "__main__":
    main()
