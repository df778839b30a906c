"""The program as a guard, which refuses only where its template asks for it; and what each command loads."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from plimsoll.core.report import Report, decode

from .conftest import GPU, POD_UID, REQUEST_HASH
from .outcomes import HANG, failure, report

if TYPE_CHECKING:
    from .conftest import Sizer

# ---- guard -----------------------------------------------------------------------------------------------------


def test_a_guard_confirms(lightllm: Sizer) -> None:
    tokens = report(lightllm.run()).max_total_token_num
    lightllm.env["PLIMSOLL_STAMPED_TOKENS"] = str(tokens)
    result = lightllm.run("guard")
    assert report(result).max_total_token_num == tokens
    assert result.env_file == f"PLIMSOLL_TOKENS='{tokens}'\n"
    assert result.log["guard"]["verdict"] == "Fits"
    assert result.log["guard"]["sameClass"] is None


@pytest.mark.parametrize("used_gib", [40, 78])
def test_a_guard_reports_too_little_memory_and_lets_it_start(
    lightllm: Sizer, used_gib: int
) -> None:
    tokens = report(lightllm.run()).max_total_token_num
    lightllm.env["PLIMSOLL_STAMPED_TOKENS"] = str(tokens)
    lightllm.gpus(dataclasses.replace(GPU, used=used_gib << 30))
    result = lightllm.run("guard")
    assert result.code == 0
    if "error" in result.message:  # so little that nothing fits
        assert result.message["error"]["reason"] in {"BudgetTooSmall", "WeightsDoNotFit"}
    else:
        assert result.log["guard"]["verdict"] == "TooLittleMemory"
        assert result.log["guard"]["wouldRefuse"] is True
        assert result.env_file == f"PLIMSOLL_TOKENS='{tokens}'\n"  # what the server was told


def test_a_guard_sees_another_class(lightllm: Sizer) -> None:
    result = lightllm.run()
    lightllm.env["PLIMSOLL_STAMPED_TOKENS"] = str(report(result).max_total_token_num)
    lightllm.env["PLIMSOLL_STAMPED_CLASS"] = json.dumps(result.message["class"])
    assert lightllm.run("guard").log["guard"]["sameClass"] is True
    lightllm.gpus(dataclasses.replace(GPU, name="NVIDIA H200"))
    result = lightllm.run("guard")
    assert result.code == 0
    assert result.log["guard"]["verdict"] == "AnotherClass"


# ---- a guard that refuses --------------------------------------------------------------------------------------


@pytest.fixture
def refusing(lightllm: Sizer) -> Sizer:
    """A guard with all of the stamp, on the GPU that was measured."""
    result = lightllm.run()
    lightllm.env_file.unlink()
    lightllm.env |= {
        "PLIMSOLL_GUARD": "Refuse",
        "PLIMSOLL_STAMPED_TOKENS": str(report(result).max_total_token_num),
        "PLIMSOLL_STAMPED_CLASS": json.dumps(result.message["class"]),
        "PLIMSOLL_STAMPED_MODEL": report(result).model_digest,
    }
    return lightllm


def test_a_refusing_guard_confirms(refusing: Sizer) -> None:
    result = refusing.run("guard")
    report(result)
    assert result.env_file == f"PLIMSOLL_TOKENS='{refusing.env['PLIMSOLL_STAMPED_TOKENS']}'\n"
    assert (result.log["guard"]["verdict"], result.log["guard"]["reads"]) == ("Fits", 1)


def test_a_guard_refuses_too_little_memory_with_the_new_measurement(refusing: Sizer) -> None:
    refusing.gpus(dataclasses.replace(GPU, used=40 << 30))
    result = refusing.run("guard")
    assert result.code == result.log["exitCode"] == 10
    outcome = decode(result.text, pod_uid=POD_UID, request_hash=REQUEST_HASH)
    assert isinstance(outcome, Report)
    assert 0 < outcome.max_total_token_num < int(refusing.env["PLIMSOLL_STAMPED_TOKENS"] or 0)
    assert result.log["guard"]["reads"] == 2
    assert result.log["guard"]["verdict"] == "TooLittleMemory"


def test_a_guard_refuses_where_nothing_fits(refusing: Sizer) -> None:
    refusing.gpus(dataclasses.replace(GPU, used=GPU.total - GPU.reserved - (64 << 20)))
    refusing.env["PLIMSOLL_SETTLE"] = "0"
    result = refusing.run("guard")
    assert result.code == 10
    assert result.message["error"]["reason"] in {"BudgetTooSmall", "WeightsDoNotFit"}
    assert result.log["guard"]["reads"] == 1


def test_a_guard_refuses_a_pool_in_bytes(refusing: Sizer) -> None:
    refusing.env |= {"PLIMSOLL_STAMPED_TOKENS": None, "PLIMSOLL_STAMPED_BYTES": str(1 << 30)}
    result = refusing.run("guard")
    assert result.env_file == f"PLIMSOLL_TOKENS='{report(result).max_total_token_num}'\n"
    refusing.env |= {"PLIMSOLL_STAMPED_BYTES": str(90 << 30), "PLIMSOLL_SETTLE": "0"}
    assert refusing.run("guard").code == 10


def test_a_guard_refuses_another_class(refusing: Sizer) -> None:
    refusing.gpus(dataclasses.replace(GPU, name="NVIDIA H200"))
    result = refusing.run("guard")
    assert (result.code, result.log["guard"]["verdict"]) == (11, "AnotherClass")
    assert result.message["class"]["product"] == "NVIDIA H200"
    assert "error" not in result.message


@pytest.mark.parametrize("nvml_error", [0, 9])
def test_a_guard_refuses_another_model_whatever_the_driver_says(
    refusing: Sizer, nvml_error: int
) -> None:
    refusing.env["PLIMSOLL_STAMPED_MODEL"] = "sha256:" + "0" * 64
    refusing.gpus(GPU, fail=nvml_error)
    result = refusing.run("guard")
    assert "0" * 64 in failure(result, 11, "GuardMismatch").message
    assert result.log["guard"]["verdict"] == "AnotherModel"


def break_nvml(sizer: Sizer) -> None:
    sizer.gpus(GPU, fail=9)


def break_model(sizer: Sizer) -> None:
    (sizer.folder / "model" / "config.json").unlink()


def break_request(sizer: Sizer) -> None:
    sizer.env["PLIMSOLL_REQUEST"] = "{"


def break_env_file(sizer: Sizer) -> None:
    sizer.env_file.parent.rmdir()


def break_stamp(sizer: Sizer) -> None:
    sizer.env["PLIMSOLL_STAMPED_TOKENS"] = None


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (break_nvml, "NVMLUnavailable"),
        (break_model, "ConfigUnreadable"),
        (break_request, "MeasurementFailed"),
        (break_env_file, "MeasurementFailed"),
        (break_stamp, "MeasurementFailed"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_guard_never_fails(lightllm: Sizer, fault: object, reason: str) -> None:
    assert callable(fault)
    lightllm.env["PLIMSOLL_STAMPED_TOKENS"] = "1000"
    fault(lightllm)
    result = lightllm.run("guard")
    assert failure(result, 0, reason).message


@pytest.mark.parametrize("fault", [break_nvml, break_model])
def test_a_refusing_guard_that_cannot_measure_lets_the_server_start(
    refusing: Sizer, fault: object
) -> None:
    assert callable(fault)
    fault(refusing)
    result = refusing.run("guard")
    assert (result.code, "error" in result.message) == (0, True)
    assert result.env_file == f"PLIMSOLL_TOKENS='{refusing.env['PLIMSOLL_STAMPED_TOKENS']}'\n"


def test_a_guard_that_cannot_speak_does_not_fail_either(lightllm: Sizer) -> None:
    lightllm.env |= {
        "PLIMSOLL_STAMPED_TOKENS": "1000",
        "PLIMSOLL_TERMINATION_LOG": str(lightllm.folder / "nowhere" / "log"),
    }
    assert lightllm.run("guard").code == 0


def test_a_guard_that_hangs_lets_the_server_start(lightllm: Sizer) -> None:
    lightllm.env |= {"PLIMSOLL_STAMPED_TOKENS": "1000", "PLIMSOLL_DEADLINE": "0.5"}
    result = lightllm.finish(lightllm.start("-c", HANG, "guard"))
    failure(result, 0, "MeasurementFailed")


# ---- what is loaded ----------------------------------------------------------------------------------------------

FORBIDDEN = {
    "kopf",
    "kubernetes",
    "aiohttp",
    "torch",
    "numpy",
    "yaml",
    "asyncio",
    "argparse",
    "socket",
    "ssl",
    "http",
}
LOADED = """
import sys
from plimsoll.sizer.__main__ import main
code = main(sys.argv[1:])
sys.stderr.write("LOADED " + " ".join(sorted(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("command", "further"),
    [
        (
            "done",
            {
                "pynvml",
                "ctypes",
                "json",
                "importlib.metadata",
                "plimsoll.core",
                "plimsoll.sizer.run",
            },
        ),
        ("--version", {"pynvml", "ctypes", "plimsoll.core", "plimsoll.sizer.run"}),
        ("size", {"importlib.metadata"}),
    ],
)
def test_nothing_heavy_is_imported(lightllm: Sizer, command: str, further: set[str]) -> None:
    result = lightllm.start("-c", LOADED, command)
    _, errors = result.communicate(timeout=60)
    assert result.returncode == 0, errors
    loaded = set(errors.rpartition("LOADED ")[2].split())
    assert "plimsoll.sizer.__main__" in loaded
    assert loaded & (FORBIDDEN | further) == set()


def test_done_needs_nothing(lightllm: Sizer) -> None:
    lightllm.env = {name: None for name in lightllm.environment() if name.startswith("PLIMSOLL")}
    process = lightllm.start("-m", "plimsoll.sizer", "done")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_version(lightllm: Sizer) -> None:
    process = lightllm.start("-m", "plimsoll.sizer", "--version")
    assert process.communicate(timeout=60)[0].startswith("plimsoll-size 0.")
