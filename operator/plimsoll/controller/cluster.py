"""What the controller may ask of a cluster: the protocol, its resources, its outcomes.

This module imports no client library, so that decisions, tests and the in-process fake can name
the outcomes without loading one. `kube.KubeCluster` is the real thing.

Every call ends in one of four ways, and no caller ever sees an HTTP code as control flow:

* a value (``None`` where the object does not exist),
* ``Retry``: nothing was decided; come back later,
* ``Conflict``: a ``Retry`` whose cause is a stale view, so refresh before coming back,
* ``Refused``: the cluster understood and said no; the sentence belongs in a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Object = dict[str, Any]
"""A Kubernetes object as plain JSON."""

GROUP = "plimsoll.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceServer"

FIELD_MANAGER = "plimsoll"
STATUS_MANAGER = "plimsoll-status"
DRIFT_MANAGER = "plimsoll-drift"
"""Signs what takes foreign fields out of a child. Were it signed as the apply, the patch would be
a second entry of that name among the managed fields, which a later apply leaves alone."""

MANAGED_SELECTOR = "app.kubernetes.io/managed-by=plimsoll"
"""Children carry it, so that one cluster-wide watch does not stream every pod there is."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind and where it lives in the API."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    selector: str = ""

    @property
    def group(self) -> str:
        """The API group, "" for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The API version without its group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, sub: str = "") -> str:
        """The URL path of the collection, one object, or a subresource of it."""
        parts = ["/apis", self.group] if self.group else ["/api"]
        parts.append(self.version)
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, sub) if part]
        return "/".join(parts)


SERVERS = Resource(API_VERSION, KIND, "inferenceservers")
DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments", selector=MANAGED_SELECTOR)
SERVICES = Resource("v1", "Service", "services", selector=MANAGED_SELECTOR)
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets", selector=MANAGED_SELECTOR)
PODS = Resource("v1", "Pod", "pods", selector=MANAGED_SELECTOR)
ALL_PODS = Resource("v1", "Pod", "pods")
"""Everybody's pods: only paged, for what they hold of the nodes; never streamed."""
NODES = Resource("v1", "Node", "nodes", namespaced=False)
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
"""Only the one of a fixed name that Plimsoll keeps itself; others may not be read."""
EVENTS = Resource("v1", "Event", "events")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")

WATCHED = (SERVERS, DEPLOYMENTS, SERVICES, PODS)
"""The kinds that are streamed into the store; everything else is read live."""

RESOURCES: Mapping[tuple[str, str], Resource] = {
    (r.api_version, r.kind): r for r in (*WATCHED, REPLICA_SETS, NODES, CONFIG_MAPS, EVENTS, LEASES)
}


def resource_of(api_version: str, kind: str) -> Resource:
    """The resource of an object's ``apiVersion`` and ``kind``.

    Raises:
        LookupError: the controller has no business with that kind.
    """
    try:
        return RESOURCES[api_version, kind]
    except KeyError:
        raise LookupError(
            f"{api_version} {kind}: not a kind this operator reads or writes"
        ) from None


class Retry(Exception):  # noqa: N818  # "come back later" is an outcome, not an error
    """Nothing was decided; try again.

    Attributes:
        after: seconds the server asked to wait, 0 when it did not say.
    """

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


class Conflict(Retry):
    """A precondition (resourceVersion or UID) did not hold: our view of the object is stale."""


class Refused(Exception):  # noqa: N818  # as Retry: data for the planner
    """The cluster refused the request for good, until something else changes.

    Attributes:
        status: the HTTP code (400, 403, 405, 413, 422).
        reason: the machine word of the API, as ``Forbidden`` or ``Invalid``.
        message: the API's sentence, unshortened.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent LIST: its objects and the version of the collection."""

    items: Sequence[Object]
    version: str


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a LIST.

    Attributes:
        items: its objects.
        more: the token of the next part; "" where this is the last.
        version: of the collection, the same for all parts.
    """

    items: Sequence[Object]
    more: str
    version: str = ""


class Cluster(Protocol):
    """The API server as the controller sees it. All methods may raise Retry and Refused."""

    async def served(self) -> bool:
        """Whether the API serves our kind; False where the CRD is not installed."""
        ...

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """One object, or None where it does not exist."""
        ...

    async def list(self, resource: Resource, namespace: str | None = None) -> Listing:
        """All objects that match the resource's own selector."""
        ...

    async def page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        fields: str = "",
        limit: int = 500,
        token: str = "",
    ) -> Page:
        """A part of the objects that match the resource's own selector.

        Args:
            resource: what to list.
            namespace: of the objects; default: all namespaces.
            fields: a field selector, evaluated by the API server.
            limit: the most objects of one part.
            token: of the part before; "" for the first.

        Raises:
            Retry: also where the list has expired since its first part: begin again.
        """
        ...

    async def apply(
        self, obj: Object, manager: str = FIELD_MANAGER, *, force: bool = True
    ) -> Object:
        """Server-side apply; returns the live object.

        Args:
            obj: what the manager wants; what it wanted before and does not now is removed.
            manager: who applies.
            force: whether fields that others have are taken over.

        Raises:
            Conflict: ``metadata.uid`` is given and is not that of the object of this name; or,
                without force, somebody else has one of the fields with another value.
        """
        ...

    async def create(self, obj: Object) -> Object:
        """Create; an object of that name that already exists is success and is returned."""
        ...

    async def replace(self, obj: Object) -> Object | None:
        """PUT with the object's own resourceVersion as compare-and-swap; None where it is gone."""
        ...

    async def patch(self, obj: Object, ops: Sequence[Mapping[str, Any]]) -> Object | None:
        """Apply a JSON patch to exactly that version of the object.

        Args:
            obj: says which object; its ``metadata.resourceVersion`` must still hold.
            ops: operations by RFC 6902, without the test of the version.

        Returns:
            The live object, or None where it is gone.

        Raises:
            Conflict: the object has changed since it was read.
        """
        ...

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Delete exactly that incarnation; one that is gone or was replaced is success."""
        ...

    async def patch_status(self, obj: Object) -> Object | None:
        """Write the whole status; the object's resourceVersion must still hold.

        Returns the live object, or None where it is gone.

        Raises:
            Conflict: the object has changed since it was read.
        """
        ...

    async def replace_status(self, obj: Object) -> Object | None:
        """Make the status exactly this one, whoever owns what is there; as `patch_status`."""
        ...

    async def pod_log(
        self,
        namespace: str,
        name: str,
        container: str,
        *,
        limit_bytes: int,
        tail_lines: int | None = None,
    ) -> str | None:
        """The log of a container's current run, or None where there is no such pod or log yet.

        Args:
            namespace: of the pod.
            name: of the pod.
            container: of the pod.
            limit_bytes: where the text is cut.
            tail_lines: only the last lines; default: from the start of what the node still keeps.
        """
        ...

    async def create_event(self, obj: Object) -> bool:
        """Create an Event; False where one of that name exists (events may not be read)."""
        ...

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """Merge a repeated occurrence into an Event; returns the live one."""
        ...
