"""One version everywhere, and a changelog that speaks of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.release.versions import (
    PLACES,
    changelog_problems,
    disagreements,
    entries,
    project_version,
)

ROOT = Path(__file__).resolve().parents[3]
CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- New.\n\n## 0.1.0 (2026-12-01)\n\n- First.\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_all_places_agree() -> None:
    assert disagreements(ROOT) == []


@pytest.mark.parametrize("name", PLACES)
def test_another_version_in_any_place_is_named(copy: Path, name: str) -> None:
    version = project_version(copy)
    path = copy / name
    path.write_text(path.read_text().replace(version, "9.9.9"))
    found = disagreements(copy)
    if name == "pyproject.toml":
        assert {line.split(":")[0] for line in found} == PLACES.keys() - {name}
    else:
        assert found
        assert all(line.startswith(f"{name}: ") for line in found)
        assert f"{name}: 9.9.9, not {version}" in found


@pytest.mark.parametrize("name", sorted(PLACES.keys() - {"pyproject.toml"}))
def test_a_place_without_a_version_is_named(copy: Path, name: str) -> None:
    (copy / name).write_text("nothing\n")
    assert all(line.startswith(f"{name}: no version where ") for line in disagreements(copy))
    assert len(disagreements(copy)) == len(PLACES[name])


def test_no_semantic_version_is_named(copy: Path) -> None:
    for name in PLACES:
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace(project_version(ROOT), "0.1"))
    assert disagreements(copy) == [
        "pyproject.toml: 0.1 is no semantic version such as 1.2.3 or 1.2.3-rc.1"
    ]


def test_entries_are_read() -> None:
    assert [(one.version, one.date, one.text) for one in entries(CHANGELOG)] == [
        ("0.2.0", "unreleased", "- New."),
        ("0.1.0", "2026-12-01", "- First."),
    ]


@pytest.mark.parametrize(
    ("changelog", "version", "final", "words"),
    [
        (CHANGELOG, "0.2.0", False, None),
        (CHANGELOG, "0.2.0", True, "0.2.0 is unreleased; write the day"),
        (CHANGELOG.replace("unreleased", "2027-01-05"), "0.2.0", True, None),
        (CHANGELOG.replace("unreleased", "soon"), "0.2.0", False, "(soon) is neither"),
        (CHANGELOG, "0.3.0", False, "newest entry is 0.2.0; write `## 0.3.0 (unreleased)`"),
        (CHANGELOG, "0.1.0", False, "newest entry is 0.2.0"),
        (CHANGELOG.replace("- New.", ""), "0.2.0", False, "nothing is said of 0.2.0"),
        ("", "0.2.0", False, "newest entry is none"),
    ],
)
def test_the_newest_entry_is_this_versions(
    changelog: str,
    version: str,
    final: bool,  # noqa: FBT001 - a column of the table
    words: str | None,
) -> None:
    found = changelog_problems(changelog, version, final=final)
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_the_projects_own_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert changelog_problems(text, project_version(ROOT), final=False) == []
