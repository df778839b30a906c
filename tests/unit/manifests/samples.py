"""Objects for the tests of the CustomResourceDefinition and its reader, and a walk over the schema."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"

MINIMAL: dict[str, Any] = {
    "apiVersion": "plimsoll.dev/v1alpha1",
    "kind": "InferenceServer",
    "metadata": {"name": "llama-8b", "namespace": "team", "uid": "u-1", "generation": 3},
    "spec": {
        "model": {"source": {"persistentVolumeClaim": {"claimName": "models"}}},
        "engine": {"type": "LightLLM", "image": "ghcr.io/modeltc/lightllm:v1.2.0"},
    },
}

_LABELS = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
}
_NODE_TERM = {
    "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
}
_POD_TERM = {
    "topologyKey": "zone", "labelSelector": _LABELS, "namespaceSelector": _LABELS, "namespaces": ["x"],
    "matchLabelKeys": ["k"], "mismatchLabelKeys": ["l"],
}  # fmt: skip
_POD_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": [_POD_TERM],
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "podAffinityTerm": _POD_TERM}
    ],
}

FULL_SPEC: dict[str, Any] = {
    "model": {
        "source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "Llama-3.1/8B"}},
        "file": "model.gguf",
        "servedName": "meta-llama/Llama-3.1-8B",
        "mountPath": "/mnt/models",
    },
    "engine": {
        "type": "LightLLM",
        "image": "registry:5000/light:v1.1.0@sha256:" + "0" * 64,
        "imagePullPolicy": "Always",
        "version": "1.2.0+cpu",
        "command": ["python", "-m", "lightllm.server.api_server"],
        "args": ["--nccl_port", "4"],
        "env": [
            {"name": "A", "value": ""},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
        ],
        "port": 9000,
    },
    "accelerator": {
        "resource": "example.com/gpu",
        "count": 2,
        "products": ["NVIDIA-H100-80GB-HBM3"],
        "classLabelKeys": ["cloud.example/gpu", "nvidia.com/gpu.product"],
        "memoryBudget": "20Gi",
    },
    "parallelism": {"tensor": 2},
    "replicas": 3,
    "sizing": {
        "mode": "Fixed",
        "probe": "Torch",
        "maxTotalTokenNum": 100000,
        "minTotalTokenNum": 50000,
        "contextLength": 8192,
        "prefillTokens": 2048,
        "maxConcurrentRequests": 64,
        "cudaGraphs": {"enabled": False, "maxBatch": 32},
        "kvCacheDType": "fp16",
        "stateDType": "bf16",
        "extraReserve": "1.5Gi",
        "onOutOfMemory": {"action": "None", "stepPercent": 10, "minStep": "512Mi", "maxSteps": 5},
    },
    "rollout": {
        "strategy": "RollingUpdate",
        "paused": True,
        "maxUnavailable": 2,
        "maxSurge": 1,
        "updatePolicy": "WithOperator",
        "drainSeconds": 10,
        "progressDeadlineSeconds": 900,
    },
    "probes": {"startupSeconds": 120},
    "service": {
        "port": 8080,
        "type": "NodePort",
        "annotations": {"example.com/a": "any text, really"},
        "labels": {"team": "a"},
    },
    "template": {
        "nodeSelector": {"example.com/pool": "gpu"},
        "tolerations": [
            {"key": "gpu", "operator": "Equal", "value": "x", "effect": "NoExecute", "tolerationSeconds": 60}
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_NODE_TERM]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": _NODE_TERM}],
            },
            "podAffinity": _POD_AFFINITY,
            "podAntiAffinity": _POD_AFFINITY,
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": _LABELS,
                "matchLabelKeys": ["pod-template-hash"], "minDomains": 2, "nodeAffinityPolicy": "Honor",
                "nodeTaintsPolicy": "Ignore",
            }
        ],
        "schedulerName": "volcano",
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "pull"}],
        "labels": {"team": "a"},
        "annotations": {"example.com/b": "c"},
        "sharedMemory": {"sizeLimit": "8Gi"},
        "securityContext": {"runAsUser": 1000, "runAsGroup": 0, "fsGroup": 1000, "supplementalGroups": [44]},
        "resources": {
            "requests": {"cpu": "500m", "memory": "16Gi", "ephemeral-storage": 1000},
            "limits": {"cpu": 8, "memory": "32Gi"},
        },
    },
}  # fmt: skip


IN_BYTES = "spec.sizing.kvCacheBytes"
OF_VLLM = (IN_BYTES, "spec.sizing.prefixCaching")


def minimal() -> dict[str, Any]:
    """The least that is valid."""
    return copy.deepcopy(MINIMAL)


def full(path: str = "") -> dict[str, Any]:
    """Every field of the spec, each with a value that is not its default.

    No engine takes all of them. The sample is LightLLM's, with a pool in tokens; for the paths of
    what only others take it is VLLM's, with a pool in bytes.
    """
    body = copy.deepcopy({**MINIMAL, "spec": FULL_SPEC})
    if path in OF_VLLM:
        del body["spec"]["sizing"]["maxTotalTokenNum"]
        put(put(body, "spec.engine.type", "VLLM"), IN_BYTES, "8Gi")
        body["spec"]["sizing"]["prefixCaching"] = False
    return body


def put(body: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Set ``path`` (dots and ``[0]``; a name with dots in brackets) to ``value``, making what is missing."""
    steps = list(_steps(path))
    at: Any = body
    for step in steps[:-1]:
        at = at[step] if isinstance(step, int) else at.setdefault(step, {})
    at[steps[-1]] = value
    return body


def _steps(path: str) -> Iterator[str | int]:
    for part in path.replace("[", ".[").split("."):
        yield int(part[1:-1]) if part.startswith("[") else part


def crd() -> dict[str, Any]:
    """The definition as parsed."""
    loaded: dict[str, Any] = yaml.safe_load((MANIFESTS / "crd.yaml").read_text())
    return loaded


def schema() -> dict[str, Any]:
    """The root schema of the only version."""
    (version,) = crd()["spec"]["versions"]
    root: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return root


def walk(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below ``node`` with its path; items are ``[0]``, map values ``[*]``."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}" if path else name)
    if "items" in node:
        yield from walk(node["items"], f"{path}[0]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from walk(node["additionalProperties"], f"{path}[*]")


def not_in_schema(value: object, node: dict[str, Any], path: str = "") -> list[str]:
    """Paths of ``value`` that the API server would drop or refuse: absent from the schema or of another type."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    wanted = node.get("type")
    if wanted and (
        not isinstance(value, kinds[wanted]) or (wanted == "integer" and isinstance(value, bool))
    ):
        return [f"{path}: {value!r} is no {wanted}"]
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in _below(name, item, node, path)]
    if isinstance(value, list):
        return [
            found
            for index, item in enumerate(value)
            for found in not_in_schema(item, node["items"], f"{path}[{index}]")
        ]
    if "enum" in node and value not in node["enum"]:
        return [f"{path}: {value!r} is not in {node['enum']}"]
    return []


def _below(name: str, item: object, node: dict[str, Any], path: str) -> list[str]:
    child = node.get("properties", {}).get(name, node.get("additionalProperties"))
    where = f"{path}.{name}" if path else name
    return [where] if child is None else not_in_schema(item, child, where)
