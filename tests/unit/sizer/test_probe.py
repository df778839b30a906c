"""CUDA asked through torch, by a sizer that was copied into another image. Torch is a fake package."""

from __future__ import annotations

import ast
import json
import stat
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.core.errors import DeviceUnavailable
from plimsoll.core.report import CudaMemory
from plimsoll.sizer.probe import ask_torch

from .conftest import GPU, OTHER, ROOT
from .outcomes import failure, report

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Sizer

TORCH = """
import json, os, sys, time, types
print("a banner of some extension")
asked = json.loads(os.environ["FAKE_TORCH"])
if "broken" in asked:
    raise OSError(asked["broken"])

class Cuda:
    def init(self):
        if "exit" in asked:
            os.write(2, b"Fatal: driver says no")
            os._exit(asked["exit"])
        if "hang" in asked:
            time.sleep(600)
        if "refuses" in asked:
            raise AssertionError(asked["refuses"])
    def device_count(self):
        return len(asked["devices"])
    def mem_get_info(self, index):
        free, total, _ = asked["devices"][index]
        print("a warning")
        return free, total
    def get_device_properties(self, index):
        return types.SimpleNamespace(total_memory=asked["devices"][index][2])

cuda = Cuda()
"""
TOTAL = (81559 - 471 - 12) << 20  # not what NVML's total less reserved is


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a package ``torch``."""
    (tmp_path / "packages" / "torch").mkdir(parents=True)
    (tmp_path / "packages" / "torch" / "__init__.py").write_text(TORCH)
    return tmp_path / "packages"


def probing(sizer: Sizer, packages: Path | None, **asked: Any) -> Sizer:
    sizer.env["PLIMSOLL_PROBE"] = "Torch"
    sizer.env["FAKE_TORCH"] = json.dumps(asked)
    if packages is not None:
        sizer.env["PYTHONPATH"] = f"{ROOT / 'operator'}:{packages}"
    return sizer


def test_cudas_total_is_exact(lightllm: Sizer, torch: Path) -> None:
    plain = report(lightllm.run())
    assert plain.cuda is None
    probing(lightllm, torch, devices=[[TOTAL - (500 << 20), TOTAL + 7, TOTAL]])
    result = lightllm.run()
    found = report(result)
    assert found.cuda == CudaMemory(TOTAL, TOTAL - (500 << 20))
    assert result.message["cuda"] == {"totalBytes": TOTAL, "freeBytes": TOTAL - (500 << 20)}
    assert found.budget.device_total == found.budget.device_free == TOTAL  # NVML's free is more
    assert found.device_class == plain.device_class  # which devices are alike is NVML's to say
    assert result.log["phasesMs"]["torch"] > 0


def test_free_memory_stays_nvmls(lightllm: Sizer, torch: Path) -> None:
    lightllm.gpus(OTHER)
    lightllm.env["NVIDIA_VISIBLE_DEVICES"] = OTHER.uuid
    probing(lightllm, torch, devices=[[1 << 30, TOTAL, TOTAL]])
    assert report(lightllm.run()).budget.device_free == OTHER.free


def test_the_smallest_device_counts(lightllm: Sizer, torch: Path) -> None:
    lightllm.env |= {
        "NVIDIA_VISIBLE_DEVICES": f"{GPU.uuid},{OTHER.uuid}",
        "PLIMSOLL_DEVICE_COUNT": "2",
    }
    lightllm.request["tensor"] = 2
    probing(lightllm, torch, devices=[[9, TOTAL, TOTAL], [7, TOTAL - 1, TOTAL]])
    assert report(lightllm.run()).cuda == CudaMemory(TOTAL - 1, 7)


FAILURES: list[tuple[dict[str, Any], str, str]] = [
    ({"broken": "libcudart.so.12: cannot open"}, "TorchUnavailable", "OSError: libcudart.so.12"),
    ({"refuses": "Torch not compiled with CUDA enabled"}, "CudaUnavailable", "not compiled with"),
    ({"devices": []}, "CudaUnavailable", "CUDA shows 0 devices, the pod was given 1"),
    ({"devices": [[1, 2, 2], [1, 2, 2]]}, "CudaUnavailable", "CUDA shows 2 devices"),
    ({"exit": 3}, "CudaUnavailable", "ended with 3: Fatal: driver says no"),
    ({"exit": 0}, "CudaUnavailable", "ended with 0"),
]


@pytest.mark.parametrize(("asked", "reason", "words"), FAILURES)
def test_what_cannot_be_asked_is_a_clear_failure(
    lightllm: Sizer, torch: Path, asked: dict[str, Any], reason: str, words: str
) -> None:
    refused = failure(probing(lightllm, torch, **asked).run(), 4, reason)
    assert words in refused.message
    assert refused.message.endswith("set spec.sizing.probe to NVML")
    assert refused.field == "spec.sizing.probe"
    assert refused.devices == (GPU.uuid,)
    assert refused.device_class is not None


def test_an_image_without_torch(lightllm: Sizer) -> None:
    refused = failure(probing(lightllm, None).run(), 4, "TorchUnavailable")
    assert "No module named 'torch'" in refused.message


def test_a_guard_whose_probe_fails_starts_the_server(lightllm: Sizer) -> None:
    lightllm.env["PLIMSOLL_STAMPED_TOKENS"] = "1000"
    result = probing(lightllm, None).run("guard")
    failure(result, 0, "TorchUnavailable")
    assert result.env_file == "PLIMSOLL_TOKENS='1000'\n"


def test_a_guard_reports_cuda_too(lightllm: Sizer, torch: Path) -> None:
    lightllm.env["PLIMSOLL_STAMPED_TOKENS"] = "1000"
    probing(lightllm, torch, devices=[[TOTAL, TOTAL, TOTAL]])
    assert report(lightllm.run("guard")).cuda == CudaMemory(TOTAL, TOTAL)


def test_torch_is_asked_once(lightllm: Sizer, torch: Path) -> None:
    """The sizing beside its server reads NVML several times where memory is in use."""
    counted = (torch / "torch" / "__init__.py").read_text() + (
        f"\nopen({str(torch / 'asked')!r}, 'a').write('x')\n"
    )
    (torch / "torch" / "__init__.py").write_text(counted)
    lightllm.gpus(OTHER)
    lightllm.env["NVIDIA_VISIBLE_DEVICES"] = OTHER.uuid
    lightllm.env["PLIMSOLL_ARGS"] = (
        "--max_total_token_num --batch_max_tokens --chunked_prefill_size --running_max_req_size "
        "--max_req_total_len --graph_max_batch_size"
    )
    probing(lightllm, torch, devices=[[TOTAL, TOTAL, TOTAL]])
    report(lightllm.run())
    assert (torch / "asked").read_text() == "x"


def test_torch_that_hangs_is_given_up(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(torch))
    monkeypatch.setenv("FAKE_TORCH", json.dumps({"hang": True}))
    with pytest.raises(DeviceUnavailable, match=r"did not answer within 0\.5 s") as caught:
        ask_torch(1, timeout=0.5)
    assert (caught.value.reason, caught.value.exit_code) == ("CudaUnavailable", 4)


def test_an_interpreter_that_is_not_there() -> None:
    with pytest.raises(DeviceUnavailable, match="cannot be started") as caught:
        ask_torch(1, python="/nowhere/python3")
    assert caught.value.reason == "TorchUnavailable"


def test_only_known_probes(lightllm: Sizer) -> None:
    lightllm.env["PLIMSOLL_PROBE"] = "CUDA"
    assert failure(lightllm.run(), 5, "MeasurementFailed").field == "PLIMSOLL_PROBE"


# ---- the copy that runs in another image -----------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_a_copied_sizer_runs_on_nothing_but_a_python(
    lightllm: Sizer, torch: Path, tmp_path: Path, times: int
) -> None:
    own = report(lightllm.run())
    folder = tmp_path / "plimsoll" / "bin"
    for _ in range(times):
        lightllm.log_file.write_text("")
        done = lightllm.finish(lightllm.start("-m", "plimsoll.sizer", "copy", str(folder)))
        assert (done.code, done.errors) == (0, "")
    probing(lightllm, torch, devices=[[TOTAL, TOTAL, TOTAL]])
    lightllm.env["PYTHONPATH"] = str(torch)  # for torch; -I ignores it, -S leaves out site-packages
    found = report(lightllm.finish(lightllm.start("-I", "-S", "-B", str(folder), "size")))
    assert found.cuda == CudaMemory(TOTAL, TOTAL)
    assert found.model_digest == own.model_digest


def test_the_copy_holds_what_sizing_needs_and_no_more(lightllm: Sizer, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    lightllm.finish(lightllm.start("-m", "plimsoll.sizer", "copy", str(folder)))
    assert {entry.name for entry in folder.iterdir()} == {"__main__.py", "plimsoll", "pynvml.py"}
    parts = {entry.name for entry in (folder / "plimsoll").iterdir()}
    assert parts == {"__init__.py", "core", "checkpoint", "sizer"}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".py"}
    assert sum(path.stat().st_size for path in files) < 4 << 20
    assert all(path.stat().st_mode & stat.S_IROTH for path in files)
    newer = {"Self", "assert_never", "Never", "StrEnum", "tomllib", "ExceptionGroup", "override"}
    for path in files:
        tree = ast.parse(path.read_text(), feature_version=(3, 10))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & newer, path


def test_a_folder_that_cannot_be_written(lightllm: Sizer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = lightllm.start("-m", "plimsoll.sizer", "copy", str(tmp_path / "file" / "bin"))
    done = lightllm.finish(process)
    assert done.code == 5
    assert "MeasurementFailed: cannot copy the sizer to" in done.errors
