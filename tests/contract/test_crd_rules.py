"""What the real API server makes of manifests/: every rule with its message, defaults, subresources, rights."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from plimsoll.controller.crd import parse
from tests.unit.manifests.rules import RULES, case
from tests.unit.manifests.samples import IN_BYTES, MANIFESTS, full, minimal, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster_kit import Cluster

pytestmark = pytest.mark.contract

ISRV = "inferenceservers.plimsoll.dev"
# Bounds and types of the schema, in the API server's own words.
BOUNDS: list[tuple[str, object, str]] = [
    ("spec.engine.type", "Ollama",
     'Unsupported value: "Ollama": supported values: "LightLLM", "VLLM", "SGLang", "TGI", "TensorRTLLM", "LlamaCpp"'),
    ("spec.sizing.mode", "Auto", 'supported values: "Stamped", "InPod", "Fixed"'),
    ("spec.sizing.probe", "CUDA", 'supported values: "NVML", "Torch"'),
    ("spec.sizing.kvCacheDType", "int2", "spec.sizing.kvCacheDType: Unsupported value"),
    ("spec.accelerator.count", 0, "spec.accelerator.count in body should be greater than or equal to 1"),
    ("spec.replicas", -1, "spec.replicas in body should be greater than or equal to 0"),
    ("spec.engine.args", ["x"] * 129, "spec.engine.args: Too many: 129: must have at most 128 items"),
    ("spec.engine.args", ["x" * 1025], "spec.engine.args[0]: Too long: may not be more than 1024"),
    ("spec.engine.env", [{"name": "A", "value": "1"}] * 2, "spec.engine.env[1]: Duplicate value"),
    ("spec.engine.env", [{"name": "A", "valueFrom": {}}], "spec.engine.env[0].valueFrom.secretKeyRef: Required value"),
    ("spec.template.labels", {f"k{n}": "" for n in range(33)}, "spec.template.labels: Too many: 33"),
    ("spec.template.securityContext.runAsUser", 0, "runAsUser in body should be greater than or equal to 1"),
    ("spec.template.hostNetwork", True, 'unknown field "spec.template.hostNetwork"'),
    ("spec.template.serviceAccountName", "x", 'unknown field "spec.template.serviceAccountName"'),
    ("spec.engine.env", [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}], "unknown field"),
    ("spec.sizing.tokens", 1, 'unknown field "spec.sizing.tokens"'),
    ("spec.sizing.stateDType", "fp8", 'supported values: "auto", "bf16", "fp16", "fp32"'),
    ("spec.sizing.prefixCaching", "no", "spec.sizing.prefixCaching in body must be of type boolean"),
    ("spec.sizing.onOutOfMemory.action", "Grow", 'supported values: "Shrink", "None"'),
    ("spec.sizing.onOutOfMemory.stepPercent", 0, "stepPercent in body should be greater than or equal to 1"),
    ("spec.sizing.onOutOfMemory.stepPercent", 51, "stepPercent in body should be less than or equal to 50"),
    ("spec.sizing.onOutOfMemory.maxSteps", 17, "maxSteps in body should be less than or equal to 16"),
    ("spec.rollout.strategy", "Auto", 'supported values: "Recreate", "RollingUpdate"'),
    ("spec.rollout.updatePolicy", "Never", 'supported values: "OnSpecChange", "WithOperator"'),
    ("spec.rollout", {"strategy": "RollingUpdate", "maxSurge": -1}, "maxSurge in body should be greater than or equal"),
    ("spec.rollout", {"strategy": "RollingUpdate", "maxUnavailable": "25%"}, "maxUnavailable in body must be of type"),
]  # fmt: skip

STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "ready": "1/1",
    "effective": {"servedName": "llama-8b", "contextLength": 8192},
    "replicas": 1,
    "selector": "plimsoll.dev/server=llama-8b",
    "capacity": {
        "maxTotalTokenNum": 123456,
        "source": "Measured",
        "driftPercent": "-1.5",
        "gpu": {"product": "NVIDIA-H100-80GB-HBM3"},
    },
    "conditions": [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": f"says {reason}",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
        for kind, reason in (("Accepted", "Valid"), ("Ready", "Serving"))
    ],
}


@pytest.fixture(scope="module")
def namespace(api_cluster: Cluster) -> Iterator[str]:
    name = f"crd-rules-{os.getpid()}"
    api_cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", MANIFESTS / "install.yaml"
    )
    api_cluster.kubectl("wait", f"crd/{ISRV}", "--for=condition=Established", "--timeout=30s")
    api_cluster.kubectl("create", "namespace", name)
    yield name
    api_cluster.kubectl("delete", "namespace", name, "--wait=false")


def offered(body: dict[str, Any]) -> dict[str, Any]:
    """The object as a user would send it: the server sets the rest of its metadata."""
    body["metadata"] = {"name": body["metadata"]["name"]}
    return body


@pytest.fixture
def create(
    api_cluster: Cluster, namespace: str
) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    made: list[str] = []

    def _create(body: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(offered(body))
        done = api_cluster.kubectl("create", "-n", namespace, "-o", "json", "-f", "-", input=text)
        made.append(body["metadata"]["name"])
        stored: dict[str, Any] = json.loads(done.stdout)
        return stored

    yield _create
    api_cluster.kubectl("delete", "isrv", "-n", namespace, "--ignore-not-found", *made)


def answer(cluster: Cluster, namespace: str, body: dict[str, Any]) -> str:
    """What the server says to an object that it must not admit; nothing is stored."""
    text = json.dumps(offered(body))
    done = cluster.kubectl(
        "create", "-n", namespace, "--dry-run=server", "-f", "-", input=text, check=False
    )
    assert done.returncode != 0, f"admitted: {text}"
    return done.stderr


@pytest.mark.parametrize(("engine", "path", "value", "field", "message"), RULES)
def test_rule_refuses_with_its_message(
    api_cluster: Cluster,
    namespace: str,
    *,
    engine: str,
    path: str,
    value: object,
    field: str,
    message: str,
) -> None:
    said = answer(api_cluster, namespace, case(engine, path, value))
    assert f"{field}: " in said
    assert message in said


@pytest.mark.parametrize(("path", "value", "message"), BOUNDS)
def test_bound_refuses(
    api_cluster: Cluster, namespace: str, path: str, value: object, message: str
) -> None:
    assert message in answer(api_cluster, namespace, put(minimal(), path, value))


def test_defaults_are_filled_in_and_absence_is_kept(
    create: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    stored = create(minimal())
    assert stored["spec"] == {
        "model": {
            "source": {"persistentVolumeClaim": {"claimName": "models"}},
            "mountPath": "/models",
        },
        "engine": {
            "type": "LightLLM",
            "image": "ghcr.io/modeltc/lightllm:v1.2.0",
            "imagePullPolicy": "IfNotPresent",
        },
        "accelerator": {
            "resource": "nvidia.com/gpu",
            "count": 1,
            "classLabelKeys": ["nvidia.com/gpu.product"],
        },
        "replicas": 1,
        "sizing": {"cudaGraphs": {"enabled": True}, "kvCacheDType": "auto", "extraReserve": 0},
        "rollout": {"drainSeconds": 300},
        "service": {"port": 80, "type": "ClusterIP"},
        "template": {"sharedMemory": {"sizeLimit": "2Gi"}},
    }
    assert parse(stored).spec == parse(minimal()).spec


@pytest.mark.parametrize("sample", ["", IN_BYTES])
def test_every_field_is_stored_as_given_and_read_alike(
    create: Callable[[dict[str, Any]], dict[str, Any]], sample: str
) -> None:
    stored = create(full(sample))
    assert stored["spec"] == full(sample)["spec"]
    assert parse(stored).spec == parse(full(sample)).spec


@pytest.mark.parametrize(
    "sample", sorted((MANIFESTS / "samples").glob("*.yaml")), ids=lambda path: path.name
)
def test_samples_are_admitted_and_read(api_cluster: Cluster, namespace: str, sample: Path) -> None:
    done = api_cluster.kubectl(
        "create", "-n", namespace, "--dry-run=server", "-o", "yaml", "-f", sample
    )
    servers = [o for o in yaml.safe_load_all(done.stdout) if o["kind"] == "InferenceServer"]
    assert servers
    for server in servers:
        assert parse(server).spec.engine.version


def test_a_name_of_52_characters_is_admitted(
    create: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    assert parse(create(put(minimal(), "metadata.name", "a" * 52))).name == "a" * 52


def test_status_is_a_subresource_of_its_own(
    api_cluster: Cluster, namespace: str, create: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    created = create({**minimal(), "status": STATUS})
    assert "status" not in created
    written = write_status(api_cluster, namespace)
    assert written["status"] == STATUS
    assert written["metadata"]["generation"] == created["metadata"]["generation"] == 1


def write_status(cluster: Cluster, namespace: str) -> dict[str, Any]:
    patch = json.dumps({"status": STATUS, "spec": {"replicas": 7}})
    done = cluster.kubectl(
        *(
            "patch",
            "isrv",
            "llama-8b",
            "-n",
            namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            patch,
        ),
        *("-o", "json"),
    )
    written: dict[str, Any] = json.loads(done.stdout)
    assert written["spec"]["replicas"] == 1
    return written


def test_scale_changes_replicas_and_shows_the_selector(
    api_cluster: Cluster, namespace: str, create: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    create(minimal())
    write_status(api_cluster, namespace)
    api_cluster.kubectl("scale", "isrv/llama-8b", "-n", namespace, "--replicas=4")
    path = f"/apis/plimsoll.dev/v1alpha1/namespaces/{namespace}/inferenceservers/llama-8b/scale"
    status, scale = api_cluster.get(path)
    assert status == 200
    assert scale["spec"] == {"replicas": 4}
    assert scale["status"] == {"replicas": 1, "selector": "plimsoll.dev/server=llama-8b"}


def test_printer_columns(
    api_cluster: Cluster, namespace: str, create: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    create(minimal())
    write_status(api_cluster, namespace)
    for kind in ("isrv", "inference"):
        head, row = api_cluster.kubectl("get", kind, "-n", namespace).stdout.splitlines()
        assert head.split() == [
            "NAME",
            "READY",
            "STATUS",
            "MODEL",
            "ENGINE",
            "TOKENS",
            "CTX",
            "GPU",
            "AGE",
        ]
        values = row.split()
        assert values[-1].endswith("s")
        assert [value.rpartition("/")[2] for value in values[:1]] == ["llama-8b"]
        assert values[1:-1] == [
            "1/1",
            "Serving",
            "llama-8b",
            "LightLLM",
            "123456",
            "8192",
            "NVIDIA-H100-80GB-HBM3",
        ]
    head, row = api_cluster.kubectl(
        "get", "isrv", "-n", namespace, "-o", "wide"
    ).stdout.splitlines()
    assert head.split()[-3:] == ["SOURCE", "DRIFT", "MESSAGE"]
    assert row.split()[-4:] == ["Measured", "-1.5", "says", "Serving"]


def test_servers_are_selected_by_engine(
    api_cluster: Cluster, namespace: str, create: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    create(minimal())
    cpp = put(minimal(), "spec.engine.type", "LlamaCpp")
    create(put(cpp, "metadata.name", "cpp"))
    found = api_cluster.kubectl(
        "get", "isrv", "-n", namespace, "--field-selector=spec.engine.type=LlamaCpp", "-o", "name"
    )
    assert found.stdout.split() == ["inferenceserver.plimsoll.dev/cpp"]


def operator_pod() -> dict[str, Any]:
    objects = list(yaml.safe_load_all((MANIFESTS / "install.yaml").read_text()))
    (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
    metadata = {**deployment["spec"]["template"]["metadata"], "name": "probe"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": deployment["spec"]["template"]["spec"],
    }


@pytest.mark.usefixtures("namespace")
def test_pod_security_restricted_admits_the_operator_and_is_enforced(api_cluster: Cluster) -> None:
    pod = operator_pod()
    dry_run = ("create", "-n", "plimsoll-system", "--dry-run=server", "-f", "-")
    assert "Warning" not in api_cluster.kubectl(*dry_run, input=json.dumps(pod)).stderr
    del pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"]
    refused = api_cluster.kubectl(*dry_run, input=json.dumps(pod), check=False)
    assert 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation' in refused.stderr


@pytest.mark.parametrize(
    ("verb", "resource", "where", "allowed"),
    [
        ("list", "inferenceservers.plimsoll.dev", "default", True),
        ("update", "inferenceservers.plimsoll.dev", "default", False),
        ("delete", "inferenceservers.plimsoll.dev", "default", False),
        ("patch", "inferenceservers.plimsoll.dev/status", "default", True),
        ("create", "deployments.apps", "default", True),
        ("delete", "deployments.apps", "default", False),
        ("create", "pods", "default", True),
        ("create", "pods/exec", "default", False),
        ("get", "secrets", "default", False),
        ("get", "secrets", "plimsoll-system", False),
        ("get", "configmaps", "plimsoll-system", False),
        ("get", "configmaps/plimsoll-learned", "default", True),
        ("patch", "configmaps/plimsoll-learned", "default", True),
        ("patch", "configmaps/another", "default", False),
        ("delete", "configmaps/plimsoll-learned", "default", False),
        ("list", "events", "default", True),
        ("watch", "events", "default", False),
        ("get", "nodes", "default", True),
        ("list", "nodes", "default", True),
        ("watch", "nodes", "default", False),
        ("patch", "nodes", "default", False),
        ("get", "pods/log", "default", True),
        ("list", "replicasets.apps", "default", True),
        ("patch", "replicasets.apps", "default", False),
        ("patch", "pods", "default", False),
        ("update", "leases.coordination.k8s.io/plimsoll-operator", "plimsoll-system", True),
        ("update", "leases.coordination.k8s.io/another", "plimsoll-system", False),
        ("create", "leases.coordination.k8s.io", "plimsoll-system", True),
        ("create", "leases.coordination.k8s.io", "default", False),
        ("create", "events", "default", True),
    ],
)
@pytest.mark.usefixtures("namespace")
def test_what_the_operator_may_do(
    api_cluster: Cluster, verb: str, resource: str, where: str, *, allowed: bool
) -> None:
    account = "system:serviceaccount:plimsoll-system:plimsoll-operator"
    assert may(api_cluster, verb, resource, where, account) is allowed


def may(cluster: Cluster, verb: str, resource: str, namespace: str, account: str) -> bool:
    """The server's own word; ``resource`` may end in /subresource, or for leases and maps in /name."""
    kind, _, rest = resource.partition("/")
    is_name = kind.startswith(("leases", "configmaps"))
    what = [resource] if is_name or not rest else [kind, f"--subresource={rest}"]
    done = cluster.kubectl(
        "auth", "can-i", verb, *what, "-n", namespace, f"--as={account}", check=False
    )
    assert done.stdout.strip() in {"yes", "no"}, done.stderr
    return done.stdout.strip() == "yes"


def test_namespace_editors_and_viewers_may_not_write_status(
    api_cluster: Cluster, namespace: str
) -> None:
    for role in ("edit", "view"):
        api_cluster.kubectl(
            "create",
            "rolebinding",
            f"test-{role}",
            "-n",
            namespace,
            f"--clusterrole={role}",
            f"--user={role}r",
        )
    deadline = time.monotonic() + 30
    while not may(api_cluster, "create", ISRV, namespace, "editr"):
        assert time.monotonic() < deadline, "the edit role never took up the servers"
        time.sleep(0.2)
    allowed = {
        (account, verb, resource)
        for account in ("editr", "viewr")
        for verb in ("get", "create", "patch", "delete")
        for resource in (ISRV, f"{ISRV}/status", f"{ISRV}/scale")
        if may(api_cluster, verb, resource, namespace, account)
    }
    reads = {
        (a, "get", r) for a in ("editr", "viewr") for r in (ISRV, f"{ISRV}/status", f"{ISRV}/scale")
    }
    writes = {("editr", verb, ISRV) for verb in ("create", "patch", "delete")} | {
        ("editr", "patch", f"{ISRV}/scale")
    }
    assert allowed == reads | writes
