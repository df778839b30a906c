"""The operator installed from its image on the real nodes, and a namespace per test."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.world import Tenant, World, make_models
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.images import build_images, model_folder
from tests.cluster_kit.rest import Rest
from tests.demo import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_kit import Cluster

_COUNTER = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def world(gpu_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Images loaded, manifests/install.yaml applied, the operator ready, model folders on the host."""
    cache = cache_root()
    for archive in build_images(cache).values():
        gpu_cluster.load_image(archive)
    models = tmp_path_factory.mktemp("models")
    make_models(models, model_folder(cache))
    install.install(gpu_cluster)
    return World(gpu_cluster, Rest.from_kubectl(gpu_cluster.kubectl), models)


@pytest.fixture
def tenant(world: World, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A namespace of its own with a claim `models`; deleted with everything in it afterwards."""
    slug = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:40].strip("-")
    name = f"t{next(_COUNTER)}-{slug}"
    tenant = Tenant(world, name)
    tenant.create()
    yield tenant
    tenant.delete()
