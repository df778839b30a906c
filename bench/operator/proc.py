"""What /proc tells of a process."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> dict[str, float]:
    """Resident, proportional, private and peak resident memory in MiB."""
    status = _fields(Path(f"/proc/{pid}/status"))
    rollup = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    kib = {
        "rss": status["VmRSS"],
        "peak": status["VmHWM"],
        "pss": rollup["Pss"],
        "private": rollup["Private_Dirty"] + rollup["Private_Clean"],
    }
    return {name: round(value / 1024, 2) for name, value in kib.items()}


def reset_peak(pid: int) -> None:
    """Let the peak begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _fields(path: Path) -> dict[str, int]:
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0])
    return found
