"""A server of the API group external.metrics.k8s.io whose numbers a test sets, behind the real API server.

The autoscaler asks the API server, which passes the request on with its front-proxy certificate, as it does to KEDA's
adapter or prometheus-adapter. Without that certificate nobody gets past the handshake.
"""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.cluster.world import wait
from tests.cluster_kit import network, pki

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster_kit import Cluster
    from tests.cluster_kit.rest import Rest

GROUP = "external.metrics.k8s.io"
VERSION = "v1beta1"
NAMESPACE = "kube-system"


class MetricsApi(ThreadingHTTPServer):
    """Serves what ``values`` says.

    Attributes:
        values: (namespace, metric) -> its number; a metric that is not there is answered with 404.
        asked: metrics that were asked for.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.values: dict[tuple[str, str], int] = {}
        self.asked: set[tuple[str, str]] = set()


class _Handler(BaseHTTPRequestHandler):
    server: MetricsApi

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        if path == ["apis", GROUP, VERSION]:
            self._answer(HTTPStatus.OK, _document("APIResourceList", "v1", resources=[]))
            return
        match path:
            case ["apis", str(group), str(version), "namespaces", str(space), str(metric)] if (
                group,
                version,
            ) == (GROUP, VERSION):
                self._metric((space, metric))
            case _:
                self._answer(HTTPStatus.NOT_FOUND, _document("Status", "v1", code=404))

    def _metric(self, key: tuple[str, str]) -> None:
        self.server.asked.add(key)
        value = self.server.values.get(key)
        if value is None:
            self._answer(HTTPStatus.NOT_FOUND, _document("Status", "v1", code=404))
            return
        item = {
            "metricName": key[1],
            "metricLabels": {},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "value": str(value),
        }
        found = _document("ExternalMetricValueList", f"{GROUP}/{VERSION}", items=[item])
        self._answer(HTTPStatus.OK, found)

    def _answer(self, code: HTTPStatus, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


def _document(kind: str, version: str, **fields: Any) -> dict[str, Any]:
    extra = {"groupVersion": f"{GROUP}/{VERSION}"} if kind == "APIResourceList" else {}
    return {"kind": kind, "apiVersion": version, "metadata": {}, **extra, **fields}


def certificate(cluster: Cluster, name: str) -> None:
    """Issue ``NAME.crt`` and ``NAME.key`` in the cluster's pki for a server behind Service ``NAME``."""
    names = (f"DNS:{name}.{NAMESPACE}.svc", "DNS:localhost", "IP:127.0.0.1")
    pki.issue(cluster.state / "pki", name, f"/CN={name}", names)


@contextmanager
def serving(cluster: Cluster, rest: Rest) -> Iterator[MetricsApi]:
    """Serve the group from this process, which stands in the cluster's network."""
    name = "test-metrics"
    certificate(cluster, name)
    keys = cluster.state / "pki"
    server = MetricsApi((network.API_ADDRESS, 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / f"{name}.crt", keys / f"{name}.key")
    context.load_verify_locations(keys / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with registered(cluster, rest, name, server.server_port):
            yield server
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def registered(cluster: Cluster, rest: Rest, name: str, port: int) -> Iterator[None]:
    """Let the API server pass the group on to this port of its own machine, until the block ends."""
    core = f"/api/v1/namespaces/{NAMESPACE}"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{name}"
    api = f"/apis/apiregistration.k8s.io/v1/apiservices/{VERSION}.{GROUP}"
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    rest.apply(
        f"{core}/services/{name}",
        {
            **_meta("v1", "Service", name),
            "spec": {"ports": [{**ports[0], "port": 443, "targetPort": port}]},
        },
    )
    rest.apply(
        slices,
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [network.API_ADDRESS]}],
            "ports": ports,
        },
    )
    authority = (cluster.state / "pki" / "ca.crt").read_bytes()
    rest.apply(
        api,
        {
            **_meta("apiregistration.k8s.io/v1", "APIService", f"{VERSION}.{GROUP}"),
            "spec": {
                "group": GROUP,
                "version": VERSION,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": {"namespace": NAMESPACE, "name": name, "port": 443},
                "caBundle": b64encode(authority).decode(),
            },
        },
    )
    try:
        wait(lambda: _available(rest.get(api)), 30, f"{GROUP} available", lambda: rest.get(api))
        yield
    finally:
        for path in (api, slices, f"{core}/services/{name}"):
            rest.call("DELETE", path)


def _available(api: Mapping[str, Any]) -> bool:
    found = (api.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Available" and c["status"] == "True" for c in found)


def _meta(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
