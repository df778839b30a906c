"""Who wrote what in a namespace, from the API server's audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.demo.install import OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster_kit import Cluster

OPERATOR = f"system:serviceaccount:{OPERATOR_NAMESPACE}:plimsoll-operator"
HPA = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
KEDA = "system:serviceaccount:keda:keda-operator"
ADMIN = "admin"
_OK = 400
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Write:
    """One write that the API server took."""

    who: str
    verb: str
    what: str
    name: str
    at: str

    def __str__(self) -> str:
        return f"{self.at[11:23]} {self.who.rpartition(':')[2]} {self.verb} {self.what} {self.name}"


def writes(cluster: Cluster, namespace: str) -> list[Write]:
    """Everything that was written in the namespace since it was made, oldest first. Events are left out."""
    found = [
        _write(event)
        for event in cluster.audit_events()
        if event["verb"] in _WRITES
        and event.get("responseStatus", {}).get("code", _OK) < _OK
        and event.get("objectRef", {}).get("namespace") == namespace
        and event["objectRef"]["resource"] != "events"
    ]
    # In a cluster that was kept, another run may have had a namespace of this name.
    made = [at for at, w in enumerate(found) if w.what == "namespaces" and w.verb != "delete"]
    return found[made[-1] :] if made else found


def _write(event: Mapping[str, Any]) -> Write:
    target = event["objectRef"]
    what = "/".join(filter(None, (target["resource"], target.get("subresource"))))
    return Write(
        event["user"]["username"],
        event["verb"],
        what,
        target.get("name", ""),
        event["requestReceivedTimestamp"],
    )


def replicas_owners(deployment: Mapping[str, Any]) -> set[str]:
    """The field managers that own ``spec.replicas``."""
    return {
        entry["manager"]
        for entry in deployment["metadata"]["managedFields"]
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    }
