"""The real cluster: `Cluster` over the asyncio client with plain dicts.

Only the transport of the client library is used. Its typed models cost 32 MiB and its dynamic
client an HTTP discovery per kind, while the controller touches seven fixed paths.

This is the one place where HTTP codes become outcomes (`outcome_of`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import aiohttp
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Cluster", "Conflict", "KubeCluster", "Refused", "Retry", "connect", "outcome_of"]

REQUEST_SECONDS = 30.0
LOG_SECONDS = 5.0
"""A log passes through the kubelet, which may be away; nobody waits for it as for an answer."""

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_JSON_PATCH = "application/json-patch+json"

# Codes that say nothing about the request itself: the same one may succeed later. 401 is among
# them because the projected token rotates and the file is read again.
_LATER = frozenset({401, 408, 425, 429})
_NOT_FOUND = 404
_GONE = 410
_UNPROCESSABLE = 422
_CONFLICT = 409
_ERROR = 400
_SERVER_ERROR = 500


def outcome_of(status: int, body: Mapping[str, Any], retry_after: str | None = None) -> Exception:
    """The outcome that an error response means.

    Args:
        status: the HTTP code, 400 or more.
        body: the API's Status object, {} where the body was none.
        retry_after: the header, whole seconds.
    """
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or f"HTTP {status} without a message")
    if status == _CONFLICT:
        return Conflict(f"{status} {reason}: {message}")
    if status in _LATER or status >= _SERVER_ERROR:
        asked = retry_after or str((body.get("details") or {}).get("retryAfterSeconds") or "")
        after = float(asked) if asked.isdecimal() else 0.0
        return Retry(f"{status} {reason}: {message}", after)
    return Refused(status, reason or "Unknown", message)


class KubeCluster:
    """One API server over HTTPS. Close it, or use it as an asynchronous context manager."""

    def __init__(self, client: Any, timeout: float = REQUEST_SECONDS) -> None:  # noqa: ANN401  # the client library ships no type information
        self._client = client
        self._timeout = timeout
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
        body = await self._call("GET", f"/apis/{API_VERSION}", missing_ok=True)
        return body is not None and any(
            r.get("name") == "inferenceservers" for r in body.get("resources", ())
        )

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """See `Cluster.get`."""
        return await self._call("GET", resource.path(namespace, name), missing_ok=True)

    async def list(self, resource: Resource, namespace: str | None = None) -> Listing:
        """See `Cluster.list`."""
        query = [("labelSelector", resource.selector)] if resource.selector else []
        body = await self._must("GET", resource.path(namespace), query=query)
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
            body = await self._must("GET", resource.path(namespace), query=query)
        except Refused as refused:
            if refused.status == _GONE:
                raise Retry(refused.message) from refused
            raise
        return Page(body.get("items") or [], str(body["metadata"].get("continue") or ""))

    async def apply(self, obj: Object, manager: str = FIELD_MANAGER) -> Object:
        """See `Cluster.apply`."""
        try:
            return await self._must(
                "PATCH",
                _path(obj),
                body=obj,
                content_type=_APPLY,
                query=[("fieldManager", manager), ("force", "true")],
            )
        except Refused as refused:
            # The answer where another object has the name; where none has it, it is a 409.
            if refused.status == _UNPROCESSABLE and "metadata.uid" in refused.message:
                raise Conflict(refused.message) from refused
            raise

    async def create(self, obj: Object) -> Object:
        """See `Cluster.create`."""
        resource = resource_of(obj["apiVersion"], obj["kind"])
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        try:
            return await self._must(
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
        return await self._call("PUT", _path(obj), body=obj, missing_ok=True)

    async def patch(self, obj: Object, ops: Sequence[Mapping[str, Any]]) -> Object | None:
        """See `Cluster.patch`."""
        metadata = obj["metadata"]
        version = metadata["resourceVersion"]
        try:
            return await self._call(
                "PATCH",
                _path(obj),
                body=[_version_test(version), *map(dict, ops)],
                content_type=_JSON_PATCH,
                query=[("fieldManager", DRIFT_MANAGER)],
                missing_ok=True,
            )
        except Refused as refused:
            if refused.status != _UNPROCESSABLE:
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
            await self._call("DELETE", resource.path(namespace, name), body=body, missing_ok=True)
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
        return await self._call(
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
            return await self._call(
                "PATCH",
                _path(obj, "status"),
                body=patch,
                content_type=_JSON_PATCH,
                query=[("fieldManager", STATUS_MANAGER)],
                missing_ok=True,
            )
        except Refused as refused:
            if refused.status != _UNPROCESSABLE:
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
        status, raw, headers = await self._send("GET", path, query=query, timeout=LOG_SECONDS)
        if status < _ERROR:
            return raw[:limit_bytes].decode(errors="replace")
        # 400 is the answer while the container has not started.
        if status in {_ERROR, _NOT_FOUND}:
            return None
        raise outcome_of(status, _parse(raw) or {}, headers.get("Retry-After"))

    async def create_event(self, obj: Object) -> bool:
        """See `Cluster.create_event`."""
        try:
            await self._must("POST", EVENTS.path(obj["metadata"]["namespace"]), body=obj)
        except Conflict:
            return False
        return True

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """See `Cluster.patch_event`."""
        return await self._must(
            "PATCH", EVENTS.path(namespace, name), body=dict(patch), content_type=_MERGE
        )

    async def _must(self, method: str, path: str, **kwargs: Any) -> Object:  # noqa: ANN401  # passed on to _call
        body = await self._call(method, path, **kwargs)
        if body is None:
            raise Retry(f"{method} {path}: the answer was empty")
        return body

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Object | Sequence[Object] | None = None,
        content_type: str = _JSON,
        missing_ok: bool = False,
    ) -> Object | None:
        """Send one request; None for a 404 where ``missing_ok``."""
        status, raw, headers = await self._send(
            method, path, query=query, body=body, content_type=content_type
        )
        parsed = _parse(raw)
        if status < _ERROR:
            if parsed is None:
                raise Retry(f"{method} {path}: HTTP {status} with a broken body")
            return parsed
        if status == _NOT_FOUND and missing_ok:
            return None
        raise outcome_of(status, parsed or {}, headers.get("Retry-After"))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Object | Sequence[Object] | None = None,
        content_type: str = _JSON,
        timeout: float | None = None,  # noqa: ASYNC109  # handed on to the client
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Send one request; its code, body and headers.

        Raises:
            Retry: no answer came.
        """
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list(query),
                header_params={"Accept": _JSON, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(
                *request, _request_timeout=timeout or self._timeout
            )
            raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Retry(f"{method} {path}: {type(error).__name__}: {error}") from error
        return response.status, raw, response.headers


def _version_test(version: str) -> Object:
    """The first operation of a JSON patch that is meant for one version of its object."""
    return {"op": "test", "path": "/metadata/resourceVersion", "value": version}


def _parse(raw: bytes) -> Object | None:
    try:
        parsed = json.loads(raw)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _path(obj: Mapping[str, Any], sub: str = "") -> str:
    metadata = obj["metadata"]
    resource = resource_of(obj["apiVersion"], obj["kind"])
    return resource.path(metadata.get("namespace"), metadata["name"], sub)


async def connect(kubeconfig: str | None = None, context: str | None = None) -> KubeCluster:
    """Connect with the pod's service account, else with a kubeconfig.

    The token file is read again every minute by the client library.

    Args:
        kubeconfig: a file; default: the service account, then ``KUBECONFIG`` or ``~/.kube/config``.
        context: the context of the kubeconfig; default: its current one.
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
    return KubeCluster(ApiClient(configuration))
