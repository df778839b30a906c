"""Start daemons that outlive the command, recognise them later, end them by pid."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .errors import KitError


def run(
    *argv: str | Path, timeout: float = 120.0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end and return what it printed.

    Raises:
        KitError: it is missing, took longer than ``timeout`` seconds, or failed; with its own words.
    """
    command = [str(word) for word in argv]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=env
        )
    except FileNotFoundError:
        raise KitError(f"{command[0]}: no such program; install it and try again") from None
    except subprocess.TimeoutExpired:
        raise KitError(f"{' '.join(command)}: no end after {timeout:.0f} s") from None
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise KitError(f"{' '.join(command)}: exit {done.returncode}: {words}")
    return done


def start_daemon(
    argv: Sequence[str | Path], log: Path, *, members: Path, env: Mapping[str, str] | None = None
) -> int:
    """Start ``argv`` in a session of its own, output to ``log``, and return its pid.

    The process joins the cgroup whose ``cgroup.procs`` is ``members`` before it runs a line of its own, so that
    whatever it starts can be found again even when the launcher was killed and wrote nothing down.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(members), *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=dict(env) if env is not None else None,
        )
    # Its end is watched through /proc: with the exit status taken here the Popen object must not complain.
    process.returncode = 0
    return process.pid


def start_time(pid: int) -> str | None:
    """Return the kernel's start time of a running process (ticks since boot), or None: with the pid it is unique."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def command_line(pid: int) -> str:
    """Return a process's arguments for a person to read, or an empty string."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def kill_and_wait(pids: Iterable[int], seconds: float) -> list[int]:
    """SIGKILL each process and wait until all are gone; return those that stay (stuck in the kernel)."""
    left = {pid for pid in pids if start_time(pid) is not None}
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    end = time.monotonic() + seconds
    while True:
        _reap(left)
        left = {pid for pid in left if start_time(pid) is not None}
        if not left or time.monotonic() > end:
            return sorted(left)
        time.sleep(0.02)


def _reap(pids: Iterable[int]) -> None:
    """Collect those that are our own children: the launcher may still be the parent of a daemon it ends."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
