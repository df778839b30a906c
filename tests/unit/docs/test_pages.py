"""What pages name exists: fields, values, targets, files, flags."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll.core.engines import ENGINES
from tests.render_samples import FOLDER, RENDERED, servers
from tools.reference import crd

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
# Pages of prose; generated ones and recorded output have tests of their own.
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if not {"adr", "reference"} & set(page.relative_to(DOCS).parts) and page.name != "behaviour.md"
)
_FENCES = re.compile(r"(?ms)^```(\w*)\n(.*?)^```")
_OF_SPEC = (
    "model",
    "engine",
    "accelerator",
    "parallelism",
    "sizing",
    "rollout",
    "probes",
    "service",
    "template",
)
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))


def _fields(node: dict[str, Any], path: str) -> set[str]:
    found = {path}
    for name, child in (node.get("properties") or {}).items():
        found |= _fields(child, f"{path}.{name}")
    return found | (_fields(node["items"], path) if isinstance(node.get("items"), dict) else set())


FIELDS = _fields(crd.schema()["properties"]["spec"], "spec")
CHART = yaml.safe_load((ROOT / "charts/plimsoll/values.yaml").read_text())
FIELDS |= _fields(crd.schema()["properties"]["status"], "status")


def _known(path: str) -> bool:
    """A field of the resource, in full or without ``spec.``; or a value of the chart."""
    if {path, f"spec.{path}"} & FIELDS:
        return True
    node: Any = CHART
    for part in path.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


@EVERY_PAGE
def test_fields_that_a_page_names_exist(page: Path) -> None:
    prose = _FENCES.sub("", page.read_text())
    for path in re.findall(r"`((?:[a-z]\w*)(?:\.[a-z]\w*)+)[:`]", prose):
        first = path.partition(".")[0]
        if first in {"spec", "status", *_OF_SPEC} and not path.endswith(".py"):
            assert _known(path), f"{page.name}: {path}"


@EVERY_PAGE
def test_commands_name_what_exists(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    named = re.findall(r"(?:`|^)(?:\w+=\S+ )?make ([a-z-]+)", text, re.MULTILINE)
    assert set(named) <= targets
    for path in re.findall(r"(?:-f|install \w+|upgrade \w+) ((?:manifests|charts)/[\w./-]+)", text):
        assert (ROOT / path).exists(), path
    for value in re.findall(r"--set ([\w.]+)=", text):
        assert _known(value), value
    for path in re.findall(r"jsonpath='\{\.(status[\w.]*)", text):
        assert path in FIELDS, path


@EVERY_PAGE
def test_yaml_on_a_page_is_yaml_and_fits_the_schema(page: Path) -> None:
    for language, text in _FENCES.findall(page.read_text()):
        if language != "yaml":
            continue
        for document in yaml.safe_load_all(text):
            assert isinstance(document, dict)
            body = document if document.get("kind") == "InferenceServer" else {"spec": document}
            if document.get("kind") == "InferenceServer" or set(document) <= set(_OF_SPEC):
                for path in _named(body["spec"], "spec"):
                    assert path in FIELDS, path


def _named(node: Any, path: str) -> list[str]:
    if not isinstance(node, dict):
        return [path]
    return [path, *(p for key, child in node.items() for p in _named(child, f"{path}.{key}"))]


@pytest.mark.parametrize("name", RENDERED)
def test_pages_of_engines_show_what_is_rendered(name: str) -> None:
    (server,) = servers(name)
    page = (DOCS / "howto" / "engines" / f"{server.spec.engine.type.lower()}.md").read_text()
    assert f"samples/{name}.yaml" in page
    assert f"rendered/{name}.yaml" in page
    (block,) = [text for language, text in _FENCES.findall(page) if not language]
    template = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["spec"]["template"]
    args = " ".join(template["spec"]["containers"][0]["args"])
    for line in block.splitlines():
        assert f" {line}" in args, line


def test_every_engine_has_a_page() -> None:
    found = {page.stem for page in (DOCS / "howto" / "engines").glob("*.md")}
    assert found == {name.lower() for name in ENGINES}


def test_the_rights_on_the_page_are_those_that_are_installed() -> None:
    verbs = {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
    table = re.findall(r"(?m)^\| (`.*?) \| (.*?) \| .* \|$", (DOCS / "security.md").read_text())
    told: dict[str, set[str]] = {}
    for resources, words in table:
        for resource in re.findall(r"`([a-z/]+)`", resources):
            told[resource] = set(re.findall(r"[a-z]+", words)) & verbs
    given: dict[str, set[str]] = {}
    for document in yaml.safe_load_all((ROOT / "manifests" / "install.yaml").read_text()):
        if (
            document["kind"] in {"ClusterRole", "Role"}
            and "operator" in document["metadata"]["name"]
        ):
            for rule in document["rules"]:
                for resource in rule["resources"]:
                    given.setdefault(resource, set()).update(rule["verbs"])
    assert {resource: told.get(resource) for resource in given} == given
