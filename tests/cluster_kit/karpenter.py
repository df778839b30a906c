"""Karpenter with its kwok provider beside a control plane: nodes come and go as pods ask for them.

kwok has to run too: it makes the nodes ready. The nodes of NodePool ``l40s`` are called ``kwok-l40s-...``, which is how
the sizer's stand-in knows their GPU.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .beside import Beside
from .cluster import Cluster
from .golang import module_folder
from .gotools import PINS, go_tool, pinned
from .gpus import GPUS, Gpu

_MODULE = "sigs.k8s.io/karpenter"
SECONDS = 30.0


def instance_types(gpus: Sequence[Gpu] = GPUS) -> list[Any]:
    """Return the file's content: one type for each kind of GPU, spot at half the price.

    What an offering requires becomes a label that Karpenter knows of, and that its nodes have. The provider takes every
    offering for available; a pool that asks for another zone than ``zone-a`` stands for one that the cloud has none of.
    """
    found = []
    for gpu in gpus:
        offerings = [
            {
                "Price": price,
                "Available": True,
                "Requirements": [
                    _in("topology.kubernetes.io/zone", "zone-a"),
                    _in("karpenter.sh/capacity-type", kind),
                    *(_in(key, value) for key, value in gpu.labels.items()),
                ],
            }
            for kind, price in (("on-demand", gpu.price), ("spot", gpu.price / 2))
        ]
        found.append(
            {
                "name": f"g-{gpu.slug}-{gpu.count}",
                "architecture": "amd64",
                "operatingSystems": ["linux"],
                "resources": {
                    "cpu": "96",
                    "memory": "1152Gi",
                    "ephemeral-storage": "500Gi",
                    "pods": "110",
                    "nvidia.com/gpu": str(gpu.count),
                },
                "offerings": offerings,
            }
        )
    return found


def _in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def node_class(delay: str = "0s") -> dict[str, Any]:
    """Return what a NodePool of the kwok provider refers to; a machine takes ``delay`` to start."""
    return {
        "apiVersion": "karpenter.kwok.sh/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": {"name": "default"},
        "spec": {"nodeRegistrationDelay": delay},
    }


def node_pool(
    gpu: Gpu,
    *,
    capacity: str = "on-demand",
    limit: int | None = None,
    consolidate_after: str = "5s",
    requirements: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a NodePool of this kind of GPU, named as the kind.

    Args:
        gpu: what its nodes have.
        capacity: ``on-demand`` or ``spot``.
        limit: GPUs of all of its nodes; None: no limit.
        consolidate_after: how long a node may be empty or underused.
        requirements: more of them.
    """
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": gpu.slug},
        "spec": {
            "template": {
                "spec": {
                    "requirements": [
                        _in("karpenter.sh/capacity-type", capacity),
                        _in("node.kubernetes.io/instance-type", f"g-{gpu.slug}-{gpu.count}"),
                        *map(dict, requirements),
                    ],
                    "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
                    "nodeClassRef": {
                        "group": "karpenter.kwok.sh",
                        "kind": "KWOKNodeClass",
                        "name": "default",
                    },
                    "expireAfter": "Never",
                }
            },
            "disruption": {
                "consolidationPolicy": "WhenEmptyOrUnderutilized",
                "consolidateAfter": consolidate_after,
            },
            **({} if limit is None else {"limits": {"nvidia.com/gpu": str(limit)}}),
        },
    }


def install(cluster: Cluster) -> None:
    """Create Karpenter's definitions and the node class."""
    version = pinned((PINS / "karpenter" / "go.mod").read_text(), _MODULE)
    folder = module_folder(_MODULE, version)
    for crds in ("pkg/apis/crds", "kwok/apis/crds"):
        cluster.kubectl("apply", "--server-side", "-f", folder / crds)
    cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
    cluster.kubectl("apply", "-f", "-", input=json.dumps(node_class()))


def start(cluster: Cluster, types: Sequence[Any]) -> Beside:
    """Start Karpenter with these instance types, anew where it runs, and wait until it works.

    Raises:
        KitError: it does not; with the end of its log.
    """
    program = Beside(cluster, "karpenter")
    file = cluster.state / "instance-types.json"
    file.write_text(json.dumps(types))
    program.start(
        [go_tool("karpenter")],
        {
            "KUBECONFIG": str(cluster.kubeconfig),
            "INSTANCE_TYPES_FILE_PATH": str(file),
            "KARPENTER_SERVICE": "karpenter",
            "SYSTEM_NAMESPACE": "kube-system",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": "18080",
            "HEALTH_PROBE_PORT": "18081",
            "BATCH_IDLE_DURATION": "500ms",
        },
    )
    program.wait("Starting workers", SECONDS)
    return program
