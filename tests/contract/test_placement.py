"""Our judgement of nodes and the real scheduler's: as many pods are bound as we said there is room for."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from plimsoll.controller.cluster import ALL_PODS, NODES, Cluster, Object
from plimsoll.controller.kube import connect
from plimsoll.controller.landscape import LandscapeReader
from plimsoll.controller.placement import (
    Landscape,
    demand_of,
    explain,
    fitting_nodes,
    free_slots,
    oldest_kubelet,
)
from tests.cluster_kit import Cluster as LocalCluster

pytestmark = pytest.mark.contract

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
SECONDS = 30
Raw = dict[str, Any]


@pytest.fixture
def world(api_cluster: LocalCluster) -> Iterator[str]:
    """A namespace and, by its name, nodes on which nobody else's pods go."""
    name = f"place-{uuid4().hex[:8]}"
    nodes = [
        node(f"{name}-a", name, gpus=4, labels={PRODUCT: "A100", "rank": "7"}),
        node(f"{name}-b", name, gpus=2, labels={PRODUCT: "T4", "rank": "10"}),
        node(f"{name}-c", name, gpus=3, taints=[taint("team", "ml")]),
        node(f"{name}-d", name, gpus=2, unschedulable=True),
        node(f"{name}-e", name, gpus=0),
    ]
    api_cluster.kubectl("create", "namespace", name)
    items = {"apiVersion": "v1", "kind": "List", "items": nodes}
    try:
        # Without validation: the client wants a machine id and six other facts of a real node.
        api_cluster.kubectl("create", "--validate=ignore", "-f", "-", input=json.dumps(items))
        yield name
    finally:
        now = ("--force", "--grace-period=0", "--wait=false")
        api_cluster.kubectl("delete", "pods", "--all", "-n", name, *now)
        api_cluster.kubectl("delete", "nodes", "-l", f"world={name}", "--wait=false")
        api_cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def kube(api_cluster: LocalCluster, world: str) -> AsyncIterator[Cluster]:
    async with await connect(str(api_cluster.kubeconfig)) as kube:
        await until_untainted(kube, world)
        yield kube


def taint(key: str, value: str) -> Raw:
    return {"key": key, "value": value, "effect": "NoSchedule"}


def node(name: str, world: str, *, gpus: int, **more: Any) -> Raw:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "20", **({GPU: str(gpus)} if gpus else {})}
    labels = {"world": world, **more.pop("labels", {})}
    taints = [taint("world", world), *more.pop("taints", [])]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, **more},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [ready],
            "nodeInfo": {"kubeletVersion": "v1.36.0"},
        },
    }


def container(name: str = "c", **requests: str) -> Raw:
    asked = {GPU if resource == "gpus" else resource: text for resource, text in requests.items()}
    resources = {"limits": {r: t for r, t in asked.items() if r == GPU}, "requests": asked}
    return {"name": name, "image": "localhost/none:1", "resources": resources}


def requiring(*terms: Raw) -> Raw:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def matching(key: str, operator: str, *values: str) -> Raw:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


async def until_untainted(kube: Cluster, world: str) -> None:
    """New nodes carry a taint until the node controller has seen that they are ready."""
    async with asyncio.timeout(SECONDS):
        while True:
            page = await kube.page(NODES)
            taints = [
                each["key"]
                for node in page.items
                if (node["metadata"].get("labels") or {}).get("world") == world
                for each in node["spec"].get("taints") or ()
            ]
            if "node.kubernetes.io/not-ready" not in taints:
                return
            await asyncio.sleep(0.2)


async def look(kube: Cluster) -> Landscape:
    seen = await LandscapeReader(kube, time.monotonic, lambda: datetime.now(UTC)).look()
    assert seen is not None
    return seen


async def judged(kube: Cluster, world: str) -> list[Object]:
    """The pods once the scheduler has bound or refused each."""
    async with asyncio.timeout(SECONDS):
        while True:
            page = await kube.page(ALL_PODS, fields=f"metadata.namespace={world}")
            if all(
                each["spec"].get("nodeName")
                or any(
                    c.get("reason") == "Unschedulable" for c in each["status"].get("conditions", ())
                )
                for each in page.items
            ):
                return list(page.items)
            await asyncio.sleep(0.2)


TEAM: Raw = {"tolerations": [{"key": "team", "operator": "Equal", "value": "ml"}]}
CASES: list[tuple[str, Raw, int]] = [
    ("one device", {"containers": [container(gpus="1")]}, 6),
    ("three on one node", {"containers": [container(gpus="3")]}, 1),
    ("a class", {"containers": [container(gpus="1")], "nodeSelector": {PRODUCT: "A100"}}, 4),
    ("no class of that name", {"containers": [container(gpus="1")], "nodeSelector": {PRODUCT: "H100"}}, 0),
    ("another class", {"containers": [container(gpus="1")], **requiring(matching(PRODUCT, "NotIn", "A100"))}, 2),
    ("a larger number", {"containers": [container(gpus="1")], **requiring(matching("rank", "Gt", "7"))}, 2),
    ("either", {"containers": [container(gpus="1")], **requiring(
        matching("rank", "Lt", "8"), matching(PRODUCT, "In", "T4", "L4"))}, 6),
    ("an empty term", {"containers": [container(gpus="1")], **requiring({})}, 0),
    ("tolerated", {"containers": [container(gpus="1")], **TEAM}, 9),
    ("everything tolerated", {"containers": [container(gpus="1")], "tolerations": [{"operator": "Exists"}]}, 11),
    ("CPUs end first", {"containers": [container(gpus="1", cpu="3500m")]}, 4),
    ("memory ends first", {"containers": [container(gpus="1", memory="9Gi")]}, 2),
    ("the sizer and the server share devices",
     {"containers": [container(gpus="2", cpu="1")], "initContainers": [container("i", gpus="2", cpu="3")]}, 3),
    ("a sidecar adds to what comes after it",
     {"containers": [container(gpus="1", cpu="1")],
      "initContainers": [{**container("s", cpu="2"), "restartPolicy": "Always"}, container("i", cpu="2500m")]}, 2),
    ("sidecars with devices",
     {"containers": [container(gpus="1")],
      "initContainers": [{**container("s", gpus="1"), "restartPolicy": "Always"}]}, 3),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "room"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
async def test_the_scheduler_binds_as_many_as_there_is_room_for(
    kube: Cluster, world: str, spec: Raw, room: int
) -> None:
    ours = [{"key": "world", "operator": "Equal", "value": world}, *spec.get("tolerations", [])]
    asked = {**spec, "tolerations": ours}
    demand = demand_of(asked)
    before = await look(kube)
    eligible = fitting_nodes(demand, before)
    assert free_slots(demand, before) == room
    for number in range(room + 2):
        metadata = {"name": f"p{number}", "namespace": world}
        await kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": asked})
    pods = await judged(kube, world)
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    assert len(bound) == room
    assert {pod["spec"]["nodeName"] for pod in bound} <= set(eligible)
    after = await look(kube)
    assert free_slots(demand, after) == 0
    assert "room" not in explain(demand, after)
    if bound:
        uid = bound[0]["metadata"]["uid"]
        assert free_slots(demand, after, without=frozenset({uid})) == 1
        assert oldest_kubelet(demand, after) == (1, 36)
