"""What keeps a pod away from a node however much room it has: the scheduler's hard rules.

Node selector, required node affinity, taints that keep pods away, cordons and readiness, as
``k8s.io/component-helpers/scheduling`` judges them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.charges import (
    Amounts,
    amounts,
    is_device,
    mapping,
    mappings,
    pod_charge,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_KUBELET: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NAME_FIELD: Final = "metadata.name"

# Taints that the cluster itself puts on a node and takes away again.
_PASSING: Final = frozenset({
    "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable", "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure", "node.cloudprovider.kubernetes.io/uninitialized",
})  # fmt: skip

# So many values and characters of a requirement or taint are shown in a message.
_SHOWN_VALUES: Final = 3
_SHOWN_LENGTH: Final = 160

Reason = tuple[str, str]
"""Why a node will not do: a verb in the singular, and the rest of the clause."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        equals = f"={self.value}" if self.value else ""
        return f"{self.key}{equals}:{self.effect}"


_CORDON: Final = Taint("node.kubernetes.io/unschedulable")


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in the API; an operator besides Equal and Exists (alpha in 1.37) tolerates nothing."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether a pod with this toleration may go where the taint is."""
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        return self.operator == "Exists" or (
            self.operator in {"", "Equal"} and self.value == taint.value
        )


@dataclass(frozen=True, slots=True)
class NodeView:
    """What is kept of a node.

    Attributes:
        name: of the node.
        labels: all of them.
        taints: those that keep pods away (NoSchedule, NoExecute).
        unschedulable: cordoned.
        ready: its kubelet says so and is heard.
        allocatable: what it gives to pods, by resource: millicores, bytes, pieces.
        devices: how many it has of each extended resource, healthy or not; 0 while the plugin
            that offers them is away.
        kubelet: major and minor version; (0, 0), older than any, where it cannot be read.
        used: what the pods bound to it are charged, by resource.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    allocatable: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    kubelet: tuple[int, int] = (0, 0)
    used: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node affinity term, or one pair of a node selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_field: bool = False

    def holds(self, node: NodeView) -> bool:
        """Whether the node meets it; what the API server would refuse is met by none."""
        if self.of_field and self.key != _NAME_FIELD:
            return False
        found = node.name if self.of_field else node.labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists" | "DoesNotExist":
                return (found is not None) == (self.operator == "Exists")
        return self.operator in {"Gt", "Lt"} and self._compares(found)

    def _compares(self, found: str | None) -> bool:
        texts = (found or "", *self.values)
        if len(self.values) != 1 or not all(_INTEGER.fullmatch(text) for text in texts):
            return False
        left, right = (int(text) for text in texts)
        return left > right if self.operator == "Gt" else left < right

    def __str__(self) -> str:
        values = [*self.values[:_SHOWN_VALUES], *["..."] * (len(self.values) > _SHOWN_VALUES)]
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case "In" | "NotIn":
                word = "in" if self.operator == "In" else "not in"
                return f"{self.key} {word} ({', '.join(values)})"
        return " ".join([self.key, self.operator, *values])


@dataclass(frozen=True, slots=True)
class Demand:
    """What one pod asks of a node.

    Attributes:
        requests: what it is charged, by resource: millicores, bytes, pieces; one of ``pods``.
        selector: all of these must hold.
        terms: and all of one of these; None where the pod has no required node affinity.
        tolerations: the taints that it may ignore.
    """

    requests: Mapping[str, int]
    selector: tuple[Requirement, ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def devices(self) -> Amounts:
        """The extended resources among the requests, as ``nvidia.com/gpu``."""
        return {name: amount for name, amount in self.requests.items() if is_device(name)}


def demand_of(spec: Mapping[str, Any]) -> Demand:
    """What a pod of this spec asks of a node.

    Args:
        spec: a rendered pod spec, or the one of a pod template. Users' scheduling terms come
            unchecked; of what the API server will refuse, only the readable part is judged.
    """
    node_affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = mapping(node_affinity.get(_REQUIRED))
    # A term without expressions matches no node at all.
    terms = tuple(
        term for raw in mappings(required.get("nodeSelectorTerms")) if (term := tuple(_term(raw)))
    )
    return Demand(
        requests=pod_charge(spec),
        selector=tuple(
            Requirement(str(key), "In", (str(value),))
            for key, value in mapping(spec.get("nodeSelector")).items()
        ),
        terms=terms if required else None,
        tolerations=tuple(
            Toleration(
                key=_text(raw, "key"),
                operator=_text(raw, "operator"),
                value=_text(raw, "value"),
                effect=_text(raw, "effect"),
            )
            for raw in mappings(spec.get("tolerations"))
        ),
    )


def node_view(node: Mapping[str, Any]) -> NodeView:
    """What is kept of a Node; nothing is charged to it yet."""
    metadata, spec, status = (mapping(node.get(part)) for part in ("metadata", "spec", "status"))
    allocatable = amounts(status.get("allocatable"), unreadable=0)
    every = {**allocatable, **amounts(status.get("capacity"), unreadable=0)}
    version = _KUBELET.match(_text(mapping(status.get("nodeInfo")), "kubeletVersion"))
    taints = (
        Taint(_text(raw, "key"), _text(raw, "value"), _text(raw, "effect"))
        for raw in mappings(spec.get("taints"))
    )
    return NodeView(
        name=intern(_text(metadata, "name")),
        # Thousands of nodes have the same keys and mostly the same values.
        labels={
            intern(str(key)): intern(str(value))
            for key, value in mapping(metadata.get("labels")).items()
        },
        taints=tuple(taint for taint in taints if taint.effect in _HARD),
        unschedulable=bool(spec.get("unschedulable")),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in mappings(status.get("conditions"))
        ),
        allocatable=allocatable,
        devices={name: amount for name, amount in every.items() if is_device(name)},
        kubelet=(int(version[1]), int(version[2])) if version else (0, 0),
    )


def bar(demand: Demand, node: NodeView) -> Reason | None:
    """What keeps the pod away from the node now, the passing reasons first; None where nothing does."""
    if node.unschedulable and not _tolerated(demand, _CORDON):
        return "is", "cordoned"
    if not node.ready:
        return "is", "not ready"
    for taint in node.taints:
        if not _tolerated(demand, taint):
            return "has", _short(f"the untolerated taint {taint}")
    return _mismatch(demand, node)


def suits(demand: Demand, node: NodeView) -> bool:
    """Whether the node may ever take the pod: as `bar`, without what passes (cordons, failures).

    It must have enough devices, broken ones included, or none while their plugin is away.
    """
    have = ((node.devices.get(name), asked) for name, asked in demand.devices.items())
    return (
        all(had is not None and (had == 0 or had >= asked) for had, asked in have)
        and all(_tolerated(demand, t) for t in node.taints if t.key not in _PASSING)
        and _mismatch(demand, node) is None
    )


def _tolerated(demand: Demand, taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in demand.tolerations)


def _mismatch(demand: Demand, node: NodeView) -> Reason | None:
    for requirement in demand.selector:
        if not requirement.holds(node):
            return _lack([requirement])
    if demand.terms is None:
        return None
    failing = [
        next((requirement for requirement in term if not requirement.holds(node)), None)
        for term in demand.terms
    ]
    return None if None in failing else _lack([f for f in failing if f is not None])


def _lack(failing: list[Requirement]) -> Reason:
    if not failing:
        return "does", "not match an empty node affinity"
    texts = list(dict.fromkeys(str(requirement) for requirement in failing))
    if all(requirement.operator == "In" for requirement in failing):
        return "lacks", _short(" or ".join(texts))
    return "does", _short(f"not match {' or '.join(texts)}")


def _term(raw: Mapping[str, Any]) -> Iterator[Requirement]:
    for part, of_field in (("matchExpressions", False), ("matchFields", True)):
        for each in mappings(raw.get(part)):
            values = each.get("values")
            yield Requirement(
                _text(each, "key"),
                _text(each, "operator"),
                tuple(str(v) for v in values) if isinstance(values, list | tuple) else (),
                of_field,
            )


def _text(raw: Mapping[str, Any], name: str) -> str:
    return str(raw.get(name) or "")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
