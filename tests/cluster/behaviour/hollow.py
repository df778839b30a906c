"""A node without a machine: its kubelet is a thread that says of every pod what a healthy one would say.

Fifty servers need fifty GPUs. What is proved on it is what the operator and the cluster's controllers do; nothing runs.
"""

from __future__ import annotations

import http.client
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.cluster.world import wait
from tests.cluster_kit.rest import RestError
from tests.unit.controller.builders import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_kit.rest import Rest

NAME = "hollow"
TAINT = {"key": "example.com/hollow", "value": "true", "effect": "NoSchedule"}
TOLERATION = {**TAINT, "operator": "Equal"}
SECONDS = 600
HEARTBEAT_SECONDS = 10


@contextmanager
def hollow_node(rest: Rest, gpus: int) -> Iterator[None]:
    """A ready node with so many GPUs, and nothing behind it."""
    path = f"/api/v1/nodes/{NAME}"
    labels = {"kubernetes.io/hostname": NAME, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"taints": [TAINT]},
    }
    rest.apply(path, node)
    rest.merge(f"{path}/status", {"status": _node_status(gpus)})
    # A new Node is tainted until the node controller has seen that it is ready.
    stop = threading.Event()
    kubelet = threading.Thread(target=_kubelet, args=(rest, stop), daemon=True)
    heart = threading.Thread(target=_beat, args=(rest, stop, f"{path}/status", gpus), daemon=True)
    kubelet.start()
    heart.start()
    try:
        yield
    finally:
        # Without its kubelet a pod that was asked to go would stay until the garbage collector finds it.
        wait(
            lambda: not _pods(rest), 60, "the pods of the hollow node are gone", lambda: _pods(rest)
        )
        stop.set()
        heart.join()
        rest.call("DELETE", path)


def _beat(rest: Rest, stop: threading.Event, path: str, gpus: int) -> None:
    """Say that the node is ready: after 50 s without a word its pods would be no longer."""
    while not stop.wait(HEARTBEAT_SECONDS):
        rest.merge(path, {"status": _node_status(gpus)})


def _pods(rest: Rest) -> list[str]:
    items = rest.items("/api/v1/pods", fieldSelector=f"spec.nodeName={NAME}")
    return [item["metadata"]["name"] for item in items]


def _node_status(gpus: int) -> dict[str, Any]:
    offered = {"cpu": "64", "memory": "256Gi", "pods": "250", "nvidia.com/gpu": str(gpus)}
    return {
        "capacity": offered,
        "allocatable": offered,
        "nodeInfo": {"kubeletVersion": "v1.37.2"},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "",
                "lastHeartbeatTime": _now(),
                "lastTransitionTime": _now(),
            }
        ],
    }


def _kubelet(rest: Rest, stop: threading.Event) -> None:
    answered: set[str] = set()
    try:
        for event in rest.watch(
            "/api/v1/pods", seconds=SECONDS, fieldSelector=f"spec.nodeName={NAME}"
        ):
            if stop.is_set():
                return
            if event["type"] in {"ADDED", "MODIFIED"}:
                _answer(rest, event["object"], answered)
    except (OSError, http.client.HTTPException):
        if not stop.is_set():
            raise


def _answer(rest: Rest, pod: dict[str, Any], answered: set[str]) -> None:
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    try:
        if "deletionTimestamp" in meta:
            rest.call("DELETE", f"{path}?gracePeriodSeconds=0")
        elif meta["uid"] not in answered:
            answered.add(meta["uid"])
            rest.merge(f"{path}/status", {"status": _pod_status(pod)})
    except RestError as error:
        if error.code not in {http.client.NOT_FOUND, http.client.CONFLICT}:
            raise


def _pod_status(pod: dict[str, Any]) -> dict[str, Any]:
    """The sizer has found its number; a server runs and is ready, a sizing pod has ended."""
    serves = "plimsoll.dev/server" in pod["metadata"].get("labels", {})
    (container,) = pod["spec"]["containers"]
    now = _now()
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    runs = {"running": {"startedAt": now}} if serves else {"terminated": ended}
    image = {"image": "none", "imageID": "none", "restartCount": 0}
    sized = {
        "name": "sizer",
        "ready": True,
        "state": {"terminated": {**ended, "message": message(pod)}},
    }
    return {
        "phase": "Running" if serves else "Succeeded",
        "startTime": now,
        "conditions": [
            {"type": kind, "status": "True" if serves else "False", "lastTransitionTime": now}
            for kind in ("Ready", "ContainersReady")
        ],
        "initContainerStatuses": [sized | image],
        "containerStatuses": [{"name": container["name"], "ready": serves, "state": runs} | image],
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
