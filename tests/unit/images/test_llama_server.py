"""The demo engine's command line: llama-server's names, and nothing accepted without effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.cluster_kit.images import build
from tests.cluster_kit.images.llamacpp import llama_server
from tests.cluster_kit.images.llamacpp.llama_server import RefusedError, apply, parse

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = build.ENGINE / "llama_server.py"


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def test_every_flag_that_plimsoll_writes(model: str) -> None:
    words = (
        f"--model {model} --alias smollm2 --host 0.0.0.0 --port 8080 --ctx-size 24576 --parallel 3 "
        "--n-gpu-layers 999 --batch-size 2048 --ubatch-size 512 --cache-type-k q8_0 --cache-type-v f16"
    )
    assert parse(words.split(), {}) == {
        "model.path": model,
        "model_alias": {"smollm2"},
        "hostnames": ["0.0.0.0"],
        "port": 8080,
        "n_ctx": 24576,
        "n_parallel": 3,
        "n_gpu_layers": 999,
        "n_batch": 2048,
        "n_ubatch": 512,
        "cache_type_k": "q8_0",
        "cache_type_v": "f16",
    }


@pytest.mark.parametrize("flag", ["-c 512", "--ctx_size 512", "--ctx-size=512", "--ctx-size 512"])
def test_spellings_of_one_flag(flag: str, model: str) -> None:
    assert parse(["-m", model, *flag.split()], {})["n_ctx"] == 512


def test_equals_sign_is_named_as_foreign_to_llama_server(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parse(["-m", model, "--ctx-size=512"], {})
    assert "llama-server itself refuses --ctx-size=512" in capsys.readouterr().err


def test_the_last_of_two_wins(model: str) -> None:
    assert parse(["-m", model, "-c", "1", "-c", "2"], {})["n_ctx"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ctx"], "invalid argument: --ctx"),  # no abbreviations
        (["--mlock"], "invalid argument: --mlock"),  # a real flag without effect here
        (["word"], "invalid argument: word"),
        (["--ctx-size"], "--ctx-size: expected value"),
        (["--ctx-size", "many"], "--ctx-size: 'many' is not a whole number"),
        (["-ctk", "q3"], "-ctk: unsupported cache type 'q3'"),
        (["-fa", "maybe"], "-fa: 'maybe' is not on, off or auto"),
        (["-m", "/nowhere/x.gguf"], "-m: no such file: /nowhere/x.gguf"),
        ([], "--model is required"),
    ],
)
def test_refusals_name_flag_and_value(words: list[str], message: str) -> None:
    with pytest.raises(RefusedError) as error:
        parse(words, {})
    assert str(error.value).startswith(message)


def test_an_environment_name_is_refused_and_not_ignored(model: str) -> None:
    with pytest.raises(RefusedError, match="LLAMA_ARG_CTX_SIZE is not read here"):
        parse(["-m", model], {"LLAMA_ARG_CTX_SIZE": "1", "PATH": "/bin"})


def test_values_reach_the_wheels_objects(model: str) -> None:
    wheel = SimpleNamespace(
        ggml_type=SimpleNamespace(GGML_TYPE_Q8_0=8),
        llama_flash_attn_type=lambda number: f"flash {number}",
    )
    params = SimpleNamespace(
        model=SimpleNamespace(path=""), cpuparams=SimpleNamespace(n_threads=-1)
    )
    apply(parse(["-m", model, "-t", "2", "-ctk", "q8_0", "-fa", "on"], {}), params, wheel)
    assert params.model.path == model
    assert params.cpuparams.n_threads == 2
    assert params.cache_type_k == 8
    assert params.flash_attn_type == "flash 1"


class Script:
    """The entrypoint as a process, with a stand-in for the wheel."""

    def __init__(self, folder: Path, wheel: str, *words: str) -> None:
        (folder / "xllamacpp.py").write_text(wheel)
        env = {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], "HOME": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, *words],
            env=env | {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return
        pytest.fail(f"ended without {text!r}")

    def end(self) -> int:
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.communicate()


WHEEL = """
import sys, time, types
class CommonParams:
    model = types.SimpleNamespace(path="")
class Server:
    def __init__(self, params):
        print("loading", params.model.path, file=sys.stderr, flush=True)
        {loading}
        print("listening", file=sys.stderr, flush=True)
    def __del__(self):
        {ending}
"""


@pytest.mark.parametrize(
    ("loading", "ending", "until"),
    [
        ("pass", "pass", "listening"),
        # The real constructor holds the interpreter: a loading server must end all the same.
        ("import ctypes; ctypes.PyDLL(None).sleep(60)", "pass", "loading"),
        ("pass", "import ctypes; ctypes.PyDLL(None).sleep(60)", "listening"),
    ],
    ids=["serving", "loading", "stuck at the end"],
)
def test_sigterm_ends_it_with_0(
    loading: str, ending: str, until: str, tmp_path: Path, model: str
) -> None:
    script = Script(tmp_path, WHEEL.format(loading=loading, ending=ending), "-m", model)
    script.wait_for("NVIDIA_VISIBLE_DEVICES=GPU-1")
    script.wait_for(until)
    if until == "listening":
        time.sleep(
            0.3
        )  # the handler is set right after; before it, SIGTERM ends the child just the same
    script.process.send_signal(signal.SIGTERM)
    assert script.end() == 0


def test_a_crash_is_reported_with_its_signal(tmp_path: Path, model: str) -> None:
    wheel = WHEEL.format(loading="import os; os.abort()", ending="pass")
    script = Script(tmp_path, wheel, "-m", model)
    script.wait_for("llama.cpp ended by SIGABRT")
    assert script.end() == 128 + signal.SIGABRT


def test_a_refused_command_line_exits_with_1(tmp_path: Path) -> None:
    script = Script(tmp_path, "", "--modell", "x")
    script.wait_for("error: invalid argument: --modell")
    assert script.end() == 1


def test_switches_and_valued_flags_are_told_apart() -> None:
    switches = {name for name, setting in llama_server.FLAGS.items() if setting.convert is None}
    assert switches == {
        "--metrics",
        "--slots",
        "--no-slots",
        "--no-warmup",
        "--no-webui",
        "--no-ui",
    }
