"""Install the operator into a local cluster exactly as a user would, and give it a volume with models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster_kit import Cluster

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
OPERATOR_NAMESPACE = "plimsoll-system"
ROLLOUT_SECONDS = 120


def install(cluster: Cluster) -> None:
    """`kubectl apply` the rendered install and wait for the operator; raises RuntimeError."""
    cluster.kubectl("apply", "--server-side", "-f", str(MANIFESTS / "install.yaml"))
    cluster.kubectl(
        "-n",
        OPERATOR_NAMESPACE,
        "rollout",
        "status",
        "deployment/plimsoll-operator",
        f"--timeout={ROLLOUT_SECONDS}s",
    )


def provide_models(cluster: Cluster, folder: Path, namespace: str, claim: str = "models") -> None:
    """Make a PersistentVolume over `folder`, reserved for the claim that the samples use.

    Every node of the local cluster sees the host's files, so one host-path volume serves them all, read-only many, as
    a network file system does in production.
    """
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": namespace, "name": claim},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
        },
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(volume))
