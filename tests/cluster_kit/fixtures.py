"""Pytest fixtures for tests on a real cluster; `tests/conftest.py` imports them for every suite.

``api_cluster`` is the control plane alone, ``gpu_cluster`` has nodes with fake GPUs. While a test that uses one of
them runs, the pytest process stands in that cluster's network, so that clients in the test's own process reach the
API server. Sessions that run at the same time share a cluster; the last one takes it down. With PLIMSOLL_KEEP=1 it
stays for the next run, which then starts at once; with PLIMSOLL_TEST_PREFIX a session has clusters of its own.
"""

import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import pytest

from .busybox import busybox_image
from .cache import cache_root
from .cluster import Cluster
from .distribution import end_like_ctrl_c, reorder, take_down
from .images import build_images, model_folder
from .linux import enter_network_namespace
from .lock import Users
from .network import control_namespace
from .node import Node
from .presets import TEST_NODES
from .progress import Progress

# A prefix of one's own keeps a run apart from others on the same machine.
_PREFIX = os.environ.get("PLIMSOLL_TEST_PREFIX", "t")
# A test that uses a fixture of one of these names stands in that cluster's network (scale_cluster: tests/scale).
NAMES = {f"{kind}_cluster": f"{_PREFIX}-{kind}" for kind in ("api", "gpu", "scale")}
_MARKERS = ("contract", "cluster")
_HOME = f"/proc/{os.getpid()}/ns/net"


def unsupported() -> str | None:
    """Return why this machine cannot run a cluster, or None. The only reasons for which a test is skipped."""
    if sys.platform != "linux":
        return f"the local cluster needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return f"the local cluster needs root (namespaces, mounts), this is user id {os.geteuid()}"
    return None


class _Network:
    """The network namespace in which pytest's main thread stands."""

    def __init__(self) -> None:
        self._home = os.open(_HOME, os.O_RDONLY | os.O_CLOEXEC)

    def stand_in(self, cluster: str | None) -> None:
        """Go into the cluster's network, or home when there is no such cluster (yet)."""
        path = control_namespace(cluster) if cluster else None
        enter_network_namespace(path if path and path.exists() else f"/proc/self/fd/{self._home}")


_network = _Network() if sys.platform == "linux" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a cluster where none can run; a cluster that fails to start fails its tests instead."""
    reorder(config, items)
    reason = unsupported()
    if reason is None:
        return
    for item in items:
        if any(item.get_closest_marker(name) for name in _MARKERS):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Stand in the network of the cluster that the test uses, before any of its fixtures is made.

    Raises:
        UsageError: it uses two clusters, whose addresses are the same.
    """
    used = [NAMES[name] for name in getattr(item, "fixturenames", ()) if name in NAMES]
    if len(used) > 1:
        raise pytest.UsageError(f"{item.nodeid}: use one of {sorted(NAMES)}, not two")
    if _network is not None and unsupported() is None:
        _network.stand_in(used[0] if used else None)
    yield


def pytest_configure(config: pytest.Config) -> None:
    """Run with ``-n 2``, end as without."""
    end_like_ctrl_c(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind, unless told to."""
    if os.environ.get("PLIMSOLL_KEEP") != "1":
        take_down(config, [*NAMES.values()])


@contextmanager
def running(name: str, nodes: Sequence[Node], config: pytest.Config) -> Iterator[Cluster]:
    """Start or join the cluster, stand in its network, and take it down when no other session uses it."""
    reason = unsupported()
    if reason is not None or _network is None:
        pytest.skip(reason or "not Linux")
    users = Users(name)
    cluster = Cluster(name, nodes)
    # A stopped CI job or a closed terminal cleans up like Ctrl-C.
    endings = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in endings}
    # A cold cache is filled from the Internet, which the cluster's network cannot see.
    _network.stand_in(None)
    try:
        with _shown(config):
            cluster.up(wait=True)
        _network.stand_in(name)
        yield cluster
    finally:
        _network.stand_in(None)
        with users.leave() as last:
            if last and os.environ.get("PLIMSOLL_KEEP") != "1":
                cluster.down(wait=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def fill_cache() -> None:
    """Build and download what tests load into nodes, while the Internet can be seen. Raises KitError."""
    if _network is not None:
        _network.stand_in(None)
    log = Progress()
    busybox_image(log)
    build_images(cache_root(), log=log)
    model_folder(cache_root(), log)


@contextmanager
def outside(config: pytest.Config) -> Iterator[None]:
    """Stand outside of `gpu_cluster`'s network, for what else is built when the cache is cold; progress is shown."""
    if _network is not None:
        _network.stand_in(None)
    try:
        with _shown(config):
            yield
    finally:
        if _network is not None:
            _network.stand_in(NAMES["gpu_cluster"])


@contextmanager
def _shown(config: pytest.Config) -> Iterator[None]:
    """Let progress lines through: with a cold cache the start takes minutes, which must not look like a hang."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        yield
        return
    with capture.global_and_fixture_disabled():
        yield


@pytest.fixture(scope="session")
def api_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A control plane without nodes: real admission, controllers and scheduler, no pod ever runs."""
    with running(NAMES["api_cluster"], (), pytestconfig) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gpu_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Two nodes with fake GPUs: node-a with three of 0.9 GiB, node-b with one of 0.6 GiB."""
    if unsupported() is None:
        with _shown(pytestconfig):
            fill_cache()
    with running(NAMES["gpu_cluster"], TEST_NODES, pytestconfig) as cluster:
        yield cluster
