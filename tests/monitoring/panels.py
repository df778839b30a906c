"""The dashboard as the tests read it: its panels, and their queries without variables."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = Path(__file__).resolve().parents[2] / "charts/plimsoll/files/dashboards/plimsoll.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
# What Grafana makes of them with a scrape interval of a second and "All" chosen.
VARIABLES = {"namespace": ".*", "server": ".*", "__rate_interval": "15s"}


@dataclass(frozen=True, slots=True)
class Target:
    """One query of one panel."""

    row: str
    panel: str
    kind: str
    unit: str
    expression: str
    legend: str


def substituted(expression: str, variables: Mapping[str, str] = VARIABLES) -> str:
    """The expression as Grafana sends it. Raises KeyError for a variable that there is not."""
    return re.sub(r"\$(\w+)", lambda found: variables[found[1]], expression)


def targets() -> list[Target]:
    """Every query of every panel, in order."""
    found, row = [], ""
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        found += [
            Target(
                row,
                panel["title"],
                panel["type"],
                panel["fieldConfig"]["defaults"]["unit"],
                substituted(target["expr"]),
                target["legendFormat"],
            )
            for target in panel["targets"]
        ]
    return found


def legend(pattern: str, labels: Mapping[str, str]) -> str:
    """A series' name as Grafana writes it."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), pattern).strip()
