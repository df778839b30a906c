"""Where the version of a release is written, and whether all places agree.

Operator, sizer, chart and command line are released together under one number (docs/versioning.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = r"ghcr\.io/plimsoll-dev/(?:operator|sizer):([\w.+-]+)"
DEMO = r"localhost/plimsoll-[a-z-]+:([\w.+-]+)"
# Each file with the expressions that find the version in it; each must be there.
PLACES: dict[str, tuple[str, ...]] = {
    "pyproject.toml": (r'(?m)^version = "(.+)"$',),
    "operator/plimsoll/__init__.py": (r'(?m)^__version__ = "(.+)"$',),
    "charts/plimsoll/Chart.yaml": (
        r"(?m)^version: *[\"']?([^\s\"']+)",
        r"(?m)^appVersion: *[\"']?([^\s\"']+)",
    ),
    "Dockerfile": (r"(?m)^ARG .*VERSION=(\S+)", IMAGES),
    "manifests/install.yaml": (IMAGES,),
    "manifests/samples/smollm2.yaml": (DEMO,),
    "tests/cluster_kit/images/build.py": (IMAGES, DEMO),
    "README.md": (IMAGES,),
}
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?")
HEADING = re.compile(r"(?m)^## (\S+) \((.+)\)\n(?P<text>(?:(?!## ).*\n?)*)")
UNRELEASED = "unreleased"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the changelog: its version, its date or ``unreleased``, its text."""

    version: str
    date: str
    text: str


def project_version(root: Path) -> str:
    """Return the version in pyproject.toml, which all others follow."""
    (expression,) = PLACES["pyproject.toml"]
    found = re.search(expression, (root / "pyproject.toml").read_text())
    assert found is not None
    return found[1]


def disagreements(root: Path) -> list[str]:
    """Return a sentence for each place that has another version than pyproject.toml, or none."""
    wanted = project_version(root)
    found = []
    if not SEMVER.fullmatch(wanted):
        found.append(f"pyproject.toml: {wanted} is no semantic version such as 1.2.3 or 1.2.3-rc.1")
    for name, expressions in PLACES.items():
        text = (root / name).read_text()
        for expression in expressions:
            versions = re.findall(expression, text)
            if not versions:
                found.append(f"{name}: no version where {expression} looks for it")
            found += [f"{name}: {one}, not {wanted}" for one in sorted({*versions} - {wanted})]
    return found


def entries(changelog: str) -> list[Entry]:
    """Return the entries of a changelog, newest first."""
    return [
        Entry(found[1], found[2], found["text"].strip()) for found in HEADING.finditer(changelog)
    ]


def changelog_problems(changelog: str, version: str, *, final: bool) -> list[str]:
    """Return what is wrong with the newest entry; ``final``: it must have the day of the release."""
    found = entries(changelog)
    if not found or found[0].version != version:
        newest = found[0].version if found else "none"
        return [f"CHANGELOG.md: the newest entry is {newest}; write `## {version} (unreleased)`"]
    entry, problems = found[0], []
    if not entry.text:
        problems.append(f"CHANGELOG.md: nothing is said of {version}")
    if entry.date != UNRELEASED and not re.fullmatch(r"\d{4}-\d\d-\d\d", entry.date):
        problems.append(f"CHANGELOG.md: ({entry.date}) is neither ({UNRELEASED}) nor a day")
    if final and entry.date == UNRELEASED:
        problems.append(f"CHANGELOG.md: {version} is unreleased; write the day instead")
    return problems
