"""The three operators under comparison as processes on the host, each with its own account."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.operator import audit, objects, proc
from bench.operator.lab import ROOT, Lab, LabError, stamp

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

NAMES: Final = ("plimsoll", "floor", "stock")
HEALTH_PORT: Final = 18080
REST_SECONDS: Final = 1.0


@dataclass
class Running:
    """An operator that watches.

    Attributes:
        who: which one.
        lab: where.
        process: its process.
        began: its start, as the audit log writes times.
        watch_seconds: from its start to its watch of servers.
    """

    who: str
    lab: Lab
    process: subprocess.Popen[bytes]
    began: str
    watch_seconds: float = 0.0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def cpu(self) -> float:
        """Its CPU seconds so far."""
        if self.process.poll() is not None:
            raise LabError(f"{self.who} ended with {self.process.returncode}: see its log")
        return proc.cpu_seconds(self.pid)

    def memory(self) -> dict[str, float]:
        """Its memory in MiB."""
        return proc.memory(self.pid)

    def calls(self, since: str, servers: int, until: str = "9") -> dict[str, Any]:
        """Its requests of an interval."""
        log, user = self.lab.cluster.audit_log, self.lab.user(self.who)
        return audit.summary(audit.calls(log, user, since, until), servers)

    def quiet(self, seconds: float = 1.0, share: float = 0.08, limit: float = 300) -> float:
        """Wait until it uses less than a share of a core for so long; returns when that began.

        Returns:
            Seconds of `time.monotonic`, of the last moment at which it was busy.
        """
        end = time.monotonic() + limit
        last_busy, before = time.monotonic(), self.cpu()
        step = 0.25
        while time.monotonic() < end and time.monotonic() - last_busy < seconds:
            time.sleep(step)
            now = self.cpu()
            if now - before > share * step:
                last_busy = time.monotonic()
            before = now
        return last_busy


def argv_of(lab: Lab, who: str, *, frozen: bool = False) -> list[str | Path]:
    """The command line."""
    python = Path(sys.executable)
    match who:
        case "plimsoll":
            return [python, "-m", "plimsoll.controller"]
        case "floor":
            flags: list[str | Path] = [
                "-objects",
                lab.folder / "objects.json",
                *(["-frozen"] if frozen else []),
            ]
            return [lab.floor, "run", *flags]
        case "stock":
            module = ROOT / "bench" / "stock" / "handlers.py"
            return [python.with_name("kopf"), "run", "--standalone", "-A", module]
    raise LabError(f"no operator {who!r}: {', '.join(NAMES)}")


def environment(lab: Lab, who: str) -> dict[str, str]:
    """What each is told by its environment."""
    return {
        "KUBECONFIG": str(lab.config(who)),
        "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "",
        "POD_NAMESPACE": "plimsoll-system",
        "POD_NAME": "bench",
        "PLIMSOLL_SIZER_IMAGE": objects.IMAGE,
        "PLIMSOLL_HEALTH_HOST": "127.0.0.1",
        "PLIMSOLL_HEALTH_PORT": str(HEALTH_PORT),
        "BENCH_OBJECTS": str(lab.folder / "objects.json"),
    }


@contextmanager
def running(
    lab: Lab,
    who: str,
    *,
    frozen: bool = False,
    argv: Sequence[str | Path] = (),
    wait: float = 60,
) -> Iterator[Running]:
    """Start an operator, wait until it watches, and stop it at the end of the block.

    Args:
        lab: where.
        who: which.
        frozen: the Go operator: write nothing.
        argv: in place of its command (a profiler around it).
        wait: seconds that it may need to its watch.
    """
    command = argv or argv_of(lab, who, frozen=frozen)
    began = stamp()
    with lab.process(command, environment(lab, who), lab.folder / f"{who}.log") as process:
        one = Running(who, lab, process, began)
        one.watch_seconds = lab.wait_watch(who, began, wait)
        time.sleep(REST_SECONDS)
        yield one
