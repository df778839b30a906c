"""How `pytest -n 2` hands out tests: those of a cluster to one worker, in order; the rest to the other, one by one.

A cluster's tests mostly wait, and would take each other's GPUs; the other worker computes meanwhile. The plugin's own
groups (``--dist loadgroup``) are written into a test's id, which pytest 9.2 does not let it do: they have no effect.
"""

import signal
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from . import command
from .cluster import Cluster
from .lock import Users

ALONE = ("tests/unit/", "tests/chart/", "tests/monitoring/", "tests/fuzz/")
"""Suites that need no cluster."""


def scope(nodeid: str) -> str:
    """Return what a test must share a worker with: itself alone, or all that use a cluster."""
    return nodeid if nodeid.startswith(ALONE) else "cluster"


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The largest scope, that of the cluster, starts first; xdist sorts them so."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Use it whatever ``--dist`` says."""
    return Scheduling(config, log)


def end_like_ctrl_c(config: pytest.Config) -> None:
    """Let a stopped CI job or a closed terminal end the workers, and what they started, like Ctrl-C."""
    if config.getoption("numprocesses", None):
        command.end_like_ctrl_c(signal.SIGHUP)


def take_down(config: pytest.Config, names: list[str]) -> None:
    """Take down what a worker left, which an interrupt gives only seconds to end."""
    if config.getoption("numprocesses", None):
        for name in names:
            with Users(name).leave() as last:
                if last:
                    Cluster(name, ()).down(wait=True)
