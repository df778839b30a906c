"""Runs the real program in a process of its own, against the fake NVML library and made models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_kit.nvml import STATE_VARIABLE, FakeGpu, build_library, write_state

from .models import gguf_folder, safetensors_folder

ROOT = Path(__file__).parents[3]
GPU = FakeGpu(
    "GPU-11111111-2222-3333-4444-555555555555",
    "NVIDIA H100 80GB HBM3",
    total=81559 << 20,
    reserved=471 << 20,
    used=0,
)
OTHER = FakeGpu(
    "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
    "NVIDIA H100 80GB HBM3",
    total=81559 << 20,
    reserved=471 << 20,
    used=7 << 30,
)
POD_UID = "0f7a3c1e-2222-4444-8888-1234567890ab"
REQUEST_HASH = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Result:
    """What a run left: exit code, message, env file and log."""

    code: int
    text: str
    message: dict[str, Any]
    env_file: str | None
    log: dict[str, Any]
    errors: str


@dataclass
class Sizer:
    """The program and its surroundings; change ``request`` or ``env`` before :meth:`run`."""

    folder: Path
    library: Path
    request: dict[str, Any] = field(
        default_factory=lambda: {"engineType": "LightLLM", "engineVersion": "1.2.0"}
    )
    env: dict[str, str | None] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.folder / "nvml" / "devices.conf"

    @property
    def env_file(self) -> Path:
        return self.folder / "plimsoll" / "env"

    @property
    def log_file(self) -> Path:
        return self.folder / "termination-log"

    def gpus(self, *gpus: FakeGpu, fail: int = 0) -> None:
        write_state(self.state, gpus, fail=fail)

    def environment(self) -> dict[str, str]:
        """Only what the kubelet would give: nothing of the test's own environment but PATH."""
        full: dict[str, str | None] = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "operator"),
            "LD_LIBRARY_PATH": str(self.library.parent),
            STATE_VARIABLE: str(self.state),
            "NVIDIA_VISIBLE_DEVICES": GPU.uuid,
            "PLIMSOLL_REQUEST": json.dumps(self.request),
            "PLIMSOLL_REQUEST_HASH": REQUEST_HASH,
            "PLIMSOLL_POD_UID": POD_UID,
            "PLIMSOLL_MODEL_PATH": str(self.folder / "model"),
            "PLIMSOLL_DEVICE_COUNT": "1",
            "PLIMSOLL_ENV_FILE": str(self.env_file),
            "PLIMSOLL_TERMINATION_LOG": str(self.log_file),
            "PLIMSOLL_NVML_WAIT": "0",
            "PLIMSOLL_DEADLINE": "60",
            **self.env,
        }
        return {name: value for name, value in full.items() if value is not None}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *(arguments or ("-m", "plimsoll.sizer", "size"))],
            env=self.environment(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> Result:
        output, errors = process.communicate(timeout=60)
        text = self.log_file.read_text() if self.log_file.exists() else ""
        lines = output.splitlines()
        assert len(lines) <= 1, output
        return Result(
            code=process.returncode,
            text=text,
            message=json.loads(text) if text else {},
            env_file=self.env_file.read_text() if self.env_file.exists() else None,
            log=json.loads(lines[0]) if lines else {},
            errors=errors,
        )

    def run(self, mode: str = "size") -> Result:
        return self.finish(self.start("-m", "plimsoll.sizer", mode))


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def bare(tmp_path: Path, nvml_library: Path) -> Sizer:
    """A GPU, and no model yet."""
    sizer = Sizer(tmp_path, nvml_library)
    sizer.gpus(GPU, OTHER)
    sizer.env_file.parent.mkdir()
    sizer.log_file.touch()  # the kubelet makes it
    return sizer


@pytest.fixture
def lightllm(bare: Sizer) -> Sizer:
    """LightLLM with a safetensors model."""
    safetensors_folder(bare.folder / "model")
    return bare


@pytest.fixture
def llamacpp(bare: Sizer) -> Sizer:
    """A CPU build of llama.cpp with a GGUF model."""
    gguf_folder(bare.folder / "model")
    bare.request = {"engineType": "LlamaCpp", "engineVersion": "b6000+cpu"}
    return bare
