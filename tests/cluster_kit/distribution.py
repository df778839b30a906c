"""How `pytest -n 2` hands out tests: those that share a cluster to one worker, in order; the others by file.

A cluster's tests mostly wait, and would take each other's GPUs; the other worker computes meanwhile. The longest part
goes out first, so that both workers end at about the same time. The plugin's own groups (``--dist loadgroup``) are
written into a test's id, which pytest 9.2 does not let it do: they have no effect.
"""

import signal
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from . import command
from .cluster import Cluster
from .lock import Users

SHARED = (
    ("tests/cluster/test_kit_lifecycle.py", "lifecycle"),
    ("tests/cluster/test_demo.py", "demo"),
    ("tests/cluster/test_images.py", "images"),
    ("tests/cluster/", "cluster"),
    ("tests/scale/", "scale"),
    ("tests/contract/", "contract"),
)
"""What shares a cluster, as (start of a test's id, name). The first that fits counts."""
ORDER = ("cluster", "scale", "contract", "lifecycle", "demo")
"""From the longest to the shortest."""


def scope(nodeid: str) -> str:
    """Return what a test must share a worker with: all that use its cluster, or its file."""
    return next(
        (name for start, name in SHARED if nodeid.startswith(start)),
        nodeid.split("::", maxsplit=1)[0],
    )


def longest_first(nodeid: str) -> int:
    """Return the place of a test's scope in the order in which scopes go out: the many short ones fill up."""
    name = scope(nodeid)
    return ORDER.index(name) if name in ORDER else len(ORDER) + name.startswith("tests/unit/")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Scopes go out in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # Its own order is by the number of tests, which says nothing about their time.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def reorder(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests of a worker as scopes go out; without workers the cheap failures come first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: longest_first(item.nodeid))


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
