"""What the real API server makes of manifests/: every rule with its message, defaults, subresources, rights."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from plimsoll.controller.crd import parse
from tests.unit.manifests.samples import MANIFESTS, full, minimal, put, schema, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster_kit import Cluster

pytestmark = pytest.mark.contract

ISRV = "inferenceservers.plimsoll.dev"
ENV = "spec.engine.env"
CLAIM = "spec.model.source.persistentVolumeClaim"
RESOURCES = "spec.template.resources"
KEYS = "may not set plimsoll.dev/ keys or app.kubernetes.io/managed-by, which Plimsoll sets itself"
LABEL_KEY = "every key must be a label key such as example.com/team"
RELATIVE = 'must be a relative path without ".."'
NO_DOLLAR = 'may not hold "$", a backslash or control characters'
TAKEN_MOUNT = "may not be / and may not lie in /dev, /etc, /plimsoll, /proc, /sys or /var/run"
TAKEN_ENV = (
    "may not be NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES or PLIMSOLL_*, "
    "which the device plugin and Plimsoll set"
)
ONE_VALUE = "must have exactly one of value and valueFrom"
NAME = (
    "metadata.name must be a DNS label that starts with a letter and has at most 52 characters, "
    "so that the names derived from it fit"
)
TENSOR = (
    "parallelism.tensor must equal accelerator.count: tensor parallelism is the only kind yet, "
    "so other devices would idle; leave it out to follow the count"
)
REFERENCE = {"secretKeyRef": {"name": "s", "key": "k"}}
DTYPES = (
    "the engine does not know this kvCacheDType: LightLLM knows auto, bf16, fp16, fp32, fp8, int8, int4; "
    "LlamaCpp knows auto, bf16, fp16, fp32, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"
)
AT_LEAST_0 = "must be a quantity of at least 0, such as 500m or 16Gi"

# (field that is set, its value, field that the answer names, message of the rule)
RULES: list[tuple[str, object, str, str]] = [
    ("metadata.name", "a" * 53, "metadata.name", NAME),
    ("metadata.name", "7b", "metadata.name", NAME),
    ("metadata.name", "a.b", "metadata.name", NAME),
    ("spec.model.source", {}, "spec.model.source",
     "model.source needs exactly one source; this version knows persistentVolumeClaim"),
    (f"{CLAIM}.subPath", "/abs", f"{CLAIM}.subPath", RELATIVE),
    (f"{CLAIM}.subPath", "a/../..", f"{CLAIM}.subPath", RELATIVE),
    (f"{CLAIM}.subPath", "$(HOME)", f"{CLAIM}.subPath", NO_DOLLAR),
    ("spec.model.file", "..", "spec.model.file", RELATIVE),
    ("spec.model.file", "a b", "spec.model.file", "may hold only letters, digits and - . _ /"),
    ("spec.model.servedName", "--api-key", "spec.model.servedName",
     "must begin with a letter or digit and hold only letters, digits and - . _ / : @ +"),
    ("spec.model.mountPath", "models", "spec.model.mountPath", 'must be an absolute path without ".." and ":"'),
    ("spec.model.mountPath", "/a/../b", "spec.model.mountPath", 'must be an absolute path without ".." and ":"'),
    ("spec.model.mountPath", "/a:b", "spec.model.mountPath", 'must be an absolute path without ".." and ":"'),
    ("spec.model.mountPath", "/$(A)", "spec.model.mountPath", NO_DOLLAR),
    ("spec.model.mountPath", "/", "spec.model.mountPath", TAKEN_MOUNT),
    ("spec.model.mountPath", "/dev/shm", "spec.model.mountPath", TAKEN_MOUNT),
    ("spec.model.mountPath", "/plimsoll", "spec.model.mountPath", TAKEN_MOUNT),
    ("spec.engine.image", "a b", "spec.engine.image", "must be an image reference without blanks"),
    ("spec.engine.version", "v 1", "spec.engine.version", "must be a version such as 1.2.0"),
    (ENV, [{"name": "A=B", "value": "1"}], f"{ENV}[0].name", "must be the name of an environment variable"),
    (ENV, [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], f"{ENV}[0].name", TAKEN_ENV),
    (ENV, [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}], f"{ENV}[0].name", TAKEN_ENV),
    (ENV, [{"name": "PLIMSOLL_TOKENS", "value": "9"}], f"{ENV}[0].name", TAKEN_ENV),
    (ENV, [{"name": "A"}], f"{ENV}[0]", ONE_VALUE),
    (ENV, [{"name": "A", "value": "", "valueFrom": REFERENCE}], f"{ENV}[0]", ONE_VALUE),
    ("spec.accelerator.resource", "cpu", "spec.accelerator.resource",
     "must be an extended resource such as nvidia.com/gpu"),
    ("spec.accelerator", {"products": ["H100"], "classLabelKeys": []}, "spec.accelerator.classLabelKeys",
     "products are values of the class label, so classLabelKeys needs at least one key"),
    ("spec.parallelism.tensor", 2, "spec.parallelism.tensor", TENSOR),
    ("spec.sizing.kvCacheDType", "q8_0", "spec.sizing.kvCacheDType", DTYPES),
    ("spec.sizing.mode", "Fixed", "spec.sizing.maxTotalTokenNum",
     "mode Fixed needs maxTotalTokenNum, the number to serve with"),
    ("spec.sizing", {"minTotalTokenNum": 2, "maxTotalTokenNum": 1}, "spec.sizing.minTotalTokenNum",
     "minTotalTokenNum may not exceed maxTotalTokenNum"),
    ("spec.sizing.extraReserve", "-1Gi", "spec.sizing.extraReserve", "must be a quantity of at least 0, such as 2Gi"),
    ("spec.sizing.extraReserve", -1, "spec.sizing.extraReserve", "must be a quantity of at least 0, such as 2Gi"),
    ("spec.sizing.extraReserve", "2 GB", "spec.sizing.extraReserve", "must be a quantity of at least 0, such as 2Gi"),
    ("spec.service.labels", {"plimsoll.dev/server": "x"}, "spec.service.labels", KEYS),
    ("spec.service.annotations", {"plimsoll.dev/x": "x"}, "spec.service.annotations", KEYS),
    ("spec.service.annotations", {"a b": "x"}, "spec.service.annotations", LABEL_KEY),
    ("spec.template.labels", {"plimsoll.dev/sizing-for": "x"}, "spec.template.labels", KEYS),
    ("spec.template.labels", {"app.kubernetes.io/managed-by": "Helm"}, "spec.template.labels", KEYS),
    ("spec.template.annotations", {"plimsoll.dev/x": "x"}, "spec.template.annotations", KEYS),
    ("spec.template.nodeSelector", {"-a": "x"}, "spec.template.nodeSelector", LABEL_KEY),
    ("spec.template.sharedMemory.sizeLimit", "0", "spec.template.sharedMemory.sizeLimit",
     "must be a quantity above 0, such as 2Gi"),
    (f"{RESOURCES}.limits", {"nvidia.com/gpu": 1}, f"{RESOURCES}.limits",
     "may hold only cpu, memory and ephemeral-storage; GPUs come from spec.accelerator"),
    (f"{RESOURCES}.requests", {"cpu": "-1"}, f"{RESOURCES}.requests[cpu]", AT_LEAST_0),
    (f"{RESOURCES}.requests", {"memory": "much"}, f"{RESOURCES}.requests[memory]", AT_LEAST_0),
    (RESOURCES, {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}, f"{RESOURCES}.requests",
     "a request may not exceed its limit"),
]  # fmt: skip

# As RULES, with engine LlamaCpp.
LLAMA_RULES: list[tuple[str, object, str, str]] = [
    ("spec.accelerator.count", 2, "spec.accelerator.count",
     "engine LlamaCpp needs accelerator.count 1: a model split over several of its devices cannot be sized yet"),
    ("spec.sizing.kvCacheDType", "int8", "spec.sizing.kvCacheDType", DTYPES),
    ("spec.sizing", {"mode": "Fixed", "maxTotalTokenNum": 1}, "spec.model.file",
     "engine LlamaCpp serves one file, and in sizing.mode Fixed nothing looks for it, so model.file is needed"),
]  # fmt: skip

# Bounds and types of the schema, in the API server's own words.
BOUNDS: list[tuple[str, object, str]] = [
    ("spec.engine.type", "VLLM", 'Unsupported value: "VLLM": supported values: "LightLLM", "LlamaCpp"'),
    ("spec.sizing.mode", "InPod", 'supported values: "Stamped", "Fixed"'),
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
    ("spec.sizing.probe", "Torch", 'unknown field "spec.sizing.probe"'),
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


@pytest.mark.parametrize(("path", "value", "field", "message"), RULES)
def test_rule_refuses_with_its_message(
    api_cluster: Cluster, namespace: str, path: str, value: object, field: str, message: str
) -> None:
    said = answer(api_cluster, namespace, put(minimal(), path, value))
    assert f"{field}: " in said
    assert message in said


@pytest.mark.parametrize(("path", "value", "field", "message"), LLAMA_RULES)
def test_rule_of_llama_cpp_refuses_with_its_message(
    api_cluster: Cluster, namespace: str, path: str, value: object, field: str, message: str
) -> None:
    said = answer(
        api_cluster, namespace, put(put(minimal(), "spec.engine.type", "LlamaCpp"), path, value)
    )
    assert f"{field}: " in said
    assert message in said


def test_every_rule_of_the_schema_has_its_case() -> None:
    written = {
        rule["message"]
        for _, node in walk(schema())
        for rule in node.get("x-kubernetes-validations", ())
    }
    assert written == {message for _, _, _, message in RULES + LLAMA_RULES}


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


def test_every_field_is_stored_as_given_and_read_alike(
    create: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    stored = create(full())
    assert stored["spec"] == full()["spec"]
    assert parse(stored).spec == parse(full()).spec


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
    assert head.split()[-2:] == ["SOURCE", "MESSAGE"]
    assert row.split()[-3:] == ["Measured", "says", "Serving"]


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
        ("get", "nodes", "default", True),
        ("list", "nodes", "default", False),
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
    """The server's own word; ``resource`` may end in /subresource, or for leases in /name."""
    kind, _, rest = resource.partition("/")
    is_name = kind.startswith("leases")
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
