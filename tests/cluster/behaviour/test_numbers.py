"""How the number gets to a server where a sizing pod cannot find it, and what becomes of one that is not true."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.cluster.behaviour.conftest import GPU_BYTES
from tests.cluster.behaviour.situation import SMALL, standin
from tests.cluster.behaviour.test_edits import SERVERS
from tests.cluster.world import NODE_A, NODE_B, wait
from tests.cluster_kit.presets import TEST_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.behaviour.situation import Situation
    from tests.cluster.world import Tenant, World

GIB = 1 << 30
OLD_KUBELET = "v1.34.2"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICY = "plimsoll-test-old-kubelet"


def test_two_kinds_of_gpu_and_one_server(situation: Situation) -> None:
    """No one number is right on both, so each server measures its own GPU, and all of them are used."""
    tenant, cluster = situation.tenant, situation.tenant.world.cluster
    products = [node.product for node in TEST_NODES]
    cluster.set_gpu(NODE_B, 0, total=GPU_BYTES - 8 * GIB)
    try:
        with situation.row(5, "Two kinds of GPU, one server", promised=0) as row:
            tenant.apply(
                sub_path=SMALL, replicas=4, engine=standin(), accelerator={"products": products}
            )
            tenant.wait_ready(seconds=90)
            situation.look(row, "at the end", tells="Sized")
            found = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in tenant.pods(SERVERS)}
            told = {name: situation.reported(name) for name in found}
            classes = tenant.server()["status"]["classes"]
            by_node = {
                node: {told[name] for name in found if found[name] == node}
                for node in (NODE_A, NODE_B)
            }
            assert {len(numbers) for numbers in by_node.values()} == {1}
            (large,), (small,) = by_node[NODE_A], by_node[NODE_B]
            assert large > small > 0
            assert {(c["maxTotalTokenNum"], c["ready"]) for c in classes} == {
                (large, 3),
                (small, 1),
            }
            row.facts.append(
                f"Three servers hold {large} tokens each, the one on the smaller card {small}; "
                "`status.classes` lists both kinds."
            )
    finally:
        cluster.set_gpu(NODE_B, 0, total=GPU_BYTES)


def test_a_sizing_pod_that_finds_no_gpu(situation: Situation) -> None:
    """An edit needs a new number, and the old server holds the only GPU: the new one measures for itself."""
    tenant, recorder = situation.tenant, situation.recorder
    spec: dict[str, Any] = {"node": NODE_B, "sub_path": SMALL, "engine": standin()}
    tenant.apply(**spec, sizing={"contextLength": 4096})
    tenant.wait_ready(seconds=60)
    with situation.row(7, "The sizing pod finds no GPU, so the server measures", promised=0) as row:
        tenant.apply(**spec, sizing={"contextLength": 8192})
        situation.says(row, "after the edit", "CapacityAvailable", "nvidia.com/gpu")
        wait(lambda: len(recorder.templates("smollm2")) == 2, 60, "the new template", tenant.server)
        written = recorder.template_changed("smollm2", row.began)
        assert recorder.fewest_ready("smollm2", row.began, written) == 1
        situation.says(row, "the new template", "Sized", "no GPU is free")
        tenant.wait_ready(seconds=60)
        situation.look(row, "at the end")
        assert tenant.server()["status"]["capacity"]["source"] == "InPod"
        (pod,) = _live(tenant)
        assert situation.reported(pod) == tenant.server()["status"]["capacity"]["maxTotalTokenNum"]
        row.facts.append("The old server served until the new template was written.")


def test_a_volume_for_one_pod_at_a_time(situation: Situation) -> None:
    """GPUs are free, but the volume is not: neither the sizing pod nor a surge pod is waited for in vain."""
    tenant, recorder = situation.tenant, situation.recorder
    spec: dict[str, Any] = {
        "node": NODE_A,
        "sub_path": SMALL,
        "engine": standin(),
        "claim": "exclusive",
    }
    with _exclusive(tenant):
        tenant.apply(**spec, sizing={"contextLength": 4096})
        tenant.wait_ready(seconds=60)
        with situation.row(8, "A ReadWriteOncePod volume, and an edit", promised=0) as row:
            tenant.apply(**spec, sizing={"contextLength": 8192})
            situation.says(row, "after the edit", "Sized", "admits one pod at a time")
            tenant.wait_ready(seconds=90)
            situation.look(row, "at the end")
            assert tenant.server()["status"]["capacity"]["source"] == "InPod"
            assert len(recorder.templates("smollm2")) == 2


def test_drift_of_ten_percent(situation: Situation) -> None:
    """The engine reports less than was stamped: it serves on, and the difference is published."""
    tenant = situation.tenant
    with situation.row(12, "The engine reports 10 % less than was stamped", promised=0) as row:
        tenant.apply(node=NODE_A, sub_path=SMALL, engine=standin(REPORT_FACTOR="0.9"))
        tenant.wait_ready(seconds=60)
        tenant.wait_condition("CapacityVerified", "False", "DriftExceeded", seconds=60)
        situation.look(row, "at the end", tells="CapacityVerified")
        status = tenant.server()["status"]
        assert status["capacity"]["driftPercent"] == "-10.00"
        assert tenant.condition("Ready")["status"] == "True"
        row.facts.append("Column DRIFT of `kubectl get isrv -o wide` says -10.00.")


def test_an_old_kubelet(situation: Situation) -> None:
    """It would start the engine with an empty number: a shell reads the file instead."""
    tenant = situation.tenant
    with (
        _old_kubelet(tenant.world, NODE_B),
        situation.row(17, f"A kubelet of {OLD_KUBELET}, measuring in the pod", promised=0) as row,
    ):
        tenant.apply(node=NODE_B, sub_path=SMALL, engine=standin(), sizing={"mode": "InPod"})
        tenant.wait_ready(seconds=90)
        situation.look(row, "at the end", tells="Sized")
        (server,) = (tenant.deployment() or {})["spec"]["template"]["spec"]["containers"]
        assert server["command"][:2] == ["/bin/sh", "-c"]
        assert "fileKeyRef" not in json.dumps(server)
        (pod,) = _live(tenant)
        number = tenant.server()["status"]["capacity"]["maxTotalTokenNum"]
        assert situation.reported(pod) == number > 0
        row.facts.append("The template starts the engine by a shell, without `fileKeyRef`.")


def test_a_crash_is_followed_by_a_new_measurement(situation: Situation) -> None:
    """The device's memory goes to somebody else while the engine loads and crashes: it takes what is left then."""
    tenant, cluster = situation.tenant, situation.tenant.world.cluster
    engine = standin(LOAD_SECONDS=4, CRASH="exit", CRASH_STARTS=1)
    try:
        with situation.row(18, "A crash under RestartAllContainers", promised=0) as row:
            tenant.apply(node=NODE_B, sub_path=SMALL, engine=engine, sizing={"mode": "InPod"})
            wait(lambda: _measured(tenant), 60, "the sizer's number", lambda: tenant.pods(SERVERS))
            ((pod, before),) = _measured(tenant).items()
            cluster.set_gpu(NODE_B, 0, used=4 * GIB)
            tenant.wait_ready(seconds=90)
            after = situation.reported(pod)
            assert _live(tenant) == [pod]
            assert after < before
            wait(lambda: _published(tenant) == after, 30, "the number of now", tenant.server)
            situation.look(row, "at the end", tells="Sized")
            row.facts.append(
                f"In the same pod the first start got {before} tokens and crashed, the second {after}."
            )
    finally:
        cluster.set_gpu(NODE_B, 0, used=0)


def _measured(tenant: Tenant) -> dict[str, int]:
    """What the sizers inside the server pods found, by pod."""
    found = {}
    for pod in tenant.pods(SERVERS):
        for status in pod["status"].get("initContainerStatuses", ()):
            text = status.get("state", {}).get("terminated", {}).get("message")
            if text:
                found[pod["metadata"]["name"]] = int(json.loads(text)["maxTotalTokenNum"])
    return found


def _published(tenant: Tenant) -> int:
    return int(tenant.server()["status"]["capacity"]["maxTotalTokenNum"])


def _live(tenant: Tenant) -> list[str]:
    """Names of the server pods that have not been asked to go."""
    return [
        p["metadata"]["name"]
        for p in tenant.pods(SERVERS)
        if "deletionTimestamp" not in p["metadata"]
    ]


@contextmanager
def _exclusive(tenant: Tenant) -> Iterator[None]:
    """A claim `exclusive` over the same models, which the scheduler gives to one pod at a time."""
    name, modes = f"{tenant.namespace}-exclusive", ["ReadWriteOncePod"]
    size = {"storage": "1Gi"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": modes,
            "capacity": size,
            "claimRef": {"namespace": tenant.namespace, "name": "exclusive"},
            "hostPath": {"path": str(tenant.world.models), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "exclusive"},
        "spec": {"accessModes": modes, "storageClassName": "", "resources": {"requests": size}},
    }
    rest = tenant.world.rest
    rest.apply(f"/api/v1/persistentvolumes/{name}", volume)
    rest.apply(f"{tenant.core}/persistentvolumeclaims/exclusive", claim)
    try:
        yield
    finally:
        rest.call("DELETE", f"/api/v1/persistentvolumes/{name}")


@contextmanager
def _old_kubelet(world: World, node: str) -> Iterator[None]:
    """Every status that the node's kubelet writes says that it is an old one."""
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["nodes/status"],
                        "resourceNames": [node],
                    }
                ]
            },
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {
                        "expression": "Object{status: Object.status{nodeInfo: Object.status.nodeInfo{"
                        f'kubeletVersion: "{OLD_KUBELET}"}}}}}}'
                    },
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY},
    }
    paths = [f"{ADMISSION}/{kind}/{POLICY}" for kind in _KINDS]
    own = _kubelet_version(world, node)
    for path, body in zip(paths, (policy, binding), strict=True):
        world.rest.apply(path, body)
    try:
        # A status that differs is written within the second; nudge it, as nothing else changes.
        wait(lambda: _nudged(world, node) == OLD_KUBELET, 30, f"{node} says {OLD_KUBELET}")
        yield
    finally:
        for path in reversed(paths):
            world.rest.call("DELETE", path)
        wait(lambda: _nudged(world, node) == own, 30, f"{node} says {own}")


_KINDS = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings")


def _kubelet_version(world: World, node: str) -> str:
    return str(world.rest.get(f"/api/v1/nodes/{node}")["status"]["nodeInfo"]["kubeletVersion"])


def _nudged(world: World, node: str) -> str:
    """The version, after a change of the status that its kubelet will put right."""
    found = world.rest.get(f"/api/v1/nodes/{node}")["status"]["nodeInfo"]["kubeletVersion"]
    info = {"status": {"nodeInfo": {"kernelVersion": "nudged"}}}
    world.rest.merge(f"/api/v1/nodes/{node}/status", info)
    return str(found)
