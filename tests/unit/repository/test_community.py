"""The files that a visitor of the repository meets: complete forms, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PAGES = [
    ROOT / name
    for name in (
        "SECURITY.md",
        "CONTRIBUTING.md",
        "docs/versioning.md",
        ".github/PULL_REQUEST_TEMPLATE.md",
    )
]
REPOSITORY = "https://github.com/plimsoll-dev/plimsoll/"
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def form(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    return found


@pytest.mark.parametrize(
    "path", [path for path in FORMS if path.name != "config.yml"], ids=lambda p: p.name
)
def test_a_form_is_one_that_github_shows(path: Path) -> None:
    document = form(path.name)
    assert document.keys() <= {"name", "description", "title", "labels", "assignees", "body"}
    assert document["name"]
    assert document["description"]
    ids = [item["id"] for item in document["body"] if item["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for item in document["body"]:
        assert item["type"] in KINDS
        wanted = "value" if item["type"] == "markdown" else "label"
        assert item["attributes"][wanted]
        assert item["type"] != "dropdown" or item["attributes"]["options"]
    assert any(item.get("validations", {}).get("required") for item in document["body"])


def test_the_reports_ask_for_what_they_need() -> None:
    bug, number = (form(name) for name in ("bug.yml", "wrong_number.yml"))
    asked = {item["id"]: item["attributes"] for item in bug["body"]}
    assert "kubectl plimsoll explain NAME -o json" in asked["explain"]["description"]
    assert "kubectl get isrv NAME -o yaml" in asked["resource"]["description"]
    assert "Conditions" in asked["conditions"]["label"]
    required = {
        item["id"] for item in number["body"] if item.get("validations", {}).get("required")
    }
    assert {"explain", "engine", "image", "model", "gpu"} <= required


def links(path: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", path.read_text())


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_between_files_lead_to_files(path: Path) -> None:
    for link in links(path):
        if link.startswith("https://"):
            continue
        target = link.partition("#")[0]
        assert (path.parent / target).exists(), f"{path.name}: {link}"


@pytest.mark.parametrize("path", [*PAGES, *FORMS], ids=lambda p: p.name)
def test_links_into_the_repository_name_files_that_exist(path: Path) -> None:
    for file in re.findall(rf"{re.escape(REPOSITORY)}blob/main/([\w./-]+)", path.read_text()):
        assert (ROOT / file).exists(), f"{path.name}: {file}"


def test_commands_of_make_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for path in PAGES:
        named = set(re.findall(r"(?m)(?:`|^)make ([a-z-]+)", path.read_text()))
        assert named <= targets, path.name
