"""The dashboard as Grafana reads it: ten lines of JSON for each fact."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from tools.dashboard.operator import LIFE, OPERATOR
from tools.dashboard.servers import FLEET, SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.dashboard.primitives import Panel

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

ROWS = (
    ("Fleet", FLEET),
    ("Servers: $server", SERVER),
    ("Sizing and rollouts", LIFE),
    ("Operator", OPERATOR),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "plimsoll",
        "title": "Plimsoll",
        "description": "InferenceServers, the tokens that they hold, and the operator behind them.",
        "tags": ["plimsoll", "llm", "kubernetes"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_source(), *_variables()]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
    }


def _variables() -> Iterator[dict[str, Any]]:
    for name, label, query in (
        ("namespace", "Namespace", "label_values(plimsoll_server_info, namespace)"),
        (
            "server",
            "Server",
            'label_values(plimsoll_server_info{namespace=~"$namespace"}, name)',
        ),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "hide": 0,
        }


def _panels() -> Iterator[dict[str, Any]]:
    ids, top = itertools.count(1), 0
    for title, panels in ROWS:
        yield {
            "id": next(ids),
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        left = tallest = 0
        for panel in panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": next(ids), **_panel(panel), "gridPos": place}
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel) -> dict[str, Any]:
    instant = panel.kind in {"stat", "table", "bargauge"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
                "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
                "instant": instant,
                "range": not instant,
            }
            for number, (expression, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        **({"transformations": _joined()} if panel.kind == "table" else {}),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 10,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    if panel.kind == "state-timeline":
        defaults["custom"] = {"lineWidth": 0, "fillOpacity": 80}
        defaults["mappings"] = [
            {
                "type": "value",
                "options": {
                    "0": {"text": "not", "color": "transparent", "index": 0},
                    "1": {"text": "True", "color": "green", "index": 1},
                },
            }
        ]
    if panel.kind == "stat":
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.bad is not None:
            steps.append({"color": "red", "value": panel.bad})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    return {
        "stat": {
            "reduceOptions": last,
            "colorMode": "value",
            "graphMode": "none",
            "textMode": "auto",
            "wideLayout": False,
        },
        "bargauge": {
            "reduceOptions": last,
            "orientation": "horizontal",
            "displayMode": "basic",
            "showUnfilled": False,
        },
        "timeseries": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "heatmap": {
            "calculate": False,
            "yAxis": {"unit": panel.unit},
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 32},
            "legend": {"show": False},
        },
        "state-timeline": {"mergeValues": True, "showValue": "never", "rowHeight": 0.8},
        "table": {"showHeader": True, "cellHeight": "sm"},
    }[panel.kind]


def _joined() -> list[dict[str, Any]]:
    """One line a server out of one table a query."""
    names = {
        "namespace": "Namespace",
        "name": "Server",
        "reason": "Status",
        "Value #B": "Ready",
        "Value #C": "Wanted",
        "Value #D": "Tokens",
        "Value #E": "Drift",
        "model": "Model",
        "engine": "Engine",
        "gpu": "GPU",
        "mode": "Mode",
    }
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True, "Value #A": True, "Value #F": True},
                "indexByName": {name: index for index, name in enumerate(names)},
                "renameByName": names,
            },
        },
    ]


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
