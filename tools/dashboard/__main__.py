"""Writes the dashboard: ``python -m tools.dashboard``."""

from pathlib import Path

from tools.dashboard.grafana import ROWS, text

TARGET = Path(__file__).resolve().parents[2] / "charts/plimsoll/files/dashboards/plimsoll.json"

TARGET.write_text(text())
print(f"{TARGET.name}: {sum(len(panels) for _, panels in ROWS)} panels")
