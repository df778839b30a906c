"""The cluster without the operator of manifests/install.yaml, and Helm 4 and 3 beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cluster.chart.first import NoHistoryError, first_release
from tests.cluster.chart.helm import Helm
from tests.cluster.chart.story import RELEASE, SPACE, Release, Steps
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.fixtures import outside
from tests.cluster_kit.gotools import go_tool
from tests.cluster_kit.progress import Progress
from tests.demo import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster.chart.first import FirstRelease
    from tests.cluster.world import World


_STEPS = pytest.StashKey[dict[str, Steps]]()


@pytest.fixture(scope="session")
def first(pytestconfig: pytest.Config) -> FirstRelease:
    """The first chart and its images; skipped only where the tree has no history, as an unpacked release."""
    with outside(pytestconfig):
        try:
            return first_release(install.ROOT, cache_root(), Progress())
        except NoHistoryError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="session")
def programs(pytestconfig: pytest.Config) -> dict[str, Path]:
    """Both Helms."""
    with outside(pytestconfig):
        return {name: go_tool(name, Progress()) for name in ("helm4", "helm3")}


@pytest.fixture(scope="module")
def cleared(world: World) -> Iterator[World]:
    """Nothing of Plimsoll is there; what install.yaml holds comes back after the module."""
    kubectl = world.cluster.kubectl
    manifest = str(install.MANIFESTS / "install.yaml")
    kubectl("delete", "--ignore-not-found", "-f", manifest, "--timeout=120s")
    yield world
    # Helm keeps it, and stays the manager of its fields.
    kubectl("delete", "--ignore-not-found", "crd/inferenceservers.plimsoll.dev", "--timeout=60s")
    install.install(world.cluster)


@pytest.fixture
def release(
    cleared: World, programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Release]]:
    """Makes the release of a Helm (`helm4`, `helm3`); it is uninstalled afterwards, whatever happened."""
    made: list[Release] = []

    def make(program: str) -> Release:
        home = tmp_path_factory.mktemp(program)
        made.append(Release(Helm(cleared.cluster, programs[program], home)))
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
