"""For how many more server pods there is room, and why not for more: pure, no I/O.

The scheduler's hard rules (`scheduling`) are applied to a picture of the cluster: its nodes, and
what the pods on each of them hold of every resource.

**The answer is a hint.** Not judged are dynamic resource allocation, affinity between pods,
topology spread, volumes, host ports, quotas, priorities and preemption, another scheduler's own
rules, and pods that wait for a node as this one would. The picture is some seconds old. So a
caller may choose a strategy by it, but must be able to change its mind when a pod stays pending.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.charges import (
    CPU,
    MEMORY,
    PODS,
    Amounts,
    is_device,
    mapping,
    pod_charge,
)
from plimsoll.controller.scheduling import (
    Demand,
    NodeView,
    Reason,
    Requirement,
    Taint,
    Toleration,
    bar,
    demand_of,
    node_view,
    suits,
)
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

__all__ = [
    "Demand",
    "Holding",
    "Landscape",
    "NodeView",
    "Requirement",
    "Taint",
    "Toleration",
    "assemble",
    "demand_of",
    "explain",
    "fitting_nodes",
    "free_slots",
    "holding_of",
    "landscape_from",
    "node_view",
    "oldest_kubelet",
    "products_of",
]

_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_PLURAL: Final = {"has": "have", "is": "are", "lacks": "lack", "does": "do"}
# A condition's message is read by people: so many reasons at most.
_REASONS: Final = 5
_NOTHING: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Holding:
    """What one bound pod takes from its node, until it is finished or gone."""

    uid: str
    node: str
    charge: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Landscape:
    """The nodes and what is left of them.

    Attributes:
        nodes: every node, by name.
        holders: the pods that hold devices, by UID, so that one can be thought away.
        at: when the picture was taken.
    """

    nodes: tuple[NodeView, ...]
    holders: Mapping[str, Holding]
    at: datetime


def landscape_from(
    nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], at: datetime
) -> Landscape:
    """The picture that Nodes and Pods give, as the API lists them."""
    holdings = (holding for pod in pods if (holding := holding_of(pod)) is not None)
    return assemble((node_view(node) for node in nodes), holdings, at)


def assemble(nodes: Iterable[NodeView], holdings: Iterable[Holding], at: datetime) -> Landscape:
    """The picture of nodes and of what pods take from them; pods of unknown nodes do not count."""
    used: dict[str, Amounts] = {}
    holders: dict[str, Holding] = {}
    for holding in holdings:
        _add(used.setdefault(holding.node, {}), holding.charge)
        if any(is_device(name) for name in holding.charge):
            holders[holding.uid] = holding
    seen = (replace(node, used=used.get(node.name, _NOTHING)) for node in nodes)
    return Landscape(tuple(sorted(seen, key=lambda node: node.name)), holders, at)


def holding_of(pod: Mapping[str, Any]) -> Holding | None:
    """What a Pod takes from its node; None where it has no node or is finished.

    A pod that is being deleted holds what it has until it is gone.
    """
    spec = mapping(pod.get("spec"))
    node = spec.get("nodeName")
    if not node or mapping(pod.get("status")).get("phase") in _FINISHED:
        return None
    uid = str(mapping(pod.get("metadata")).get("uid") or "")
    return Holding(uid, intern(str(node)), pod_charge(spec))


def fitting_nodes(demand: Demand, landscape: Landscape) -> tuple[str, ...]:
    """The nodes that would take the pod now if they had room, by name."""
    return tuple(node.name for node in landscape.nodes if bar(demand, node) is None)


def free_slots(
    demand: Demand, landscape: Landscape, *, without: frozenset[str] = frozenset()
) -> int:
    """For how many more such pods there is room now.

    Args:
        demand: what each asks for.
        landscape: the picture.
        without: UIDs of pods to be counted as gone; one that holds no device frees nothing.
    """
    released = _released(landscape, without)
    return sum(
        _slots(demand, node, released.get(node.name, _NOTHING))
        for node in landscape.nodes
        if bar(demand, node) is None
    )


def explain(demand: Demand, landscape: Landscape, *, without: frozenset[str] = frozenset()) -> str:
    """Why there is room or not: nodes counted by the first reason that each has.

    Args:
        demand: what the pod asks for.
        landscape: the picture.
        without: as in `free_slots`.

    Returns:
        A clause without a full stop, as "3 nodes: 2 have 0 of 8 nvidia.com/gpu free, 1 is
        cordoned".
    """
    released = _released(landscape, without)
    counts = Counter(
        bar(demand, node)
        or _shortage(demand, node, released.get(node.name, _NOTHING))
        or ("has", "room")
        for node in landscape.nodes
    )
    if not counts:
        return "there are no nodes"
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    clauses = [
        f"{count} {verb if count == 1 else _PLURAL[verb]} {rest}"
        for (verb, rest), count in ranked[:_REASONS]
    ]
    if others := sum(count for _, count in ranked[_REASONS:]):
        clauses.append(f"{others} for other reasons")
    total = len(landscape.nodes)
    return f"{total} {'node' if total == 1 else 'nodes'}: {', '.join(clauses)}"


def oldest_kubelet(demand: Demand, landscape: Landscape) -> tuple[int, int] | None:
    """The oldest kubelet, as (major, minor), of all nodes that may ever take the pod.

    A node that is cordoned, not ready or full counts: it may take the next pod when it is well
    again. None where there is no such node.
    """
    return min((node.kubelet for node in _homes(demand, landscape)), default=None)


def products_of(
    demand: Demand, landscape: Landscape, class_label_keys: Sequence[str]
) -> frozenset[str]:
    """The GPU classes, by label value, of all nodes that may ever take the pod (as above).

    Args:
        demand: of a pod that is not pinned to a class yet.
        landscape: the picture.
        class_label_keys: the first of them that a node has names its class; a node that has none
            is left out.
    """
    found = (
        next((value for key in class_label_keys if (value := node.labels.get(key))), None)
        for node in _homes(demand, landscape)
    )
    return frozenset(value for value in found if value is not None)


def _homes(demand: Demand, landscape: Landscape) -> Iterator[NodeView]:
    return (node for node in landscape.nodes if suits(demand, node))


def _slots(demand: Demand, node: NodeView, released: Mapping[str, int]) -> int:
    fits = (
        _free(node, name, released) // asked for name, asked in demand.requests.items() if asked
    )
    return max(0, min(fits, default=0))


def _free(node: NodeView, name: str, released: Mapping[str, int]) -> int:
    return node.allocatable.get(name, 0) - node.used.get(name, 0) + released.get(name, 0)


def _released(landscape: Landscape, without: frozenset[str]) -> dict[str, Amounts]:
    released: dict[str, Amounts] = {}
    for uid in without:
        if (holding := landscape.holders.get(uid)) is not None:
            _add(released.setdefault(holding.node, {}), holding.charge)
    return released


def _shortage(demand: Demand, node: NodeView, released: Mapping[str, int]) -> Reason | None:
    """The first resource of which too little is free: devices first, they are what is scarce."""
    for name, asked in sorted(demand.requests.items(), key=lambda item: _rank(item[0])):
        free = _free(node, name, released)
        if free < asked:
            return _too_little(name, asked, free, node)
    return None


def _rank(name: str) -> tuple[int, str]:
    if is_device(name):
        return 0, name
    return {MEMORY: 1, CPU: 2, PODS: 4}.get(name, 3), name


def _too_little(name: str, asked: int, free: int, node: NodeView) -> Reason:
    all_of_it = node.allocatable.get(name, 0)
    if name == PODS:
        return "has", "as many pods as it may"
    if not is_device(name):
        amount = {MEMORY: format_bytes(asked), CPU: f"{asked}m"}.get(name, str(asked))
        if all_of_it < asked:
            return "has", f"less {name} in all than {amount}"
        return "has", f"too little {name} free for {amount}"
    if all_of_it <= 0:
        return "has", f"no usable {name}" if name in node.devices else f"no {name}"
    if all_of_it < asked:
        return "has", f"only {all_of_it} {name} where {asked} are asked for"
    some = f" where {asked} are asked for" if free > 0 else ""
    return "has", f"{max(0, free)} of {all_of_it} {name} free{some}"


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
