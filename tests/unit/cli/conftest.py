"""A kubectl that answers from a table, first on PATH."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plimsoll.cli.__main__ import main

DATA = Path(__file__).resolve().parents[2] / "data" / "cli"
#: Two servers, llama.cpp and a stand-in of vLLM, and their pods, as the local cluster returned them.
CLUSTER: dict[str, Any] = json.loads((DATA / "cluster.json").read_text())

_PROGRAM = f"""\
#!{sys.executable} -I
import json, pathlib, sys
table = json.loads((pathlib.Path(__file__).parent / "answers.json").read_text())
words = sys.argv[1:]
with (pathlib.Path(__file__).parent / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
for wanted, code, out, err in table:
    if all(word in words for word in wanted):
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)
sys.exit("unexpected: " + " ".join(words))
"""


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


class FakeKubectl:
    """The first row whose words all occur in a call answers it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[tuple[list[str], int, str, str]] = []
        program = folder / "kubectl"
        program.write_text(_PROGRAM)
        program.chmod(0o755)
        self._write()

    def answers(
        self, *words: str, out: str | dict[str, Any] = "", err: str = "", code: int | None = None
    ) -> None:
        text = out if isinstance(out, str) else json.dumps(out)
        status = (1 if err else 0) if code is None else code
        self._rows.append((list(words), status, text, err))
        self._write()

    def calls(self) -> list[list[str]]:
        path = self._folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _write(self) -> None:
        (self._folder / "answers.json").write_text(json.dumps(self._rows))


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return FakeKubectl(folder)


@pytest.fixture
def plimsoll(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code = main(list(words))
        return Outcome(code, *capsys.readouterr())

    return run


def server(name: str = "smollm2") -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(CLUSTER["servers"][name])
    return found


def pods(name: str) -> list[dict[str, Any]]:
    of_it = [p for p in CLUSTER["pods"] if p["metadata"]["labels"]["plimsoll.dev/server"] == name]
    return deepcopy(of_it)


def golden(name: str, text: str) -> None:
    """The text is what stands in tests/data/cli; a new file is written, and fails once."""
    path = DATA / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was written; look at it and run again")
    assert text == path.read_text()
