"""The local cluster's nodes do what later tests take for granted: GPUs, fake NVML, networks, images."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster_kit import Cluster, KitError
from tests.cluster_kit.busybox import REFERENCE, busybox_image
from tests.cluster_kit.node import gpu_labels, gpu_uuid
from tests.cluster_kit.presets import TEST_NODES

pytestmark = pytest.mark.cluster
SPACE = "kit-nodes"


@pytest.fixture(scope="module")
def cluster(gpu_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster with a namespace and a small image for this file."""
    gpu_cluster.load_image(busybox_image(print))
    gpu_cluster.kubectl("create", "namespace", SPACE)
    eventually(lambda: account_exists(gpu_cluster))
    yield gpu_cluster
    # A container's first process ignores SIGTERM: without force each would take its 30 s of grace.
    gpu_cluster.kubectl("delete", "pods", "--all", "-n", SPACE, "--grace-period=0", "--force")
    gpu_cluster.kubectl("delete", "namespace", SPACE, "--wait=false")


def account_exists(cluster: Cluster) -> bool:
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
    return cluster.get(path)[0] == 200


def eventually(check: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)


def container(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": REFERENCE, "command": ["/bin/sh", "-c", script], **more}


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": list(containers), **spec},
    }


def start(cluster: Cluster, *objects: dict[str, Any]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    cluster.kubectl("apply", "-n", SPACE, "-f", "-", input=text)


def ready(cluster: Cluster, name: str) -> None:
    cluster.kubectl("wait", "-n", SPACE, f"pod/{name}", "--for=condition=Ready", "--timeout=60s")


def logs(cluster: Cluster, name: str, of: str) -> str:
    return cluster.kubectl("logs", "-n", SPACE, name, "-c", of).stdout.strip()


def run(cluster: Cluster, name: str, script: str) -> str:
    command = ("exec", "-n", SPACE, name, "--", "/bin/sh", "-c", script)
    return cluster.kubectl(*command).stdout.strip()


GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def test_nodes_carry_the_labels_of_gpu_feature_discovery_and_their_gpus(cluster: Cluster) -> None:
    _, listed = cluster.get("/api/v1/nodes")
    found = {item["metadata"]["name"]: item for item in listed["items"]}
    for node in TEST_NODES:
        assert gpu_labels(node).items() <= found[node.name]["metadata"]["labels"].items()
        assert found[node.name]["status"]["allocatable"]["nvidia.com/gpu"] == str(node.gpus)
        assert found[node.name]["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.2"


def test_init_container_and_server_see_the_same_gpu(cluster: Cluster) -> None:
    volume = {"volumeMounts": [{"name": "v", "mountPath": "/plimsoll"}]}
    write = "echo $NVIDIA_VISIBLE_DEVICES; echo \"T='42'\" > /plimsoll/env; echo sized > /dev/termination-log"
    key = {"path": "env", "volumeName": "v", "key": "T"}
    env = {"env": [{"name": "T", "valueFrom": {"fileKeyRef": key}}]}
    serve = "echo $NVIDIA_VISIBLE_DEVICES $T; /busybox sleep 600"
    start(
        cluster,
        pod(
            "same",
            container("server", serve, **env, **GPU),
            initContainers=[container("sizer", write, **volume, **GPU)],
            volumes=[{"name": "v", "emptyDir": {}}],
            nodeSelector={"nvidia.com/gpu.product": "ACME-T600-0.6GB"},
        ),
    )
    ready(cluster, "same")
    uuid = gpu_uuid(cluster.name, "node-b", 0)
    assert logs(cluster, "same", "sizer") == uuid
    assert logs(cluster, "same", "server") == f"{uuid} 42"
    _, seen = cluster.get(f"/api/v1/namespaces/{SPACE}/pods/same")
    ended = seen["status"]["initContainerStatuses"][0]["state"]["terminated"]
    assert ended["message"] == "sized\n"
    assert run(cluster, "same", "/busybox ls /usr/lib/x86_64-linux-gnu") == "libnvidia-ml.so.1"
    cluster.kubectl("delete", "-n", SPACE, "pod", "same", "--grace-period=0", "--force")


def test_a_pod_without_a_gpu_sees_no_driver(cluster: Cluster) -> None:
    start(cluster, pod("bare", container("c", "/busybox sleep 600")))
    ready(cluster, "bare")
    seen = run(cluster, "bare", "echo ${NVIDIA_VISIBLE_DEVICES-unset}; /busybox ls /")
    assert seen.split() == ["unset", *["bin", "busybox", "dev", "etc", "proc", "sys", "var"]]


def test_set_gpu_changes_what_a_running_pod_reads(cluster: Cluster) -> None:
    user = {"securityContext": {"runAsUser": 65532, "runAsNonRoot": True}}
    sleeper = container("c", "/busybox sleep 600", **GPU, **user)
    start(cluster, pod("watch", sleeper, nodeName="node-a"))
    ready(cluster, "watch")
    read = "/busybox cat /run/plimsoll-fake-nvml/devices.conf"
    try:
        cluster.set_gpu("node-a", 1, used=123456, fail=999)
        seen = run(cluster, "watch", read)
        assert "fail=999" in seen
        _, first, second, *others = seen.split("[")  # by GPU, in the order of their indices
        assert "used=123456" in second
        assert "used=123456" not in "".join((first, *others))
    finally:
        cluster.set_gpu("node-a", 1, used=0, fail=0)
    assert "fail=0" in run(cluster, "watch", read)
    mounts = run(
        cluster, "watch", "/busybox grep -E 'fake-nvml|libnvidia' /proc/mounts"
    ).splitlines()
    assert [line.split()[3].split(",")[0] for line in mounts] == ["ro", "ro"]


def test_set_gpu_names_a_gpu_that_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(KitError, match="node-b has 1 GPUs, none with index 1"):
        cluster.set_gpu("node-b", 1, used=0)
    with pytest.raises(KitError, match="no node 'node-x'"):
        cluster.set_gpu("node-x", 0, used=0)


def test_a_service_answers_across_nodes_and_to_the_test_itself(cluster: Cluster) -> None:
    page = "echo hello > /index.html; /busybox httpd -f -p 8080 -h /"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    clients = {f"client-{node.name}": node.name for node in TEST_NODES}
    start(
        cluster,
        service,
        pod("web", container("c", page), nodeName="node-b"),
        *(pod(n, container("c", "/busybox sleep 600"), nodeName=at) for n, at in clients.items()),
    )
    for name in ("web", *clients):
        ready(cluster, name)
    _, found = cluster.get(f"/api/v1/namespaces/{SPACE}/services/web")
    address = found["spec"]["clusterIP"]
    eventually(lambda: run(cluster, "client-node-a", fetch(address)) == "hello", 20)
    assert run(cluster, "client-node-b", fetch(address)) == "hello"
    assert run(cluster, "web", fetch(address)) == "hello", "a pod reaches itself by its Service"
    with urllib.request.urlopen(f"http://{address}/index.html", timeout=10) as answer:
        assert answer.read() == b"hello\n"


def fetch(address: str) -> str:
    # Without a time limit: Debian's busybox crashes on wget -T.
    return f"/busybox wget -q -O - http://{address}/index.html || true"


def test_a_pod_reaches_the_api_server_by_its_service(cluster: Cluster) -> None:
    probe = "/busybox nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null && echo reached; /busybox sleep 600"
    start(cluster, pod("api", container("c", probe)))
    ready(cluster, "api")
    eventually(lambda: logs(cluster, "api", "c") == "reached", 20)


def test_images_are_on_every_node_once_loaded(cluster: Cluster) -> None:
    assert cluster.image_exists(REFERENCE)
    assert not cluster.image_exists("localhost/plimsoll-nothing:1")
