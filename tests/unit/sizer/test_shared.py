"""GPUs that several pods share: a server's own budget, and what tells a container that they are shared."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.device import Device
from plimsoll.core.errors import Unsupported
from plimsoll.core.report import DeviceClass
from plimsoll.core.request import SizingRequest
from plimsoll.core.sharing import check_sharing, within
from plimsoll.sizer.nvml import given_uuids, names_replicas
from tests.cluster_kit.nvml import FakeGpu
from tests.oracle import config as config_of

from .conftest import GPU
from .outcomes import failure, report

if TYPE_CHECKING:
    from .conftest import Sizer


@pytest.mark.parametrize(
    ("budget", "total", "free", "whole"),
    [(None, 100, 80, None), (100, 100, 80, None), (90, 90, 80, 100), (50, 50, 50, 100)],
)
def test_the_budget_caps_total_and_free(
    budget: int | None, total: int, free: int, whole: int | None
) -> None:
    device = within(Device("H100", total=100, nvml_total=110, free=80, sharing="mps"), budget)
    assert (device.total, device.free, device.whole_total) == (total, free, whole)
    assert device.device_class() == DeviceClass("H100", 110, None, "mps", 1)


@pytest.mark.parametrize(
    ("visible", "uuids", "replicas"),
    [
        ("GPU-a", ("GPU-a",), False),
        ("GPU-a,GPU-b", ("GPU-a", "GPU-b"), False),
        ("GPU-a,GPU-a", ("GPU-a", "GPU-a"), True),
        ("GPU-a::0", ("GPU-a",), True),
        ("nvidia.com/gpu=GPU-a::1", ("GPU-a",), True),
        ("all", (), False),
        (None, (), False),
    ],
)
def test_names_of_replicas(
    visible: str | None,
    uuids: tuple[str, ...],
    replicas: bool,  # noqa: FBT001 - table
) -> None:
    assert given_uuids(visible) == uuids
    assert names_replicas(visible) is replicas


@pytest.mark.parametrize(
    ("env", "sharing"),
    [
        ({"PLIMSOLL_SHARING": "time-slicing"}, "time-slicing"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/mps"}, "mps"),
        ({"NVIDIA_VISIBLE_DEVICES": f"{GPU.uuid}::1"}, "time-slicing"),
        ({"NVIDIA_VISIBLE_DEVICES": f"{GPU.uuid},{GPU.uuid}"}, "time-slicing"),
    ],
)
def test_a_shared_device_needs_a_budget(lightllm: Sizer, env: dict[str, str], sharing: str) -> None:
    lightllm.env |= env
    refused = failure(lightllm.run(), 1, "SharedDeviceNeedsBudget")
    assert "spec.accelerator.memoryBudget" in refused.message
    lightllm.request["memoryBudget"] = 40 << 30
    found = report(lightllm.run())
    assert found.device_class.sharing == sharing
    assert (found.budget.device_total, found.budget.device_free) == (40 << 30, 40 << 30)


def test_the_budget_is_absent_from_a_request_that_has_none() -> None:
    assert "memoryBudget" not in json.loads(SizingRequest("LightLLM").to_json())
    request = SizingRequest("LightLLM", memory_budget=7)
    assert SizingRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    ("engine", "version", "code"),
    [
        ("LightLLM", "1.2.0", 0),
        ("VLLM", "0.33.0", 0),
        ("SGLang", "0.5.12", 0),
        ("TGI", "3.3.7", 3),
        ("TensorRTLLM", "1.2.0", 3),
    ],
)
def test_only_engines_that_keep_to_their_numbers_share(
    lightllm: Sizer, engine: str, version: str, code: int
) -> None:
    lightllm.request = {"engineType": engine, "engineVersion": version}
    lightllm.env["PLIMSOLL_SHARING"] = "mps"
    lightllm.request["memoryBudget"] = 40 << 30
    result = lightllm.run()
    if code:
        refused = failure(result, code, "UnsupportedSharing")
        assert refused.field == "spec.accelerator.memoryBudget"
    else:
        assert report(result).budget.kv < 40 << 30
    lightllm.request["memoryBudget"] = 90 << 30  # more than there is: all of it
    assert report(lightllm.run()).budget.device_total == GPU.total - GPU.reserved


def test_sglang_shares_only_without_states() -> None:
    spec = read_spec(config_of("released/Llama-3.1-8B"))
    device = within(Device("H100", total=100, nvml_total=110, free=80), 50)
    check_sharing(device, 50, "SGLang", spec)
    stateful = dataclasses.replace(spec, states=("any",))  # type: ignore[arg-type]
    with pytest.raises(Unsupported) as caught:
        check_sharing(device, 50, "SGLang", stateful)
    assert caught.value.reason == "UnsupportedSharing"
    check_sharing(device, 50, "VLLM", stateful)


def test_vllms_share_is_of_the_whole_device(lightllm: Sizer) -> None:
    """It demands at start that its utilization's share of the whole is free."""
    lightllm.request = {"engineType": "VLLM", "engineVersion": "0.33.0", "memoryBudget": 40 << 30}
    flags = ["--gpu-memory-utilization"]
    flags += ["--kv-cache-memory-bytes", "--max-model-len", "--max-num-batched-tokens"]
    flags += ["--max-num-seqs", "--block-size", "--max-cudagraph-capture-size"]
    lightllm.env["PLIMSOLL_ARGS"] = " ".join(flags)
    found = lightllm.run()
    free = report(found).budget.free_after_init
    written = dict(line.split("=") for line in (found.env_file or "").splitlines())
    share = float(written["PLIMSOLL_ARG_GPU_MEMORY_UTILIZATION"].strip("'"))
    assert share == pytest.approx(free / (GPU.total - GPU.reserved) - 0.01, abs=0.001)


def test_replicas_of_one_device_are_not_two(lightllm: Sizer) -> None:
    lightllm.env["NVIDIA_VISIBLE_DEVICES"] = f"{GPU.uuid}::0,{GPU.uuid}::1"
    lightllm.env["PLIMSOLL_DEVICE_COUNT"] = "2"
    lightllm.env["PLIMSOLL_NVML_WAIT"] = "60"
    lightllm.request |= {"memoryBudget": 40 << 30, "tensor": 2}
    start = time.monotonic()
    refused = failure(lightllm.run(), 3, "UnsupportedSharing")
    assert time.monotonic() - start < 60
    assert refused.field == "spec.accelerator.count"


def test_a_guard_without_a_budget_starts_the_server(lightllm: Sizer) -> None:
    tokens = report(lightllm.run()).max_total_token_num
    lightllm.env |= {"PLIMSOLL_STAMPED_TOKENS": str(tokens), "PLIMSOLL_GUARD": "Refuse"}
    lightllm.env["PLIMSOLL_SHARING"] = "mps"
    failure(lightllm.run("guard"), 0, "SharedDeviceNeedsBudget")


@pytest.mark.parametrize("text", ["a b", "1", "x" * 40])
def test_a_kind_of_sharing_is_one_word(lightllm: Sizer, text: str) -> None:
    lightllm.env["PLIMSOLL_SHARING"] = text
    assert failure(lightllm.run(), 5, "MeasurementFailed").field == "PLIMSOLL_SHARING"


def test_a_slice_is_sized_and_two_cannot_work_together(lightllm: Sizer) -> None:
    names = [f"MIG-0000000{n}-0000-1111-2222-333333333333" for n in (1, 2)]
    slices = [FakeGpu(n, f"{GPU.name} MIG 3g.40gb", 40 << 30, 1 << 20, 0, GPU.uuid) for n in names]
    lightllm.gpus(dataclasses.replace(GPU, aggregate=True), *slices)
    lightllm.env["NVIDIA_VISIBLE_DEVICES"] = names[0]
    found = report(lightllm.run())
    assert found.device_class == DeviceClass(GPU.name, 40 << 30, "3g.40gb", None, 1)
    assert found.budget.device_free == (40 << 30) - (1 << 20)
    lightllm.env |= {
        "NVIDIA_VISIBLE_DEVICES": ",".join(names),
        "PLIMSOLL_DEVICE_COUNT": "2",
    }
    lightllm.request["tensor"] = 2
    refused = failure(lightllm.run(), 3, "UnsupportedParallelism")
    assert "MIG slices (3g.40gb)" in refused.message
