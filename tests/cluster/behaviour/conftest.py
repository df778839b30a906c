"""GPUs large enough for the stand-in's numbers, and a namespace under observation per test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.behaviour.situation import SMALL, Situation
from tests.cluster.recorder import Recorder
from tests.cluster.world import LLAMA_CONFIG, llama_shapes, write_safetensors
from tests.cluster_kit.presets import TEST_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.world import Tenant, World

GPU_BYTES = 24 << 30
OUT_VARIABLE = "PLIMSOLL_BEHAVIOUR_OUT"


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that takes the rows."""
    given = os.environ.get(OUT_VARIABLE)
    if given is None:
        return tmp_path_factory.mktemp("behaviour")
    folder = Path(given)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def large(world: World) -> Iterator[World]:
    """Every GPU has 24 GiB: an engine's reserve alone is larger than the cards of the other tests.

    For a module, not a package: pytest ends a package's fixtures with the session where the folder is no package, and
    llama.cpp would take 24 GiB of this machine's memory in the tests after these.
    """
    if not (world.models / SMALL).exists():
        write_safetensors(world.models / SMALL, LLAMA_CONFIG, llama_shapes())
    for node in TEST_NODES:
        for index in range(node.gpus):
            world.cluster.set_gpu(node.name, index, total=GPU_BYTES)
    yield world
    for node in TEST_NODES:
        for index in range(node.gpus):
            world.cluster.set_gpu(node.name, index, total=node.total_bytes, used=0, fail=0)


@pytest.fixture
def situation(large: World, tenant: Tenant, rows: Path) -> Iterator[Situation]:
    """The test's namespace, watched."""
    recorder = Recorder(large.rest, tenant.namespace)
    yield Situation(tenant, recorder, rows)
    recorder.stop()
