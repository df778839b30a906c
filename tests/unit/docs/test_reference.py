"""The generated pages are fresh, and nothing that a user can set is without a word about it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll.core.engines import ENGINES
from tools.reference import crd, engines, settings
from tools.reference.__main__ import FOLDER, PAGES

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "plimsoll"


@pytest.mark.parametrize("name", PAGES)
def test_page_is_fresh(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_every_field_has_a_description_and_stands_on_the_page() -> None:
    text, found = crd.build()
    assert crd.undescribed(crd.schema(), "") == [
        ".apiVersion",
        ".kind",
        ".metadata",
        ".metadata.name",
    ]
    root = crd.schema()["properties"]
    paths = {path for name in ("spec", "status") for path in crd.paths(root[name], name)}
    # A part that is used twice, as the label selector is, is told once and linked.
    assert found.fields <= len(paths)
    names = set(re.findall(r"(?m)^\| `(\w+)` \|", text))
    assert {path.rpartition(".")[2] for path in paths} <= names


def test_every_rule_of_the_schema_stands_on_the_page() -> None:
    page = " ".join(crd.render().replace("\\", "").split())
    messages = set(_messages(crd.schema()))
    assert len(messages) > 25
    for message in messages:
        assert " ".join(message.replace("\\", "").split()) in page, message


def _messages(node: Any) -> list[str]:
    if isinstance(node, list):
        return [m for item in node for m in _messages(item)]
    if not isinstance(node, dict):
        return []
    own = [rule["message"] for rule in node.get("x-kubernetes-validations", ()) if "rule" in rule]
    return own + [m for key, child in node.items() for m in _messages(child) if key != "default"]


def test_a_field_without_a_description_is_found() -> None:
    node = {"properties": {"a": {"description": "x"}, "b": {"items": {"properties": {"c": {}}}}}}
    assert crd.undescribed(node, "spec") == ["spec.b", "spec.b[].c"]


def test_every_variable_is_described() -> None:
    assert settings.operator_variables() == set(settings.OPERATOR_TEXT)
    assert settings.sizer_variables() == set(settings.SIZER_TEXT)
    assert {"PLIMSOLL_SIZER_IMAGE", "PLIMSOLL_LEARN"} <= settings.operator_variables()


def test_defaults_are_the_codes() -> None:
    assert settings.operator_default("PLIMSOLL_SIZER_IMAGE") == "required"
    assert settings.operator_default("PLIMSOLL_HEALTH_PORT") == "8080"
    assert settings.operator_default("PLIMSOLL_LEARN") == "on"


def test_every_owned_flag_stands_on_the_page() -> None:
    page = engines.render()
    for name in ENGINES:
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        table = engines.flag_table(name)
        for flag in (*table.owned, *table.sizing):
            assert f"`{table.spell(flag)}`" in section, (name, flag)


def test_every_chart_value_is_described() -> None:
    """In values.yaml by a comment, and in the chart's own page, which the site includes."""
    leaves = list(_leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    assert len(leaves) > 30
    lines = (CHART / "values.yaml").read_text().splitlines()
    undescribed = [path for path in leaves if not _commented(lines, path)]
    assert undescribed == []


def _leaves(node: Any, path: str = "") -> list[str]:
    if not isinstance(node, dict) or not node:
        return [path]
    found = []
    for key, child in node.items():
        found += _leaves(child, f"{path}.{key}" if path else key)
    return found


def _commented(lines: list[str], path: str) -> bool:
    """Whether the key, or what it is part of on one line, has a comment right above."""
    at, level = 0, 0
    for key in path.split("."):
        pattern = re.compile(rf"^{' ' * level}{re.escape(key)}:")
        found = next((n for n in range(at, len(lines)) if pattern.match(lines[n])), None)
        if found is None:  # written in one line with its parent
            return True if lines[at - 1].strip().startswith("#") else _above(lines, at)
        if _above(lines, found):
            return True
        at, level = found, level + 2
    return False


def _above(lines: list[str], at: int) -> bool:
    return at > 0 and lines[at - 1].strip().startswith("#")
