"""The scripts that run before anything is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("go", "code", "words"),
    [
        (None, 2, "go: not found; install Go 1.26"),
        ("go1.25.1", 2, "is go1.25.1: install Go 1.26"),
        ("go1.26.0", 0, ""),
        ("devel +abc", 0, ""),
    ],
)
def test_check_host_names_go(tmp_path: Path, go: str | None, code: int, words: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: the script says so first")
    if go is not None:
        script = tmp_path / "go"
        script.write_text(f"#!/bin/sh\necho '{go}'\n")
        script.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "tools" / "check_host.py")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert (done.stderr == "") is (code == 0)


def test_setup_venv_leaves_a_complete_environment_alone(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    folder.mkdir()
    (folder / ".done").touch()
    (folder / "mine").touch()
    lock = tmp_path / "lock.txt"
    lock.touch()
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "tools" / "setup_venv.py"), str(folder), str(lock)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "mine").exists()
