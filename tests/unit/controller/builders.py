"""Objects for controller tests: resources, children, nodes and pods in the states they get into."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from plimsoll.controller.crd import parse
from plimsoll.controller.objects import BuildContext
from plimsoll.controller.objects.names import SERVER, SIZER
from plimsoll.controller.status import timestamp
from plimsoll.core.report import Budget, DeviceClass, Failure, Report, encode
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import InferenceServer

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
CONTEXT = BuildContext("ghcr.io/plimsoll-dev/sizer:0.1.0", "IfNotPresent")
UID = "uid-of-llama"
NAMESPACE = "team"
PRODUCT = "NVIDIA-H100-80GB-HBM3"
GPU_LABEL = "nvidia.com/gpu.product"

LIGHTLLM = {"type": "LightLLM", "image": "ghcr.io/modeltc/lightllm:v1.2.0"}
LLAMACPP = {
    "type": "LlamaCpp",
    "image": "localhost/plimsoll-demo-llamacpp:0.1.0",
    "version": "2026.10+cpu",
}


def body(
    name: str = "llama", *, generation: int = 1, status: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """An InferenceServer as the API server hands it out; keyword arguments are parts of the spec."""
    wanted = {
        "model": {
            "source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "llama-8b"}}
        },
        "engine": dict(LIGHTLLM),
        **spec,
    }
    found: dict[str, Any] = {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": UID, "generation": generation},
        "spec": wanted,
    }
    if status is not None:
        found["status"] = status
    return found


def server(name: str = "llama", **spec: Any) -> InferenceServer:
    """The typed form of `body`."""
    return parse(body(name, **spec))


def node(name: str = "node-a", **labels: str) -> dict[str, Any]:
    """A node with GPU feature discovery's label; `product=""` leaves it out."""
    found = {"kubernetes.io/hostname": name, GPU_LABEL: labels.pop("product", PRODUCT), **labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {k: v for k, v in found.items() if v}},
    }


DEVICE = DeviceClass(PRODUCT, 80 * GIB, None, None, 1)
# 79 GiB free, 15 GiB of weights, 10 GiB of reserve, 4 GiB of safety: 50 GiB for the cache.
BUDGET = Budget(
    device_total=80 * GIB,
    device_free=79 * GIB,
    free_after_init=79 * GIB,
    weights=15 * GIB,
    reserve={"activation": 8 * GIB, "fragmentation": 2 * GIB},
    safety=4 * GIB,
    kv=50 * GIB,
)
TOKENS = 50 * GIB // (128 * 1024)

REPORT = Report(
    pod_uid="",
    request_hash="",
    model_digest="sha256:" + "ab" * 32,
    device_class=DEVICE,
    driver="580.159.04",
    devices=("GPU-1",),
    rank=0,
    budget=BUDGET,
    kv_bytes_per_rank=128 * 1024,
    fixed_pools=0,
    granule=1,
    max_total_token_num=TOKENS,
    token_meaning="AllLayersFull",
    max_sequences=256,
    context_length=131072,
    prefill_tokens=8192,
    confidence="estimated",
    model_file=None,
)

FAILURE = Failure(
    pod_uid="",
    request_hash="",
    model_digest=None,
    device_class=None,
    driver=None,
    devices=(),
    rank=0,
    reason="NVMLUnavailable",
    message="NVML says: driver not loaded",
    field=None,
    file=None,
)


def message(pod: dict[str, Any], outcome: Report | Failure = REPORT) -> str:
    """The termination message as this very pod's sizer would write it."""
    return encode(
        replace(
            outcome,
            pod_uid=pod["metadata"]["uid"],
            request_hash=asked(pod, "PLIMSOLL_REQUEST_HASH"),
        )
    )


def asked(pod: dict[str, Any], name: str) -> str:
    """A variable of the pod's sizer."""
    (sizer,) = (c for c in pod["spec"]["initContainers"] if c["name"] == SIZER)
    (value,) = (e["value"] for e in sizer["env"] if e["name"] == name)
    return str(value)


def born(pod: dict[str, Any], uid: str = "uid-of-pod", *, at: datetime = NOW) -> dict[str, Any]:
    """The pod as stored: with a UID, the time of its creation and no status worth reading."""
    found = copy.deepcopy(pod)
    found["metadata"] |= {"uid": uid, "creationTimestamp": timestamp(at)}
    found["status"] = {"phase": "Pending"}
    return found


def unschedulable(pod: dict[str, Any], text: str, reason: str = "Unschedulable") -> dict[str, Any]:
    """The scheduler found no node."""
    return _with(pod, conditions=[_condition("PodScheduled", "False", reason=reason, message=text)])


def scheduled(pod: dict[str, Any], node_name: str = "node-a", **status: Any) -> dict[str, Any]:
    """Bound to a node; further keyword arguments go into the status."""
    found = _with(pod, startTime="2026-12-01T12:00:00Z", **status)
    found["spec"]["nodeName"] = node_name
    conditions = found["status"].setdefault("conditions", [])
    conditions.append(_condition("PodScheduled", "True"))
    return found


def sizer_state(pod: dict[str, Any], **state: Any) -> dict[str, Any]:
    """The sizer's container state: `waiting=`, `running=` or `terminated=`."""
    return _with(pod, initContainerStatuses=[{"name": SIZER, "state": state}])


def ended(
    pod: dict[str, Any], outcome: Report | Failure | str = REPORT, code: int = 0, **more: Any
) -> dict[str, Any]:
    """The sizer has ended; a text stands for itself as the termination message."""
    text = outcome if isinstance(outcome, str) else message(pod, outcome)
    state = {"exitCode": code, "message": text, "finishedAt": "2026-12-01T12:00:05Z", **more}
    found = sizer_state(scheduled(pod), terminated=state)
    found["status"]["phase"] = "Failed" if code else "Succeeded"
    return found


def rejected(pod: dict[str, Any], reason: str, text: str) -> dict[str, Any]:
    """The kubelet would not have the pod."""
    return scheduled(pod, phase="Failed", reason=reason, message=text)


def deleting(obj: dict[str, Any]) -> dict[str, Any]:
    """Somebody asked for its deletion."""
    found = copy.deepcopy(obj)
    found["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    return found


def server_pod(
    deployment: dict[str, Any], number: int = 0, *, ready: bool = True, node_name: str = "node-a"
) -> dict[str, Any]:
    """A pod of the Deployment's template, with the guard's own result in it."""
    template = copy.deepcopy(deployment["spec"]["template"])
    name = deployment["metadata"]["name"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": f"{name}-7d9f-{number}",
            "namespace": NAMESPACE,
            "uid": f"uid-of-server-pod-{number}",
            "creationTimestamp": timestamp(NOW - timedelta(minutes=5)),
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-7d9f",
                 "uid": "uid-of-rs", "controller": True}
            ],
        },
        "spec": {**template["spec"], "nodeName": node_name},
    }  # fmt: skip
    pod["status"] = {
        "phase": "Running",
        "conditions": [
            _condition("PodScheduled", "True"),
            _condition("Ready", "True" if ready else "False"),
        ],
        "initContainerStatuses": [
            {"name": SIZER, "state": {"terminated": {"exitCode": 0, "message": message(pod)}}}
        ],
        "containerStatuses": [{"name": SERVER, "state": {"running": {}}, "restartCount": 0}],
    }
    return pod


def crashed(pod: dict[str, Any], code: int, reason: str, text: str = "") -> dict[str, Any]:
    """The engine ended and waits to be restarted."""
    end = {
        "exitCode": code,
        "reason": reason,
        "message": text,
        "finishedAt": "2026-12-01T12:01:00Z",
    }
    status = {
        "name": SERVER,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": end},
        "restartCount": 2,
    }
    conditions = [_condition("PodScheduled", "True"), _condition("Ready", "False")]
    return _with(pod, containerStatuses=[status], conditions=conditions)


def stored(obj: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A child as the API server keeps it: identity, defaults and what others add."""
    found = copy.deepcopy(obj)
    found["metadata"] |= {"uid": f"uid-of-{obj['kind']}", "resourceVersion": "7", **metadata}
    if obj["kind"] == "Deployment":
        found["metadata"].setdefault("generation", 1)
        found["spec"]["revisionHistoryLimit"] = 10
        pod = found["spec"]["template"]["spec"]
        pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
        found["spec"]["template"]["metadata"]["annotations"][
            "kubectl.kubernetes.io/restartedAt"
        ] = "x"
        for container in [*pod["initContainers"], *pod["containers"]]:
            container["terminationMessagePath"] = "/dev/termination-log"
            container.setdefault("terminationMessagePolicy", "File")
            if not container.get("env"):
                container.pop("env", None)
            if not container.get("command"):
                container.pop("command", None)
        replicas = obj["spec"]["replicas"]
        found["status"] = {
            "observedGeneration": found["metadata"]["generation"],
            "replicas": replicas,
            "updatedReplicas": replicas,
        }
    else:
        found["spec"] |= {"clusterIP": "10.0.0.7", "sessionAffinity": "None"}
        if not found["metadata"].get("annotations"):
            found["metadata"].pop("annotations", None)
    return found


def _condition(kind: str, status: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, **more}


def _with(pod: dict[str, Any], **status: Any) -> dict[str, Any]:
    found = copy.deepcopy(pod)
    found["status"] = {**found.get("status", {}), **status}
    return found
