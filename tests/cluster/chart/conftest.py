"""The cluster without the operator of manifests/install.yaml, and Helm 4 and 3 beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cluster.chart.first import first_release
from tests.cluster.chart.helm import Helm
from tests.cluster.chart.story import RELEASE, SPACE, Release, Steps
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.gotools import go_tool
from tests.cluster_kit.progress import Progress
from tests.demo import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.chart.first import FirstRelease
    from tests.cluster.world import World


_STEPS = pytest.StashKey[dict[str, Steps]]()


@pytest.fixture(scope="session")
def first() -> FirstRelease:
    """The first chart and its images; no history fails the test, with a sentence."""
    return first_release(install.ROOT, cache_root(), Progress())


@pytest.fixture(scope="module")
def cleared(world: World) -> Iterator[World]:
    """Nothing of Plimsoll is there; what install.yaml holds comes back after the module."""
    _remove(world)
    yield world
    _remove(world)  # the definition, which Helm keeps
    install.install(world.cluster)


def _remove(world: World) -> None:
    """Delete every object of install.yaml and wait until the last one is gone."""
    manifest = str(install.MANIFESTS / "install.yaml")
    world.cluster.kubectl("delete", "--ignore-not-found", "-f", manifest, "--timeout=120s")


@pytest.fixture
def release(
    cleared: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Release]]:
    """Makes the release of a Helm (`helm4`, `helm3`); it is uninstalled afterwards, whatever happened."""
    made: list[Release] = []

    def make(program: str) -> Release:
        home = tmp_path_factory.mktemp(program)
        made.append(Release(Helm(cleared.cluster, go_tool(program, Progress()), home)))
        return made[-1]

    yield make
    for one in made:
        if any(found["name"] == RELEASE for found in one.helm.releases()):
            one.uninstall()
    # As a user does who deletes the namespace: an operator that could not give its Lease back (its rights go with the
    # release) makes the next one wait until that expires.
    cleared.rest.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases")


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> Steps:
    """Seconds by step; the session's summary prints them."""
    clock = Steps()
    request.config.stash.setdefault(_STEPS, {})[request.node.name] = clock
    return clock


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line of JSON for each test with steps."""
    for test, clock in config.stash.get(_STEPS, {}).items():
        terminalreporter.write_line(json.dumps({"test": test, "seconds": clock.seconds}))
