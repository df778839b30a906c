"""The same inputs make the same files, and a difference is named."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

from tests.cluster_kit.images import build, wheels
from tests.cluster_kit.images.reproduce import FIRST, SECOND, compare, differences, made

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def say(_: str) -> None:
    """Progress that no one reads."""


def archive(path: Path, files: Mapping[str, bytes], mode: int = 0o644) -> Path:
    """A docker archive of one layer."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size, item.mode = len(content), mode
            tar.addfile(item, io.BytesIO(content))
    image_id = hashlib.sha256(layer.getvalue()).hexdigest()
    members = {
        "layer.tar": layer.getvalue(),
        f"{image_id}.json": b"{}",
        "manifest.json": json.dumps(
            [{"Config": f"{image_id}.json", "Layers": ["layer.tar"]}]
        ).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            tar.addfile(item, io.BytesIO(content))
    return path


def test_equal_archives_are_told_with_their_digests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (archive(tmp_path / name, {"a": b"1"}) for name in ("one", "other"))
    assert compare("sizer", made(one), made(other))
    told = capsys.readouterr().out.splitlines()
    assert [line.endswith("same twice") for line in told] == [True, True]
    assert hashlib.sha256(one.read_bytes()).hexdigest() in told[1]


def test_what_differs_is_named_file_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = archive(tmp_path / "one", {"same": b"1", "changed": b"1", "only": b""})
    other = archive(tmp_path / "other", {"same": b"1", "changed": b"2"})
    assert not compare("sizer", made(one), made(other))
    told = capsys.readouterr().out
    assert "DIFFERS" in told
    assert "layer 0: changed: " in told
    assert "layer 0: only: " in told
    assert "same:" not in told
    assert "absent" in told
    (line,) = differences(
        one, archive(tmp_path / "mode", {"same": b"1", "changed": b"1", "only": b""}, 0o600)
    )[:1]
    assert " 644 " in line
    assert " 600 " in line


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def test_the_projects_files_do_not_depend_on_where_and_how_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "operator/plimsoll/__init__.py",
        "operator/plimsoll/core/budget.py",
    )
    sources = {name: (build.ROOT / name).read_bytes() for name in names}
    found = []
    for around, name in ((FIRST, "one"), (SECOND, "second/elsewhere")):
        for key, value in around.environment:
            monkeypatch.setenv(key, value)
        before = os.umask(around.umask)
        try:
            found.append(tree(wheels.project_folder(sources, tmp_path / name, say)))
        finally:
            os.umask(before)
    assert found[0] == found[1]
    assert "plimsoll/core/budget.py" in found[0]
