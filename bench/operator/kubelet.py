"""A stand-in for one node's kubelet: writes what a sizer and an engine would, as soon as a pod is bound.

The scheduler is the real one. Statuses go through the API, and logs are asked for through it, as with a real kubelet.
There is no waiting in it: what is measured is the operator's answer. The sizer's report is the one that the unit tests
use (50 GiB for the cache of a 80 GB GPU).
"""

from __future__ import annotations

import http.client
import http.server
import queue
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from tests.cluster_kit.network import API_ADDRESS
from tests.cluster_kit.rest import Rest, RestError
from tests.unit.controller.builders import TOKENS, message, node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NODE: Final = "gpu-node"
THREADS: Final = 4
HEARTBEAT_SECONDS: Final = 8.0
PORT: Final = 10250
LOG: Final = f"{TOKENS} is the profiled max_total_token_num with the mem_fraction 0.8\n".encode()
SIZING_LABEL: Final = "plimsoll.dev/sizing-for"
SERVER_LABEL: Final = "plimsoll.dev/server"
__all__ = ["NODE", "SERVER_LABEL", "SIZING_LABEL", "THREADS", "TOKENS", "Kubelet"]


def beat(rest: Rest) -> None:
    """Create the node where it is not there, and say that it is well, with room for every GPU that is asked for."""
    if rest.get(f"/api/v1/nodes/{NODE}") is None:
        rest.call("POST", "/api/v1/nodes", node(NODE))
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    room = {"nvidia.com/gpu": "100000", "cpu": "100000", "memory": "1000Ti", "pods": "100000"}
    status = {
        "capacity": room,
        "allocatable": room,
        "nodeInfo": {"kubeletVersion": "v1.37.2"},
        "addresses": [{"type": "InternalIP", "address": API_ADDRESS}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Bench", "lastHeartbeatTime": now}
        ],
    }
    rest.merge(f"/api/v1/nodes/{NODE}/status", {"status": status})


def give_volume(rest: Rest, namespace: str) -> None:
    """The claim that the servers name, bound, for the scheduler."""
    meta = {"name": "models", "namespace": namespace}
    volume = {
        "accessModes": ["ReadOnlyMany"],
        "capacity": {"storage": "1Gi"},
        "claimRef": meta,
        "hostPath": {"path": "/models"},
        "storageClassName": "",
    }
    claim = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    kind = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "models"}}
    rest.apply("/api/v1/persistentvolumes/models", {**kind, "spec": volume})
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta}
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/models"
    rest.apply(path, {**kind, "spec": claim})
    end = time.monotonic() + 60
    while rest.get(path)["status"].get("phase") != "Bound" and time.monotonic() < end:
        time.sleep(0.2)


class _Logs(http.server.BaseHTTPRequestHandler):
    """The kubelet's port: every container's log is the one line that tells the engine's pool."""

    def do_GET(self) -> None:
        self.send_response(http.client.OK)
        self.send_header("Content-Length", str(len(LOG)))
        self.end_headers()
        self.wfile.write(LOG)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Kubelet:
    """Watches the pods of a namespace until it is stopped.

    Args:
        rest: the client; threads that start here stand in the cluster's network.
        keys: folder with a certificate for the port that logs are asked at.
        namespace: of the pods.
        reported: is called with a server's name and the moment (`time.monotonic`) before its report is written.
    """

    def __init__(
        self, rest: Rest, keys: Path, namespace: str, reported: Callable[[str, float], None]
    ) -> None:
        self._rest, self._namespace, self._reported = rest, namespace, reported
        self._work: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._bound: set[str] = set()
        self._stopped = threading.Event()
        self.errors: list[str] = []
        give_volume(rest, namespace)
        beat(rest)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "apiserver.crt", keys / "apiserver.key")
        self._logs = http.server.ThreadingHTTPServer((API_ADDRESS, PORT), _Logs)
        self._logs.socket = context.wrap_socket(self._logs.socket, server_side=True)
        for target in (self._watch, self._beat, self._logs.serve_forever):
            threading.Thread(target=target, daemon=True).start()
        for _ in range(THREADS):
            threading.Thread(target=self._serve, daemon=True).start()

    def stop(self) -> None:
        """Do nothing any more."""
        self._stopped.set()
        self._logs.shutdown()
        self._logs.server_close()

    def _beat(self) -> None:
        """The node controller takes a node without a heartbeat, and its pods, for not ready after 40 seconds."""
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            try:
                beat(self._rest)
            except (OSError, http.client.HTTPException, RestError) as error:
                self.errors.append(repr(error))

    def _watch(self) -> None:
        try:
            for event in self._rest.watch(f"/api/v1/namespaces/{self._namespace}/pods", 1800):
                if self._stopped.is_set():
                    return
                pod = event["object"]
                if event["type"] != "DELETED" and pod["spec"].get("nodeName"):
                    self._work.put(pod)
        except (OSError, http.client.HTTPException, RestError, ValueError) as error:
            if not self._stopped.is_set():
                self.errors.append(repr(error))

    def _serve(self) -> None:
        while not self._stopped.is_set():
            pod = self._work.get()
            try:
                self._play(pod)
            except RestError as error:
                if error.code not in {404, 409}:  # it was deleted meanwhile
                    self.errors.append(str(error))
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(repr(error))

    def _play(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{self._namespace}/pods/{metadata['name']}"
        if metadata.get("deletionTimestamp"):
            self._rest.call("DELETE", path, {"gracePeriodSeconds": 0})
            return
        if metadata["uid"] in self._bound:
            return
        self._bound.add(metadata["uid"])
        labels = metadata.get("labels", {})
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        end = {"exitCode": 0, "message": message(pod), "finishedAt": now, "startedAt": now}
        sizer = {
            "name": "sizer", "state": {"terminated": end}, "ready": True, "restartCount": 0,
            "image": "sizer", "imageID": "sizer",
        }  # fmt: skip
        if SIZING_LABEL in labels:
            status = {"phase": "Succeeded", "initContainerStatuses": [sizer]}
            self._reported(labels[SIZING_LABEL], time.monotonic())
        else:
            engine = {
                "name": "server", "state": {"running": {"startedAt": now}}, "ready": True, "started": True,
                "restartCount": 0, "image": "engine", "imageID": "engine",
            }  # fmt: skip
            kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            status = {
                "phase": "Running",
                "initContainerStatuses": [sizer],
                "containerStatuses": [engine],
                "podIP": API_ADDRESS,  # where nothing answers at the engine's port, and says so at once
                "conditions": [
                    {"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds
                ],
            }
        self._rest.merge(f"{path}/status", {"status": status})
