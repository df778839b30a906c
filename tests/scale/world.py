"""What the tests of scaling share: a control plane whose nodes and pods are played by kwok, and the operator itself.

No kubelet runs and no engine: servers become ready after as long as their annotations say, and a sizer reports what it
would find on the GPU of its node (tests/cluster_kit/gpus.py). Everything else is real: API server, scheduler,
controllers, Karpenter, and the operator as a process of its own with the rights of its service account.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster.world import wait
from tests.cluster_kit import gpus
from tests.cluster_kit.beside import Beside
from tests.cluster_kit.rest import ISRV, Rest
from tests.demo.install import MANIFESTS, OPERATOR_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.cluster_kit import Cluster
    from tests.cluster_kit.gpus import Gpu

ROOT = Path(__file__).resolve().parents[2]
NAME = "llama"
TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


@dataclass
class Scale:
    """The cluster and its operator."""

    cluster: Cluster
    rest: Rest
    operator: Beside

    def add_nodes(
        self, gpu: Gpu, count: int = 1, *, labels: dict[str, str] | None = None
    ) -> list[str]:
        """Create ready nodes ``gpu-SLUG-0`` and so on; returns their names. Remove them afterwards."""
        made = [gpus.node(gpu, index, labels=labels) for index in range(count)]
        for node in made:
            self.rest.call("POST", "/api/v1/nodes", node)
        names = [str(node["metadata"]["name"]) for node in made]
        wait(lambda: set(names) <= self.ready_nodes(), 20, f"nodes {names} ready")
        return names

    def remove_nodes(self, names: Sequence[str]) -> None:
        """Delete nodes, as a cloud does that takes them away."""
        for name in names:
            if self.rest.get(f"/api/v1/nodes/{name}"):
                self.rest.call("DELETE", f"/api/v1/nodes/{name}")

    def ready_nodes(self) -> set[str]:
        """Names of the nodes that are ready."""
        return {
            str(node["metadata"]["name"])
            for node in self.rest.items("/api/v1/nodes")
            if _is_true(node, "Ready")
        }

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes."""
        return self.rest.items("/api/v1/nodes")


@dataclass
class Space:
    """A namespace with a model's claim, and shorthands for what lives in it."""

    scale: Scale
    namespace: str
    delays: dict[str, str] = field(default_factory=dict)

    @property
    def rest(self) -> Rest:
        """The API server, as the administrator."""
        return self.scale.rest

    @property
    def core(self) -> str:
        """Path of the core group in this namespace."""
        return f"/api/v1/namespaces/{self.namespace}"

    @property
    def apps(self) -> str:
        """Path of the apps group in this namespace."""
        return f"/apis/apps/v1/namespaces/{self.namespace}"

    @property
    def servers(self) -> str:
        """Path of the InferenceServers in this namespace."""
        return f"{ISRV}/namespaces/{self.namespace}/inferenceservers"

    def create(self) -> None:
        """The namespace, a volume and its claim: the volume exists on paper, which is all that the scheduler asks."""
        self.rest.apply(f"/api/v1/namespaces/{self.namespace}", _meta("Namespace", self.namespace))
        volume = f"{self.namespace}-models"
        shared = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        self.rest.apply(
            f"/api/v1/persistentvolumes/{volume}",
            _meta("PersistentVolume", volume)
            | {
                "spec": shared
                | {
                    "capacity": {"storage": "1Gi"},
                    "claimRef": {"namespace": self.namespace, "name": "models"},
                    "hostPath": {"path": "/models"},
                    "persistentVolumeReclaimPolicy": "Retain",
                }
            },
        )
        self.rest.apply(
            f"{self.core}/persistentvolumeclaims/models",
            _meta("PersistentVolumeClaim", "models")
            | {
                "spec": shared
                | {"volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
            },
        )

    def delete(self) -> None:
        """Everything, so that the next test finds the cluster empty."""
        self.rest.call("DELETE", self.servers)
        self.rest.call("DELETE", f"{self.apps}/deployments")
        self.rest.call("DELETE", f"{self.core}/pods?gracePeriodSeconds=0")
        self.rest.call("DELETE", f"/api/v1/namespaces/{self.namespace}")
        wait(lambda: not self.pods(), 60, f"{self.namespace}: pods gone")
        self.rest.call("DELETE", f"/api/v1/persistentvolumes/{self.namespace}-models")

    def apply(self, name: str = NAME, **spec: Any) -> dict[str, Any]:
        """Apply a server; keyword arguments replace parts of the spec. Raises RestError when refused."""
        body = {
            "apiVersion": "plimsoll.dev/v1alpha1",
            "kind": "InferenceServer",
            "metadata": {"name": name},
            "spec": self.spec(**spec),
        }
        applied: dict[str, Any] = self.rest.apply(f"{self.servers}/{name}", body)
        return applied

    def spec(
        self,
        *,
        replicas: int | None = 1,
        sizing: Mapping[str, Any] | None = None,
        accelerator: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """The spec of a LightLLM server whose pods take as long as ``delays`` says (see stages/pods.yaml)."""
        annotations = {f"kwok.test/{part}": time for part, time in self.delays.items()}
        given = dict(template or {})
        annotations |= given.pop("annotations", {})
        return {
            "model": {
                "source": {"persistentVolumeClaim": {"claimName": "models", "subPath": "llama-8b"}}
            },
            "engine": {"type": "LightLLM", "image": "ghcr.io/modeltc/lightllm:v1.2.0"},
            "rollout": {"drainSeconds": 1},
            "template": {"tolerations": TOLERATIONS, "annotations": annotations, **given},
            **({"replicas": replicas} if replicas is not None else {}),
            **({"sizing": dict(sizing)} if sizing else {}),
            **({"accelerator": dict(accelerator)} if accelerator else {}),
            **more,
        }

    def server(self, name: str = NAME) -> dict[str, Any]:
        """The live object."""
        found: dict[str, Any] = self.rest.get(f"{self.servers}/{name}") or {}
        return found

    def scale_to(self, replicas: int, name: str = NAME) -> None:
        """Write the scale subresource, as autoscalers do."""
        self.rest.merge(f"{self.servers}/{name}/scale", {"spec": {"replicas": replicas}})

    def condition(self, kind: str, name: str = NAME) -> dict[str, Any]:
        """One condition of the live object, or an empty dict."""
        found = self.server(name).get("status", {}).get("conditions", [])
        return next((c for c in found if c["type"] == kind), {})

    def capacity(self, name: str = NAME) -> dict[str, Any]:
        """``status.capacity``."""
        found: dict[str, Any] = self.server(name).get("status", {}).get("capacity") or {}
        return found

    def deployment(self, name: str = NAME) -> dict[str, Any] | None:
        """The child Deployment."""
        found: dict[str, Any] | None = self.rest.get(f"{self.apps}/deployments/{name}")
        return found

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Pods by label selector."""
        query = {"labelSelector": selector} if selector else {}
        return self.rest.items(f"{self.core}/pods", **query)

    def server_pods(self) -> list[dict[str, Any]]:
        """The pods with a server in them."""
        return [pod for pod in self.pods() if _has(pod, "server")]

    def sizing_pods(self) -> list[dict[str, Any]]:
        """The pods that only measure."""
        return [pod for pod in self.pods() if _has(pod, "done")]

    def wait_ready(self, name: str = NAME, seconds: float = 60) -> dict[str, Any]:
        """Wait until the current generation is Ready; returns the live object."""

        def ready() -> bool:
            server = self.server(name)
            found = self.condition("Ready", name)
            return (
                found.get("status") == "True"
                and found.get("observedGeneration") == server["metadata"]["generation"]
            )

        wait(ready, seconds, f"{name} Ready", lambda: self.explain(name))
        return self.server(name)

    def wait_condition(
        self, kind: str, reason: str, words: str = "", name: str = NAME, seconds: float = 30
    ) -> dict[str, Any]:
        """Wait for one condition with this reason and these words; returns it."""

        def met() -> bool:
            found = self.condition(kind, name)
            return found.get("reason") == reason and words in str(found.get("message"))

        wait(met, seconds, f"{kind} {reason} {words!r}", lambda: self.explain(name))
        return self.condition(kind, name)

    def explain(self, name: str = NAME) -> Any:
        """The conditions and where the pods are, for whoever reads a failure."""
        status = self.server(name).get("status", {})
        pods = {
            pod["metadata"]["name"]: (pod["status"].get("phase"), pod["spec"].get("nodeName"))
            for pod in self.pods()
        }
        said = [
            f"{c['type']}={c['status']} {c['reason']}: {c['message']}"
            for c in status.get("conditions", ())
        ]
        return {"conditions": said, "pods": pods, "operator": self.scale.operator.printed()[-1500:]}


def install(cluster: Cluster) -> None:
    """The definition and the operator's rights, as manifests/install.yaml has them, without its Deployment."""
    documents = [
        document
        for name in ("crd", "operator")
        for document in yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text())
        if document and document["kind"] != "Deployment"
    ]
    text = "\n---\n".join(json.dumps(document) for document in documents)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)


def start_operator(cluster: Cluster) -> Beside:
    """Start the operator of this tree in the cluster's network, with the rights of its service account."""
    config = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl(
        "create", "token", "plimsoll-operator", "-n", OPERATOR_NAMESPACE, "--duration=12h"
    ).stdout
    config["users"][0]["user"] = {"token": token.strip()}
    path = cluster.state / "operator.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    program = Beside(cluster, "operator")
    program.start(
        [sys.executable, "-m", "plimsoll.controller"],
        {
            "PYTHONPATH": str(ROOT / "operator"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KUBECONFIG": str(path),
            "PLIMSOLL_SIZER_IMAGE": "sizer:1",
            "PLIMSOLL_LOG_FORMAT": "text",
            "PLIMSOLL_HEALTH_HOST": "127.0.0.1",
            "PLIMSOLL_HEALTH_PORT": "0",
            "POD_NAMESPACE": OPERATOR_NAMESPACE,
        },
    )
    return program


def _has(pod: Mapping[str, Any], container: str) -> bool:
    return any(c["name"] == container for c in pod["spec"]["containers"])


def _is_true(live: Mapping[str, Any], kind: str) -> bool:
    found = live.get("status", {}).get("conditions", ())
    return any(c["type"] == kind and c["status"] == "True" for c in found)


def _meta(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
