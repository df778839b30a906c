"""The alerts: each fires when it should and is silent when it should, and each has a paragraph."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll.controller.metrics import Metrics
from plimsoll.core.engines.readback_usage import USAGE
from tests.monitoring.exposition import full, names_of
from tests.monitoring.promql import metrics_in
from tests.monitoring.promtool import promtool

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "charts" / "plimsoll" / "files" / "rules.yaml"
TESTS = Path(__file__).parent / "rules_test.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALL_RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL_RULES if "alert" in rule}
RECORDS = {rule["record"] for rule in ALL_RULES if "record" in rule}


def test_the_rules_are_sound() -> None:
    out = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert f"{len(ALL_RULES)} rules found" in out


def test_the_rules_do_what_their_tests_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))


def test_every_alert_is_seen_to_fire_and_to_be_silent() -> None:
    seen: dict[str, set[bool]] = {}
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for check in test.get("alert_rule_test", ()):
            seen.setdefault(check["alertname"], set()).add(bool(check["exp_alerts"]))
    assert seen == {alert: {True, False} for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    texts = rule["annotations"]
    assert texts.keys() == {"summary", "description", "runbook_url"}
    assert texts["summary"].endswith(".")
    assert texts["description"].endswith(".")
    page, _, anchor = texts["runbook_url"].rpartition("#")
    assert page.endswith("/blob/main/docs/alerts.md")
    assert anchor == alert.lower()


def test_the_page_has_a_paragraph_for_each_alert() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert headings == list(ALERTS)


# What the engine tells with a budget to divide it by; the reader of running engines has a better page of it.
ENGINES = {"lightllm_batch_current_max_tokens"} | {
    name
    for pages in USAGE.values()
    for page in pages
    if page.kind == "metrics"
    for field in ("fraction", "tokens")
    for name in page.names.get(field, ())
}


def test_rules_name_only_metrics_that_exist() -> None:
    known = names_of(Metrics()) | RECORDS | ENGINES
    for rule in ALL_RULES:
        used = metrics_in(rule["expr"])
        assert used, rule["expr"]
        assert used <= known, rule["expr"]


def test_the_usage_rule_knows_every_engine_that_tells_of_its_cache() -> None:
    (rule,) = (r for r in ALL_RULES if r.get("record") == "plimsoll_pod_token_usage_ratio")
    fractions = {
        name
        for pages in USAGE.values()
        for page in pages
        if page.kind == "metrics"
        for name in page.names.get("fraction", ())
    }
    assert fractions < metrics_in(rule["expr"])


def test_the_exposition_passes_promtool_s_lint() -> None:
    assert promtool("check", "metrics", text=full().registry.render()) == ""
