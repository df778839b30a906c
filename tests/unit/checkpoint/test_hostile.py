"""Bad input ends in one line and exit code 2 or 3, soon and in little memory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll.checkpoint.safetensors import read_bytes
from plimsoll.checkpoint.tally import scan_index
from plimsoll.cli.__main__ import main
from plimsoll.core.errors import BadModel
from tests.unit.checkpoint.hostile import BOMBS, CONFIGS, CORPUS, NUMBERS

if TYPE_CHECKING:
    from tests.unit.checkpoint.hostile import Fill

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
SECONDS = 2.0
MEMORY = 128 * MIB
QUESTION = ["--engine=LightLLM", "--gpu-name=x", "--gpu-total=24GiB", "--gpu-free-after-init=23GiB"]


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) >= 200


def fill(folder: Path, how: Fill) -> Path:
    model = folder / "model"
    model.mkdir()
    how(model)
    return model


@pytest.mark.parametrize("name", CORPUS)
def test_one_line_and_no_traceback(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fill(tmp_path, CORPUS[name])
    tracemalloc.start()
    start = time.process_time()
    code = main(["fit", str(model), *QUESTION])
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    out, err = capsys.readouterr()
    assert code in {2, 3}, out
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("plimsoll: ")
    assert len(err) < 700
    assert seconds < SECONDS
    assert peak < MEMORY


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.split(maxsplit=1)[0] in NUMBERS])
def test_a_wrong_number_is_named_with_its_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    field = name.split(maxsplit=1)[0]
    model = fill(tmp_path, CONFIGS[name])
    assert main(["fit", str(model), *QUESTION, "-o", "json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["file"] == "config.json"
    assert field in (error["field"] or err)  # a number of 400 digits is no field yet, but no JSON
    assert "config.json" in err


#: The peak of a process is asked of /proc: getrusage's counts what was there before exec, too.
LIMITED = """
import os, re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
from plimsoll.cli.__main__ import main
code = main(sys.argv[1:])
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10, sum(os.times()[:2]))
raise SystemExit(code)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_in_a_process_of_their_own(name: str, tmp_path: Path) -> None:
    model = fill(tmp_path, BOMBS[name])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "fit", str(model), *QUESTION],
        env={"PYTHONPATH": str(ROOT / "operator"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in {2, 3}, done.stderr
    assert done.stderr.count("\n") == 1
    memory, seconds = map(float, done.stdout.split()[-2:])
    assert memory < MEMORY, f"{memory / MIB:.0f} MiB"
    assert seconds < SECONDS


class Endless(io.RawIOBase):
    """A file that grows faster than it is read."""

    def __init__(self, head: bytes, more: bytes) -> None:
        self._head, self._more, self.given = head, more, 0

    def read(self, size: int = -1, /) -> bytes:
        assert size >= 0, "read to the end of a file without one"
        text = self._head + self._more * (size // len(self._more) + 1)
        self._head = b""
        self.given += size
        return text[:size]


def test_a_growing_index_is_not_read_for_ever() -> None:
    entry = b'"a": "b.safetensors",'
    file = Endless(b'{"weight_map": {', entry)
    assert scan_index(file, 9) is None  # type: ignore[arg-type]
    assert file.given < 64 * MIB


def test_a_growing_file_keeps_the_size_that_it_had() -> None:
    file = Endless((1 << 20).to_bytes(8, "little"), b" ")
    with pytest.raises(BadModel):
        read_bytes(file, 100, "x")  # type: ignore[arg-type]
    assert file.given == 8


def test_a_config_that_grows_behind_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fill(tmp_path, CONFIGS["hidden_size zero"])
    (model / "config.json").write_bytes(b" " * (2 * MIB))

    def small(handle: int) -> os.stat_result:
        values = list(os.stat(handle))
        values[6] = 10
        return os.stat_result(values)

    monkeypatch.setattr("plimsoll.checkpoint.files.os.fstat", small)
    assert main(["fit", str(model / "config.json")]) == 2
