"""Every `plimsoll fit` and `plimsoll render` on a page runs as it is written."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from plimsoll.cli.__main__ import main
from tests.render_samples import LLAMA_8B
from tests.unit.docs.commands import ROOT, shown

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [(page, line) for page, line in shown("plimsoll") if line.startswith("plimsoll fit /")]
RENDERS = [
    (page, line)
    for page, line in shown("plimsoll")
    if line.startswith("plimsoll render -f manifests/")
]


def test_there_are_such_commands() -> None:
    assert len(COMMANDS) >= 4
    assert RENDERS


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_fit_runs(page: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    _, *words = shlex.split(line)
    words[1] = str(tmp_path / "config.json")
    assert main(words) == 0, page
    assert "confidence:" in capsys.readouterr().out


@pytest.mark.parametrize(("page", "line"), RENDERS)
def test_render_runs(
    page: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(line)[1:]) == 0, page
    assert "kind: Deployment" in capsys.readouterr().out
