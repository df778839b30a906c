"""A program that runs beside a cluster's control plane: kwok, Karpenter, an operator under test.

It joins the cluster's cgroup, so that the cluster takes it down with itself however the caller ends.
"""

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, network
from .cluster import Cluster
from .control_plane import file_tail
from .errors import KitError
from .process import kill_and_wait, start_daemon, start_time


@dataclass(frozen=True, slots=True)
class Beside:
    """One such program of one cluster.

    Attributes:
        cluster: a running one.
        name: of its log, and what an error message calls it.
    """

    cluster: Cluster
    name: str

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.cluster.state / "log" / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return self.cluster.state / f"{self.name}.pid"

    def running(self) -> bool:
        """Return whether the process that was started last still runs."""
        return self._pid() is not None

    def start(self, argv: Sequence[str | Path], env: Mapping[str, str]) -> None:
        """Start it in the cluster's network; one of that name that still runs is ended first."""
        self.stop(0)
        self.log.unlink(missing_ok=True)
        members = cgroups.daemons(self.cluster.name)
        command = network.inside(self.cluster.netns, *argv)
        pid = start_daemon(command, self.log, members=members, env={**os.environ, **env})
        self._record.write_text(json.dumps([pid, start_time(pid)]))

    def stop(self, seconds: float = 10.0) -> None:
        """End it: SIGTERM, and SIGKILL after ``seconds``. No error when it does not run."""
        pid = self._pid()
        if pid is not None and seconds:
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + seconds
            while self.running() and time.monotonic() < end:
                time.sleep(0.02)
        if pid is not None:
            kill_and_wait([pid], 5.0)
        self._record.unlink(missing_ok=True)

    def wait(self, words: str, seconds: float = 30.0) -> None:
        """Wait until it has printed this. Raises KitError with the end of its log."""
        end = time.monotonic() + seconds
        while words not in self.printed():
            if not self.running() or time.monotonic() > end:
                raise KitError(
                    f"{self.name}: no {words!r} in {seconds:.0f} s:\n{file_tail(self.log)}"
                )
            time.sleep(0.05)

    def printed(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _pid(self) -> int | None:
        if not self._record.exists():
            return None
        pid, began = json.loads(self._record.read_text())
        return int(pid) if began is not None and start_time(pid) == began else None
