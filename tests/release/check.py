"""Whether this tree can be released: ``make release-check``. Each step by name with its time; all run, 1 if any failed.

``--final`` asks in addition for what only the release's own commit has: a dated changelog entry.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.chart.rendering import ROOT
from tests.cluster.chart.first import first_commit
from tests.cluster_kit.errors import KitError
from tests.cluster_kit.images.__main__ import sizes
from tests.release.artifacts import IMAGES, bill_of, git
from tests.release.compatibility import findings
from tests.release.versions import changelog_problems, disagreements, project_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFINITION = "manifests/install.yaml"  # from the first commit on, it holds the definition
GENERATORS = (
    "manifests",
    "reference",
    "metrics-page",
    "dashboard",
)  # targets that write files of the repository
# Breaking changes of the definition that were decided, with their reasons: see docs/versioning.md.
ACCEPTED: dict[str, str] = {}
OWN_BYTES = {"sizer": 50_000_000, "operator": 60_000_000}  # above the base
PROGRESS = re.compile(r"\[ *[\d.]+ s\]")
TAIL = 30  # lines of a failed program that are shown


@dataclass(frozen=True, slots=True)
class Context:
    """What steps are given: whether this is the release's own commit, and checkov's program."""

    final: bool
    checkov: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step found: a sentence for each problem, and what is worth knowing anyway."""

    problems: list[str]
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.problems + other.problems, self.notes + other.notes)


@dataclass(frozen=True, slots=True)
class Step:
    """One check, and what to do when it fails."""

    name: str
    remedy: str
    run: Callable[[Context], Outcome]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when all steps passed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.check", description=__doc__)
    names = [step.name for step in STEPS]
    parser.add_argument("--checkov", type=Path, required=True, help="the program (make checkov)")
    parser.add_argument("--final", action="store_true")
    parser.add_argument("--skip", action="append", default=[], choices=names)
    given = parser.parse_args(argv)
    context = Context(given.final, given.checkov.absolute())
    return run_steps([step for step in STEPS if step.name not in given.skip], context)


def run_steps(steps: Sequence[Step], context: Context) -> int:
    """Run each step, print its outcome; 1 if any has a problem."""
    began, failed = time.monotonic(), []
    for step in steps:
        start = time.monotonic()
        try:
            outcome = step.run(context)
        except (KitError, OSError) as error:
            outcome = Outcome([str(error)])
        word = "FAIL" if outcome.problems else "ok"
        say(f"{word:<5} {step.name:<12} {time.monotonic() - start:6.1f} s")
        for line in [*outcome.notes, *outcome.problems]:
            say(f"      {line}")
        if outcome.problems:
            say(f"   -> {step.remedy}")
            failed.append(step.name)
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    say(f"release-check: {len(steps)} steps in {time.monotonic() - began:.0f} s, {verdict}")
    return 1 if failed else 0


def say(line: str) -> None:
    """Print at once: steps take minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def program(*words: str | Path) -> Outcome:
    """Run a program at the repository's root; its last lines are the problem when it fails."""
    done = subprocess.run(
        words,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        return Outcome([*lines[-TAIL:], f"{' '.join(map(str, words))}: exit {done.returncode}"])
    return Outcome([], [line for line in lines if not PROGRESS.match(line)])


def tree(_: Context) -> Outcome:
    """Nothing but what is committed."""
    commit = git("log", "-1", "--format=%h %cs %s")
    return Outcome(git("status", "--porcelain").splitlines(), [f"commit {commit}"])


def versions(_: Context) -> Outcome:
    """One version in all places."""
    return Outcome(disagreements(ROOT), [f"version {project_version(ROOT)}"])


def changelog(context: Context) -> Outcome:
    """An entry for this version."""
    text = (ROOT / "CHANGELOG.md").read_text()
    return Outcome(changelog_problems(text, project_version(ROOT), final=context.final))


def generated(_: Context) -> Outcome:
    """Making the generated files again changes nothing."""
    before = uncommitted()
    outcome = Outcome([])
    for target in GENERATORS:
        outcome += program("make", "-s", target)
    after = uncommitted()
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    return outcome + Outcome([f"written anew: {name}" for name in sorted(changed)])


def uncommitted() -> dict[str, str]:
    """Return a hash of the content of each file that differs from the commit."""
    names = git("ls-files", "--modified", "--others", "--exclude-standard").splitlines()
    paths = {name: ROOT / name for name in names}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "gone"
        for name, path in paths.items()
    }


def documentation(_: Context) -> Outcome:
    """The site is built without a broken link."""
    return Outcome(program("make", "-s", "docs").problems)


def compatible(_: Context) -> Outcome:
    """The definition is the one of the last release plus additions."""
    since = base_reference()
    old = definition(git("show", f"{since}:{DEFINITION}"))
    found = findings(old, definition((ROOT / DEFINITION).read_text()))
    notes = [f"compared with {since[:12]}"]
    notes += [f"accepted: {line} ({ACCEPTED[line]})" for line in found if line in ACCEPTED]
    return Outcome([line for line in found if line not in ACCEPTED], notes)


def base_reference() -> str:
    """Return the last release's tag, or the first commit that had a chart."""
    try:
        return git("describe", "--tags", "--match", "v[0-9]*", "--abbrev=0", "HEAD~1")
    except KitError:
        return first_commit(ROOT)


def definition(manifests: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition among manifests.

    Raises:
        KitError: there is not exactly one.
    """
    kinds = [item for item in yaml.safe_load_all(manifests) if item]
    found = [item for item in kinds if item["kind"] == "CustomResourceDefinition"]
    if len(found) != 1:
        raise KitError(f"{len(found)} CustomResourceDefinitions in {DEFINITION}")
    crd: dict[str, Any] = found[0]
    return crd


def checkov(context: Context) -> Outcome:
    """No finding without a reason."""
    return program(sys.executable, "-m", "tests.release.checkov", context.checkov)


def images(context: Context) -> Outcome:
    """The same images twice, small enough, with valid bills of materials; and the tests of what is in them."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-check-") as name:
        folder = Path(name)
        command = (sys.executable, "-m", "tests.cluster_kit.images.reproduce", "--out", folder)
        outcome = program(*command)
        if outcome.problems:
            return outcome
        bills = []
        for image in IMAGES:
            archive = folder / f"{image}.tar"
            outcome += small_enough(image, sizes(archive))
            bills.append(folder / f"{image}.cdx.json")
            bills[-1].write_bytes(bill_of(archive))
        outcome += program(context.checkov.parent / "python", "tools/validate_sbom.py", *bills)
    return outcome + program(sys.executable, "-m", "pytest", "-q", "tests/cluster/test_images.py")


def small_enough(image: str, row: Mapping[str, str | int]) -> Outcome:
    """Compare an image's own bytes with what it may have."""
    total, own, most = int(row["bytes"]), int(row["ownBytes"]), OWN_BYTES[image]
    told = f"{row['image']}: {total / 1e6:.1f} MB, {own / 1e6:.1f} MB above its base"
    return Outcome([f"{told}, at most {most / 1e6:.0f}"]) if own > most else Outcome([], [told])


STEPS = (
    Step("tree", "commit or remove these; a release is a commit", tree),
    Step("versions", "write the version of pyproject.toml everywhere", versions),
    Step("changelog", "say in CHANGELOG.md what this version brings", changelog),
    Step(
        "generated",
        "commit what `make manifests reference metrics-page dashboard` wrote",
        generated,
    ),
    Step(
        "definition",
        "keep the old fields and meanings (docs/versioning.md); a decided break goes into ACCEPTED with its reason",
        compatible,
    ),
    Step("site", "mend the links that it names", documentation),
    Step("checkov", "mend it, or give its reason in .checkov.yaml", checkov),
    Step(
        "images", "find what depends on time, place or order, in tests/cluster_kit/images", images
    ),
)


if __name__ == "__main__":
    sys.exit(main())
