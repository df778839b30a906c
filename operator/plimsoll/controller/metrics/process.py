"""The process as the kernel sees it, under the names that every Prometheus client uses."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from plimsoll.controller.metrics.registry import Family, Gauge, ReadCounter

if TYPE_CHECKING:
    from collections.abc import Callable

_PROC: Final = Path("/proc")
# Fields of /proc/PID/stat after the name, which may hold blanks (proc_pid_stat(5)).
_START_TIME: Final = 22 - 3


def process_families(proc: Path = _PROC) -> tuple[Family, ...]:
    """CPU, memory, start time and descriptors; without samples where there is no /proc.

    Args:
        proc: where the kernel shows itself.
    """
    own = proc / "self"

    def cpu() -> float:
        return time.process_time()

    def resident() -> float:
        return int((own / "statm").read_text().split()[1]) * resource.getpagesize()

    def descriptors() -> float:
        return len(os.listdir(own / "fd"))  # noqa: PTH208  # no Path objects for a mere count

    def most_descriptors() -> float:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    return (
        _read(
            ReadCounter("process_cpu_seconds_total", "User and system CPU time of the operator."),
            cpu,
        ),
        _read(Gauge("process_resident_memory_bytes", "Resident memory of the operator."), resident),
        _read(
            Gauge("process_start_time_seconds", "When the operator started, in Unix time."),
            lambda: start_time(proc),
        ),
        _read(Gauge("process_open_fds", "Open file descriptors of the operator."), descriptors),
        _read(
            Gauge("process_max_fds", "Most file descriptors that the operator may open."),
            most_descriptors,
        ),
    )


def start_time(proc: Path = _PROC) -> float:
    """When this process started, Unix time in seconds.

    Raises:
        OSError: there is no /proc.
    """
    ticks = int((proc / "self/stat").read_text().rpartition(")")[2].split()[_START_TIME])
    boot = next(
        int(line.split()[1])
        for line in (proc / "stat").read_text().splitlines()
        if line.startswith("btime ")
    )
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def _read(gauge: Gauge, read: Callable[[], float]) -> Gauge:
    def samples() -> tuple[tuple[tuple[str, ...], float], ...]:
        try:
            return (((), read()),)
        except OSError:
            return ()

    gauge.read_by(samples)
    return gauge
