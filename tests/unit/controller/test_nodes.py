"""An operator that may not read nodes pins numbers to a host, soon, and does not ask again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from plimsoll.controller.cluster import NODES, Object, Refused, Resource, Retry
from plimsoll.controller.nodes import REFUSED_FOR, NodeReader
from tests.unit.controller.builders import NAMESPACE, NOW
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.rig import KEY, Rig

if TYPE_CHECKING:
    from datetime import datetime

FORBIDDEN = Refused(403, "Forbidden", 'cannot get resource "nodes"')


class Api(FakeCluster):
    """Answers every read of a node with `fails`, where that is set."""

    def __init__(self) -> None:
        super().__init__(namespaces={NAMESPACE, "default"})
        self.fails: Exception | None = None
        self.asked: list[str] = []

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        if resource is NODES:
            self.asked.append(name)
            if self.fails is not None:
                raise self.fails
        return await super().get(resource, namespace, name)


async def test_a_refusal_is_asked_for_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    api, now = Api(), NOW
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})

    def clock() -> datetime:
        return now

    nodes = NodeReader(api, clock)
    api.fails = FORBIDDEN
    for _ in range(3):
        assert await nodes.read("node-a") is None
    assert (nodes.refused, api.asked) == (True, ["node-a"])
    now += REFUSED_FOR
    assert await nodes.read("node-a") is None
    assert api.asked == ["node-a"] * 2
    assert caplog.text.count("grant get on nodes") == 1
    now += REFUSED_FOR
    api.fails = None
    assert ((await nodes.read("node-a")) or {})["metadata"]["name"] == "node-a"
    assert not nodes.refused


async def test_no_answer_is_no_refusal() -> None:
    api = Api()
    api.fails = Retry("reset")
    nodes = NodeReader(api, lambda: NOW)
    with pytest.raises(Retry):
        await nodes.read("node-a")
    assert not nodes.refused


async def test_without_the_right_a_server_is_pinned_to_its_host_within_seconds() -> None:
    api = Api()
    api.fails = FORBIDDEN
    rig = Rig(cluster=api)
    rig.apply(replicas=1)
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"
    assert rig.status()["capacity"]["pinnedLabel"]["key"] == "kubernetes.io/hostname"
    assert rig.now - NOW < timedelta(seconds=60)
    assert len(api.asked) == 1
    assert rig.cluster.objects["Deployment", *KEY]["spec"]["replicas"] == 1
