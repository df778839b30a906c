"""Nodes that come and go under servers: Karpenter adds and removes them, its words reach the conditions."""

from __future__ import annotations

import http.client
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.world import wait
from tests.cluster_kit import karpenter
from tests.cluster_kit.gpus import A10G, A100, H100, L40S
from tests.cluster_kit.rest import RestError
from tests.scale.timeline import NODE_CLAIMS, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_kit.gpus import Gpu
    from tests.scale.world import Scale, Space

POOLS = "/apis/karpenter.sh/v1/nodepools"
CLASS = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses/default"
ELSEWHERE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-b"]}
AWS_GPU = "karpenter.k8s.aws/instance-gpu-name"
# An autoscaler's word stands in the condition within this many seconds, on a busy machine too.
SHOWN = 10.0
OUT = os.environ.get("PLIMSOLL_SCALE_OUT")


class Pools:
    """NodePools of a running Karpenter."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.program = karpenter.start(scale.cluster, karpenter.instance_types())

    def make(self, gpu: Gpu, **options: Any) -> None:
        self.scale.rest.apply(f"{POOLS}/{gpu.slug}", karpenter.node_pool(gpu, **options))

    def machines_take(self, delay: str) -> None:
        self.scale.rest.apply(CLASS, karpenter.node_class(delay))

    def claims(self, pool: str = "") -> list[dict[str, Any]]:
        found = self.scale.rest.items(NODE_CLAIMS)
        return [live for live in found if live["metadata"]["name"].startswith(pool)]

    def clear(self) -> None:
        """No pool and no node, at once: what Karpenter would wait for on the way is of no interest here."""
        rest = self.scale.rest
        rest.call("DELETE", POOLS)
        for path in (NODE_CLAIMS, "/api/v1/nodes"):
            rest.call("DELETE", path)
            for live in rest.items(path):
                _without_finalizers(self.scale, f"{path}/{live['metadata']['name']}")
        wait(lambda: not self.claims() and not self.scale.nodes(), 30, "no node left")


def _without_finalizers(scale: Scale, path: str) -> None:
    try:
        scale.rest.merge(path, {"metadata": {"finalizers": None}})
    except RestError as error:
        if error.code != http.client.NOT_FOUND:  # Karpenter was quicker
            raise


@pytest.fixture(scope="module")
def running_pools(scale: Scale) -> Iterator[Pools]:
    karpenter.install(scale.cluster)
    pools = Pools(scale)
    yield pools
    pools.program.stop()


@pytest.fixture
def pools(running_pools: Pools, space: Space) -> Iterator[Pools]:
    """Karpenter without a pool; afterwards without a node."""
    yield running_pools
    space.rest.call("DELETE", space.servers)
    wait(lambda: not space.pods(), 30, "no pod left")
    running_pools.clear()


def shown_in_time(line: Timeline, words: str, event: str) -> None:
    """The condition says so soon after the event was written."""
    said = line.first("InferenceServer", words)
    spoke = line.first("Event", event)
    assert said.at - spoke.at < SHOWN, line.story()


def test_from_zero_to_serving(pools: Pools, space: Space) -> None:
    """No node, a sizing pod, a node for it, the number, the server on that very node."""
    pools.machines_take("8s")
    pools.make(L40S, consolidate_after="1s")
    space.delays = {"size": "2s", "load": "5s"}
    with Timeline(space.scale, space.namespace, karpenter=True) as line:
        space.apply()
        wait(space.sizing_pods, 10, "a sizing pod")
        (sizing,) = space.sizing_pods()
        live = space.wait_ready()
    if OUT:
        line.save(Path(OUT))
    assert sizing["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    capacity = live["status"]["capacity"]
    assert (capacity["maxTotalTokenNum"], capacity["gpu"]["product"]) == (L40S.tokens, L40S.product)
    # Karpenter's own words, while its machine starts.
    shown_in_time(line, "Pod should schedule on: nodeclaim/l40s-", "karpenter Nominated")
    assert "CapacityAvailable False NodeNominated" in line.first("InferenceServer", "nodeclaim/").what  # fmt: skip
    # One node for both pods, which was never on its way out.
    (server,) = space.server_pods()
    assert server["spec"]["nodeName"] == capacity["node"] == _node_of(line, sizing)
    assert len(line.all("Node", "created")) == 1, line.story()
    assert not [*line.all("Node", "disrupted"), *line.all("Node", "gone")], line.story()
    # The server is asked for before the pod that measured for it goes.
    order = [
        (write.verb, write.resource)
        for write in line.writes()
        if write.who == "plimsoll-operator" and write.resource in {"deployments", "pods"}
    ]
    assert order == [("create", "pods"), ("patch", "deployments"), ("delete", "pods")]


def _node_of(line: Timeline, pod: dict[str, Any]) -> str:
    step = next(s for s in line.all("Pod", "node ") if s.name == pod["metadata"]["name"])
    return step.what.removeprefix("node ")


def test_in_pod_from_zero(pools: Pools, space: Space) -> None:
    """The server pod itself brings the node."""
    pools.machines_take("0s")
    pools.make(L40S)
    space.apply(sizing={"mode": "InPod"})
    space.apply(sizing={"mode": "InPod"})
    found = space.wait_ready()["status"]["capacity"]
    assert (found["source"], found["maxTotalTokenNum"]) == ("InPod", L40S.tokens)
    assert len(pools.claims()) == 1
    assert not space.sizing_pods()


def test_cloud_labels_to_zero_and_back(pools: Pools, space: Space) -> None:
    """Nodes that only the cloud labels; the cheaper pool is of another GPU.

    Meanwhile a sizer takes its time on a dear node. Karpenter would move its pod to a cheaper one, which takes it some
    25 s to decide, were it not told to leave such pods alone.
    """
    pools.machines_take("0s")
    pools.make(A100, consolidate_after="0s")
    wanted = {"products": ["a10g"], "classLabelKeys": [AWS_GPU]}
    with Timeline(space.scale, space.namespace, karpenter=True) as line:
        space.apply(
            "patient",
            accelerator={"classLabelKeys": [AWS_GPU]},
            template={"annotations": {"kwok.test/size": "36s"}},
        )
        wait(lambda: any(p["spec"].get("nodeName") for p in space.sizing_pods()), 20, "a node")
        pools.make(L40S)
        pools.make(A10G, consolidate_after="1s")
        space.apply(accelerator=wanted)
        before = space.wait_ready()["status"]["capacity"]
        assert before["pinnedLabel"] == {"key": AWS_GPU, "value": "a10g"}
        space.scale_to(0)
        wait(lambda: not pools.claims("a10g"), 60, "the pool empty", space.explain)
        zero = line.now
        assert space.capacity() == before
        space.scale_to(1)
        space.wait_ready()
        patient = space.wait_ready("patient")
    assert space.capacity() == before
    (pod,) = space.pods("plimsoll.dev/server=llama")
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": AWS_GPU, "operator": "In", "values": ["a10g"]}]
    # Nothing was measured again, and both nodes were of the pool that the label asks for.
    made = [w for w in line.writes() if (w.who, w.verb) == ("plimsoll-operator", "create")]
    assert [w.name for w in made if w.at > zero and w.name.startswith("llama-")] == []
    claims = [step.name.split("-")[0] for step in line.all("NodeClaim", "created")]
    assert claims == ["a100", "a10g", "a10g"], line.story()
    assert patient["status"]["capacity"]["gpu"]["product"] == A100.product
    assert not [s for s in line.all("Node", "disrupted") if "-a100-" in s.name], line.story()


def test_the_autoscalers_words_and_the_way_back(pools: Pools, space: Space) -> None:
    """No pool of such a GPU, none to be had at present, a pool at its limit: each in Karpenter's words."""
    pools.machines_take("0s")
    pools.make(A100)
    pools.make(H100, requirements=[ELSEWHERE])
    with Timeline(space.scale, space.namespace, karpenter=True) as line:
        space.apply("nowhere", accelerator={"products": ["NVIDIA-B200"]})
        space.apply("scarce", accelerator={"products": [H100.product]})
        for name, words in (
            ("nowhere", "nvidia.com/gpu.product In [NVIDIA-B200]"),
            ("scarce", "nvidia.com/gpu.product In [NVIDIA-H100-80GB-HBM3]"),
        ):
            space.wait_condition("CapacityAvailable", "NoMatchingNodePool", words, name)
            shown_in_time(line, words, f"karpenter FailedScheduling of {name}-sz-")
        pools.make(L40S, limit=0)
        space.apply("limited", accelerator={"products": [L40S.product]})
        words = "all available instance types exceed limits for nodepool (NodePool=l40s)"
        space.wait_condition("CapacityAvailable", "NoMatchingNodePool", words, "limited")
        shown_in_time(line, words, "karpenter FailedScheduling of limited-sz-")
        pools.make(H100)
        pools.make(L40S, limit=8)
        space.apply("nowhere", accelerator={"products": [L40S.product]})
        for name in ("nowhere", "scarce", "limited"):
            space.wait_ready(name)


def test_spot_interruption(pools: Pools, space: Space) -> None:
    """The node is taken away under the server, as Karpenter does on the cloud's notice."""
    pools.machines_take("0s")
    pools.make(L40S, capacity="spot")
    space.apply()
    before = space.wait_ready()["status"]["capacity"]
    pools.machines_take("8s")
    (claim,) = pools.claims()
    with Timeline(space.scale, space.namespace, karpenter=True) as line:
        space.rest.call("DELETE", f"{NODE_CLAIMS}/{claim['metadata']['name']}")
        wait(lambda: space.condition("Ready").get("status") != "True", 20, "not Ready")
        space.wait_condition("CapacityAvailable", "NodeNominated", "Pod should schedule on")
        space.wait_ready()
    shown_in_time(line, "Pod should schedule on", "karpenter Nominated")
    after = space.capacity()
    assert after == before
    assert not [w for w in line.writes() if (w.who, w.verb) == ("plimsoll-operator", "create")]
    (server,) = space.server_pods()
    assert server["spec"]["nodeName"] != before["node"]
