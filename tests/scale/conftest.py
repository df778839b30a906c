"""The control plane with kwok and the operator beside it, and a namespace per test."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster_kit import kwok
from tests.cluster_kit.fixtures import NAMES, running
from tests.cluster_kit.gotools import go_tool
from tests.cluster_kit.rest import Rest
from tests.scale import keda
from tests.scale.world import Scale, Space, install, start_operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_kit import Cluster

_COUNTER = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.contract)
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture(scope="session")
def scale_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A control plane, and kwok as the kubelet of whatever nodes are made."""
    # While the Internet can be seen.
    for program in ("kwok", "karpenter", "keda", "keda-adapter", "prometheus", "promtool"):
        go_tool(program)
    keda.sources()
    with running(NAMES["scale_cluster"], (), pytestconfig) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def scale(scale_cluster: Cluster) -> Iterator[Scale]:
    """The operator at work in that cluster. There is no node until a test makes one."""
    kwok.start(scale_cluster)
    install(scale_cluster)
    operator = start_operator(scale_cluster)
    yield Scale(scale_cluster, Rest.from_kubectl(scale_cluster.kubectl), operator)
    operator.stop()
    assert "Traceback" not in operator.printed(), operator.printed()[-3000:]


@pytest.fixture
def space(scale: Scale, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace of its own with the claim ``models``; deleted with everything in it afterwards."""
    slug = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:40].strip("-")
    found = Space(scale, f"s{next(_COUNTER)}-{slug}")
    found.create()
    yield found
    found.delete()
