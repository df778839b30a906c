"""Asking engines through the API server's pod proxy: which pods, which pages, several at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from plimsoll.cli.kubectl import ClusterError, Kubectl
from plimsoll.core.drift import INFO, LOG, METRICS, PodReading
from plimsoll.core.engines.readback import ENDPOINTS, Endpoint, Reading, read_endpoint, read_log
from plimsoll.core.engines.readback_usage import USAGE, Usage, read_usage
from plimsoll.core.errors import PlimsollError
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

SERVER_LABEL: Final = "plimsoll.dev/server"
AT_ONCE: Final = 8
LOG_BYTES: Final = 256 << 10
# Refusals that another page, or another pod, would meet too.
_FINAL: Final = frozenset({"KubectlNotFound", "Forbidden", "Unauthorized", "ClusterUnreachable"})


@dataclass(frozen=True, slots=True)
class Target:
    """One pod whose engine can be asked."""

    server: tuple[str, str]
    name: str
    uid: str
    engine: str
    port: int
    ready: bool

    def path(self, page: str) -> str:
        """The page's path at the API server."""
        return f"/api/v1/namespaces/{self.server[0]}/pods/{self.name}:{self.port}/proxy{page}"


def targets(kubectl: Kubectl, servers: Iterable[Mapping[str, Any]]) -> list[Target]:
    """The pods of these servers that are not about to go, by name.

    Raises:
        ClusterError: pods cannot be listed.
    """
    wanted = {(s["metadata"]["namespace"], s["metadata"]["name"]): s for s in servers}
    spaces = {space for space, _ in wanted}
    place = kubectl if kubectl.everywhere or len(spaces) != 1 else kubectl.within(*spaces)
    found = []
    for pod in place.items("pods", f"--selector={SERVER_LABEL}"):
        metadata = pod["metadata"]
        key = (metadata["namespace"], metadata["labels"][SERVER_LABEL])
        server = wanted.get(key)
        port = ((server or {}).get("status") or {}).get("effective", {}).get("port")
        if server is None or not port or "deletionTimestamp" in metadata:
            continue
        engine = server["spec"]["engine"]["type"]
        found.append(Target(key, metadata["name"], metadata["uid"], engine, port, _is_ready(pod)))
    return sorted(found, key=lambda target: (target.server, target.name))


def usages(kubectl: Kubectl, found: Iterable[Target]) -> dict[str, Usage]:
    """How full the engines are, by the pod's UID; only pods that are ready are asked.

    Raises:
        ClusterError: no pod may be asked.
    """
    return _each(found, lambda target: _usage(kubectl, target))


def _each(found: Iterable[Target], ask: Callable[[Target], T]) -> dict[str, T]:
    """Ask the pods that are ready, a few at once; the answers by the pod's UID."""
    ready = [target for target in found if target.ready]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = pool.map(ask, ready)
        return {target.uid: answer for target, answer in zip(ready, told, strict=True)}


def _usage(kubectl: Kubectl, target: Target) -> Usage:
    bodies = {}
    for page in USAGE.get(target.engine, ()):
        body = _body(kubectl, target, page.path)
        if body is not None:
            bodies[page.path] = body
    return read_usage(target.engine, bodies)


def readings(kubectl: Kubectl, found: Iterable[Target]) -> dict[str, PodReading]:
    """What the engines say of the size of their pools, by the pod's UID.

    Raises:
        ClusterError: no pod may be asked.
    """
    return _each(found, lambda target: _reading(kubectl, target))


def _reading(kubectl: Kubectl, target: Target) -> PodReading:
    """The first endpoint that tells anything, else the head of the log: as the operator asks."""
    paths = []
    for endpoint in ENDPOINTS.get(target.engine, ()):
        if not endpoint.evidence:
            continue
        paths.append(endpoint.path)
        body = _body(kubectl, target, endpoint.path)
        told = Reading() if body is None else _read(target.engine, endpoint, body)
        if told.tokens is not None or told.blocks is not None:
            source = METRICS if endpoint.kind == "metrics" else INFO
            return PodReading(target.name, target.uid, told, source)
    told, why = _log(kubectl, target)
    if why is None:
        return PodReading(target.name, target.uid, told, LOG)
    ends = f"{' and '.join(paths)} tell no size; " if paths else ""
    return PodReading(target.name, target.uid, failure=f"{ends}{why}")


def _log(kubectl: Kubectl, target: Target) -> tuple[Reading, str | None]:
    path = f"/api/v1/namespaces/{target.server[0]}/pods/{target.name}/log?container=server"
    try:
        text = kubectl.raw(f"{path}&limitBytes={LOG_BYTES}")
    except PlimsollError as error:
        return Reading(), f"its log cannot be read: {error.message}"
    told = read_log(target.engine, text)
    if told.tokens is None and told.blocks is None and told.pool_bytes is None:
        return told, "the head of its log holds no size of the KV cache"
    return told, None


def _read(engine: str, endpoint: Endpoint, body: str) -> Reading:
    if endpoint.kind == "metrics":
        return read_endpoint(engine, endpoint.path, body)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return Reading()
    return read_endpoint(engine, endpoint.path, document if isinstance(document, dict) else {})


def _body(kubectl: Kubectl, target: Target, page: str) -> str | None:
    """What the engine answers; None where it has no such page."""
    try:
        return kubectl.raw(target.path(page))
    except ClusterError as error:
        if error.reason in _FINAL:
            raise
        return None
    except PlimsollError:
        return None


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
