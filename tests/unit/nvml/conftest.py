"""The fake library, compiled once, and a way to ask it through the real pynvml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_kit.nvml import STATE_VARIABLE, FakeGpu, build_library, write_state

ROOT = Path(__file__).parents[3]
H100 = FakeGpu(
    # NVML's total of this card is 81,559 MiB = 79.65 GiB; CUDA's is about 79.19 GiB.
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    name="NVIDIA H100 80GB HBM3",
    total=81559 << 20,
    reserved=471 << 20,
    used=1 << 30,
)
SECOND = FakeGpu("GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "NVIDIA L4", 23034 << 20, 400 << 20, 0)

_ASK = """
import ctypes, json
import pynvml
from tests.cluster_kit.nvml import FakeGpu, read_state, write_state
from pathlib import Path
answers = []
def attempt(function, *args):
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        return {"code": error.value, "text": str(error)}
"""


@dataclass
class Nvml:
    """Runs snippets against the fake library, each in a process of its own: it keeps state."""

    library: Path
    state: Path

    def write(self, *gpus: FakeGpu, fail: int = 0) -> None:
        write_state(self.state, gpus, fail=fail)

    def ask(self, snippet: str, visible: str | None = "all") -> Any:
        """Run the snippet after ``import pynvml``; return what it leaves in ``answer``."""
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "PYTHONPATH": str(ROOT),
            STATE_VARIABLE: str(self.state),
        }
        environment.pop("NVIDIA_VISIBLE_DEVICES", None)
        if visible is not None:
            environment["NVIDIA_VISIBLE_DEVICES"] = visible
        code = (
            _ASK + f"STATE = Path({str(self.state)!r})\n" + snippet + "\nprint(json.dumps(answer))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> Nvml:
    fake = Nvml(nvml_library, tmp_path / "state" / "devices.conf")
    fake.write(H100, SECOND)
    return fake
