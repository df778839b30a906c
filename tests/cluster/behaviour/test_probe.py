"""The torch probe in real pods: the sizer is carried into the engine's image and asks CUDA there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.behaviour.conftest import GPU_BYTES
from tests.cluster.behaviour.situation import SMALL, standin
from tests.cluster.world import NODE_A, NODE_B, wait

if TYPE_CHECKING:
    from tests.cluster.behaviour.situation import Situation

CONTEXT = 480 << 20  # what the fake torch takes for its context, and gives back


def test_cuda_is_asked_in_the_engines_own_image(situation: Situation) -> None:
    """The sizing pod and the server's pod: two init containers, and a number from CUDA's total."""
    tenant = situation.tenant
    tenant.apply(node=NODE_B, sub_path=SMALL, engine=standin(), sizing={"probe": "Torch"})
    tenant.wait_ready(seconds=120)
    capacity = tenant.server()["status"]["capacity"]
    total = capacity["breakdown"]["deviceTotal"]
    assert 0 < total < GPU_BYTES, "CUDA's total leaves out what the driver reserves"
    assert capacity["gpu"]["totalBytes"] == GPU_BYTES
    # The probe's process had ended before memory was read: its context is not missing.
    assert capacity["breakdown"]["deviceFree"] > total - CONTEXT
    (pod,) = tenant.pods("plimsoll.dev/server")
    inits = pod["spec"]["initContainers"]
    assert [c["name"] for c in inits] == ["sizer-files", "sizer"]
    assert inits[1]["image"] == pod["spec"]["containers"][0]["image"]
    assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in inits)
    assert all(c["securityContext"]["runAsNonRoot"] for c in inits)


def test_an_image_without_torch_is_told_by_name(situation: Situation) -> None:
    """llama.cpp's demo image holds no torch: the condition says what to change, and waits for a person."""
    tenant = situation.tenant
    tenant.apply(node=NODE_A, sizing={"probe": "Torch"})
    wait(
        lambda: tenant.condition("Sized").get("reason") == "TorchUnavailable",
        60,
        "the condition",
        lambda: tenant.server().get("status"),
    )
    condition = tenant.condition("Sized")
    assert condition["status"] == "False"
    assert "spec.sizing.probe" in condition["message"]
    assert tenant.condition("Stalled")["status"] == "True"
