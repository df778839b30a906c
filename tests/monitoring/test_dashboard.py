"""The dashboard's file: written by the tool, and sound as far as can be told without Grafana."""

from __future__ import annotations

import itertools
import json
from collections import Counter

from plimsoll.controller.metrics import Metrics
from tests.monitoring.exposition import names_of
from tests.monitoring.panels import DASHBOARD, FILE, targets
from tests.monitoring.promql import metrics_in
from tools.dashboard.grafana import COLUMNS, text


def test_the_file_is_what_the_tool_writes() -> None:
    assert FILE.read_text() == text(), "run `make dashboard`"


def test_panels_lie_side_by_side() -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= COLUMNS - place["w"]
        rows = range(place["y"], place["y"] + place["h"])
        columns = range(place["x"], place["x"] + place["w"])
        taken.update(itertools.product(columns, rows))
    assert max(taken.values()) == 1
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_panel_says_what_it_shows() -> None:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len(panels) > 40
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"


def test_queries_name_only_metrics_that_exist() -> None:
    known = names_of(Metrics())
    for target in targets():
        used = metrics_in(target.expression)
        assert used, target
        assert used <= known, target


def test_every_metric_is_on_the_dashboard() -> None:
    used = set().union(*(metrics_in(target.expression) for target in targets()))
    parts = ("_bucket", "_sum", "_count")
    shown = used | {name.removesuffix(part) for name in used for part in parts}
    names = {family.name for family in Metrics().registry}
    assert names - shown == set()


def test_it_is_small_enough_for_a_config_map() -> None:
    assert len(json.dumps(DASHBOARD)) < 500_000  # of the 1 MiB that etcd takes
