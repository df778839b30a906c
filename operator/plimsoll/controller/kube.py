"""The real cluster: `Cluster` over the asyncio client with plain dicts.

Only the transport of the client library is used. Its typed models cost 32 MiB and its dynamic
client an HTTP discovery per kind, while the controller touches seven fixed paths.

How one request goes and what its answer means is `transport`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self
from urllib.request import getproxies

from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from plimsoll import __version__
from plimsoll.controller.cluster import (
    API_VERSION,
    DRIFT_MANAGER,
    EVENTS,
    FIELD_MANAGER,
    PODS,
    STATUS_MANAGER,
    Cluster,
    Conflict,
    Listing,
    Object,
    Page,
    Refused,
    Resource,
    Retry,
    resource_of,
)
from plimsoll.controller.transport import (
    ERROR,
    GONE,
    NOT_FOUND,
    REQUEST_SECONDS,
    UNPROCESSABLE,
    Meter,
    Transport,
    outcome_of,
    parse,
    unmetered,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Cluster", "Conflict", "KubeCluster", "Refused", "Retry", "connect", "outcome_of"]

LOG_SECONDS = 5.0
"""A log passes through the kubelet, which may be away; nobody waits for it as for an answer."""

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"


class KubeCluster:
    """One API server over HTTPS. Close it, or use it as an asynchronous context manager."""

    def __init__(
        self,
        client: Any,  # noqa: ANN401  # the client library ships no type information
        meter: Meter = unmetered,
        timeout: float = REQUEST_SECONDS,
    ) -> None:
        self._client = client
        self._api = Transport(client, meter, timeout)
        client.user_agent = f"plimsoll-operator/{__version__}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def served(self) -> bool:
        """See `Cluster.served`."""
        body = await self._api.call("GET", f"/apis/{API_VERSION}", missing_ok=True)
        return body is not None and any(
            r.get("name") == "inferenceservers" for r in body.get("resources", ())
        )

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """See `Cluster.get`."""
        return await self._api.call("GET", resource.path(namespace, name), missing_ok=True)

    async def list(self, resource: Resource, namespace: str | None = None) -> Listing:
        """See `Cluster.list`."""
        query = [("labelSelector", resource.selector)] if resource.selector else []
        body = await self._api.must("GET", resource.path(namespace), query=query)
        return Listing(body.get("items") or [], str(body["metadata"].get("resourceVersion", "")))

    async def page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        fields: str = "",
        limit: int = 500,
        token: str = "",
    ) -> Page:
        """See `Cluster.page`."""
        given = {
            "labelSelector": resource.selector,
            "fieldSelector": fields,
            "limit": str(limit),
            "continue": token,
        }
        query = [(name, value) for name, value in given.items() if value]
        try:
            body = await self._api.must("GET", resource.path(namespace), query=query)
        except Refused as refused:
            if refused.status == GONE:
                raise Retry(refused.message) from refused
            raise
        found = body["metadata"]
        more, version = found.get("continue") or "", found.get("resourceVersion") or ""
        return Page(body.get("items") or [], str(more), str(version))

    async def apply(
        self, obj: Object, manager: str = FIELD_MANAGER, *, force: bool = True
    ) -> Object:
        """See `Cluster.apply`."""
        try:
            return await self._api.must(
                "PATCH",
                _path(obj),
                body=obj,
                content_type=_APPLY,
                query=[("fieldManager", manager), *([("force", "true")] if force else [])],
            )
        except Refused as refused:
            # The answer where another object has the name; where none has it, it is a 409.
            if refused.status == UNPROCESSABLE and "metadata.uid" in refused.message:
                raise Conflict(refused.message) from refused
            raise

    async def create(self, obj: Object) -> Object:
        """See `Cluster.create`."""
        resource = resource_of(obj["apiVersion"], obj["kind"])
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        try:
            return await self._api.must(
                "POST",
                resource.path(namespace),
                body=obj,
                query=[("fieldManager", FIELD_MANAGER)],
            )
        except Conflict as conflict:
            # AlreadyExists, or a quota that was updated under our feet (then there is no object).
            live = await self.get(resource, namespace, name)
            if live is None:
                raise Retry(str(conflict)) from conflict
            return live

    async def replace(self, obj: Object) -> Object | None:
        """See `Cluster.replace`."""
        return await self._api.call("PUT", _path(obj), body=obj, missing_ok=True)

    async def patch(self, obj: Object, ops: Sequence[Mapping[str, Any]]) -> Object | None:
        """See `Cluster.patch`."""
        metadata = obj["metadata"]
        version = metadata["resourceVersion"]
        try:
            return await self._api.call(
                "PATCH",
                _path(obj),
                body=[_version_test(version), *map(dict, ops)],
                content_type=_JSON_PATCH,
                query=[("fieldManager", DRIFT_MANAGER)],
                missing_ok=True,
            )
        except Refused as refused:
            if refused.status != UNPROCESSABLE:
                raise
            # A test that does not hold is answered as an object that is not valid. Versions never
            # come back, so the one that the object has now tells which of the two it was.
            resource = resource_of(obj["apiVersion"], obj["kind"])
            live = await self.get(resource, metadata["namespace"], metadata["name"])
            if live is None:
                return None
            if live["metadata"]["resourceVersion"] != version:
                raise Conflict(refused.message) from refused
            raise

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """See `Cluster.delete`."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._api.call(
                "DELETE", resource.path(namespace, name), body=body, missing_ok=True
            )
        except Conflict:
            return  # another incarnation has taken the name: ours is gone, as asked

    async def patch_status(self, obj: Object) -> Object | None:
        """See `Cluster.patch_status`.

        Server-side apply removes keys that the last status held and this one does not; the
        resourceVersion in the body makes the API refuse a write that was planned on an old view,
        so that a leader that does not yet know it lost its lease cannot undo the next one's work.
        """
        metadata = obj["metadata"]
        body = {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "metadata": {k: metadata[k] for k in ("name", "namespace", "resourceVersion")},
            "status": obj["status"],
        }
        return await self._api.call(
            "PATCH",
            _path(obj, "status"),
            body=body,
            content_type=_APPLY,
            query=[("fieldManager", STATUS_MANAGER), ("force", "true")],
            missing_ok=True,
        )

    async def replace_status(self, obj: Object) -> Object | None:
        """See `Cluster.replace_status`."""
        version = obj["metadata"]["resourceVersion"]
        patch = [
            _version_test(version),
            {"op": "add", "path": "/status", "value": obj["status"]},
        ]
        try:
            return await self._api.call(
                "PATCH",
                _path(obj, "status"),
                body=patch,
                content_type=_JSON_PATCH,
                query=[("fieldManager", STATUS_MANAGER)],
                missing_ok=True,
            )
        except Refused as refused:
            if refused.status != UNPROCESSABLE:
                raise
            # That is how the API answers a test that does not hold.
            raise Conflict(refused.message) from refused

    async def pod_log(
        self,
        namespace: str,
        name: str,
        container: str,
        *,
        limit_bytes: int,
        tail_lines: int | None = None,
    ) -> str | None:
        """See `Cluster.pod_log`."""
        query = [("container", container), ("limitBytes", str(limit_bytes))]
        if tail_lines is not None:
            query.append(("tailLines", str(tail_lines)))
        path = PODS.path(namespace, name, "log")
        status, raw, headers = await self._api.send("GET", path, query=query, timeout=LOG_SECONDS)
        if status < ERROR:
            return raw[:limit_bytes].decode(errors="replace")
        # 400 is the answer while the container has not started.
        if status in {ERROR, NOT_FOUND}:
            return None
        raise outcome_of(status, parse(raw) or {}, headers.get("Retry-After"))

    async def create_event(self, obj: Object) -> bool:
        """See `Cluster.create_event`."""
        try:
            await self._api.must("POST", EVENTS.path(obj["metadata"]["namespace"]), body=obj)
        except Conflict:
            return False
        return True

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """See `Cluster.patch_event`."""
        return await self._api.must(
            "PATCH", EVENTS.path(namespace, name), body=dict(patch), content_type=_MERGE
        )


def _version_test(version: str) -> Object:
    """The first operation of a JSON patch that is meant for one version of its object."""
    return {"op": "test", "path": "/metadata/resourceVersion", "value": version}


def _path(obj: Mapping[str, Any], sub: str = "") -> str:
    metadata = obj["metadata"]
    resource = resource_of(obj["apiVersion"], obj["kind"])
    return resource.path(metadata.get("namespace"), metadata["name"], sub)


async def connect(
    kubeconfig: str | None = None, context: str | None = None, meter: Meter = unmetered
) -> KubeCluster:
    """Connect with the pod's service account, else with a kubeconfig.

    The token file is read again every minute by the client library.

    Args:
        kubeconfig: a file; default: the service account, then ``KUBECONFIG`` or ``~/.kube/config``.
        context: the context of the kubeconfig; default: its current one.
        meter: is told of every request.
    """
    configuration = Configuration()
    if kubeconfig is None:
        try:
            load_incluster_config(client_configuration=configuration)
        except ConfigException:
            await load_kube_config(context=context, client_configuration=configuration)
    else:
        await load_kube_config(
            config_file=kubeconfig, context=context, client_configuration=configuration
        )
    # The library would retry reads up to its own limits; back-off is the work queue's.
    configuration.retries = None
    # With it, each request first asks two threads for a proxy and for a password file.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    return KubeCluster(ApiClient(configuration), meter)
