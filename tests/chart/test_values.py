"""Values: each is described, typed, used; what is not a value is refused in clear words, by Helm 4 and Helm 3."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.chart.cases import MODES, OTHERS, merged, nest
from tests.chart.rendering import CHART, PROGRAMS, HelmRefusedError, helm, template
from tools import chart_readme

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DESCRIBED = {value.path for value in chart_readme.values(TEXT)}
# Never in values.yaml: Helm and parent charts put them there.
UNREAD = {"global", "enabled"}

# What is written, and the words of the refusal.
REFUSED: list[tuple[str, Any, tuple[str, ...]]] = [
    ("replica", 2, ("additional properties 'replica' not allowed",)),
    ("replicaCount", 2, ("additional properties 'replicaCount' not allowed",)),
    ("replicas", -1, ("/replicas", "minimum: got -1, want 0")),
    ("replicas", "two", ("/replicas", "got string, want integer")),
    ("image.operator.tagg", "1", ("/image/operator", "additional properties 'tagg' not allowed")),
    ("image.operator.digest", "sha256:abc", ("/image/operator/digest", "does not match pattern")),
    ("image.operator.repository", "me/op:1", ("/image/operator/repository", "does not match")),
    ("image.registry", "ghcr.io/", ("/image/registry", "does not match pattern")),
    ("image.pullPolicy", "always", ("/image/pullPolicy", "'Always', 'IfNotPresent', 'Never'")),
    ("settings.logLevel", "debug", ("/settings/logLevel", "'DEBUG', 'INFO', 'WARNING', 'ERROR'")),
    ("settings.logFormat", "yaml", ("/settings/logFormat", "'json', 'text'")),
    ("settings.learn", "on", ("/settings/learn", "got string, want boolean")),
    ("settings.resyncSeconds", 0, ("/settings/resyncSeconds", "minimum: got 0, want 1")),
    ("settings.resync", 5, ("/settings", "additional properties 'resync' not allowed")),
    ("watch.namespace", "a", ("/watch", "additional properties 'namespace' not allowed")),
    ("watch.namespaces", "a", ("/watch/namespaces", "got string, want array")),
    ("watch.namespaces", ["a", "a"], ("/watch/namespaces", "items at 0 and 1 are equal")),
    ("watch.namespaces", ["team-*"], ("/watch/namespaces/0", "'team-*' does not match pattern")),
    ("resources.limit", {"cpu": 1}, ("/resources", "additional properties 'limit' not allowed")),
    ("resources.limits", {"memory": "1 GB"}, ("/resources/limits/memory", "does not match")),
    ("runAsUser", 0, ("/runAsUser", "minimum: got 0, want 1")),
    ("tolerations", [{"keys": "a"}], ("/tolerations/0", "additional properties 'keys'")),
    ("affinity", {"podAntiAfinity": {}}, ("/affinity", "'podAntiAfinity' not allowed")),
    ("commonLabels", {"a": "b c"}, ("/commonLabels/a", "does not match pattern")),
    ("commonLabels", {"app.kubernetes.io/name": "x"},
     ("commonLabels: app.kubernetes.io/name is set by the chart",)),
    ("podLabels", {"app.kubernetes.io/component": "x"},
     ("podLabels: app.kubernetes.io/component is set by the chart",)),
    ("networkPolicy.ingress.from", [{"namespaces": {}}],
     ("/networkPolicy/ingress/from/0", "additional properties 'namespaces' not allowed")),
    ("networkPolicy.egress.apiServerPorts", [],
     ("/networkPolicy/egress/apiServerPorts", "minItems: got 0, want 1")),
    ("monitoring.serviceMonitor.interval", "30", ("/monitoring/serviceMonitor/interval", "match")),
    ("monitoring.enabled", True, ("/monitoring", "additional properties 'enabled' not allowed")),
    ("monitoring", {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
     ("would scrape each pod twice; enable one of them",)),
    ("admission.engineImages.allowedPrefixes", ["ghcr.io"],
     ("/admission/engineImages/allowedPrefixes/0", "'ghcr.io' does not match pattern")),
    ("admission.engineImages.enabled", True,
     ("admission.engineImages.allowedPrefixes is empty, so every server would be refused",)),
    ("rbac", {"nodes": False, "podsOfAllNamespaces": True},
     ("rbac.podsOfAllNamespaces is of no use without rbac.nodes",)),
]  # fmt: skip


def typed(node: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the schema's values: where an object is no longer a closed list of names."""
    node = resolved(node)
    if node.get("type") == "object" and "properties" in node:
        for name, child in node["properties"].items():
            yield from typed(child, f"{path}.{name}".lstrip("."))
    else:
        yield path


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    name = node.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = SCHEMA["definitions"][name] if name else node
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_lint_has_nothing_to_say(program: str) -> None:
    said = helm(program, "lint", "--strict", CHART)
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert set(re.findall(r"\[(\w+)\]", said)) <= {"INFO"}


@pytest.mark.parametrize("mode", MODES)
def test_both_programs_render_the_same(mode: str) -> None:
    assert template(MODES[mode], "helm3").objects == template(MODES[mode], "helm4").objects


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("path", "value", "words"), REFUSED)
def test_a_mistake_is_refused_and_named(
    program: str, path: str, value: object, words: tuple[str, ...]
) -> None:
    with pytest.raises(HelmRefusedError) as refused:
        template(nest(path, value), program)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_a_parent_chart_may_pass_what_it_passes_to_all(name: str) -> None:
    value: object = {"imageRegistry": "x"} if name == "global" else True
    assert template({name: value}).objects == template().objects


def test_no_object_of_the_schema_takes_any_name() -> None:
    def walk(node: object, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            if node.get("type") == "object" and "additionalProperties" not in node:
                yield path
            for name, child in node.items():
                yield from walk(child, f"{path}.{name}".lstrip("."))

    terms = {
        f"properties.affinity.properties.{name}"
        for name in ("nodeAffinity", "podAffinity", "podAntiAffinity")
    }
    assert set(walk(SCHEMA, "")) == {"properties.global"} | terms


def test_schema_values_and_comments_name_the_same() -> None:
    paths = set(typed(SCHEMA)) - UNREAD
    # Of these the whole is the value, whose parts are Kubernetes' own.
    for whole in ("resources", "affinity"):
        paths = {path for path in paths if path.partition(".")[0] != whole} | {whole}
    assert paths == DESCRIBED


def test_each_value_has_a_case() -> None:
    assert OTHERS.keys() == DESCRIBED


@pytest.mark.parametrize("path", OTHERS)
def test_each_value_changes_what_is_rendered(path: str) -> None:
    value, beside = OTHERS[path]
    assert template(merged(beside, nest(path, value))).text != template(beside).text


def test_defaults_are_valid_where_they_are_given_again() -> None:
    assert template(yaml.safe_load(TEXT)).text == template().text


def test_the_readme_has_todays_table() -> None:
    path = CHART / "README.md"
    assert path.read_text() == chart_readme.readme(path.read_text(), TEXT), "run make manifests"


def test_a_value_without_a_comment_is_not_overlooked() -> None:
    """The table is made of comments; the comparison with the schema above then finds what has none."""
    bare = chart_readme.values("a:\n  # Said.\n  b: 1\n  c: 2\n")
    assert [value.path for value in bare] == ["a.b"]


def test_a_readme_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the lines"):
        chart_readme.readme("no table", TEXT)
