"""Long steps: progress, failure with the tool's words, and nothing left behind when interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster_kit.errors import KitError
from tests.cluster_kit.images.host import finished, readable, run, step, sweep


def say(_: str) -> None:
    """Progress that no one reads."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    end = time.monotonic() + 30
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_output_of_both_streams_is_returned() -> None:
    assert run(["sh", "-c", "echo a; echo b >&2"], what="x", log=say) == "a\nb\n"


def test_failure_carries_status_and_last_words() -> None:
    with pytest.raises(KitError, match="copying: exit 3: no space"):
        run(["sh", "-c", "echo no space; exit 3"], what="copying", log=say)


def test_missing_program_says_what_to_do() -> None:
    with pytest.raises(KitError, match="nonesuch: no such program; run `make prerequisites`"):
        run(["nonesuch"], what="x", log=say)


def test_a_long_step_is_never_silent() -> None:
    lines: list[str] = []
    run(["sleep", "0.5"], what="sleeping", log=lines.append, heartbeat=0.1)
    assert lines
    assert all(line.startswith("  sleeping ... ") for line in lines)


def test_step_says_how_long_it_took() -> None:
    lines: list[str] = []
    with step("work", lines.append):
        pass
    assert lines == ["  work", "  work: done in 0.0 s"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_a_tool_ends_with_its_caller(number: signal.Signals, tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs ignore it
        "from tests.cluster_kit.images.host import run\n"
        f"run(['sh', '-c', 'echo $$ > {pids}.new; mv {pids}.new {pids}; sleep 60; true'], what='x', log=print)\n"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[3],
    )
    try:
        end = time.monotonic() + 30
        while not pids.exists() and time.monotonic() < end:
            time.sleep(0.02)
        tool = int(pids.read_text())
        assert alive(tool)
        caller.send_signal(number)
        assert caller.wait(30) != 0
        assert gone(tool)
    finally:
        caller.kill()
        caller.wait()


def test_an_exception_while_waiting_ends_the_tool_and_its_children(tmp_path: Path) -> None:
    def interrupt(_: str) -> None:
        if (tmp_path / "child").exists():
            raise KeyboardInterrupt

    script = f"cd {tmp_path}; sleep 60 & echo $! > new; mv new child; echo $$ > tool; wait"
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", script], what="x", log=interrupt, heartbeat=0.05)
    assert gone(int((tmp_path / "child").read_text()))


def test_an_unfinished_folder_never_appears(tmp_path: Path) -> None:
    target = tmp_path / "site"

    def interrupted() -> None:
        with finished(target) as scratch:
            (scratch / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_appears_whole_and_readable(tmp_path: Path) -> None:
    with finished(tmp_path / "site") as scratch:
        (scratch / "one").write_text("1")
        assert not (tmp_path / "site").exists()
    assert (tmp_path / "site" / "one").read_text() == "1"
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o755
    assert names(tmp_path) == ["site"]


def test_a_finished_file_appears_alone(tmp_path: Path) -> None:
    with finished(tmp_path / "image.tar") as scratch:
        (scratch / "image.tar").write_text("tar")
        (scratch / "rest").touch()
    assert (tmp_path / "image.tar").read_text() == "tar"
    assert names(tmp_path) == ["image.tar"]


def test_sweep_removes_what_a_killed_builder_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".image.tar.x1").mkdir()
    (tmp_path / "image.tar").touch()
    (tmp_path / "site").mkdir()
    sweep(tmp_path)
    assert names(tmp_path) == ["image.tar", "site"]


def test_readable_gives_everyone_what_the_owner_has(tmp_path: Path) -> None:
    script, data, folder = tmp_path / "script", tmp_path / "data", tmp_path / "folder"
    script.touch(0o700)
    data.touch(0o600)
    folder.mkdir(0o700)
    readable(tmp_path)
    assert [path.stat().st_mode & 0o777 for path in (script, data, folder)] == [0o755, 0o644, 0o755]
