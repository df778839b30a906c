"""Sized, written, rolled out, answered: the issue's claims about the main job, each on the real nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.world import GGUF, NODE_A, NODE_B, wait

if TYPE_CHECKING:
    from tests.cluster.world import Tenant, World

RECOMPUTE = Path(__file__).resolve().parents[1] / "recompute.py"


def test_number_reaches_template_and_engine(tenant: Tenant) -> None:
    """Two servers on two kinds of GPU: each template carries the number that an independent script recomputes."""
    tenant.apply("large", node=NODE_A)
    tenant.apply("small", node=NODE_B)
    numbers = {}
    for name in ("large", "small"):
        status = tenant.wait_ready(name)["status"]
        written = tenant.argument("--ctx-size", name)
        message = _guard_message(tenant, name)
        recomputed = subprocess.run(
            [sys.executable, "-I", str(RECOMPUTE)],
            input=message,
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(recomputed.stdout.split()[-1]) == written
        assert status["capacity"]["maxTotalTokenNum"] == written
        props = tenant.props(name)
        assert props["total_slots"] * props["default_generation_settings"]["n_ctx"] == written
        numbers[name] = written
    assert numbers["large"] > numbers["small"] > 0


def test_init_and_server_saw_the_same_gpu_and_no_token(tenant: Tenant) -> None:
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    pod = _server_pod(tenant, "smollm2")
    seen_by_init = json.loads(_guard_message(tenant, "smollm2"))["devices"]
    log = tenant.world.cluster.kubectl(
        "-n", tenant.namespace, "logs", pod["metadata"]["name"], "-c", "server"
    ).stdout
    visible = next(
        line.split("NVIDIA_VISIBLE_DEVICES=", 1)[1].strip()
        for line in log.splitlines()
        if "NVIDIA_VISIBLE_DEVICES=" in line
    )
    assert visible.split(",") == seen_by_init
    assert len(seen_by_init) == 1
    assert seen_by_init[0].startswith("GPU-")
    _assert_no_token(pod)


def test_completion_is_real(tenant: Tenant) -> None:
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    answer = tenant.world.rest.call(
        "POST",
        f"{tenant.core}/services/smollm2:80/proxy/completion",
        {"prompt": "The capital of France is", "n_predict": 8, "temperature": 0},
    )
    assert "Paris" in answer["content"]


def test_children_are_put_right(tenant: Tenant) -> None:
    """A deleted child and a changed argument come back within seconds, with the same number."""
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    number = tenant.argument("--ctx-size")
    rest = tenant.world.rest
    path = f"/apis/apps/v1/namespaces/{tenant.namespace}/deployments/smollm2"
    rest.call("DELETE", path)
    wait(lambda: tenant.deployment() is not None, 10, "Deployment recreated")
    rest.call("DELETE", f"{tenant.core}/services/smollm2")
    wait(lambda: rest.get(f"{tenant.core}/services/smollm2"), 10, "Service recreated")
    live = tenant.deployment()
    assert live is not None
    args = live["spec"]["template"]["spec"]["containers"][0]["args"]
    position = args.index("--ctx-size") + 1
    operation = {
        "op": "replace",
        "path": f"/spec/template/spec/containers/0/args/{position}",
        "value": "256",
    }
    rest.call("PATCH", path, [operation], "application/json-patch+json")
    wait(lambda: tenant.argument("--ctx-size") == number, 10, "argument put right")
    tenant.wait_ready()


def test_scale_by_kubectl_and_to_zero(tenant: Tenant) -> None:
    """The scale subresource changes the Deployment, keeps the number, and re-measures nothing."""
    tenant.apply(node=NODE_A)
    first = tenant.wait_ready()
    kubectl = tenant.world.cluster.kubectl
    kubectl("-n", tenant.namespace, "scale", "isrv/smollm2", "--replicas=0")
    tenant.wait_condition("RolledOut", "True", "ScaledToZero")
    wait(lambda: not tenant.pods("plimsoll.dev/server=smollm2"), 60, "server pods gone")
    kubectl("-n", tenant.namespace, "scale", "isrv/smollm2", "--replicas=1")
    second = tenant.wait_ready()
    assert second["status"]["capacity"]["measuredAt"] == first["status"]["capacity"]["measuredAt"]
    assert second["status"]["capacity"]["maxTotalTokenNum"] == tenant.argument("--ctx-size")


def test_delete_leaves_no_child_of_any_kind(tenant: Tenant) -> None:
    tenant.apply(node=NODE_A)
    uid = tenant.wait_ready()["metadata"]["uid"]
    assert {child.split("/")[0] for child in _owned(tenant.world, uid)} >= {
        "deployments",
        "services",
    }
    tenant.world.rest.call("DELETE", f"{tenant.servers}/smollm2")
    wait(
        lambda: not _owned(tenant.world, uid) and not tenant.pods(),
        30,
        "all children gone",
        lambda: _owned(tenant.world, uid),
    )


def test_fixed_mode_takes_the_users_number(tenant: Tenant) -> None:
    tenant.apply(
        node=NODE_A,
        sizing={"mode": "Fixed", "maxTotalTokenNum": 4096, "contextLength": 2048},
        file=GGUF,
    )
    status = tenant.wait_ready()["status"]
    assert tenant.argument("--ctx-size") == 4096
    assert status["capacity"]["source"] == "UserProvided"
    assert not tenant.pods("plimsoll.dev/sizing-for=smollm2")


def test_operator_restart_changes_no_running_server(tenant: Tenant) -> None:
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    before = _server_pod(tenant, "smollm2")["metadata"]["uid"]
    generation = (tenant.deployment() or {})["metadata"]["generation"]
    kubectl = tenant.world.cluster.kubectl
    kubectl("-n", "plimsoll-system", "rollout", "restart", "deployment/plimsoll-operator")
    kubectl(
        "-n",
        "plimsoll-system",
        "rollout",
        "status",
        "deployment/plimsoll-operator",
        "--timeout=90s",
    )
    tenant.wait_ready()
    assert _server_pod(tenant, "smollm2")["metadata"]["uid"] == before
    assert (tenant.deployment() or {})["metadata"]["generation"] == generation


def _server_pod(tenant: Tenant, name: str) -> dict[str, Any]:
    pods = [
        p
        for p in tenant.pods(f"plimsoll.dev/server={name}")
        if "deletionTimestamp" not in p["metadata"]
    ]
    assert len(pods) == 1
    return pods[0]


def _guard_message(tenant: Tenant, name: str) -> str:
    statuses = _server_pod(tenant, name)["status"]["initContainerStatuses"]
    state = next(s for s in statuses if s["name"] == "sizer")["state"]
    message: str = state["terminated"]["message"]
    assert len(message.encode()) <= 2048
    return message


def _assert_no_token(pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert not [v for v in spec["volumes"] if "projected" in v or "secret" in v]
    mounts = [
        m["mountPath"]
        for c in [*spec["initContainers"], *spec["containers"]]
        for m in c.get("volumeMounts", [])
    ]
    assert not [m for m in mounts if "serviceaccount" in m]


def _owned(world: World, uid: str) -> list[str]:
    """`resource/namespace/name` of everything, over all kinds, whose owner is `uid` or is owned by it in turn."""
    found: dict[str, str] = {}
    objects = [
        (resource, item) for resource, path in _listable(world) for item in world.rest.items(path)
    ]
    owners = {uid}
    for _ in range(4):  # server -> Deployment -> ReplicaSet -> Pod
        for resource, item in objects:
            meta = item["metadata"]
            if owners & {o["uid"] for o in meta.get("ownerReferences", [])}:
                owners.add(meta["uid"])
                found[meta["uid"]] = f"{resource}/{meta.get('namespace', '')}/{meta['name']}"
    return sorted(found.values())


def _listable(world: World) -> list[tuple[str, str]]:
    groups = [g["preferredVersion"]["groupVersion"] for g in world.rest.get("/apis")["groups"]]
    roots = ["/api/v1", *(f"/apis/{group}" for group in groups)]
    return [
        (resource["name"], f"{root}/{resource['name']}")
        for root in roots
        for resource in world.rest.get(root)["resources"]
        if "list" in resource["verbs"]
        and "/" not in resource["name"]
        and resource["namespaced"]
        and resource["name"] not in {"events", "bindings"}
    ]
