"""What a test tells the stand-in, from the environment: see the package's table."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CRASHES = ("oom", "exit", "flag", "hostmem")
HANGS = ("", "load", "serve")
COUNT_FILE = "/dev/shm/standin-starts"


@dataclass(frozen=True, slots=True)
class Switches:
    """See the package's table; seconds and bytes. ``crash`` is empty where this start is not to crash."""

    load_seconds: float = 0.0
    crash: str = ""
    failure_exit: int | None = None
    host_bytes: int = 256 << 20
    oom_prompt: int | None = None
    hang: str = ""
    hang_after: float | None = None
    ignore_sigterm: bool = False
    hold_seconds: float = 0.0
    drain: bool = False
    report_factor: float = 1.0
    overhead: int = 0
    context: int = 480 << 20
    graphs: int = 64 << 20
    never_ready: bool = False
    version: str = ""


def read_switches(environ: Mapping[str, str]) -> Switches:
    """Read the switches and count this start.

    Raises:
        ValueError: an unknown ``STANDIN_*`` name, or a value that it cannot have.
    """
    given = {
        name.removeprefix("STANDIN_"): value
        for name, value in environ.items()
        if name.startswith("STANDIN_")
    }
    unknown = sorted(given.keys() - NAMES)
    if unknown:
        raise ValueError(
            f"STANDIN_{unknown[0]}: no such switch; there are {', '.join(sorted(NAMES))}"
        )
    start = count_start(Path(given.get("COUNT_FILE", COUNT_FILE)))
    crash = given.get("CRASH", "oom")
    hang = given.get("HANG", "")
    if crash not in CRASHES or hang not in HANGS:
        raise ValueError(
            f"STANDIN_CRASH={crash} is one of {CRASHES}, STANDIN_HANG={hang} of {HANGS}"
        )
    starts = given.get("CRASH_STARTS", "")
    listed = [int(word) for word in starts.split(",") if word and word != "*"]
    prompt, after = given.get("OOM_PROMPT_TOKENS"), given.get("HANG_AFTER_SECONDS")
    failure = given.get("FAILURE_EXIT")
    return Switches(
        load_seconds=float(given.get("LOAD_SECONDS", 0)),
        crash=crash if starts == "*" or start in listed else "",
        failure_exit=None if failure is None else int(failure),
        host_bytes=int(given.get("HOST_BYTES", 256 << 20)),
        oom_prompt=None if prompt is None else int(prompt),
        hang=hang,
        hang_after=None if after is None else float(after),
        ignore_sigterm=given.get("IGNORE_SIGTERM") == "1",
        hold_seconds=float(given.get("HOLD_SECONDS", 0)),
        drain=given.get("DRAIN") == "1",
        report_factor=float(given.get("REPORT_FACTOR", 1)),
        overhead=int(given.get("OVERHEAD_BYTES", 0)),
        context=int(given.get("CONTEXT_BYTES", 480 << 20)),
        graphs=int(given.get("GRAPH_BYTES", 64 << 20)),
        never_ready=given.get("NEVER_READY") == "1",
        version=given.get("VERSION", ""),
    )


_NAMES = (
    "LOAD_SECONDS CRASH_STARTS CRASH FAILURE_EXIT HOST_BYTES OOM_PROMPT_TOKENS HANG HANG_AFTER_SECONDS "
    "IGNORE_SIGTERM HOLD_SECONDS DRAIN REPORT_FACTOR OVERHEAD_BYTES CONTEXT_BYTES GRAPH_BYTES NEVER_READY VERSION "
    "COUNT_FILE"
)
NAMES = frozenset(_NAMES.split())


def count_start(path: Path) -> int:
    """Return the number of this start: one more than ``path`` says, which then says so. Unwritable: 1."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read().strip()
            number = (int(text) if text.isdigit() else 0) + 1
            file.seek(0)
            file.write(f"{number}\n")
            file.truncate()
        return number
    return 1
