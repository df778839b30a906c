"""Writes docs/behaviour.md from the rows that the tests of this folder have recorded.

``python -m tests.cluster.behaviour.table ROWS DOCUMENT``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = """\
# Behaviour

What a user sees, and what was ready meanwhile, in situations that take other operators' models offline. Each row is a
test in tests/cluster/behaviour on the real cluster (API server, controllers, scheduler, two nodes with kubelets and
containerd); this page is written by `make behaviour` from what those tests recorded. node-a has three GPUs, node-b one
of another kind, all fake: NVML shows 24 GiB on each, whatever the names of the cards say. The engine is the stand-in of
tests/cluster_kit/images/standin with LightLLM's flags, log and endpoints, which holds its memory on the fake device.

*Promised* is how many servers had to be ready at every moment from the act to the end, *fewest* how many were at the
worst moment. Both come from a watch that was open before the first act; pods that were asked to go do not count.
In each row it is checked too that Ready was never True for longer than 3 s without a ready server of the present
template. *Seconds* are from the act to the end, with servers that take 0 to 2 s to load and 5 s to drain.

| # | situation | status | message | seconds | promised | fewest |
|--:|---|---|---|--:|--:|--:|
"""


def render(rows: list[dict[str, Any]]) -> str:
    """The whole page."""
    lines = [_line(row) for row in rows]
    return HEAD + "\n".join(lines) + "\n\n" + "\n".join(_section(row) for row in rows)


def _line(row: dict[str, Any]) -> str:
    telling = next(m for m in row["moments"] if m["message"] == row["message"])
    cells = (
        *(str(row["row"]), row["what"], status(telling), _cell(row["message"])),
        *(f"{row['seconds']:.0f}", str(row["promised"]), str(row["fewest_ready"])),
    )
    return f"| {' | '.join(cells)} |"


def status(moment: dict[str, str]) -> str:
    """The column STATUS of a line that kubectl printed."""
    header, line = moment["header"], moment["line"]
    return line[header.index("STATUS") : header.index("MODEL")].strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _section(row: dict[str, Any]) -> str:
    blocks = [f"## {row['row']}. {row['what']}\n"]
    for moment in row["moments"]:
        said = " ".join(moment["message"].split())
        blocks.append(f"{moment['moment'][:1].upper()}{moment['moment'][1:]}:\n")
        blocks.append(f"```\n{moment['header']}\n{moment['line']}\n{said}\n```\n")
    if row["facts"]:
        blocks.append(" ".join(row["facts"]) + "\n")
    return "\n".join(blocks)


def main(folder: str, document: str) -> int:
    """Render the rows of a folder. Returns 1 when there are none."""
    rows = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    if not rows:
        sys.stderr.write(f"error: no rows in {folder}\n")
        return 1
    Path(document).write_text(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
