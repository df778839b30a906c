"""What cluster tests share: servers, waiting, and the facts read back from the real API server."""

from __future__ import annotations

import json
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.cluster_kit.rest import ISRV
from tests.demo import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.cluster_kit import Cluster
    from tests.cluster_kit.rest import Rest

ENGINE_IMAGE = "localhost/plimsoll-demo-llamacpp:0.1.0"
SMOL = "SmolLM2-135M-Instruct"
GGUF = f"{SMOL}.Q4_1.gguf"
NODE_A, NODE_B = "node-a", "node-b"


@dataclass
class World:
    """The cluster with the operator on it."""

    cluster: Cluster
    rest: Rest
    models: Path


@contextmanager
def operator_away(world: World) -> Iterator[None]:
    """The installed operator makes room for another one, and returns afterwards."""
    space = "/namespaces/plimsoll-system"
    scale = f"/apis/apps/v1{space}/deployments/plimsoll-operator/scale"
    world.rest.merge(scale, {"spec": {"replicas": 0}})
    wait(lambda: not world.rest.items(f"/api/v1{space}/pods"), 60, "operator gone")
    try:
        yield
    finally:
        operator_back(world)


def operator_back(world: World) -> None:
    """Start the installed operator again, if it is away, and wait until it is ready."""
    kubectl, space = world.cluster.kubectl, ("-n", "plimsoll-system")
    kubectl(*space, "scale", "deployment/plimsoll-operator", "--replicas=1")
    kubectl(*space, "rollout", "status", "deployment/plimsoll-operator", "--timeout=90s")


def make_models(folder: Path, smol: Path) -> None:
    """The real model, and folders that are wrong in one way each.

    The kubelet mounts this one folder as the claim `models`; servers choose by subPath.
    """
    folder.chmod(0o755)
    target = folder / SMOL
    target.mkdir()
    for file in smol.iterdir():
        (target / file.name).hardlink_to(file) if file.stat().st_dev == folder.stat().st_dev else (
            target / file.name
        ).write_bytes(file.read_bytes())
    write_safetensors(folder / "unknown", {"model_type": "perceptron9000"}, {"w": [4]})
    write_safetensors(folder / "too-large", LLAMA_CONFIG, llama_shapes())


LLAMA_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def llama_shapes() -> dict[str, list[int]]:
    """The tensors of LLAMA_CONFIG: one layer of Llama-3.1-8B and both embeddings, 2.3 GiB in bf16."""
    hidden, kv, inner, vocab = 4096, 1024, 14336, 128256
    layer = {
        "self_attn.q_proj": [hidden, hidden],
        "self_attn.k_proj": [kv, hidden],
        "self_attn.v_proj": [kv, hidden],
        "self_attn.o_proj": [hidden, hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
    }
    return {
        "model.embed_tokens.weight": [vocab, hidden],
        "lm_head.weight": [vocab, hidden],
        "model.norm.weight": [hidden],
        **{f"model.layers.0.{name}.weight": shape for name, shape in layer.items()},
    }


def write_safetensors(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, list[int]]
) -> None:
    """A checkpoint whose header is real and whose data is a hole in the file (bf16)."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


@dataclass
class Tenant:
    """One namespace and shorthands for what lives in it."""

    world: World
    namespace: str

    def create(self) -> None:
        """The namespace, its volume and its claim."""
        rest = self.world.rest
        rest.apply(f"/api/v1/namespaces/{self.namespace}", _meta("v1", "Namespace", self.namespace))
        install.provide_models(self.world.cluster, self.world.models, self.namespace)
        claim = _meta("v1", "PersistentVolumeClaim", "models") | {
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            }
        }
        rest.apply(f"{self.core}/persistentvolumeclaims/models", claim)

    def delete(self) -> None:
        """Everything, so that the next test finds free GPUs."""
        rest = self.world.rest
        rest.call("DELETE", f"{self.servers}?propagationPolicy=Orphan")
        self._end("")
        rest.call("DELETE", f"/api/v1/namespaces/{self.namespace}")
        # What a controller had made before it learned of that. From here on none can be made.
        rest.call("DELETE", f"{self.core}/pods?gracePeriodSeconds=1")
        wait(lambda: not self.pods(), 60, "pods gone and GPUs free")
        rest.call("DELETE", f"/api/v1/persistentvolumes/{self.namespace}-models")

    def remove(self, name: str) -> None:
        """One server and its children. The namespace stays as it was before it."""
        rest = self.world.rest
        kinds = [f"plimsoll.dev/{label}={name}" for label in ("server", "sizing-for")]
        rest.call("DELETE", f"{self.servers}/{name}?propagationPolicy=Orphan")
        rest.call("DELETE", f"{self.core}/services?labelSelector={kinds[0]}")

        def gone() -> bool:
            for kind in kinds:
                self._end(f"&labelSelector={kind}")
            return not (self.server(name) or any(self.pods(kind) for kind in kinds))

        wait(gone, 60, f"{name} gone and its GPUs free")

    def _end(self, selector: str) -> None:
        """Ask pods to go at once: no request is drained here.

        Their owners leave them behind, as a pod that ends with its owner is given its whole grace period, which a later
        request cannot shorten once the preStop hook runs.
        """
        rest = self.world.rest
        for kind in ("deployments", "replicasets"):
            rest.call("DELETE", f"{self.apps}/{kind}?propagationPolicy=Orphan{selector}")
        rest.call("DELETE", f"{self.core}/pods?gracePeriodSeconds=1{selector}")

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

    def apply(self, name: str = "smollm2", **spec: Any) -> dict[str, Any]:
        """Apply a server; keyword arguments replace parts of the spec. Raises RestError when refused."""
        body = _meta("plimsoll.dev/v1alpha1", "InferenceServer", name) | {
            "spec": server_spec(**spec)
        }
        applied: dict[str, Any] = self.world.rest.apply(f"{self.servers}/{name}", body)
        return applied

    def server(self, name: str = "smollm2") -> dict[str, Any]:
        """The live object."""
        found: dict[str, Any] = self.world.rest.get(f"{self.servers}/{name}") or {}
        return found

    def condition(self, kind: str, name: str = "smollm2") -> dict[str, Any]:
        """One condition of the live object, or an empty dict."""
        found = self.server(name).get("status", {}).get("conditions", [])
        return next((c for c in found if c["type"] == kind), {})

    def deployment(self, name: str = "smollm2") -> dict[str, Any] | None:
        """The child Deployment."""
        found: dict[str, Any] | None = self.world.rest.get(f"{self.apps}/deployments/{name}")
        return found

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Pods by label selector."""
        query = {"labelSelector": selector} if selector else {}
        return self.world.rest.items(f"{self.core}/pods", **query)

    def wait_ready(self, name: str = "smollm2", seconds: float = 120) -> dict[str, Any]:
        """Wait until the current generation is Ready; returns the live object."""

        def ready() -> bool:
            server = self.server(name)
            found = self.condition("Ready", name)
            return (
                found.get("status") == "True"
                and found.get("observedGeneration") == server["metadata"]["generation"]
            )

        wait(ready, seconds, f"{name} Ready", lambda: self.server(name).get("status"))
        return self.server(name)

    def wait_condition(
        self, kind: str, status: str, reason: str, name: str = "smollm2", seconds: float = 90
    ) -> dict[str, Any]:
        """Wait for one condition with this status and reason; returns it."""

        def met() -> bool:
            found = self.condition(kind, name)
            return (found.get("status"), found.get("reason")) == (status, reason)

        wait(met, seconds, f"{kind}={status} {reason}", lambda: self.server(name).get("status"))
        return self.condition(kind, name)

    def argument(self, flag: str, name: str = "smollm2") -> int:
        """The integer after `flag=` in the template's server container."""
        deployment = self.deployment(name)
        assert deployment is not None
        return template_argument(deployment, flag)

    def props(self, name: str = "smollm2") -> dict[str, Any]:
        """The engine's own /props, through the Service."""
        found: dict[str, Any] = self.world.rest.call(
            "GET", f"{self.core}/services/{name}:80/proxy/props"
        )
        return found


def server_spec(
    *,
    node: str | None = None,
    sub_path: str = SMOL,
    engine: Mapping[str, Any] | None = None,
    replicas: int = 1,
    file: str | None = None,
    sizing: Mapping[str, Any] | None = None,
    template: Mapping[str, Any] | None = None,
    rollout: Mapping[str, Any] | None = None,
    accelerator: Mapping[str, Any] | None = None,
    claim: str = "models",
) -> dict[str, Any]:
    """The spec of a small llama.cpp server; `node` picks the fake GPU's kind."""
    rendered = dict(template or {})
    if node:
        rendered["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "model": {
            "source": {"persistentVolumeClaim": {"claimName": claim, "subPath": sub_path}},
            **({"file": file} if file else {}),
        },
        "engine": {
            "type": "LlamaCpp",
            "image": ENGINE_IMAGE,
            "version": "2026.10+cpu",
            "imagePullPolicy": "IfNotPresent",
        }
        | dict(engine or {}),
        "replicas": replicas,
        "sizing": dict(sizing or {}),
        "rollout": {"drainSeconds": 5, **(rollout or {})},
        "template": rendered,
        **({"accelerator": dict(accelerator)} if accelerator else {}),
    }


def template_argument(deployment: Mapping[str, Any], flag: str) -> int:
    """The integer of `flag` in a Deployment's server container, as `flag=N` or as two arguments."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    args = next(c for c in containers if c["name"] == "server")["args"]
    values = [a.split("=", 1)[1] for a in args if a.startswith(f"{flag}=")]
    values += [after for a, after in pairwise(args) if a == flag]
    assert len(values) == 1, f"{flag} occurs {len(values)} times in {args}"
    return int(values[0])


def wait(
    check: Callable[[], object],
    seconds: float,
    what: str,
    explain: Callable[[], object] = lambda: None,
) -> None:
    """Poll until true; a TimeoutError carries the last state."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return
        time.sleep(0.2)
    raise TimeoutError(
        f"{what}: not within {seconds} s\n{json.dumps(explain(), indent=1, default=str)}"
    )


def _meta(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
