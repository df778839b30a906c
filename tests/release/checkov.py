"""checkov over what is installed: ``make checkov``. Waivers and their reasons stand in .checkov.yaml, one a line.

Scanned are manifests/install.yaml, the chart with everything switched on, the Dockerfile and the repository's .github.
A failed check without a waiver fails; so does a waiver that no check needs any more. checkov runs without a network.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chart.rendering import ROOT, template
from tests.cluster_kit.errors import KitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONFIG = ROOT / ".checkov.yaml"
FRAMEWORKS = ("kubernetes", "dockerfile", "github_actions")
WAIVER = re.compile(r"(?m)^ +- (CKV\w+)(?: +# (.+))?$")
# Every object that the chart can make.
EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "networkPolicy": {"egress": {"enabled": True}},
    "monitoring": {
        name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")
    },
    "admission": {
        "statusWriters": {"enabled": True},
        "engineImages": {"enabled": True, "allowedPrefixes": ["ghcr.io/"]},
    },
}


@dataclass(frozen=True, slots=True)
class Failed:
    """One check that failed."""

    check: str
    name: str
    file: str
    resource: str


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of checkov found; ``passed`` counts checks by framework."""

    passed: Counter[str]
    failed: tuple[Failed, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when every failed check has a waiver and every waiver a failed check, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.checkov", description=__doc__)
    parser.add_argument("checkov", type=Path, help="the program (make checkov)")
    given = parser.parse_args(argv)
    try:
        waivers = read_waivers(CONFIG.read_text())
        with tempfile.TemporaryDirectory(prefix="plimsoll-checkov-") as folder:
            lay_out(Path(folder))
            result = scan(given.checkov.absolute(), Path(folder))
    except KitError as error:
        sys.stderr.write(f"checkov: {error}\n")
        return 1
    problems = judge(result, waivers)
    for line in [*summary(result, waivers), *problems]:
        sys.stdout.write(f"{line}\n")
    return 1 if problems else 0


def read_waivers(config: str) -> dict[str, str]:
    """Return the reason of each skipped check.

    Raises:
        KitError: one has none.
    """
    found = dict(WAIVER.findall(config))
    bare = [check for check, reason in found.items() if not reason]
    if bare:
        raise KitError(f"{CONFIG.name}: no reason for {', '.join(bare)}; write it behind a #")
    return found


def lay_out(folder: Path) -> None:
    """Put what is scanned into an empty folder: the configuration in the work tree is not to be found there."""
    shutil.copy(ROOT / "Dockerfile", folder)
    shutil.copy(ROOT / "manifests" / "install.yaml", folder)
    (folder / "chart-with-everything.yaml").write_text(template(EVERYTHING).text)
    if (ROOT / ".github").is_dir():
        shutil.copytree(ROOT / ".github", folder / ".github")


def scan(checkov: Path, folder: Path) -> Result:
    """Run every check on a folder.

    Raises:
        KitError: checkov did not get to the end.
    """
    options = ("--framework", *FRAMEWORKS, "--output", "json", "--skip-download", "--soft-fail")
    done = subprocess.run(
        [checkov, "-d", ".", *options], cwd=folder, capture_output=True, text=True, check=False
    )
    try:
        return parse(json.loads(done.stdout))
    except (ValueError, KeyError) as error:
        raise KitError(f"exit {done.returncode}: {done.stderr.strip()[-1000:]}") from error


def parse(output: Any) -> Result:
    """Read checkov's JSON: one report, or a list of one for each framework."""
    passed: Counter[str] = Counter()
    failed = []
    for report in output if isinstance(output, list) else [output]:
        passed[report["check_type"]] = report["summary"]["passed"]
        if report["summary"]["parsing_errors"]:
            raise KitError(f"could not read {report['results']['parsing_errors']}")
        failed += [
            Failed(
                item["check_id"],
                item["check_name"],
                item["file_path"].lstrip("/"),
                item["resource"].lstrip("/"),
            )
            for item in report["results"]["failed_checks"]
        ]
    return Result(passed, tuple(failed))


def summary(result: Result, waivers: dict[str, str]) -> list[str]:
    """Return the counts, and each waiver with how often it was used."""
    waived = Counter(one.check for one in result.failed if one.check in waivers)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.passed.items()))
    rest = len(result.failed) - waived.total()
    head = f"passed {result.passed.total()} ({counts}), failed {rest}, waived {waived.total()}"
    return [head, *(f"  {check} x{count}: {waivers[check]}" for check, count in waived.items())]


def judge(result: Result, waivers: Iterable[str]) -> list[str]:
    """Return a sentence for each failure that nothing waives and each waiver that nothing needs."""
    waivers = set(waivers)
    problems = [
        f"FAILED {one.check} {one.name}: {one.resource} in {one.file}"
        for one in result.failed
        if one.check not in waivers
    ]
    unused = sorted(waivers - {one.check for one in result.failed})
    problems += [f"{check}: nothing fails it now; take it out of {CONFIG.name}" for check in unused]
    if not result.passed.total():
        problems.append("no check passed: nothing was scanned")
    return problems


if __name__ == "__main__":
    sys.exit(main())
