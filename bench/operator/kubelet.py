"""A stand-in for scheduler and kubelet: binds pods to one node and writes what a sizer and an engine would.

The pods' statuses go through the API like a real kubelet's. There is no waiting in it: what is measured is the
operator's answer. The sizer's report is the one that the unit tests use (50 GiB for the cache of a 80 GB GPU).
"""

from __future__ import annotations

import http.client
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from tests.cluster_kit.rest import Rest, RestError
from tests.unit.controller.builders import TOKENS, message, node

if TYPE_CHECKING:
    from collections.abc import Callable

NODE: Final = "gpu-node"
THREADS: Final = 4
HEARTBEAT_SECONDS: Final = 8.0
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
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Bench", "lastHeartbeatTime": now}
        ],
    }
    rest.merge(f"/api/v1/nodes/{NODE}/status", {"status": status})


class Kubelet:
    """Watches the pods of a namespace until it is stopped.

    Args:
        rest: the client; threads that start here stand in the cluster's network.
        namespace: of the pods.
        reported: is called with a server's name and the moment (`time.monotonic`) before its report is written.
    """

    def __init__(self, rest: Rest, namespace: str, reported: Callable[[str, float], None]) -> None:
        self._rest, self._namespace, self._reported = rest, namespace, reported
        self._work: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._bound: set[str] = set()
        self._stopped = threading.Event()
        self.errors: list[str] = []
        beat(rest)
        for target in (self._watch, self._beat):
            threading.Thread(target=target, daemon=True).start()
        for _ in range(THREADS):
            threading.Thread(target=self._serve, daemon=True).start()

    def stop(self) -> None:
        """Do nothing any more."""
        self._stopped.set()

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
                leaving = "deletionTimestamp" in pod["metadata"]
                if event["type"] == "ADDED" or (leaving and event["type"] == "MODIFIED"):
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
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"metadata": {"name": metadata["name"]}, "target": target}
        if not pod["spec"].get("nodeName"):
            self._rest.call("POST", f"{path}/binding", binding)
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
                "podIP": "10.96.0.9",
                "conditions": [
                    {"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds
                ],
            }
        self._rest.merge(f"{path}/status", {"status": status})
