"""Bad input on the real cluster: a condition that says what to do, others undisturbed, then recovery."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.world import ENGINE_IMAGE, NODE_A, NODE_B, SMOL, wait
from tests.cluster_kit.rest import RestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.world import Tenant

SIZING = "plimsoll.dev/sizing-for=smollm2"


@pytest.fixture
def neighbour(tenant: Tenant) -> Iterator[dict[str, Any]]:
    """A healthy server in the same namespace; whatever the test does, its pod must be the same at the end."""
    tenant.apply("neighbour", node=NODE_B)
    tenant.wait_ready("neighbour")
    (pod,) = tenant.pods("plimsoll.dev/server=neighbour")
    yield pod
    (after,) = tenant.pods("plimsoll.dev/server=neighbour")
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert tenant.condition("Ready", "neighbour")["status"] == "True"


def _says(condition: dict[str, Any], *words: str) -> None:
    for word in words:
        assert word in condition["message"], condition
    assert condition["message"].rstrip().endswith("."), condition


@pytest.mark.usefixtures("neighbour")
def test_model_path_missing_then_there(tenant: Tenant) -> None:
    late = f"late-{tenant.namespace}"
    tenant.apply(node=NODE_A, sub_path=late)
    condition = wait_model_problem(tenant)
    _says(condition, late)
    shutil.copytree(tenant.world.models / SMOL, tenant.world.models / late, dirs_exist_ok=True)
    tenant.wait_ready(seconds=240)


def wait_model_problem(tenant: Tenant) -> dict[str, Any]:
    """ModelReady turns False, either by the sizer's report or by the volume that cannot be mounted."""
    wait(
        lambda: tenant.condition("ModelReady").get("status") == "False",
        90,
        "ModelReady=False",
        lambda: tenant.server().get("status"),
    )
    return tenant.condition("ModelReady")


@pytest.mark.usefixtures("neighbour")
def test_unknown_architecture_then_a_known_one(tenant: Tenant) -> None:
    tenant.apply(node=NODE_A, sub_path="unknown", engine=LIGHTLLM)
    _says(tenant.wait_condition("Accepted", "False", "UnsupportedArchitecture"), "perceptron9000")
    assert tenant.condition("Stalled")["status"] == "True"
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    assert not tenant.condition("Stalled")


@pytest.mark.usefixtures("neighbour")
def test_weights_larger_than_the_gpu(tenant: Tenant) -> None:
    tenant.apply(node=NODE_A, sub_path="too-large", engine=LIGHTLLM)
    _says(tenant.wait_condition("Sized", "False", "WeightsDoNotFit"), "GiB")
    assert tenant.deployment() is None
    tenant.apply(node=NODE_A)
    tenant.wait_ready()


@pytest.mark.usefixtures("neighbour")
def test_nvml_fails_for_a_while_then_works(tenant: Tenant) -> None:
    cluster = tenant.world.cluster
    cluster.set_gpu(NODE_A, 0, fail=9)  # NVML_ERROR_DRIVER_NOT_LOADED
    try:
        tenant.apply(node=NODE_A)
        wait(
            lambda: [p for p in tenant.pods(SIZING) if p["status"].get("startTime")],
            30,
            "sizing pod runs",
        )
        wait_seconds_pass(20)
        assert tenant.condition("Ready")["status"] != "True"
        assert tenant.deployment() is None
    finally:
        cluster.set_gpu(NODE_A, 0, fail=0)
    tenant.wait_ready()


def wait_seconds_pass(seconds: float) -> None:
    """The issue asks for a driver that is away for 20 s; nothing to poll for meanwhile."""
    time.sleep(seconds)


@pytest.mark.usefixtures("neighbour")
def test_forged_result_is_refused_and_measured_again(tenant: Tenant) -> None:
    """Someone with pods/status rights writes a message without the pod's UID: it is not used."""
    rest = tenant.world.rest
    cluster = tenant.world.cluster
    cluster.set_gpu(NODE_A, 0, fail=9)
    try:
        tenant.apply(node=NODE_A)
        wait(lambda: tenant.pods(SIZING), 30, "sizing pod")
        (pod,) = tenant.pods(SIZING)
        forged = json.dumps(
            {
                "schema": "plimsoll.dev/report.v1",
                "podUID": "forged",
                "maxTotalTokenNum": 10**9,
                "end": "plimsoll",
            }
        )
        status = {
            "phase": "Succeeded",
            "initContainerStatuses": [
                {
                    "name": "sizer",
                    "image": "x",
                    "imageID": "x",
                    "ready": True,
                    "restartCount": 0,
                    "state": {
                        "terminated": {"exitCode": 0, "message": forged, "reason": "Completed"}
                    },
                }
            ],
        }
        rest.merge(f"{tenant.core}/pods/{pod['metadata']['name']}/status", {"status": status})
        _says(tenant.wait_condition("Sized", "False", "ResultInvalid"), "message")
        assert tenant.deployment() is None
    finally:
        cluster.set_gpu(NODE_A, 0, fail=0)
    number = tenant.wait_ready(seconds=180)["status"]["capacity"]["maxTotalTokenNum"]
    assert number < 10**6


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize(
    "args",
    [["--max-total-token-num=5"], ["--max_total_token_n", "5"]],
)
def test_owned_flag_is_refused(tenant: Tenant, args: list[str]) -> None:
    tenant.apply(node=NODE_A, engine=LIGHTLLM | {"args": args})
    _says(tenant.wait_condition("Accepted", "False", "FlagNotAllowed"), args[0].split("=")[0])
    assert not tenant.pods(SIZING)
    tenant.apply(node=NODE_A)
    tenant.wait_ready()


@pytest.mark.usefixtures("neighbour")
def test_gpu_quota_of_zero(tenant: Tenant) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    }
    path = f"{tenant.core}/resourcequotas/no-gpus"
    tenant.world.rest.apply(path, quota)
    wait(lambda: tenant.world.rest.get(path).get("status", {}).get("hard"), 20, "quota is enforced")
    tenant.apply(node=NODE_A)
    _says(tenant.wait_condition("CapacityAvailable", "False", "QuotaExceeded"), "no-gpus")
    tenant.world.rest.call("DELETE", path)
    tenant.wait_ready(seconds=180)


def test_no_gpu_free_then_one_is(tenant: Tenant) -> None:
    """Every GPU of the node is held: the sizing pod waits, says so, and goes on when a server leaves."""
    gpus = int(
        tenant.world.rest.get(f"/api/v1/nodes/{NODE_B}")["status"]["allocatable"]["nvidia.com/gpu"]
    )
    holders = [f"holder-{i}" for i in range(gpus)]
    for holder in holders:
        tenant.apply(holder, node=NODE_B)
    for holder in holders:
        tenant.wait_ready(holder)
    tenant.apply(node=NODE_B)
    _says(tenant.wait_condition("CapacityAvailable", "False", "Unschedulable"), "nvidia.com/gpu")
    for holder in holders:
        assert tenant.condition("Ready", holder)["status"] == "True"
    tenant.world.rest.call("DELETE", f"{tenant.servers}/{holders[0]}")
    tenant.wait_ready()


def test_name_of_53_characters_is_refused_at_admission(tenant: Tenant) -> None:
    with pytest.raises(RestError, match="at most 52 characters"):
        tenant.apply("n" * 53)
    tenant.apply("n" * 52, replicas=0)


LIGHTLLM = {"type": "LightLLM", "image": ENGINE_IMAGE, "version": "1.2.0"}
