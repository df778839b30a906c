"""Servers that are scaled away or deleted, and nodes that are lost."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.cluster.behaviour.situation import SMALL, standin
from tests.cluster.behaviour.test_edits import SERVERS, edited
from tests.cluster.world import NODE_A, NODE_B, wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.behaviour.situation import Situation
    from tests.cluster.world import Tenant, World

SIZING = "plimsoll.dev/sizing-for=smollm2"


def test_scaled_from_nothing_to_three_and_back(situation: Situation) -> None:
    """The number is found before the first server, once, and kept when the last one goes."""
    tenant, recorder = situation.tenant, situation.recorder
    kubectl = tenant.world.cluster.kubectl
    scale = ("-n", tenant.namespace, "scale", "isrv/smollm2")
    tenant.apply(node=NODE_A, sub_path=SMALL, replicas=0, engine=standin())
    tenant.wait_condition("RolledOut", "True", "ScaledToZero", seconds=60)
    with situation.row(13, "Scaled from 0 to 3 to 0", promised=0) as row:
        situation.look(row, "with 0 replicas")
        kubectl(*scale, "--replicas=3")
        tenant.wait_ready(seconds=60)
        situation.look(row, "with 3 replicas", tells="Ready")
        assert tenant.server()["status"]["ready"] == "3/3"
        three = recorder.settled()
        kubectl(*scale, "--replicas=0")
        tenant.wait_condition("RolledOut", "True", "ScaledToZero", seconds=60)
        wait(lambda: not tenant.pods(), 60, "no pod is left")
        situation.look(row, "with 0 replicas again")
        assert len(recorder.templates("smollm2")) == 1
        assert len(recorder.pods_made("smollm2", three)) == 3


def test_deleted_in_mid_rollout(situation: Situation) -> None:
    tenant, recorder = situation.tenant, situation.recorder
    tenant.apply(**edited("first"))
    tenant.wait_ready(seconds=60)
    with situation.row(14, "Deleted in mid-rollout", promised=0) as row:
        tenant.apply(**edited("second"))
        wait(lambda: len(recorder.pods_made("smollm2")) == 3, 60, "a pod of the second spec")
        situation.look(row, "in mid-rollout", tells="Ready")
        tenant.world.rest.call("DELETE", f"{tenant.servers}/smollm2")
        wait(lambda: not _children(tenant), 60, "nothing is left", lambda: _children(tenant))
        row.facts.append("No Deployment, ReplicaSet, Service or pod of it is left.")


def test_the_node_is_lost_while_it_is_measured(situation: Situation) -> None:
    """The sizing pod ends with its node, by the cluster's own rules, and the question is asked elsewhere."""
    tenant = situation.tenant
    lost, other = _node_without_operator(tenant.world)
    with situation.row(6, "The node is lost during sizing", promised=0) as row:
        with _cordoned(tenant.world, other):
            tenant.world.cluster.set_gpu(lost, 0, fail=9)  # the sizer waits for a driver
            tenant.apply(sub_path=SMALL, engine=standin())
            wait(lambda: _runs(tenant), 60, "the sizer runs", lambda: tenant.pods(SIZING))
        with _lost(tenant.world, lost):
            situation.look(row, "the node is lost", tells="Ready")
            tenant.wait_ready(seconds=120)
            situation.look(row, "at the end")
            (pod,) = tenant.pods(SERVERS)
            assert pod["spec"]["nodeName"] == other


def _children(tenant: Tenant) -> list[str]:
    paths = [f"{tenant.apps}/deployments", f"{tenant.apps}/replicasets"]
    paths += [f"{tenant.core}/services", f"{tenant.core}/pods"]
    return [
        f"{path.rsplit('/', 1)[-1]}/{item['metadata']['name']}"
        for path in paths
        for item in tenant.world.rest.items(path)
    ]


def _node_without_operator(world: World) -> tuple[str, str]:
    """The node that can be lost, and the other one."""
    (pod,) = (
        p
        for p in world.rest.items("/api/v1/namespaces/plimsoll-system/pods")
        if "deletionTimestamp" not in p["metadata"]
    )
    return (NODE_B, NODE_A) if pod["spec"]["nodeName"] == NODE_A else (NODE_A, NODE_B)


def _runs(tenant: Tenant) -> bool:
    return any(
        status.get("state", {}).get("running")
        for pod in tenant.pods(SIZING)
        for status in pod["status"].get("initContainerStatuses", ())
    )


@contextmanager
def _cordoned(world: World, node: str) -> Iterator[None]:
    path = f"/api/v1/nodes/{node}"
    world.rest.merge(path, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        world.rest.merge(path, {"spec": {"unschedulable": None}})


@contextmanager
def _lost(world: World, node: str) -> Iterator[None]:
    """Cut a node off and declare it out of service, as the procedure for a node that will not come back says.

    That it is not ready is written here: the node controller would need 50 s to find out.
    """
    path = f"/api/v1/nodes/{node}"
    cluster = world.cluster
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "lost", "effect": "NoExecute"}
    cluster.set_connected(node, connected=False)
    try:
        _not_ready(world, path)
        cluster.kubectl("taint", "node", node, f"{taint['key']}={taint['value']}:{taint['effect']}")
        yield
    finally:
        cluster.set_connected(node, connected=True)
        cluster.set_gpu(node, 0, fail=0)
        cluster.kubectl("taint", "node", node, f"{taint['key']}-")
        wait(lambda: _ready(world, path), 90, f"{node} is back", lambda: world.rest.get(path))


def _not_ready(world: World, path: str) -> None:
    conditions = world.rest.get(path)["status"]["conditions"]
    for condition in conditions:
        if condition["type"] == "Ready":
            condition |= {"status": "Unknown", "reason": "NodeStatusUnknown"}
    world.rest.merge(f"{path}/status", {"status": {"conditions": conditions}})


def _ready(world: World, path: str) -> bool:
    node: dict[str, Any] = world.rest.get(path)
    ready = any(
        c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"]
    )
    return ready and not node["spec"].get("taints")
