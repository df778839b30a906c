"""Which nodes take a pod and for how many there is room: tables, and a naive scheduler beside it."""

import copy
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.charges import pod_charge
from plimsoll.controller.placement import (
    Demand,
    Landscape,
    demand_of,
    explain,
    fitting_nodes,
    free_slots,
    landscape_from,
    oldest_kubelet,
    products_of,
)
from plimsoll.core.units import GIB, MAX_AMOUNT, MIB

AT = datetime(2026, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
Raw = dict[str, Any]


def node(
    name: str = "n",
    *,
    gpus: int | str | None = 2,
    cpu: str = "8",
    memory: str = "64Gi",
    pods: str = "110",
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Raw] = (),
    ready: bool = True,
    cordoned: bool = False,
    kubelet: str = "v1.37.2",
    capacity: Raw | None = None,
) -> Raw:
    allocatable = {"cpu": cpu, "memory": memory, "pods": pods}
    if gpus is not None:
        allocatable[GPU] = str(gpus)
    spec: Raw = {"taints": list(taints)}
    if cordoned:
        spec["unschedulable"] = True
        spec["taints"].append(taint("node.kubernetes.io/unschedulable"))
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", **(labels or {})}},
        "spec": spec,
        "status": {
            "allocatable": allocatable,
            "capacity": {**allocatable, **(capacity or {})},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True" if ready else "Unknown"},
            ],
            "nodeInfo": {"kubeletVersion": kubelet},
        },
    }


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Raw:
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def container(**requests: str) -> Raw:
    names = {"gpus": GPU}
    return {"resources": {"requests": {names.get(n, n): q for n, q in requests.items()}}}


def spec(*, gpus: int = 1, cpu: str = "1", memory: str = "1Gi", **more: Any) -> Raw:
    return {"containers": [container(gpus=str(gpus), cpu=cpu, memory=memory)], **more}


def pod(name: str, on: str, phase: str = "Running", **more: Any) -> Raw:
    return {
        "metadata": {"uid": name},
        "spec": {**spec(**more), "nodeName": on},
        "status": {"phase": phase},
    }


def world(*nodes: Raw, pods: Iterable[Raw] = ()) -> Landscape:
    return landscape_from(nodes, pods, AT)


def requiring(*terms: Raw) -> Raw:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> Raw:
    return {"key": key, "operator": operator, "values": list(values)}


def matching(key: str, operator: str, *values: str) -> Raw:
    return {"matchExpressions": [expression(key, operator, *values)]}


# -- what a pod is charged --------------------------------------------------------------------------

CHARGES: list[tuple[str, Raw, dict[str, int]]] = [
    ("nothing but a place", {"containers": [{}]}, {}),
    ("units", {"containers": [container(cpu="1500m", memory="1Gi", gpus="2")]},
     {"cpu": 1500, "memory": GIB, GPU: 2}),
    ("CPUs in every spelling", {"containers": [container(cpu=q) for q in ("1", "0.5", "250m", "1u")]},
     {"cpu": 1751}),
    ("containers add up", {"containers": [container(memory="1Gi", gpus="1")] * 2},
     {"memory": 2 * GIB, GPU: 2}),
    ("the largest init container counts",
     {"containers": [container(cpu="1", gpus="1")],
      "initContainers": [container(cpu="3"), container(cpu="2", gpus="1")]},
     {"cpu": 3000, GPU: 1}),
    ("a sidecar adds to the containers and to the init containers after it",
     {"containers": [container(cpu="1")],
      "initContainers": [container(cpu="4"), {**container(cpu="1"), "restartPolicy": "Always"},
                         container(cpu="3500m")]},
     {"cpu": 4500}),
    ("a sidecar adds to the containers",
     {"containers": [container(cpu="1")], "initContainers": [{**container(cpu="2"), "restartPolicy": "Always"}]},
     {"cpu": 3000}),
    ("a sidecar's own start counts",
     {"containers": [container(memory="1Gi")],
      "initContainers": [{**container(cpu="2"), "restartPolicy": "Always"}]},
     {"cpu": 2000, "memory": GIB}),
    ("a limit stands for a request that is not there",
     {"containers": [{"resources": {"limits": {GPU: "2", "cpu": "4"}, "requests": {"cpu": "1"}}}]},
     {"cpu": 1000, GPU: 2}),
    ("the pod's own requests win, its overhead comes on top",
     {"containers": [container(cpu="1", memory="1Gi", gpus="1")],
      "resources": {"requests": {"cpu": "2", GPU: "9"}}, "overhead": {"cpu": "100m"}},
     {"cpu": 2100, "memory": GIB, GPU: 1}),
    ("an unreadable amount is everything", {"containers": [container(memory="lots")]},
     {"memory": MAX_AMOUNT}),
    ("nonsense is not there", {"containers": ["x", {"resources": 3}], "initContainers": "x"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "charge"), [c[1:] for c in CHARGES], ids=[c[0] for c in CHARGES])
def test_charge(raw: Raw, charge: dict[str, int]) -> None:
    assert pod_charge(raw) == {**charge, "pods": 1}


# -- which nodes ------------------------------------------------------------------------------------

LABELS = {"zone": "a", "rank": "7", "name": "x"}
ELIGIBLE: list[tuple[str, Raw, Raw, bool]] = [
    ("any", {}, {}, True),
    ("selector", {"labels": LABELS}, {"nodeSelector": {"zone": "a", "name": "x"}}, True),
    ("selector, one differs", {"labels": LABELS}, {"nodeSelector": {"zone": "a", "name": "y"}}, False),
    ("selector, no label", {}, {"nodeSelector": {"zone": "a"}}, False),
    *(
        (f"zone {operator} {values}", {"labels": LABELS}, requiring(matching("zone", operator, *values)), met)
        for operator, values, met in [
            ("In", ("b", "a"), True), ("In", ("b",), False), ("In", (), False),
            ("NotIn", ("b",), True), ("NotIn", ("a",), False),
            ("Exists", (), True), ("DoesNotExist", (), False),
            ("Gt", ("1",), False), ("Lt", ("1",), False), ("Like", ("a",), False),
        ]
    ),
    *(
        (f"absent {operator}", {}, requiring(matching("zone", operator, *values)), met)
        for operator, values, met in [
            ("In", ("a",), False), ("NotIn", ("a",), True), ("Exists", (), False),
            ("DoesNotExist", (), True), ("Gt", ("0",), False), ("Lt", ("9",), False),
        ]
    ),
    *(
        (f"7 {operator} {values}", {"labels": LABELS}, requiring(matching("rank", operator, *values)), met)
        for operator, values, met in [
            ("Gt", ("6",), True), ("Gt", ("7",), False), ("Lt", ("8",), True), ("Lt", ("7",), False),
            ("Lt", ("10",), True), ("Gt", ("-1",), True), ("Gt", ("x",), False), ("Gt", ("1", "2"), False),
            ("Like", ("9",), False),
        ]
    ),
    ("expressions of a term are ANDed", {"labels": LABELS}, requiring(
        {"matchExpressions": [expression("zone", "In", "a"), expression("name", "In", "y")]}), False),
    ("terms are ORed", {"labels": LABELS},
     requiring(matching("zone", "In", "b"), matching("name", "In", "x")), True),
    ("selector and terms are ANDed", {"labels": LABELS},
     {"nodeSelector": {"zone": "b"}, **requiring(matching("name", "In", "x"))}, False),
    ("an empty term matches nothing", {}, requiring({}), False),
    ("an empty term beside one", {"labels": LABELS}, requiring({}, matching("zone", "In", "a")), True),
    ("no terms match nothing", {}, requiring(), False),
    ("by the node's name", {}, requiring({"matchFields": [expression("metadata.name", "In", "n")]}), True),
    ("by another's name", {}, requiring({"matchFields": [expression("metadata.name", "In", "m")]}), False),
    ("not by its name", {}, requiring({"matchFields": [expression("metadata.name", "NotIn", "n")]}), False),
    ("by another field", {}, requiring({"matchFields": [expression("spec.x", "NotIn", "m")]}), False),
    ("field and label", {"labels": LABELS}, requiring({
        "matchFields": [expression("metadata.name", "In", "n")],
        "matchExpressions": [expression("zone", "In", "b")]}), False),
    ("a preference is none", {}, {"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"preference": matching("zone", "In", "a")}]}}}, True),
    ("nonsense is not there", {}, {"affinity": {"nodeAffinity": ["x"]}, "tolerations": "x",
                                   "nodeSelector": None}, True),
    *(
        (f"tainted {effect}", {"taints": [taint("k", "v", effect)]}, {}, met)
        for effect, met in [("NoSchedule", False), ("NoExecute", False), ("PreferNoSchedule", True)]
    ),
    *(
        (f"k=v:NoSchedule and {toleration}", {"taints": [taint("k", "v")]}, {"tolerations": [toleration]}, met)
        for toleration, met in [
            ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
            ({"key": "k", "value": "v"}, True),
            ({"key": "k", "value": "w"}, False),
            ({"key": "k"}, False),
            ({"key": "k", "operator": "Exists"}, True),
            ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
            ({"key": "l", "operator": "Exists"}, False),
            ({"operator": "Exists"}, True),
            ({"operator": "Exists", "effect": "NoExecute"}, False),
            ({"key": "k", "operator": "Lt", "value": "v"}, False),
        ]
    ),
    ("each taint is to be tolerated", {"taints": [taint("k"), taint("l")]},
     {"tolerations": [{"key": "k", "operator": "Exists"}]}, False),
    ("each by one of them", {"taints": [taint("k"), taint("l", effect="NoExecute")]},
     {"tolerations": [{"key": "k", "operator": "Exists"}, {"key": "l", "operator": "Exists"}]}, True),
    ("cordoned", {"cordoned": True}, {}, False),
    ("cordoned and tolerated", {"cordoned": True}, {"tolerations": [{"operator": "Exists"}]}, True),
    ("not ready", {"ready": False}, {"tolerations": [{"operator": "Exists"}]}, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given_node", "given_spec", "fits"), [c[1:] for c in ELIGIBLE], ids=[c[0] for c in ELIGIBLE]
)
def test_eligible(given_node: Raw, given_spec: Raw, fits: bool) -> None:  # noqa: FBT001
    landscape = world(node(**given_node))
    demand = demand_of(spec(**given_spec))
    assert fitting_nodes(demand, landscape) == (("n",) if fits else ())
    assert (free_slots(demand, landscape) > 0) == fits


def test_room_is_not_asked_of_a_fitting_node() -> None:
    landscape = world(node("b"), node("a", gpus=0), node("c", cordoned=True))
    assert fitting_nodes(demand_of(spec()), landscape) == ("a", "b")


# -- room -------------------------------------------------------------------------------------------

SLOTS: list[tuple[str, Raw, list[Raw], list[Raw], int]] = [
    ("empty nodes", {}, [node("a"), node("b", gpus=1)], [], 3),
    ("no GPU node", {}, [node("a", gpus=None)], [], 0),
    ("devices are not shared out over nodes", {"gpus": 2}, [node("a", gpus=3), node("b", gpus=1)], [], 1),
    ("CPU ends first", {"cpu": "3500m"}, [node("a", gpus=8)], [], 2),
    ("a CPU more than there is", {"cpu": "3500m"}, [node("a", gpus=8, cpu="6999m")], [], 1),
    ("memory ends first", {"memory": "30Gi"}, [node("a", gpus=8)], [], 2),
    ("places end first", {}, [node("a", gpus=8, pods="3")], [], 3),
    ("others hold devices", {}, [node("a"), node("b")], [pod("p", "a"), pod("q", "b", gpus=2)], 1),
    ("others hold memory", {"memory": "30Gi"}, [node("a", gpus=8)], [pod("p", "a", gpus=0, memory="5Gi")], 1),
    ("others hold places", {}, [node("a", gpus=8, pods="3")], [pod("p", "a", gpus=0)] * 2, 1),
    ("more is held than there is", {}, [node("a", gpus=1), node("b", gpus=1)], [pod("p", "a", gpus=4)], 1),
    ("finished pods hold nothing", {}, [node("a")],
     [pod("p", "a", "Succeeded"), pod("q", "a", "Failed"), pod("r", "a", "Pending")], 1),
    ("a pod that leaves holds what it has", {}, [node("a")],
     [{**pod("p", "a"), "metadata": {"uid": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}], 1),
    ("a pod without a node holds nothing", {}, [node("a")],
     [{**pod("p", "a"), "spec": spec(gpus=2)}], 2),
    ("a node that is not known", {}, [node("a")], [pod("p", "gone", gpus=2)], 2),
    ("what cannot be read is held", {}, [node("a")], [pod("p", "a", gpus=0, cpu="much")], 0),
    ("what cannot be read is not given", {}, [node("a", gpus="many")], [], 0),
    ("only eligible nodes", {}, [node("a"), node("b", cordoned=True)], [], 2),
    ("another resource's devices", {}, [node("a", gpus=None, capacity={"amd.com/gpu": "8"})], [], 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "nodes", "pods", "slots"), [c[1:] for c in SLOTS], ids=[c[0] for c in SLOTS]
)
def test_free_slots(ask: Raw, nodes: list[Raw], pods: list[Raw], slots: int) -> None:
    assert free_slots(demand_of(spec(**ask)), world(*nodes, pods=pods)) == slots


@pytest.mark.parametrize(
    ("without", "slots"),
    [
        (set(), 0),
        ({"mine"}, 1),
        ({"mine", "also"}, 2),
        ({"helper"}, 0),  # holds no device: not worth remembering
        ({"gone", ""}, 0),
    ],
)
def test_pods_thought_away(without: set[str], slots: int) -> None:
    pods = [pod("mine", "a"), pod("also", "b"), pod("theirs", "a"), pod("helper", "a", gpus=0)]
    landscape = world(node("a"), node("b", gpus=1), pods=pods)
    demand = demand_of(spec())
    assert free_slots(demand, landscape, without=frozenset(without)) == slots
    assert ("room" in explain(demand, landscape, without=frozenset(without))) == (slots > 0)


def test_a_pod_thought_away_frees_its_node_and_no_other() -> None:
    landscape = world(
        node("a"), node("b", cpu="1"), pods=[pod("p", "a", gpus=2), pod("q", "b", gpus=2)]
    )
    demand = demand_of(spec(gpus=2, cpu="2"))
    assert free_slots(demand, landscape, without=frozenset({"q"})) == 0
    assert free_slots(demand, landscape, without=frozenset({"p"})) == 1


# -- why --------------------------------------------------------------------------------------------

EXPLAINED: list[tuple[str, Raw, list[Raw], list[Raw], str]] = [
    ("none", {}, [], [], "there are no nodes"),
    ("room", {}, [node("a"), node("b")], [], "2 nodes: 2 have room"),
    ("by count, then by words", {"nodeSelector": {PRODUCT: "A100"}},
     [node("a", taints=[taint("t", "m")]),
      node("b"), node("c"),
      node("d", labels={PRODUCT: "A100"})],
     [pod("p", "d", gpus=2)],
     f"4 nodes: 2 lack {PRODUCT}=A100, 1 has 0 of 2 {GPU} free, 1 has the untolerated taint t=m:NoSchedule"),
    ("one node", {}, [node("a", taints=[taint("k", effect="NoExecute")])], [],
     "1 node: 1 has the untolerated taint k:NoExecute"),
    ("cordoned before tainted", {}, [node("a", cordoned=True)], [], "1 node: 1 is cordoned"),
    ("not ready", {}, [node("a", ready=False, taints=[taint("node.kubernetes.io/not-ready")])] * 2, [],
     "2 nodes: 2 are not ready"),
    ("affinity of alternatives", requiring(matching("x", "In", "1"), matching("y", "In", "1", "2")),
     [node("a")], [], "1 node: 1 lacks x=1 or y in (1, 2)"),
    ("affinity of another kind", requiring(matching("x", "Gt", "1")), [node("a")], [],
     "1 node: 1 does not match x Gt 1"),
    ("excluded", requiring(matching("x", "NotIn", "1")), [node("a", labels={"x": "1"})] * 2, [],
     "2 nodes: 2 do not match x not in (1)"),
    ("many values", requiring(matching("x", "In", *"abcdef")), [node("a")], [],
     "1 node: 1 lacks x in (a, b, c, ...)"),
    ("an affinity to nothing", requiring({}), [node("a")], [],
     "1 node: 1 does not match an empty node affinity"),
    ("no devices", {}, [node("a", gpus=None)], [], f"1 node: 1 has no {GPU}"),
    ("the plugin is away", {}, [node("a", gpus=0)], [], f"1 node: 1 has no usable {GPU}"),
    ("devices are broken", {}, [node("a", gpus=0, capacity={GPU: "2"})], [],
     f"1 node: 1 has no usable {GPU}"),
    ("too few devices in all", {"gpus": 4}, [node("a")], [],
     f"1 node: 1 has only 2 {GPU} where 4 are asked for"),
    ("too few devices free", {"gpus": 2}, [node("a")], [pod("p", "a")],
     f"1 node: 1 has 1 of 2 {GPU} free where 2 are asked for"),
    ("more is held than there is", {}, [node("a")], [pod("p", "a", gpus=3)],
     f"1 node: 1 has 0 of 2 {GPU} free"),
    ("devices before memory", {"memory": "99Gi"}, [node("a", gpus=1)], [pod("p", "a")],
     f"1 node: 1 has 0 of 1 {GPU} free"),
    ("memory before CPU", {"memory": "24Gi", "cpu": "99"}, [node("a", memory="1Gi")], [],
     "1 node: 1 has less memory in all than 24.00 GiB"),
    ("too little memory free", {"memory": "50Gi"}, [node("a")], [pod("p", "a", memory="20Gi")],
     "1 node: 1 has too little memory free for 50.00 GiB"),
    ("too little CPU free", {"cpu": "8"}, [node("a")], [pod("p", "a", gpus=0)],
     "1 node: 1 has too little cpu free for 8000m"),
    ("no place", {}, [node("a", pods="1")], [pod("p", "a", gpus=0)],
     "1 node: 1 has as many pods as it may"),
    ("few reasons are told", {}, [node(f"n{i}", taints=[taint(f"k{i}")]) for i in range(8)], [],
     "8 nodes: " + ", ".join(f"1 has the untolerated taint k{i}:NoSchedule" for i in range(5))
     + ", 3 for other reasons"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "nodes", "pods", "text"), [c[1:] for c in EXPLAINED], ids=[c[0] for c in EXPLAINED]
)
def test_explained(ask: Raw, nodes: list[Raw], pods: list[Raw], text: str) -> None:
    assert explain(demand_of(spec(**ask)), world(*nodes, pods=pods)) == text


def test_a_long_reason_is_cut() -> None:
    text = explain(demand_of(spec(nodeSelector={"k" * 300: "v"})), world(node()))
    assert text == f"1 node: 1 lacks {'k' * 160}..."


# -- kubelets and products --------------------------------------------------------------------------

PINNED: Raw = {"nodeSelector": {PRODUCT: "A100"}}
A100 = {PRODUCT: "A100"}
HOMES: list[tuple[str, Raw, list[Raw], tuple[int, int] | None]] = [
    ("none", {}, [], None),
    ("the oldest", {}, [node("a"), node("b", kubelet="v1.9.8"), node("c", kubelet="v1.36.0")], (1, 9)),
    ("providers' spellings", {}, [node("a", kubelet="v1.34.4-gke.1193000"), node("b", kubelet="1.35+")],
     (1, 34)),
    ("unreadable is older than any", {}, [node("a"), node("b", kubelet="unknown")], (0, 0)),
    ("only its class", PINNED, [node("a", labels=A100), node("b", kubelet="v1.30.0")], (1, 37)),
    ("not where it is not tolerated", {}, [node("a"), node("b", kubelet="v1.30.0", taints=[taint("k")])],
     (1, 37)),
    ("not where there are no such devices", {}, [node("a"), node("b", kubelet="v1.30.0", gpus=None)],
     (1, 37)),
    ("not where there are too few", {"gpus": 2}, [node("a"), node("b", kubelet="v1.30.0", gpus=1)],
     (1, 37)),
    ("where some are broken", {"gpus": 2},
     [node("a"), node("b", kubelet="v1.30.0", gpus=1, capacity={GPU: "2"})], (1, 30)),
    ("where the plugin is away", {}, [node("a"), node("b", kubelet="v1.30.0", gpus=0)], (1, 30)),
    ("where it is cordoned", {}, [node("a"), node("b", kubelet="v1.30.0", cordoned=True)], (1, 30)),
    ("where it is not ready", {},
     [node("a"), node("b", kubelet="v1.30.0", ready=False,
                      taints=[taint("node.kubernetes.io/unreachable", effect="NoExecute")])], (1, 30)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "nodes", "version"), [c[1:] for c in HOMES], ids=[c[0] for c in HOMES]
)
def test_oldest_kubelet(ask: Raw, nodes: list[Raw], version: tuple[int, int] | None) -> None:
    assert oldest_kubelet(demand_of(spec(**ask)), world(*nodes)) == version


def test_products() -> None:
    landscape = world(
        node("a", labels={PRODUCT: "A100", "cloud/gpu": "a100"}),
        node("b", labels={"cloud/gpu": "t4", "zone": "x"}),
        node("c", labels={PRODUCT: "A100"}, cordoned=True),
        node("d", labels={PRODUCT: "", "cloud/gpu": "l4"}),
        node("e", labels={PRODUCT: "K80"}, gpus=None),
        node("f"),
    )
    keys = (PRODUCT, "cloud/gpu")
    assert products_of(demand_of(spec()), landscape, keys) == {"A100", "t4", "l4"}
    assert products_of(demand_of(spec()), landscape, keys[:1]) == {"A100"}
    only = demand_of(spec(nodeSelector={"zone": "x"}))
    assert products_of(only, landscape, keys) == {"t4"}
    assert products_of(demand_of(spec(nodeSelector={"zone": "y"})), landscape, keys) == frozenset()


def test_the_picture_keeps_device_holders_only() -> None:
    landscape = world(node("a"), pods=[pod("p", "a"), pod("q", "a", gpus=0)])
    assert set(landscape.holders) == {"p"}
    assert landscape.at == AT
    assert landscape.nodes[0].used == {"cpu": 2000, "memory": 2 * GIB, GPU: 1, "pods": 2}


def test_devices_are_told_from_native_resources() -> None:
    asked = container(gpus="1", cpu="1", **{"hugepages-2Mi": "4Mi", "x.kubernetes.io/y": "1"})
    demand = demand_of({"containers": [asked]})
    assert demand.devices == {GPU: 1}
    assert demand.requests["hugepages-2Mi"] == 4 * MIB


# -- beside a naive scheduler -----------------------------------------------------------------------

NAMES = ("a", "b", "c")
amount = st.integers(0, 4)


@st.composite
def nodes(draw: st.DrawFn) -> list[Raw]:
    return [
        node(
            name,
            gpus=draw(st.none() | amount),
            cpu=f"{draw(st.integers(0, 40))}00m",
            memory=f"{draw(amount)}Gi",
            pods=str(draw(st.integers(0, 6))),
            labels=draw(st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"))),
            taints=draw(st.lists(st.builds(taint, st.sampled_from("kl")), max_size=1)),
            ready=draw(st.booleans()),
            cordoned=draw(st.booleans()),
        )
        for name in NAMES[: draw(st.integers(0, 3))]
    ]


@st.composite
def pods(draw: st.DrawFn) -> list[Raw]:
    return [
        pod(
            f"p{number}",
            draw(st.sampled_from(NAMES)),
            draw(st.sampled_from(["Running", "Pending", "Failed", "Succeeded"])),
            gpus=draw(amount),
            cpu=f"{draw(st.integers(0, 12))}00m",
            memory=f"{draw(amount)}00Mi",
        )
        for number in range(draw(st.integers(0, 4)))
    ]


@st.composite
def specs(draw: st.DrawFn) -> Raw:
    terms = st.lists(
        st.builds(
            matching, st.sampled_from("xy"), st.sampled_from(["In", "NotIn"]), st.sampled_from("12")
        ),
        min_size=1,
        max_size=2,
    )
    tolerations = st.builds(lambda key: {"key": key, "operator": "Exists"}, st.sampled_from("kl"))
    return {
        **spec(
            gpus=draw(amount),
            cpu=f"{draw(st.integers(0, 20))}00m",
            memory=f"{draw(amount)}00Mi",
            nodeSelector=draw(st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"))),
            tolerations=draw(st.lists(tolerations, max_size=2)),
        ),
        **(requiring(*draw(terms)) if draw(st.booleans()) else {}),
    }


def naive_node(candidate: Raw, ask: Raw, bound: list[Raw]) -> bool:
    """Whether one pod fits a node, by the words of the documentation, for the worlds above."""
    labels, tolerated = candidate["metadata"]["labels"], {t["key"] for t in ask["tolerations"]}
    if any(labels.get(k) != v for k, v in ask["nodeSelector"].items()):
        return False
    if "affinity" in ask:
        required = ask["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        wanted = [term["matchExpressions"][0] for term in required["nodeSelectorTerms"]]
        if not any(
            (labels.get(e["key"]) in e["values"]) == (e["operator"] == "In") for e in wanted
        ):
            return False
    if any(t["key"] not in tolerated for t in candidate["spec"]["taints"]):
        return False
    if candidate["status"]["conditions"][1]["status"] != "True":
        return False
    mine = [
        p["spec"]
        for p in bound
        if p["spec"]["nodeName"] == candidate["metadata"]["name"]
        and p["status"]["phase"] in {"Running", "Pending"}
    ]
    if len(mine) + 1 > int(candidate["status"]["allocatable"]["pods"]):
        return False

    def of(a_spec: Raw, resource: str) -> int:
        text = a_spec["containers"][0]["resources"]["requests"][resource]
        return int(text.removesuffix("m").removesuffix("Mi"))

    have = candidate["status"]["allocatable"]
    limits = {
        "cpu": int(have["cpu"].removesuffix("m")),
        "memory": 1024 * int(have["memory"].removesuffix("Gi")),
        GPU: int(have.get(GPU, 0)),
    }
    return all(
        not (asked := of(ask, resource)) or sum(of(s, resource) for s in mine) + asked <= limit
        for resource, limit in limits.items()
    )


@given(nodes(), pods(), specs())
def test_as_a_naive_scheduler_that_binds_one_pod_after_the_other(
    given_nodes: list[Raw], given_pods: list[Raw], ask: Raw
) -> None:
    landscape = landscape_from(given_nodes, given_pods, AT)
    demand: Demand = demand_of(ask)
    slots = free_slots(demand, landscape)
    assert slots == 0 or "room" in explain(demand, landscape)
    bound, placed = copy.deepcopy(given_pods), 0
    while taker := next((n for n in given_nodes if naive_node(n, ask, bound)), None):
        name = taker["metadata"]["name"]
        assert name in fitting_nodes(demand, landscape)
        bound.append({"spec": {**ask, "nodeName": name}, "status": {"phase": "Running"}})
        placed += 1
    assert slots == placed
    after = landscape_from(given_nodes, bound, AT)
    assert free_slots(demand, after) == 0
    assert "room" not in explain(demand, after)


@given(nodes(), pods(), specs(), st.data())
def test_thinking_a_pod_away_is_as_if_it_were_not_there(
    given_nodes: list[Raw], given_pods: list[Raw], ask: Raw, data: st.DataObject
) -> None:
    holders = [
        p for p in given_pods if p["spec"]["containers"][0]["resources"]["requests"][GPU] != "0"
    ]
    gone = data.draw(
        st.sets(st.sampled_from([p["metadata"]["uid"] for p in holders]))
        if holders
        else st.just(set())
    )
    left = [p for p in given_pods if p["metadata"]["uid"] not in gone]
    demand = demand_of(ask)
    with_all, with_left = (landscape_from(given_nodes, some, AT) for some in (given_pods, left))
    assert free_slots(demand, with_all, without=frozenset(gone)) == free_slots(demand, with_left)
    assert explain(demand, with_all, without=frozenset(gone)) == explain(demand, with_left)
