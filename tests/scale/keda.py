"""KEDA beside a control plane, with the rights that its own manifests give it.

Its operator serves what its triggers say to its metrics adapter, which serves it to the autoscaler through the API
server. The definitions and the roles are those of the module that the programs are built from.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.cluster_kit import network
from tests.cluster_kit.beside import Beside
from tests.cluster_kit.golang import module_folder
from tests.cluster_kit.gotools import PINS, PROGRAMS, go_tool, pinned
from tests.scale import metrics_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster_kit import Cluster
    from tests.cluster_kit.rest import Rest

NAMESPACE = "keda"
_ADAPTER = "keda-metrics-apiserver"
_GRPC = 9666
_PORT = 16443
_FILES = (
    "general/namespace.yaml",
    "service_account/service_account.yaml",
    "rbac/role.yaml",
    "rbac/role_binding.yaml",
    "metrics-server/role.yaml",
    "metrics-server/role_binding.yaml",
)


def sources() -> Path:
    """Return the folder ``config`` of the module."""
    program = PROGRAMS["keda"]
    version = pinned((PINS / program.pins / "go.mod").read_text(), program.module)
    return module_folder(program.module, version) / "config"


def definitions() -> list[Path]:
    """Return the files with its CustomResourceDefinitions."""
    return sorted((sources() / "crd" / "bases").glob("*.yaml"))


@contextmanager
def running(cluster: Cluster, rest: Rest) -> Iterator[None]:
    """Install it, run both programs, and have the API server pass on what the adapter serves."""
    files = [*definitions(), *(sources() / name for name in _FILES)]
    for file in files:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
    config = _kubeconfig(cluster)
    certificates = _certificates(cluster)
    env = {
        "KUBECONFIG": str(config),
        "WATCH_NAMESPACE": "",
        "POD_NAMESPACE": NAMESPACE,
        "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE,
    }
    operator, adapter = Beside(cluster, "keda"), Beside(cluster, "keda-adapter")
    operator.start(
        [
            go_tool("keda"),
            "--metrics-bind-address=127.0.0.1:18180",
            "--health-probe-bind-address=127.0.0.1:18181",
            f"--metrics-service-bind-address=127.0.0.1:{_GRPC}",
            f"--cert-dir={certificates}",
            "--zap-log-level=info",
        ],
        env,
    )
    adapter.start(
        [
            go_tool("keda-adapter"),
            f"--bind-address={network.API_ADDRESS}",
            f"--secure-port={_PORT}",
            "--port=18182",
            f"--metrics-service-address=localhost:{_GRPC}",
            f"--cert-dir={certificates}",
            f"--client-ca-file={certificates}/ca.crt",
            f"--tls-cert-file={certificates}/tls.crt",
            f"--tls-private-key-file={certificates}/tls.key",
            *(
                f"--{use}-kubeconfig={config}"
                for use in ("authentication", "authorization", "lister")
            ),
        ],
        env,
    )
    try:
        with metrics_api.registered(cluster, rest, _ADAPTER, _PORT):
            yield
    finally:
        adapter.stop(2.0)
        operator.stop(2.0)


def _kubeconfig(cluster: Cluster) -> Path:
    """The kubeconfig of its service account."""
    config = json.loads(cluster.kubeconfig.read_text())
    asked = ("create", "token", "keda-operator", "-n", NAMESPACE, "--duration=12h")
    config["users"][0]["user"] = {"token": cluster.kubectl(*asked).stdout.strip()}
    path = cluster.state / "keda.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


def _certificates(cluster: Cluster) -> Path:
    """The folder with one certificate for both servers, under the names that they look for."""
    metrics_api.certificate(cluster, _ADAPTER)
    keys, folder = cluster.state / "pki", cluster.state / "keda-certs"
    folder.mkdir(exist_ok=True)
    for source, name in (
        ("ca.crt", "ca.crt"),
        (f"{_ADAPTER}.crt", "tls.crt"),
        (f"{_ADAPTER}.key", "tls.key"),
    ):
        shutil.copy(keys / source, folder / name)
    return folder
