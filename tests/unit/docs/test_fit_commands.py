"""Every `plimsoll fit` on a page runs as it is written, with a model at the path that it names."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from plimsoll.cli.__main__ import main
from tests.render_samples import LLAMA_8B
from tests.unit.docs.commands import shown

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [(page, line) for page, line in shown("plimsoll") if line.startswith("plimsoll fit /")]


def test_there_are_such_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_fit_runs(page: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    _, *words = shlex.split(line)
    words[1] = str(tmp_path / "config.json")
    assert main(words) == 0, page
    assert "confidence:" in capsys.readouterr().out
