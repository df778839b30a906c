"""The program as the kubelet runs it: exit codes, message, env file, log. Real process, fake NVML."""

from __future__ import annotations

import dataclasses
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

import pytest

from plimsoll.core.errors import ResultInvalid
from plimsoll.core.report import decode
from tests import recompute
from tests.cluster_kit.nvml import FakeGpu

from .conftest import GPU, OTHER, POD_UID, REQUEST_HASH
from .models import CONTEXT, KV_BYTES, config, gguf_folder, safetensors_folder
from .outcomes import HANG, failure, report

if TYPE_CHECKING:
    from .conftest import Sizer


# ---- exit 0 ------------------------------------------------------------------------------------------


def test_lightllm_is_sized(lightllm: Sizer) -> None:
    result = lightllm.run()
    answer = report(result)
    assert answer.devices == (GPU.uuid,)
    assert answer.driver == "580.159.04"
    assert (answer.device_class.product, answer.device_class.total_bytes) == (GPU.name, GPU.total)
    assert (answer.device_class.mig, answer.device_class.count) == (None, 1)
    assert answer.budget.device_total == GPU.total - GPU.reserved
    assert answer.budget.device_free == GPU.total - GPU.reserved - GPU.used
    assert answer.kv_bytes_per_rank == KV_BYTES
    assert answer.confidence == "estimated"  # no public calibration of LightLLM exists
    assert result.env_file == f"PLIMSOLL_TOKENS='{answer.max_total_token_num}'\n"
    assert len(result.text.encode()) <= 2048


def test_llamacpp_is_sized_from_a_gguf(llamacpp: Sizer) -> None:
    llamacpp.request["maxConcurrentRequests"] = 4
    answer = report(llamacpp.run())
    assert answer.kv_bytes_per_rank == KV_BYTES
    assert answer.max_total_token_num == 4 * CONTEXT
    assert (answer.max_sequences, answer.context_length) == (4, CONTEXT)


@pytest.mark.parametrize("engine", ["LightLLM", "LlamaCpp"])
@pytest.mark.parametrize("used_gib", [0, 79])
def test_the_number_is_what_an_independent_script_computes(
    bare: Sizer, engine: str, used_gib: int
) -> None:
    if engine == "LlamaCpp":
        gguf_folder(bare.folder / "model")
        bare.request = {"engineType": engine, "engineVersion": "b6000+cpu"}
    else:
        safetensors_folder(bare.folder / "model")
    used = used_gib << 30 if engine == "LlamaCpp" else min(used_gib, 60) << 30
    bare.gpus(dataclasses.replace(GPU, used=used))
    result = bare.run()
    answer = report(result)
    document = recompute.parse(result.text)
    assert recompute.recompute(document, engine=engine) == answer.max_total_token_num


def test_shards_and_an_index_give_the_same_weights(bare: Sizer) -> None:
    safetensors_folder(bare.folder / "one")
    safetensors_folder(bare.folder / "three", shards=3)
    bare.env["PLIMSOLL_MODEL_PATH"] = str(bare.folder / "one")
    one = report(bare.run())
    bare.env["PLIMSOLL_MODEL_PATH"] = str(bare.folder / "three")
    three = report(bare.run())
    assert one.budget.weights == three.budget.weights > 0


def test_the_smallest_device_decides(lightllm: Sizer) -> None:
    lightllm.env["NVIDIA_VISIBLE_DEVICES"] = f"{GPU.uuid},{OTHER.uuid}"
    lightllm.env["PLIMSOLL_DEVICE_COUNT"] = "2"
    lightllm.request["tensor"] = 2
    answer = report(lightllm.run())
    assert answer.devices == (GPU.uuid, OTHER.uuid)
    assert answer.device_class.count == 2
    assert answer.budget.device_free == OTHER.total - OTHER.reserved - OTHER.used


def test_less_free_memory_gives_fewer_tokens(lightllm: Sizer) -> None:
    empty = report(lightllm.run())
    lightllm.gpus(dataclasses.replace(GPU, used=20 << 30))
    fuller = report(lightllm.run())
    assert fuller.max_total_token_num < empty.max_total_token_num


def test_the_users_bound_is_kept(lightllm: Sizer) -> None:
    lightllm.request["maxTotalTokenNum"] = 100_000
    assert report(lightllm.run()).max_total_token_num <= 100_000


def test_a_second_run_gives_the_same_and_leaves_nothing_else(lightllm: Sizer) -> None:
    lightllm.log_file.write_text("x" * 4096)  # what a longer earlier message would leave
    first, second = lightllm.run(), lightllm.run()
    assert (first.text, first.env_file) == (second.text, second.env_file)
    assert [entry.name for entry in lightllm.env_file.parent.iterdir()] == ["env"]


def test_the_env_file_is_readable_by_the_servers_user(lightllm: Sizer) -> None:
    report(lightllm.run())
    assert stat.S_IMODE(lightllm.env_file.stat().st_mode) == 0o644


def test_the_log_is_one_line_with_every_term(lightllm: Sizer) -> None:
    result = lightllm.run()
    assert result.log["report"] == result.message
    assert result.log["exitCode"] == 0
    assert result.log["memory"] == [
        {"uuid": GPU.uuid, "total": GPU.total, "reserved": GPU.reserved, "free": GPU.free}
    ]
    assert set(result.log["phasesMs"]) == {"model", "check", "nvml", "compute", "env"}
    assert result.log["peakRssBytes"] > 1 << 20
    assert result.errors == ""


def test_works_as_anybody_on_a_read_only_model(lightllm: Sizer) -> None:
    """A user that exists nowhere, no HOME, a model folder nobody may write."""
    above = [p for p in lightllm.folder.parents if p.name.startswith(("pytest-", "popen-"))]
    opened = [lightllm.folder, lightllm.folder.parent, *above, lightllm.library.parents[1]]
    for path in opened:
        path.chmod(0o755)  # pytest keeps its folders to itself
    lightllm.env_file.parent.chmod(0o777)
    lightllm.log_file.chmod(0o666)
    # The interpreter of this machine may be root's own, so all is imported before the user changes.
    nobody = "os.setgid(65532); os.setuid(65532)" if os.geteuid() == 0 else "pass"
    code = f"""
import fractions, hashlib, os, sys, traceback
import plimsoll.sizer.run, plimsoll.sizer.__main__, pynvml
{nobody}
sys.exit(plimsoll.sizer.__main__.main(["size"]))
"""
    report(lightllm.finish(lightllm.start("-c", code)))


# ---- exit 1: does not fit ------------------------------------------------------------------------------


def test_weights_larger_than_the_gpu(bare: Sizer) -> None:
    gguf_folder(bare.folder / "model")
    bare.request = {"engineType": "LlamaCpp", "engineVersion": "b6000+cpu"}
    bare.gpus(dataclasses.replace(GPU, total=300 << 10, reserved=0))
    result = bare.run()
    why = failure(result, 1, "WeightsDoNotFit")
    assert why.devices == (GPU.uuid,)
    assert why.device_class is not None
    assert why.model_digest
    assert result.env_file is None


def test_a_budget_below_the_users_minimum(lightllm: Sizer) -> None:
    lightllm.request["minTotalTokenNum"] = 1 << 39
    result = lightllm.run()
    assert "minTotalTokenNum" in str(failure(result, 1, "BudgetTooSmall"))
    assert result.env_file is None


# ---- exit 2: bad model input -----------------------------------------------------------------------------


def test_a_model_path_that_is_not_there(bare: Sizer) -> None:
    why = failure(bare.run(), 2, "ModelNotFound")
    assert "model" in why.message
    assert why.devices == ()


def test_a_config_that_is_no_json(lightllm: Sizer) -> None:
    (lightllm.folder / "model" / "config.json").write_text("{")
    assert "config.json" in str(failure(lightllm.run(), 2, "ConfigUnreadable").file)


def test_weights_that_are_cut(lightllm: Sizer) -> None:
    path = lightllm.folder / "model" / "model.safetensors"
    os.truncate(path, path.stat().st_size - 2)
    assert failure(lightllm.run(), 2, "WeightsUnreadable").file == "model.safetensors"


# ---- exit 3: unsupported ----------------------------------------------------------------------------------


def test_an_unknown_architecture(bare: Sizer) -> None:
    safetensors_folder(
        bare.folder / "model",
        architectures=["NobodyForCausalLM"],
        model_type="nobody",
        kv_lora_rank=512,  # without it, the structure of plain attention would be told
    )
    why = failure(bare.run(), 3, "UnsupportedArchitecture")
    assert "nobody" in why.message
    assert why.file == "config.json"


def test_a_bad_model_is_told_before_a_driver_is_waited_for(bare: Sizer) -> None:
    safetensors_folder(bare.folder / "model", model_type="nobody", kv_lora_rank=512)
    bare.gpus(GPU, fail=9)
    bare.env |= {"PLIMSOLL_NVML_WAIT": "50", "PLIMSOLL_DEADLINE": "20"}
    failure(bare.run(), 3, "UnsupportedArchitecture")


# ---- exit 4: NVML -----------------------------------------------------------------------------------------


def test_nvml_that_stays_down(lightllm: Sizer) -> None:
    lightllm.gpus(GPU, fail=9)
    why = failure(lightllm.run(), 4, "NVMLUnavailable")
    assert "Driver Not Loaded" in why.message
    assert why.model_digest  # read before the driver was asked
    assert lightllm.env_file.exists() is False


def test_no_nvml_library(lightllm: Sizer) -> None:
    lightllm.env["LD_LIBRARY_PATH"] = None
    assert "NVML Shared Library Not Found" in failure(lightllm.run(), 4, "NVMLUnavailable").message


def test_nvml_failing_for_a_while_then_well(lightllm: Sizer) -> None:
    lightllm.gpus(GPU, fail=9)
    lightllm.env["PLIMSOLL_NVML_WAIT"] = "50"
    process = lightllm.start()
    threading.Timer(0.3, lightllm.gpus, [GPU]).start()
    report(lightllm.finish(process))


def test_a_gpu_that_the_pod_did_not_ask_for(lightllm: Sizer) -> None:
    lightllm.env["NVIDIA_VISIBLE_DEVICES"] = "all"
    assert "shows 2 devices" in failure(lightllm.run(), 4, "NVMLUnavailable").message


# ---- exit 5: deadline and the rest --------------------------------------------------------------------------


def test_the_deadline_ends_a_hung_mount(lightllm: Sizer) -> None:
    lightllm.env["PLIMSOLL_DEADLINE"] = "0.5"
    start = time.monotonic()
    result = lightllm.finish(lightllm.start("-c", HANG, "size"))
    why = failure(result, 5, "MeasurementFailed")
    assert "the deadline of 0.5 s passed while reading the model" in why.message
    assert time.monotonic() - start >= 0.5
    assert result.log["exitCode"] == 5
    assert result.env_file is None


def test_a_deadline_during_the_wait_for_a_driver(lightllm: Sizer) -> None:
    lightllm.gpus(GPU, fail=9)
    lightllm.env |= {"PLIMSOLL_DEADLINE": "0.5", "PLIMSOLL_NVML_WAIT": "50"}
    why = failure(lightllm.run(), 5, "MeasurementFailed")
    assert "passed while asking NVML" in why.message


def test_the_deadline_ends_a_hung_driver(lightllm: Sizer) -> None:
    """The library itself blocks, in C: its state file is a pipe that nobody writes."""
    lightllm.state.unlink()
    os.mkfifo(lightllm.state)
    lightllm.env["PLIMSOLL_DEADLINE"] = "1"
    why = failure(lightllm.run(), 5, "MeasurementFailed")
    assert "passed while asking NVML" in why.message
    assert why.model_digest


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLIMSOLL_REQUEST", None),
        ("PLIMSOLL_REQUEST", "{"),
        ("PLIMSOLL_REQUEST", '{"engineType": "LightLLM", "surplus": 1}'),
        ("PLIMSOLL_MODEL_PATH", ""),
        ("PLIMSOLL_DEVICE_COUNT", "0"),
        ("PLIMSOLL_DEVICE_COUNT", "1_0"),
        ("PLIMSOLL_DEVICE_COUNT", "٣"),
        ("PLIMSOLL_NVML_WAIT", "soon"),
        ("PLIMSOLL_NVML_WAIT", "nan"),
        ("PLIMSOLL_NVML_WAIT", "-1"),
        ("PLIMSOLL_DEADLINE", "inf"),
    ],
)
def test_a_question_that_cannot_be_read(lightllm: Sizer, name: str, value: str | None) -> None:
    lightllm.env[name] = value
    assert failure(lightllm.run(), 5, "MeasurementFailed").field == name


def test_an_env_file_that_cannot_be_written(lightllm: Sizer) -> None:
    lightllm.env_file.parent.rmdir()
    assert failure(lightllm.run(), 5, "MeasurementFailed").field == "PLIMSOLL_ENV_FILE"


def test_a_message_that_cannot_be_written_is_no_success(lightllm: Sizer) -> None:
    lightllm.env["PLIMSOLL_TERMINATION_LOG"] = str(lightllm.folder / "nowhere" / "log")
    result = lightllm.run()
    assert result.code == 5
    assert "nowhere" in result.errors


def test_a_defect_is_reported_not_only_printed(lightllm: Sizer) -> None:
    broken = HANG.replace("os.read(os.pipe()[0], 1)", "raise RuntimeError('x' * 5000)")
    result = lightllm.finish(lightllm.start("-c", broken, "size"))
    why = failure(result, 5, "MeasurementFailed")
    assert why.message.startswith("RuntimeError: xxx")
    assert "Traceback" in result.errors


@pytest.mark.parametrize("arguments", [[], ["sizes"], ["size", "now"]])
def test_a_wrong_call(lightllm: Sizer, arguments: list[str]) -> None:
    process = lightllm.start("-m", "plimsoll.sizer", *arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert errors.startswith("usage: ")


@pytest.mark.parametrize(("mode", "code"), [("size", 5), ("guard", 0)])
def test_a_defect_before_anything_ran(lightllm: Sizer, mode: str, code: int) -> None:
    """Python's own exit code 1 would read as "does not fit"."""
    broken = "import sys; sys.modules['plimsoll.sizer.run'] = None\n" + HANG
    result = lightllm.finish(lightllm.start("-c", broken, mode))
    assert result.code == code
    assert "Traceback" in result.errors


def test_sigterm_ends_it(lightllm: Sizer) -> None:
    process = lightllm.start("-c", HANG, "size")
    assert process.stderr is not None
    assert process.stderr.readline() == "hanging\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143


# ---- the nonce ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod_uid", "request_hash"), [("another", REQUEST_HASH), (POD_UID, "f" * 40)]
)
def test_a_message_is_good_for_one_pod_and_one_question(
    lightllm: Sizer, pod_uid: str, request_hash: str
) -> None:
    result = lightllm.run()
    assert (result.message["podUID"], result.message["requestHash"]) == (POD_UID, REQUEST_HASH)
    with pytest.raises(ResultInvalid):
        decode(result.text, pod_uid=pod_uid, request_hash=request_hash)


def test_the_longest_message_fits(bare: Sizer) -> None:
    """16 devices with the longest names NVML allows, and the largest numbers a message may hold."""
    safetensors_folder(bare.folder / "model", num_key_value_heads=4)
    gpus = [
        FakeGpu(f"GPU-{i:08d}-2222-3333-4444-555555555555", "N" * 95, 9 * 10**15, 10**15, 10**14)
        for i in range(16)
    ]
    bare.gpus(*gpus)
    bare.env["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    bare.env["PLIMSOLL_DEVICE_COUNT"] = "16"
    bare.request["tensor"] = 4
    result = bare.run()
    assert len(report(result).devices) == 16
    assert len(result.text.encode()) <= 2048


def test_the_made_config_is_a_llama() -> None:
    """The models of these tests must stay what the expected numbers assume."""
    made = config()
    assert (
        made["num_hidden_layers"] * made["num_key_value_heads"] * made["head_dim"] * 4 == KV_BYTES
    )
