"""Two kinds of GPU, one server: the first of the list while there is one, then the next, and a number for each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.world import wait
from tests.cluster_kit import karpenter
from tests.cluster_kit.gpus import A100, H100, L40S
from tests.scale.test_nodes import Pools
from tests.scale.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_kit.gpus import Gpu
    from tests.scale.world import Space

# The node affinity counts twice; what a server asks for beside its GPU counts against it.
RESOURCES = {"requests": {"cpu": "8", "memory": "64Gi"}}
# As docs/howto/several-gpu-pools.md has it: one domain, so nothing to spread over.
UNSPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/os",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"plimsoll.dev/server": "llama"}},
    }
]


@pytest.fixture
def nodes(space: Space) -> Iterator[list[str]]:
    """Names of nodes that are removed afterwards."""
    names: list[str] = []
    yield names
    space.rest.call("DELETE", space.servers)
    space.scale.remove_nodes(names)


def test_the_first_kind_while_there_is_one_then_the_next(space: Space, nodes: list[str]) -> None:
    for gpu, count in ((A100, 1), (L40S, 2)):
        nodes += space.scale.add_nodes(gpu, count)
    with Timeline(space.scale, space.namespace) as line:
        space.apply(replicas=2, accelerator=_kinds(L40S, A100), template={"resources": RESOURCES})
        space.wait_ready()
        assert _where(space) == {"l40s": 2}
        space.scale_to(3)
        wait(lambda: space.server()["status"].get("ready") == "3/3", 60, "3 ready", space.explain)
        assert _where(space) == {"l40s": 2, "a100": 1}
        status = space.server()["status"]
        assert [_short(c) for c in status["classes"]] == [
            ("nvidia.com/gpu.product", L40S.product, L40S.tokens, 2, 2),
            ("nvidia.com/gpu.product", A100.product, A100.tokens, 1, 1),
        ]
        # What any server can hold, and so what the resource promises.
        assert status["capacity"]["maxTotalTokenNum"] == L40S.tokens < A100.tokens
        said = space.condition("Ready")["message"]
        assert f"{L40S.tokens} tokens on {L40S.product} (2 servers)" in said
        assert f"{A100.tokens} tokens on {A100.product} (1 server)" in said
        # The last of the second kind goes, and its number stays known.
        space.scale.remove_nodes(nodes[:1])
        (lost,) = (p for p in space.server_pods() if p["spec"]["nodeName"] == nodes[0])
        space.rest.call(
            "DELETE", f"{space.core}/pods/{lost['metadata']['name']}?gracePeriodSeconds=0"
        )
        wait(lambda: _listed(space).get(A100.product) == 0, 30, "A100 unused", space.explain)
        assert _listed(space) == {L40S.product: 2, A100.product: 0}
    # One template serves both kinds: nobody was restarted for the other.
    assert len(line.all("Deployment", "template")) == 1, line.story()


def test_a_full_node_of_the_first_kind(space: Space, nodes: list[str]) -> None:
    """The scheduler's own spreading would send the eighth to the other kind; who wants the cheap one says so."""
    for gpu in (A100, H100):
        nodes += space.scale.add_nodes(gpu)
    template = {"resources": RESOURCES, "topologySpreadConstraints": UNSPREAD}
    space.apply(replicas=8, accelerator=_kinds(A100, H100), template=template)
    space.wait_ready()
    assert _where(space) == {"a100": 8}


@pytest.fixture
def pools(space: Space) -> Iterator[Pools]:
    """Karpenter with a pool of each kind; that of L40S may have no more machines."""
    karpenter.install(space.scale.cluster)
    found = Pools(space.scale)
    found.make(L40S, limit=0)
    found.make(H100)
    found.make(A100)
    yield found
    space.rest.call("DELETE", space.servers)
    found.clear()  # its pods may outlive their nodes: the garbage collector is still learning Karpenter's kinds
    found.program.stop()


def test_an_autoscaler_makes_the_first_that_there_is(pools: Pools, space: Space) -> None:
    """Karpenter takes preferences for requirements and gives them up one by one.

    Of itself it would take the A100, which costs a third of the H100.
    """
    space.apply(accelerator=_kinds(L40S, H100, A100))
    status = space.wait_ready()["status"]
    assert _where(space) == {"h100": 1}
    assert [c["product"] for c in status["classes"]] == [H100.product]
    assert status["capacity"]["maxTotalTokenNum"] == H100.tokens
    assert len(pools.claims()) == 1


def _kinds(*gpus: Gpu) -> dict[str, Any]:
    return {"products": [gpu.product for gpu in gpus]}


def _where(space: Space) -> Counter[str]:
    """How many server pods each kind of node has."""
    nodes = (str(pod["spec"].get("nodeName")) for pod in space.server_pods())
    return Counter(node.split("-")[1] for node in nodes)


def _short(entry: dict[str, Any]) -> tuple[Any, ...]:
    label = entry["label"]
    return label["key"], label["value"], entry["maxTotalTokenNum"], entry["pods"], entry["ready"]


def _listed(space: Space) -> dict[str, int]:
    return {c["product"]: c["pods"] for c in space.server()["status"].get("classes", ())}
