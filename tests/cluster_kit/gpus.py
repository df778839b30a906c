"""Kinds of GPU that nodes without a kubelet stand for, and what a sizer would report of each.

The sizes are those that NVML gives for the real devices. The model is made up: 15 GiB of weights and 128 KiB of cache a
token, as Llama-3.1-8B in bfloat16 has.
"""

import json
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30
MIB = 1 << 20
CELL = 128 * 1024
WEIGHTS = 15 * GIB
RESERVE = 4 * GIB
CONTEXT = 131072
MODEL_DIGEST = "sha256:" + "ab" * 32
DRIVER = "580.159.04"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU and the machine that has it.

    Attributes:
        slug: part of the names of its nodes: ``gpu-SLUG-0``, or a NodePool named SLUG.
        product: as GPU feature discovery and NVML call it.
        memory: of one device, in MiB.
        count: devices of a node.
        price: of a node, an hour.
        cloud: the cloud's own labels of such a node.
        discovered: whether GPU feature discovery labels such nodes too.
    """

    slug: str
    product: str
    memory: int
    count: int
    price: float
    cloud: tuple[tuple[str, str], ...] = ()
    discovered: bool = True

    @property
    def labels(self) -> dict[str, str]:
        """All of them."""
        return {**(self.gfd if self.discovered else {}), **dict(self.cloud)}

    @property
    def gfd(self) -> dict[str, str]:
        """The labels of GPU feature discovery."""
        return {
            "nvidia.com/gpu.product": self.product,
            "nvidia.com/gpu.memory": str(self.memory),
            "nvidia.com/gpu.count": str(self.count),
        }

    @property
    def budget(self) -> dict[str, Any]:
        """Where every byte goes, as the report has it."""
        total = self.memory * MIB
        free = total - GIB // 2
        kv = free - WEIGHTS - RESERVE
        return {
            "deviceTotal": total,
            "deviceFree": free,
            "freeAfterInit": free,
            "weights": WEIGHTS,
            "reserve": {"activation": RESERVE},
            "safety": 0,
            "kv": kv,
        }

    @property
    def tokens(self) -> int:
        """What a server on one such device gets."""
        return int(self.budget["kv"]) // CELL


A10G = Gpu(
    "a10g", "NVIDIA-A10G", 23028, 1, 3.0,
    (("karpenter.k8s.aws/instance-gpu-name", "a10g"), ("karpenter.k8s.aws/instance-gpu-count", "1")),
    discovered=False,
)  # fmt: skip
L40S = Gpu(
    "l40s", "NVIDIA-L40S", 46068, 1, 2.0,
    (("karpenter.k8s.aws/instance-gpu-name", "l40s"), ("karpenter.k8s.aws/instance-gpu-count", "1")),
)  # fmt: skip
A100 = Gpu(
    "a100", "NVIDIA-A100-SXM4-80GB", 81920, 8, 32.0,
    (("karpenter.k8s.aws/instance-gpu-name", "a100"), ("cloud.google.com/gke-accelerator", "nvidia-a100-80gb")),
)  # fmt: skip
H100 = Gpu(
    "h100", "NVIDIA-H100-80GB-HBM3", 81559, 8, 98.0,
    (("karpenter.k8s.aws/instance-gpu-name", "h100"), ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb")),
)  # fmt: skip
GPUS = (A10G, L40S, A100, H100)


def report(gpu: Gpu, uid: str, request_hash: str, count: str) -> str:
    """Return the sizer's termination message. The texts may be placeholders that a template replaces."""
    document = {
        "schema": "plimsoll.dev/report.v1",
        "podUID": uid,
        "requestHash": request_hash,
        "modelDigest": MODEL_DIGEST,
        "class": {
            "product": gpu.product,
            "totalBytes": gpu.memory * MIB,
            "mig": None,
            "sharing": None,
            "count": "COUNT",
        },
        "driver": DRIVER,
        "devices": [f"GPU-{uid}"],
        "rank": 0,
        "budget": gpu.budget,
        "perToken": {"kvBytesPerRank": CELL},
        "fixedPools": 0,
        "granule": 1,
        "maxTotalTokenNum": gpu.tokens,
        "tokenMeaning": "AllLayersFull",
        "maxSequences": 256,
        "contextLength": CONTEXT,
        "prefillTokens": 8192,
        "modelFile": None,
        "confidence": "estimated",
        "end": "plimsoll",
    }
    text = json.dumps(document, separators=(",", ":"))
    return text.replace('"COUNT"', count)  # an integer, which a placeholder is not


def node(gpu: Gpu, index: int, *, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a Node that kwok keeps ready: ``gpu-SLUG-INDEX``, labelled by GPU feature discovery.

    Args:
        gpu: what it has.
        index: tells nodes of one kind apart.
        labels: instead of those of GPU feature discovery.
    """
    name = f"gpu-{gpu.slug}-{index}"
    offers = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpu.count)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, **(gpu.gfd if labels is None else labels)},
        },
        "status": {"allocatable": offers, "capacity": offers},
    }
