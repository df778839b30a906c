"""The first release of the chart: the oldest commit that holds charts/plimsoll, with the images of that commit.

``python -m tests.cluster.chart.first`` builds it into the cache, with progress.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster_kit.cache import build_lock, cache_root
from tests.cluster_kit.command import exit_code
from tests.cluster_kit.errors import KitError
from tests.cluster_kit.images.host import finished
from tests.cluster_kit.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster_kit.cache import Log

CHART = "charts/plimsoll"
TAG = "first"
IMAGES = ("operator", "sizer")
# `docker save` of 2017 and newer: the one file of an archive that holds the image's name.
MANIFEST = "manifest.json"


class NoHistoryError(KitError):
    """The tree has no history, as an unpacked release or a shallow clone; the sentence says what to do."""


@dataclass(frozen=True)
class FirstRelease:
    """What was released first.

    Attributes:
        commit: full hash.
        chart: its folder.
        images: docker archives by target; each image's tag is `TAG`, since today's images have the same name.
    """

    commit: str
    chart: Path
    images: Mapping[str, Path]


def first_commit(repository: Path) -> str:
    """Return the full hash of the oldest commit with a chart.

    Raises:
        NoHistoryError: no git clone, or a shallow one.
        KitError: no commit has a chart.
    """
    try:
        shallow = _git(repository, "rev-parse", "--is-shallow-repository")
    except KitError as error:
        raise NoHistoryError(
            f"the upgrade test needs the first commit with {CHART}, and {repository} is no git clone: {error}"
        ) from error
    if shallow != "false":
        raise NoHistoryError(
            f"the upgrade test needs the first commit with {CHART}, and this clone is shallow: git fetch --unshallow"
        )
    added = _git(
        repository, "log", "--diff-filter=A", "--format=%H", "--", f"{CHART}/Chart.yaml"
    ).split()
    if not added:
        raise KitError(f"no commit of this branch adds {CHART}/Chart.yaml: commit it first")
    return added[-1]


def first_release(repository: Path, cache: Path, log: Log) -> FirstRelease:
    """Return the first chart and its images, building them from that commit when the cache has none (10 seconds).

    Raises:
        KitError: no history (see `first_commit`), or a build failed.
    """
    commit = first_commit(repository)
    folder = cache / "first-chart" / commit[:12]
    with build_lock(folder.with_suffix(".lock"), log):
        if not folder.is_dir():
            log(f"building the images of the first chart's commit {commit[:12]} (once)")
            with finished(folder) as scratch:
                _build(repository, commit, scratch, cache)
    images = {name: folder / f"{name}.tar" for name in IMAGES}
    return FirstRelease(commit, folder / "chart", images)


def _build(repository: Path, commit: str, scratch: Path, cache: Path) -> None:
    """Unpack the commit, let its own kit build its images, keep the chart and the renamed images."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".tree.") as tree:
        archive = Path(tree) / "tree.tar"
        _git(repository, "archive", "-o", str(archive), commit)
        with tarfile.open(archive) as tar:
            tar.extractall(tree, filter="data")
        archive.unlink()
        kit = [sys.executable, "-m", "tests.cluster_kit.images", "--cache", str(cache), "--json"]
        env = {**os.environ, "PYTHONPATH": f"{tree}/operator:{tree}"}
        # In the shared cache, where base and locked packages are; standard error shows its progress.
        built = subprocess.run(
            [*kit, *IMAGES], cwd=tree, env=env, stdout=subprocess.PIPE, text=True, check=False
        )
        if built.returncode:
            raise KitError(f"the images of commit {commit[:12]} cannot be built (see above)")
        for name, about in json.loads(built.stdout).items():
            rename_image(Path(about["archive"]), scratch / f"{name}.tar", TAG)
        (Path(tree) / CHART).rename(scratch / "chart")


def rename_image(source: Path, target: Path, tag: str) -> None:
    """Copy a docker archive of one image, giving it another tag."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            if member.name == "repositories":  # the older format's names
                continue
            content = old.extractfile(member) if member.isfile() else None
            if member.name == MANIFEST and content is not None:
                (image,) = json.load(content)
                name = image["RepoTags"][0].rpartition(":")[0]
                text = json.dumps([{**image, "RepoTags": [f"{name}:{tag}"]}]).encode()
                member.size, content = len(text), io.BytesIO(text)
            new.addfile(member, content)


def main() -> int:
    """Return 0, 1 with a sentence where there is no history or a build failed, or 130 when interrupted."""
    log = Progress()

    def build() -> None:
        first_release(Path(__file__).resolve().parents[3], cache_root(), log)

    return exit_code(build, log, "first chart: ")


def _git(repository: Path, *arguments: str) -> str:
    # A checkout may belong to another user than root, who runs this.
    safe = ["-c", f"safe.directory={repository}"]
    done = subprocess.run(
        ["git", *safe, "-C", str(repository), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise KitError(done.stderr.strip())
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
