"""The world as one pass sees it: the resource, its children, and what is in the way.

Filled in by ``observe.py`` (which does the reading) through :func:`observe_from` (which does the
sorting, and is pure). Everything is a plain dict as the API server returned it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.controller.crd import DEFAULT_CLASS_LABELS, InvalidSpec, parse
from plimsoll.controller.objects.labels import SERVER_LABEL, SIZING_LABEL, controller_uid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.placement import Landscape
    from plimsoll.core.drift import PodReading
    from plimsoll.core.errors import PlimsollError


@dataclass(frozen=True, slots=True)
class Observed:
    """One server and everything that belongs to it.

    Attributes:
        raw: the resource as read.
        server: its typed form; None when the spec could not be read, then ``invalid`` says why.
        invalid: why ``server`` is None.
        deployment: the child Deployment, only if it is ours.
        service: the child Service, only if it is ours.
        sizing_pods: sizing pods that are ours, whatever question they answer.
        server_pods: pods of the Deployment, old and new.
        node: the node that a sizing pod ran on, or that ``status.capacity`` was measured on.
        nodes_refused: the operator may not read nodes.
        conflicts: one sentence for each object that has a child's name and is not ours.
        kept: names of what others added to the Deployment and what came back when it was removed.
        landscape: the nodes and what is free on them; None: not needed, or not allowed to be read.
        readings: what the engines of server pods report of themselves.
        replica_sets: the Deployment's, where a template may have to be taken back.
        hints: Events about pods that have no node, by the pod's UID.
        learned: the entries that the namespace's map of learned reserves holds; None: not needed,
            not readable, or switched off.
    """

    raw: Mapping[str, Any]
    server: InferenceServer | None
    invalid: PlimsollError | None = None
    deployment: dict[str, Any] | None = None
    service: dict[str, Any] | None = None
    sizing_pods: tuple[dict[str, Any], ...] = ()
    server_pods: tuple[dict[str, Any], ...] = ()
    node: dict[str, Any] | None = None
    nodes_refused: bool = False
    conflicts: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()
    landscape: Landscape | None = None
    readings: tuple[PodReading, ...] = ()
    replica_sets: tuple[dict[str, Any], ...] = ()
    hints: Mapping[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    learned: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """The resource's name."""
        return str(self.raw["metadata"]["name"])

    @property
    def generation(self) -> int:
        """The generation of the spec that was read."""
        return int(self.raw["metadata"].get("generation", 0))

    @property
    def deleting(self) -> bool:
        """Whether the resource is going away; garbage collection then removes the children."""
        return "deletionTimestamp" in self.raw["metadata"]

    @property
    def status(self) -> Mapping[str, Any]:
        """The status as last written; empty when new."""
        return self.raw.get("status") or {}


def wanted_node(raw: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> str | None:
    """The name of the node that the pass wants to see.

    Args:
        raw: the resource.
        pods: the pods found for it.
    """
    name = raw["metadata"]["name"]
    capacity = (raw.get("status") or {}).get("capacity") or {}
    pinned = _is_pinned(raw, capacity)
    answered = str(capacity.get("requestHash"))[:7] if pinned else None
    for pod in pods:
        metadata = pod["metadata"]
        if metadata.get("labels", {}).get(SIZING_LABEL) == name:
            node = pod.get("spec", {}).get("nodeName")
            if node and (answered is None or not metadata["name"].endswith(answered)):
                return str(node)
    found = capacity.get("node")
    return str(found) if found and not pinned else None


def _is_pinned(raw: Mapping[str, Any], capacity: Mapping[str, Any]) -> bool:
    """Whether the number has found its label: then it stays, whatever happens to the node."""
    accelerator = (raw.get("spec") or {}).get("accelerator") or {}
    keys = accelerator.get("classLabelKeys", DEFAULT_CLASS_LABELS) or ()
    pin = capacity.get("pinnedLabel") or {}
    return capacity.get("source") == "Measured" and pin.get("key") in keys


def observe_from(
    raw: Mapping[str, Any],
    *,
    deployment: dict[str, Any] | None = None,
    service: dict[str, Any] | None = None,
    pods: Iterable[dict[str, Any]] = (),
    node: dict[str, Any] | None = None,
    nodes_refused: bool = False,
) -> Observed:
    """Sort what was read: ours, foreign, sizing, serving.

    Args:
        raw: the resource.
        deployment: the Deployment of the resource's name, whoever owns it.
        service: the Service of the resource's name, whoever owns it.
        pods: pods of the namespace with one of our two labels for this name.
        node: the node named by :func:`wanted_node`.
        nodes_refused: it was not allowed to be read.
    """
    server, invalid = _parse(raw)
    name, uid = raw["metadata"]["name"], raw["metadata"]["uid"]
    conflicts = [
        _conflict(kind, name, found)
        for kind, found in (("Deployment", deployment), ("Service", service))
        if found is not None and controller_uid(found) != uid
    ]
    sizing, serving = [], []
    for pod in sorted(pods, key=lambda p: str(p["metadata"]["name"])):
        labels = pod["metadata"].get("labels", {})
        if labels.get(SIZING_LABEL) == name:
            if controller_uid(pod) == uid:
                sizing.append(pod)
            else:
                conflicts.append(_conflict("Pod", pod["metadata"]["name"], pod))
        elif labels.get(SERVER_LABEL) == name and _of_replica_set(pod, name):
            serving.append(pod)
    return Observed(
        raw=raw,
        server=server,
        invalid=invalid,
        deployment=deployment if deployment and controller_uid(deployment) == uid else None,
        service=service if service and controller_uid(service) == uid else None,
        sizing_pods=tuple(sizing),
        server_pods=tuple(serving),
        node=node,
        nodes_refused=nodes_refused,
        conflicts=tuple(conflicts),
    )


def _parse(raw: Mapping[str, Any]) -> tuple[InferenceServer | None, PlimsollError | None]:
    try:
        return parse(raw), None
    except InvalidSpec as error:
        return None, error


def _of_replica_set(pod: Mapping[str, Any], name: str) -> bool:
    """Whether a ReplicaSet of our Deployment made the pod; anyone may write our label."""
    return any(
        owner.get("controller")
        and owner.get("kind") == "ReplicaSet"
        and str(owner.get("name", "")).startswith(f"{name}-")
        for owner in pod["metadata"].get("ownerReferences") or ()
    )


def _conflict(kind: str, name: str, found: Mapping[str, Any]) -> str:
    owners = found["metadata"].get("ownerReferences") or ()
    owner = next((f"{o['kind']} {o['name']}" for o in owners if o.get("controller")), "nobody")
    return (
        f"{kind} {name} exists and is controlled by {owner}, not by this InferenceServer; "
        "Plimsoll leaves it alone: delete or rename it, or rename the InferenceServer."
    )
