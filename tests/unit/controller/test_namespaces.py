"""An operator for some namespaces: one that was deleted, and its Role with it, holds up no other."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller import resync
from plimsoll.controller.cluster import DEPLOYMENTS, SERVERS, Page, Refused, Resource
from plimsoll.controller.health import Health
from plimsoll.controller.metrics import Metrics
from plimsoll.controller.resync import Resync
from plimsoll.controller.store import Key, Store
from plimsoll.controller.workqueue import WorkQueue
from tests.unit.controller.builders import body
from tests.unit.controller.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Restricted(FakeCluster):
    """Refuses lists as RBAC does."""

    status: int = 403
    refused: set[tuple[str | None, str]] = field(default_factory=set)

    def close(self, *resources: Resource, namespace: str | None) -> None:
        self.refused |= {(namespace, resource.plural) for resource in resources}

    async def page(self, resource: Resource, *, namespace: str | None = None, **how: Any) -> Page:
        if (namespace, resource.plural) in self.refused:
            raise Refused(self.status, "Forbidden", f"cannot list {resource.plural} in {namespace}")
        return await super().page(resource, namespace=namespace, **how)


class World:
    def __init__(self, namespaces: Sequence[str] = ("a", "b")) -> None:
        self.cluster = Restricted(namespaces={"a", "b"})
        for namespace in ("a", "b"):
            server = body()
            server["metadata"] = {"name": "llama", "namespace": namespace}
            self.cluster.put(server)
        self.restarts = 0
        self.store = Store()
        self.queue: WorkQueue[Key] = WorkQueue(clock=time.monotonic, rng=random.Random(1))
        self.resync = Resync(
            self.cluster,
            self.store,
            self.queue,
            namespaces=namespaces,
            health=Health(),
            metrics=Metrics(),
            restart=self._restart,
            rng=random.Random(1),
            sleep=self._sleep,
        )

    def _restart(self) -> None:
        self.restarts += 1

    async def _sleep(self, _: float) -> None:
        """The watches say what the lists said."""
        for obj in self.cluster.of_kind("InferenceServer"):
            if obj["metadata"]["namespace"] in self.resync.namespaces:
                self.store.put(obj, watched=True)

    @property
    def known(self) -> list[Key]:
        return sorted(self.store.servers())


async def test_all_are_read_and_watched() -> None:
    world = World()
    await world.resync.prime()
    assert world.known == [("a", "llama"), ("b", "llama")]
    assert (world.resync.namespaces, world.restarts) == (("a", "b"), 0)


async def test_a_namespace_that_may_not_be_read_is_set_aside_until_it_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.cluster.close(SERVERS, namespace="b")
    await world.resync.prime()
    assert await world.resync.once()
    assert (world.known, world.resync.namespaces) == ([("a", "llama")], ("a",))
    assert (world.restarts, caplog.text.count("namespace b is set aside")) == (1, 1)
    world.cluster.refused.clear()
    assert await world.resync.once()
    assert (world.resync.namespaces, world.restarts) == (("a", "b"), 2)
    assert world.known == [("a", "llama"), ("b", "llama")]


async def test_it_is_looked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "_CLOSED_SECONDS", 0.01)
    world = World()
    world.cluster.close(SERVERS, namespace="b")
    await world.resync.prime()
    running = asyncio.create_task(world.resync.run(600))
    await asyncio.sleep(0)
    world.cluster.refused.clear()
    async with asyncio.timeout(5):
        while world.resync.namespaces != ("a", "b"):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    running.cancel()


async def test_half_of_a_namespace_is_not_known() -> None:
    world = World()
    await world.resync.prime()
    world.cluster.close(DEPLOYMENTS, namespace="a")
    assert await world.resync.once()
    assert (world.known, world.resync.namespaces) == ([("b", "llama")], ("b",))


@pytest.mark.parametrize(
    ("namespaces", "closed"), [(("a", "b"), ("a", "b")), ((), (None,)), (("a",), ("a",))]
)
async def test_where_nothing_may_be_read_the_operator_is_not_ready(
    namespaces: tuple[str, ...], closed: tuple[str | None, ...]
) -> None:
    world = World(namespaces)
    for namespace in closed:
        world.cluster.close(SERVERS, namespace=namespace)
    with pytest.raises(Refused, match="cannot list inferenceservers"):
        await world.resync.prime()
    # Of none to watch, the watches would make the whole cluster.
    assert (world.resync.namespaces, world.restarts) == (namespaces, 0)


async def test_only_a_lack_of_rights_sets_aside() -> None:
    world = World()
    world.cluster.status = 400
    world.cluster.close(SERVERS, namespace="b")
    with pytest.raises(Refused):
        await world.resync.prime()


async def test_the_cluster_is_one_scope() -> None:
    world = World(())
    await world.resync.prime()
    assert (world.known, world.resync.namespaces) == ([("a", "llama"), ("b", "llama")], ())


async def test_lists_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.controller.resync.A_PART", 1)
    world = World(namespaces=())
    await world.resync.prime()
    assert set(world.store.servers()) == {("a", "llama"), ("b", "llama")}
    reads = world.cluster.reads
    world.cluster.remove("InferenceServer", "a", "llama")
    await world.resync.prime()
    assert set(world.store.servers()) == {("b", "llama")}
    assert world.cluster.reads > reads
