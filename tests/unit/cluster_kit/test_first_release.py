"""Which commit holds the first chart, and that a clone without history is refused with a sentence."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.cluster.chart.first import CHART, NoHistoryError, first_commit, rename_image
from tests.cluster_kit.errors import KitError

if TYPE_CHECKING:
    from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path, file: str, text: str) -> str:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(folder, "add", file)
    git(folder, "commit", "-q", "-m", file)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def history(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    commit(folder, "README.md", "before")
    return folder


def test_the_first_commit_with_a_chart(history: Path) -> None:
    first = commit(history, f"{CHART}/Chart.yaml", "version: 0.1.0")
    commit(history, f"{CHART}/Chart.yaml", "version: 0.2.0")
    git(history, "rm", "-q", f"{CHART}/Chart.yaml")
    git(history, "commit", "-q", "-m", "away")
    commit(history, f"{CHART}/Chart.yaml", "version: 0.3.0")
    assert first_commit(history) == first


def test_no_chart_yet(history: Path) -> None:
    with pytest.raises(KitError, match=r"no commit of this branch adds charts/plimsoll/Chart.yaml"):
        first_commit(history)


def test_a_shallow_clone_is_refused(history: Path, tmp_path: Path) -> None:
    """Git would call the one commit that is there the one that added everything."""
    commit(history, f"{CHART}/Chart.yaml", "version: 0.1.0")
    commit(history, f"{CHART}/Chart.yaml", "version: 0.2.0")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{history}", "shallow")
    with pytest.raises(NoHistoryError, match=r"this clone is shallow: git fetch --unshallow"):
        first_commit(tmp_path / "shallow")


def test_an_unpacked_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoHistoryError, match=r"is no git clone: .*not a git repository"):
        first_commit(tmp_path)


def test_an_image_under_another_tag(tmp_path: Path) -> None:
    source, target = tmp_path / "a.tar", tmp_path / "b.tar"
    manifest = [{"Config": "c.json", "RepoTags": ["ghcr.io:5000/a/b:0.1.0"], "Layers": ["l.tar"]}]
    files = {"c.json": b"{}", "l.tar": b"layer", "manifest.json": json.dumps(manifest).encode()}
    with tarfile.open(source, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    rename_image(source, target, "first")
    with tarfile.open(target) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        contents = {name: file.read() for name, file in found.items() if file}
    assert json.loads(contents.pop("manifest.json")) == [
        {**manifest[0], "RepoTags": ["ghcr.io:5000/a/b:first"]}
    ]
    assert contents == {"c.json": b"{}", "l.tar": b"layer"}
