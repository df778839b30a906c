"""Archives that do not depend on the day, and sums that sha256sum accepts."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.cluster_kit.errors import KitError
from tests.release import artifacts

if TYPE_CHECKING:
    from pathlib import Path


def packed(names: list[str], mtime: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in names:
            item = tarfile.TarInfo(f"plimsoll/{name}")
            item.size, item.mtime, item.mode, item.uid = len(name), mtime, 0o600, 1000
            tar.addfile(item, io.BytesIO(name.encode()))
    return gzip.compress(made.getvalue(), mtime=mtime)


def test_a_chart_is_the_same_bytes_whenever_it_was_packaged() -> None:
    one = artifacts.normalised(packed(["Chart.yaml", "values.yaml"], 1), 1767225600)
    assert one == artifacts.normalised(packed(["values.yaml", "Chart.yaml"], 2), 1767225600)
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert [(item.name, item.mode, item.uid, item.mtime) for item in tar] == [
            ("plimsoll/Chart.yaml", 0o644, 0, 1767225600),
            ("plimsoll/values.yaml", 0o644, 0, 1767225600),
        ]
        content = tar.extractfile("plimsoll/values.yaml")
        assert content
        assert content.read() == b"values.yaml"


def test_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    (tmp_path / artifacts.SUMS).write_text("old")
    (tmp_path / artifacts.SUMS).write_text(artifacts.sums(tmp_path))
    command = ["sha256sum", "--check", "--strict", artifacts.SUMS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a: OK\nb: OK\n"


def test_a_work_tree_that_is_no_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "git", lambda *_: " M README.md")
    with pytest.raises(KitError, match="commit first, or give --dirty"):
        artifacts.make(tmp_path / "dist", dirty=False)
    assert not (tmp_path / "dist").exists()
