"""Starts the stand-in engine as its image would: laid out as there, by the engines' own commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.core.units import GIB, MIB
from tests.cluster_kit.images import build
from tests.cluster_kit.nvml import FakeGpu, held_bytes, write_state

if TYPE_CHECKING:
    from pathlib import Path

GPU = FakeGpu("GPU-11111111-2222-3333-4444-555555555555", "NVIDIA L4", 24 * GIB, GIB // 2)
SECOND = FakeGpu("GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "NVIDIA L4", 24 * GIB, GIB // 2)
WEIGHTS = 2 * GIB
CONTEXT_BYTES = 480 * MIB  # what the package's table says
GRAPH_BYTES = 64 * MIB
CELL = 2 * 8 * 4 * 64 * 2  # keys and values, layers, heads, numbers, bytes: 8,192
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
COMMANDS = {
    "LightLLM": ["-m", "lightllm.server.api_server"],
    "VLLM": ["{app}/vllm", "serve"],
    "SGLang": ["-m", "sglang.launch_server"],
}
HEALTH = "/health"


def lay_out(folder: Path) -> Path:
    """Write the image's /app and return it."""
    for name, content in build.read_sources(build.TARGETS["standin"]).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "app"


def write_model(folder: Path, **changes: object) -> Path:
    """A model of 2 GiB that takes no disk."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    header = b"{}"
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + WEIGHTS)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Running:
    """One process of the stand-in. Output of both streams is in ``log``."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def output(self) -> str:
        return self.log.read_text()

    def end(self, seconds: float = 20) -> int:
        return self.process.wait(seconds)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def get(self, path: str, timeout: float = 10) -> tuple[int, str]:
        """Status and text; 0 where nothing listens."""
        return self._ask(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"), timeout)

    def complete(self, words: int, timeout: float = 10) -> tuple[int, str]:
        body = json.dumps({"prompt": "word " * words, "max_tokens": 4}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        headers = {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(url, body, headers), timeout)

    def _ask(self, request: urllib.request.Request, timeout: float) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except TimeoutError:
            raise
        except (urllib.error.URLError, ConnectionError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise TimeoutError from None
            return 0, str(error)

    def wait_until_healthy(self, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while self.get(HEALTH)[0] != 200:
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < until, self.output()
            time.sleep(0.05)


@dataclass
class Standin:
    """Starts it against one state file and one model."""

    app: Path
    folder: Path
    model: Path
    running: list[Running] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "nvml" / "devices.conf"

    def devices(self, *gpus: FakeGpu, fail: int = 0) -> None:
        write_state(self.state, gpus, fail=fail)

    def held(self, gpu: FakeGpu = GPU) -> int:
        return held_bytes(self.state, gpu.uuid)

    def start(
        self, engine: str, *args: str, visible: str = GPU.uuid, **switches: object
    ) -> Running:
        port = free_port()
        given = {f"STANDIN_{name}": str(value) for name, value in switches.items()}
        count = {"STANDIN_COUNT_FILE": str(self.folder / "starts")}
        environment = {
            **{name: value for name, value in os.environ.items() if name in {"PATH", "LANG"}},
            "PYTHONPATH": str(self.app),
            "PYTHONUNBUFFERED": "1",
            "PLIMSOLL_FAKE_NVML": str(self.state),
            "NVIDIA_VISIBLE_DEVICES": visible,
            **count,
            **given,
        }
        folder_flag = {"LightLLM": "--model_dir", "VLLM": "--model", "SGLang": "--model-path"}[
            engine
        ]
        where = [f"{folder_flag}={self.model}", "--host=127.0.0.1", f"--port={port}"]
        command = [word.format(app=self.app) for word in COMMANDS[engine]]
        log = self.folder / f"log-{len(self.running)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *command, *where, *args], env=environment, stdout=out, stderr=out
            )
        self.running.append(Running(process, port, log))
        return self.running[-1]

    def healthy(self, engine: str, *args: str, **options: Any) -> Running:
        running = self.start(engine, *args, **options)
        running.wait_until_healthy()
        return running

    def close(self) -> None:
        for one in self.running:
            one.process.kill()
            one.process.wait()
