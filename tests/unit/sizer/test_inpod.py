"""The sizer beside the server that it sizes: the env file that kubelet and shell read, and the refusals."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.core.engines import lookup
from plimsoll.core.engines.inpod import argument_key, env_key, inpod_flags
from plimsoll.core.request import SizingRequest
from plimsoll.sizer import answer as work
from plimsoll.sizer.guard import READ_SECONDS
from plimsoll.sizer.nvml import DeviceMemory

from .conftest import GPU
from .models import gguf_folder, safetensors_folder
from .outcomes import failure, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .conftest import Sizer

ENGINES = [
    ("LightLLM", "1.2.0"),
    ("VLLM", "0.33.0"),
    ("VLLM", "0.33.0+cpu"),
    ("SGLang", "0.5.12"),
    ("TGI", "3.3.7"),
    ("TensorRTLLM", "1.2.0"),
    ("LlamaCpp", "b6000+cpu"),
]


def kubelet_reads(text: str, key: str) -> str:
    """What ``ParseEnv`` of pkg/kubelet/util/env of Kubernetes 1.36.2 returns; single-line values only."""
    for line in text.splitlines():
        name, equals, value = line.lstrip(" \t").partition("=")
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        assert equals, line
        assert name, line
        assert name == name.rstrip(" \t"), line
        assert value.startswith("'"), line
        inside, closing, after = value[1:].partition("'")
        assert closing, line
        assert not after.strip(" \t") or after.lstrip(" \t").startswith("#"), line
        if name == key:
            return inside
    return ""


def shell_reads(path: str, key: str) -> str:
    script = f'. "$0"; printf %s "${key}"'
    done = subprocess.run(
        ["/bin/sh", "-euc", script, path], capture_output=True, text=True, check=True
    )
    return done.stdout


def template(sizer: Sizer, flags: Sequence[str] | None = None) -> tuple[str, ...]:
    """Ask as the template of this server's pod would; returns the keys that it reads."""
    engine = lookup(sizer.request["engineType"])
    found = inpod_flags(engine, SizingRequest(engine.type, sizer.request["engineVersion"]))
    sizer.env["PLIMSOLL_ARGS"] = " ".join(found.flags if flags is None else flags)
    sizer.env["PLIMSOLL_ENVS"] = " ".join(found.env_names)
    return (*map(argument_key, found.flags), *map(env_key, found.env_names))


@pytest.mark.parametrize(("engine", "version"), ENGINES)
def test_every_argument_of_every_engine_is_in_the_file(
    bare: Sizer, engine: str, version: str
) -> None:
    folder = gguf_folder if engine == "LlamaCpp" else safetensors_folder
    folder(bare.folder / "model")
    bare.request = {"engineType": engine, "engineVersion": version}
    keys = template(bare)
    result = bare.run()
    tokens = report(result).max_total_token_num
    text = result.env_file
    assert text is not None
    assert [line.partition("=")[0] for line in text.splitlines()] == ["PLIMSOLL_TOKENS", *keys]
    for key in ("PLIMSOLL_TOKENS", *keys):
        value = kubelet_reads(text, key)
        assert value
        assert shell_reads(str(bare.env_file), key) == value
    assert kubelet_reads(text, "PLIMSOLL_TOKENS") == str(tokens)
    number = {
        "LightLLM": "MAX_TOTAL_TOKEN_NUM",
        "SGLang": "MAX_TOTAL_TOKENS",
        "LlamaCpp": "CTX_SIZE",
    }
    if engine in number:
        assert kubelet_reads(text, f"PLIMSOLL_ARG_{number[engine]}") == str(tokens)
    if engine == "VLLM":
        pool = kubelet_reads(text, "PLIMSOLL_ARG_KV_CACHE_MEMORY_BYTES")
        assert int(pool) == report(result).budget.kv


@pytest.mark.parametrize(
    "change",
    [
        lambda flags: flags[1:],
        lambda flags: [*flags, "--port"],
        lambda flags: [f"{flags[0]}x", *flags[1:]],
    ],
)
def test_a_template_with_other_flags_is_refused(lightllm: Sizer, change: object) -> None:
    assert callable(change)
    template(lightllm)
    template(lightllm, change((lightllm.env["PLIMSOLL_ARGS"] or "").split()))
    result = lightllm.run()
    refused = failure(result, 3, "InPodFlagsMismatch")
    assert refused.field == "PLIMSOLL_ARGS"
    assert "the pod's template gives LightLLM" in refused.message
    assert "and for this model it needs" in refused.message
    assert result.env_file is None


def test_without_a_driver_no_server_is_started(lightllm: Sizer) -> None:
    template(lightllm)
    lightllm.gpus(GPU, fail=9)
    result = lightllm.run()
    failure(result, 4, "NVMLUnavailable")
    assert result.env_file is None


def test_what_does_not_fit_writes_nothing(lightllm: Sizer) -> None:
    template(lightllm)
    lightllm.env["PLIMSOLL_SETTLE"] = "0"
    lightllm.gpus(dataclasses.replace(GPU, used=GPU.total - GPU.reserved - (64 << 20)))
    result = lightllm.run()
    assert result.code == 1
    assert result.env_file is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("PLIMSOLL_ARGS", "--a=b"), ("PLIMSOLL_ARGS", "tokens"), ("PLIMSOLL_ENVS", "A-B")],
)
def test_lists_of_names_are_checked(lightllm: Sizer, name: str, value: str) -> None:
    lightllm.env[name] = value
    refused = failure(lightllm.run(), 5, "MeasurementFailed")
    assert refused.field == name


def test_a_guard_asks_nothing_about_arguments(lightllm: Sizer) -> None:
    template(lightllm, ["--none-of-ours"])
    lightllm.env["PLIMSOLL_STAMPED_TOKENS"] = "1000"
    assert lightllm.run("guard").env_file == "PLIMSOLL_TOKENS='1000'\n"


# free MiB of 1000 over time, of which this server may use 700; seconds to settle -> readings
SETTLING = [
    ("idle", [990], 60.0, 1),
    ("memory is being released", [300, 600, 990], 60.0, 3),
    ("a neighbour stays", [300, 300], 60.0, 2),
    ("half of it stays", [300, 600, 600], 60.0, 3),
    ("it never settles", [300, 310, 320, 330], 6.0, 4),
    ("beyond the budget it moves", [800, 900], 60.0, 2),
    ("no time", [300], 0.0, 1),
]


@pytest.mark.parametrize(
    ("free", "settle", "reads"), [row[1:] for row in SETTLING], ids=[r[0] for r in SETTLING]
)
def test_a_dying_predecessor_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, free: list[int], settle: float, reads: int
) -> None:
    readings = iter(free)  # one reading too many raises StopIteration
    now = [50.0]

    class Progress:
        devices: tuple[DeviceMemory, ...] = ()

    progress = Progress()

    def measure(*_: object, **__: object) -> SimpleNamespace:
        found = next(readings)
        progress.devices = (DeviceMemory("GPU-a", "L4", None, 1010 << 20, 10 << 20, found << 20),)
        return SimpleNamespace(device=SimpleNamespace(free=min(found, 700)))

    monkeypatch.setattr(work, "measure", measure)
    result: Any = work.measure_settled(
        object(),  # type: ignore[arg-type]
        SimpleNamespace(settle=settle),  # type: ignore[arg-type]
        progress,  # type: ignore[arg-type]
        clock=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    assert result.device.free == min(free[-1], 700)
    assert len(free) - len(list(readings)) == reads


def test_a_sizing_beside_its_server_reads_twice_where_memory_is_in_use(lightllm: Sizer) -> None:
    lightllm.gpus(dataclasses.replace(GPU, used=20 << 30))
    template(lightllm)
    start = time.monotonic()
    report(lightllm.run())
    assert time.monotonic() - start >= READ_SECONDS
