"""What a node of the local cluster is: its GPUs, and the labels that GPU feature discovery would write for them."""

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import KitError

GIB = 1 << 30
MIB = 1 << 20
H100_MEMORY = 81559 / 1024  # GiB: what NVML v1 calls total on an H100 80GB (81,559 MiB)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Node:
    """One node to start.

    Attributes:
        name: a DNS label of at most 30 characters.
        gpus: how many fake GPUs its device plugin offers as ``nvidia.com/gpu``; with ``mig`` slices of one GPU.
        product: the value of the label ``nvidia.com/gpu.product``.
        memory: of each GPU in GiB, as NVML v1 calls total.
        reserved: of each GPU in GiB, as NVML v2 calls reserved; absent, 0.58 % of ``memory`` (an H100 has 0.46).
        mig: profile of the slices, such as ``1g.10gb``, as with ``mig.strategy=single``; ``memory`` is a slice's.
        labels: added to, or in place of, the labels of GPU feature discovery.
    """

    name: str
    gpus: int = 2
    product: str = "NVIDIA-H100-80GB-HBM3"
    memory: float = H100_MEMORY
    reserved: float | None = None
    mig: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("node", self.name)
        if self.gpus < 0 or self.memory <= 0:
            raise KitError(
                f"node {self.name}: gpus {self.gpus}, memory {self.memory} GiB: need >= 0 and > 0"
            )

    @property
    def total_bytes(self) -> int:
        """Memory of each GPU, in bytes."""
        return int(self.memory * GIB)

    @property
    def reserved_bytes(self) -> int:
        """Memory of each GPU that the driver keeps for itself, in bytes."""
        share = self.memory * 0.0058 if self.reserved is None else self.reserved
        return int(share * GIB)

    @property
    def device_name(self) -> str:
        """The name that NVML reports: GPU feature discovery turns its spaces into dashes for the label."""
        return self.product.replace("-", " ") + (f" MIG {self.mig}" if self.mig else "")


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot be part of a namespace, cgroup and folder name. Raises KitError."""
    if not _NAME.fullmatch(name):
        raise KitError(
            f"{what} name {name!r}: use at most 30 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
        )


def gpu_labels(node: Node) -> dict[str, str]:
    """Return the node labels that GPU feature discovery 0.17 writes, as far as schedulers and operators use them.

    ``gpu.memory`` is in MiB, as NVML v1 counts. A node without a GPU has none of these.
    """
    if not node.gpus:
        return dict(node.labels)
    words = node.product.split("-")
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": node.product + (f"-MIG-{node.mig}" if node.mig else ""),
        "nvidia.com/gpu.memory": str(node.total_bytes // MIB),
        "nvidia.com/gpu.count": str(node.gpus),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.family": _family(words),
        "nvidia.com/gpu.machine": "plimsoll-cluster-kit",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.strategy": "single",
        **node.labels,
    }


def _family(words: list[str]) -> str:
    """Return the architecture's name that belongs to a product, ``undefined`` as discovery has it where unknown."""
    known = {
        "H100": "hopper",
        "H200": "hopper",
        "A100": "ampere",
        "A10": "ampere",
        "L40S": "ada-lovelace",
    }
    return next((known[word] for word in words if word in known), "undefined")


def gpu_uuid(cluster: str, node: str, index: int) -> str:
    """Return a GPU's UUID: the same at each start of the same cluster, different between nodes and clusters."""
    digest = hashlib.sha256(f"{cluster}/{node}/{index}".encode()).digest()
    return f"GPU-{uuid.UUID(bytes=digest[:16])}"


def slice_uuid(cluster: str, node: str, index: int) -> str:
    """Return the UUID of a MIG slice, alike."""
    return gpu_uuid(cluster, f"{node}/mig", index).replace("GPU-", "MIG-")
