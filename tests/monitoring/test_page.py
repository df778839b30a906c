"""docs/metrics.md: what the code can expose is documented, and nothing else."""

from __future__ import annotations

import re

from plimsoll.controller.metrics import Metrics
from tests.monitoring.exposition import full
from tools.metrics_page import TARGET, render, undocumented, unit


def test_the_page_is_what_the_tool_writes() -> None:
    assert TARGET.read_text() == render(), "run `make metrics-page`"


def test_the_page_has_each_family_once() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \|", TARGET.read_text(), re.MULTILINE)
    registered = [(family.name, family.kind) for family in Metrics().registry]
    assert sorted(rows) == sorted(registered)
    assert len(rows) > 45


def test_a_leader_exposes_what_is_documented_and_nothing_else() -> None:
    text = full().registry.render()
    exposed = set(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    documented = re.findall(r"^\| `([a-z_]+)` \| (\w+) \|", TARGET.read_text(), re.MULTILINE)
    assert exposed == set(documented)
    samples = set(re.findall(r"^([a-z_]+)", text, re.MULTILINE))
    silent = {
        name for name, _ in exposed if not samples & {name, f"{name}_count"}
    }  # a family without one sample would be documented in vain
    assert silent == set()


def test_every_label_is_explained() -> None:
    assert undocumented() == set()


def test_units_are_those_of_the_names() -> None:
    assert unit("plimsoll_server_kv_cache_bytes") == "bytes"
    assert unit("process_cpu_seconds_total") == "seconds"
    assert unit("plimsoll_reconciles_total") == ""


def test_names_keep_to_the_conventions() -> None:
    for family in Metrics().registry:
        assert family.name.startswith(("plimsoll_", "process_"))
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.help.endswith("."), family.name
        if family.kind == "histogram":
            assert family.name.endswith("_seconds"), family.name
