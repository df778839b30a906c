"""Nodes without an autoscaler: one that is gone for good, and a quota that admits no pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.world import wait
from tests.cluster_kit.gpus import L40S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scale.world import Scale, Space

HOSTNAME = "kubernetes.io/hostname"
GPU_QUOTA = "requests.nvidia.com/gpu"


@pytest.fixture
def nodes(scale: Scale, space: Space) -> Iterator[list[str]]:
    names = scale.add_nodes(L40S, 2)
    yield names
    space.rest.call("DELETE", space.servers)
    wait(lambda: not space.pods(), 30, "no pod left")
    scale.remove_nodes(names)


# No label is asked for, so none is waited for.
UNLABELLED: dict[str, list[str]] = {"classLabelKeys": []}


def test_a_node_that_is_gone_for_good(scale: Scale, space: Space, nodes: list[str]) -> None:
    """The number was kept to that node by its name, for want of a label; it is measured again on another."""
    space.apply(accelerator=UNLABELLED)
    first = space.wait_ready()["status"]["capacity"]
    assert first["pinnedLabel"] == {"key": HOSTNAME, "value": first["node"]}
    assert first["node"] in nodes
    scale.remove_nodes([first["node"]])
    # The garbage collector of pods does this within two minutes.
    (lost,) = space.server_pods()
    space.rest.call("DELETE", f"{space.core}/pods/{lost['metadata']['name']}?gracePeriodSeconds=0")
    wait(lambda: space.capacity().get("node") != first["node"], 60, "measured again", space.explain)
    second = space.wait_ready()["status"]["capacity"]
    assert second["pinnedLabel"] == {"key": HOSTNAME, "value": second["node"]}
    assert space.server_pods()[0]["spec"]["nodeName"] == second["node"]


def test_quota(space: Space, nodes: list[str]) -> None:
    """It is said at once, of the pod that measures and of the server, and goes on when the quota is raised."""
    assert nodes
    space.apply()
    space.wait_ready()
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {GPU_QUOTA: "1"}},
    }
    path = f"{space.core}/resourcequotas/gpus"
    space.rest.apply(path, quota)
    wait(lambda: space.rest.get(path).get("status", {}).get("used"), 20, "the quota counted")
    space.apply("second")
    space.wait_condition(
        "CapacityAvailable", "QuotaExceeded", f"exceeded quota: gpus, requested: {GPU_QUOTA}=1",
        "second", seconds=10,
    )  # fmt: skip
    space.apply("third", sizing={"mode": "InPod"})
    space.wait_condition(
        "RolledOut", "ReplicaCreateFailed", f"exceeded quota: gpus, requested: {GPU_QUOTA}=1",
        "third", seconds=10,
    )  # fmt: skip
    space.rest.call("DELETE", f"{space.servers}/third")
    space.rest.call("DELETE", path)
    space.wait_ready("second")
