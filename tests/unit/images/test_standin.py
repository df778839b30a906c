"""The stand-in engine: what it takes of a device, when it refuses, and what a test can tell it to do."""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from plimsoll.core.engines.lightllm import LightLLM
from plimsoll.core.engines.readback import classify_failure, read_log
from plimsoll.core.engines.sglang import SGLang
from plimsoll.core.engines.vllm import VLLM
from plimsoll.core.units import GIB, MIB
from tests.cluster_kit.images import build
from tests.cluster_kit.images.standin import switches

from .standin_kit import (
    CELL,
    CONTEXT_BYTES,
    GPU,
    GRAPH_BYTES,
    HEALTH,
    SECOND,
    WEIGHTS,
    write_model,
)

if TYPE_CHECKING:
    from pathlib import Path

    from .standin_kit import Standin

ENGINES = ("LightLLM", "VLLM", "SGLang")
TOKENS = 200_000
#: A number of TOKENS, as Plimsoll pins it.
PINNED = {
    "LightLLM": (f"--max_total_token_num={TOKENS}", "--batch_max_tokens=8192"),
    "VLLM": (f"--kv-cache-memory-bytes={TOKENS * CELL}", "--gpu-memory-utilization=0.9"),
    "SGLang": (f"--max-total-tokens={TOKENS}", "--mem-fraction-static=0.8"),
}
POOL = {"LightLLM": (TOKENS + 1) * CELL, "VLLM": TOKENS * CELL, "SGLang": (TOKENS + 1) * CELL}
#: SGLang kills itself.
FAILED = {"LightLLM": 1, "VLLM": 1, "SGLang": -signal.SIGKILL}
TOO_LARGE = {
    "LightLLM": ("--max_total_token_num=3000000", "--batch_max_tokens=8192"),
    "VLLM": (f"--kv-cache-memory-bytes={3_000_000 * CELL}", "--gpu-memory-utilization=0.5"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_it_holds_weights_context_pool_and_graphs_until_it_ends(
    standin: Standin, engine: str
) -> None:
    server = standin.healthy(engine, *PINNED[engine])
    assert standin.held() == CONTEXT_BYTES + WEIGHTS + POOL[engine] + GRAPH_BYTES
    assert standin.held(SECOND) == 0
    server.terminate()
    assert server.end() == 0
    assert standin.held() == 0


def test_memory_is_free_again_after_sigkill(standin: Standin) -> None:
    server = standin.healthy("VLLM", *PINNED["VLLM"])
    assert standin.held() > WEIGHTS
    server.process.kill()
    server.end()
    assert standin.held() == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_split_weights_and_heads_over_the_devices(standin: Standin, engine: str) -> None:
    flag = {"LightLLM": "--tp=2", "VLLM": "--tensor-parallel-size=2", "SGLang": "--tp-size=2"}
    standin.healthy(engine, *PINNED[engine], flag[engine], visible=f"{GPU.uuid},{SECOND.uuid}")
    pool = POOL[engine] if engine == "VLLM" else POOL[engine] // 2  # vLLM's number is per rank
    assert standin.held() == CONTEXT_BYTES + WEIGHTS // 2 + pool + GRAPH_BYTES
    assert standin.held(SECOND) == standin.held()


@pytest.mark.parametrize(
    ("engine", "kind"), [("LightLLM", "OutOfMemory"), ("VLLM", "TooLittleFree"), ("SGLang", None)]
)
def test_two_servers_on_one_device(standin: Standin, engine: str, kind: str | None) -> None:
    """Each takes 14 of 23.5 GiB: LightLLM and vLLM refuse the second, SGLang makes do with less."""
    tokens = 12 * GIB // CELL
    args = {
        "LightLLM": (f"--max_total_token_num={tokens}", "--batch_max_tokens=8192"),
        "VLLM": (f"--kv-cache-memory-bytes={12 * GIB}", "--gpu-memory-utilization=0.8"),
        "SGLang": (f"--max-total-tokens={tokens}", "--mem-fraction-static=0.8"),
    }
    first = standin.healthy(engine, *args[engine])
    if kind is None:
        second = standin.healthy(engine, *args[engine])
        assert "is larger than the profiled value" in second.output()
        return
    second = standin.start(engine, *args[engine])
    assert second.end() == FAILED[engine]
    failure = classify_failure(engine, second.output())
    assert failure is not None
    assert failure.kind == kind
    assert first.get(HEALTH)[0] == 200


@pytest.mark.parametrize("engine", TOO_LARGE)
def test_a_number_that_is_too_large_is_an_out_of_memory_error(
    standin: Standin, engine: str
) -> None:
    server = standin.start(engine, *TOO_LARGE[engine])
    assert server.end() == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.89 GiB. GPU 0" in (
        server.output()
    )
    failure = classify_failure(engine, server.output())
    assert failure is not None
    assert failure.kind == "OutOfMemory"
    assert standin.held() == 0


REFUSALS = [
    (
        "LightLLM",
        ("--max_total_token_num=8192", "--batch_max_tokens=8192", "--max_req_total_len=512"),
        "PoolTooSmall",
    ),
    (
        "LightLLM",
        ("--max_total_token_num=8199", "--batch_max_tokens=512", "--max_req_total_len=8192"),
        "PoolTooSmall",
    ),
    ("VLLM", (f"--kv-cache-memory-bytes={8192 * CELL}",), "PoolTooSmall"),
    ("VLLM", ("--kv-cache-memory-bytes=0",), "PoolTooSmall"),
    ("VLLM", ("--gpu-memory-utilization=0.99",), "TooLittleFree"),
    ("VLLM", ("--max-model-len=8193",), "ContextTooLong"),
    ("SGLang", ("--mem-fraction-static=0.05",), "PoolTooSmall"),
    ("SGLang", ("--max-total-tokens=0",), "PoolTooSmall"),
    ("SGLang", ("--context-length=8193",), "ContextTooLong"),
]


@pytest.mark.parametrize(("engine", "args", "kind"), REFUSALS)
def test_each_engines_own_checks(
    standin: Standin, engine: str, args: tuple[str, ...], kind: str
) -> None:
    server = standin.start(engine, *args)
    assert server.end() == FAILED[engine]
    failure = classify_failure(engine, server.output())
    assert failure is not None, server.output()
    assert failure.kind == kind


@pytest.mark.parametrize(
    ("engine", "args"),
    [
        ("LightLLM", ("--max_total_token_num=8200", "--batch_max_tokens=8192")),
        ("VLLM", (f"--kv-cache-memory-bytes={(8192 + 16) * CELL}",)),
        ("SGLang", ("--max-total-tokens=1",)),
    ],
)
def test_the_least_that_starts(standin: Standin, engine: str, args: tuple[str, ...]) -> None:
    standin.healthy(engine, *args)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_flag_is_an_argument_error(standin: Standin, engine: str) -> None:
    server = standin.start(engine, *PINNED[engine], "--nope=1")
    assert server.end() == 2
    assert "error: unrecognized arguments: --nope=1" in server.output()
    failure = classify_failure(engine, server.output())
    assert failure is not None
    assert failure.kind == "BadFlag"


def test_abbreviations_and_underscores_are_argparses_and_vllms(standin: Standin) -> None:
    args = (f"--kv-cache-memory-byte={TOKENS * CELL}", "--gpu_memory_util=0.9")
    server = standin.healthy("VLLM", *args)
    assert read_log("VLLM", server.output()).tokens == TOKENS


@pytest.mark.parametrize("engine", [LightLLM(), VLLM(), SGLang()], ids=lambda one: one.type)
def test_the_image_answers_to_each_engines_own_command(engine: LightLLM | VLLM | SGLang) -> None:
    files = build.read_sources(build.TARGETS["standin"])
    path = {
        ("vllm", "serve"): "app/vllm",
        ("python", "-m", "lightllm.server.api_server"): "app/lightllm/server/api_server.py",
        ("python3", "-m", "sglang.launch_server"): "app/sglang/launch_server.py",
    }[engine.default_command]
    assert path in files


@pytest.mark.parametrize(
    ("state", "visible", "text"),
    [
        ("none", GPU.uuid, "Found no NVIDIA driver"),
        ("failing", GPU.uuid, "CUDA driver initialization failed"),
        ("fine", "", "No CUDA GPUs are available"),
        ("fine", "void", "No CUDA GPUs are available"),
    ],
)
def test_without_a_device_it_fails_as_torch_does(
    standin: Standin, state: str, visible: str, text: str
) -> None:
    if state == "none":
        standin.state.unlink()
    if state == "failing":
        standin.devices(GPU, fail=9)
    server = standin.start("VLLM", *PINNED["VLLM"], visible=visible)
    assert server.end() == 1
    assert text in server.output()


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_listens_while_it_loads(standin: Standin, engine: str) -> None:
    server = standin.start(engine, *PINNED[engine], LOAD_SECONDS=1.5)
    began = time.monotonic()
    assert server.get(HEALTH)[0] == 0
    server.wait_until_healthy()
    assert time.monotonic() - began > 1


def test_chosen_starts_crash_and_the_others_serve(standin: Standin) -> None:
    args = PINNED["LightLLM"]
    codes = [standin.start("LightLLM", *args, CRASH_STARTS="1,2").end() for _ in range(2)]
    assert codes == [1, 1]
    assert "CUDA out of memory" in standin.running[0].output()
    standin.healthy("LightLLM", *args, CRASH_STARTS="1,2")


@pytest.mark.parametrize(
    ("engine", "crash", "code"),
    [
        ("LightLLM", "oom", 1),
        ("SGLang", "oom", -signal.SIGKILL),
        ("VLLM", "exit", 1),
        ("VLLM", "flag", 2),
        ("VLLM", "hostmem", 137),
    ],
)
def test_ways_to_crash(standin: Standin, engine: str, crash: str, code: int) -> None:
    server = standin.start(engine, *PINNED[engine], CRASH_STARTS="*", CRASH=crash, HOST_BYTES=MIB)
    assert server.end() == code


def test_a_failure_can_have_another_exit_code(standin: Standin) -> None:
    args = PINNED["SGLang"]
    assert standin.start("SGLang", *args, CRASH_STARTS="*", FAILURE_EXIT=1).end() == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_long_prompt_can_end_it(standin: Standin, engine: str) -> None:
    server = standin.healthy(engine, *PINNED[engine], OOM_PROMPT_TOKENS=50)
    assert server.complete(49)[0] == 200
    assert server.complete(50)[0] == 0
    assert server.end() == FAILED[engine]
    failure = classify_failure(engine, server.output())
    assert failure is not None
    assert failure.kind == "OutOfMemory"


@pytest.mark.parametrize("engine", ENGINES)
def test_overhead_makes_the_number_too_large_by_that(standin: Standin, engine: str) -> None:
    free = GPU.free - CONTEXT_BYTES - WEIGHTS - POOL[engine] - GRAPH_BYTES
    standin.healthy(engine, *PINNED[engine], OVERHEAD_BYTES=free).process.kill()
    standin.running[-1].end()
    server = standin.start(engine, *PINNED[engine], OVERHEAD_BYTES=free + 1)
    assert server.end() == FAILED[engine]
    failure = classify_failure(engine, server.output())
    assert failure is not None
    assert failure.kind == "OutOfMemory"


def test_it_can_load_for_ever_and_still_be_told_to_stop(standin: Standin) -> None:
    server = standin.start("VLLM", *PINNED["VLLM"], HANG="load")
    until = time.monotonic() + 10
    while standin.held() < WEIGHTS and time.monotonic() < until:
        time.sleep(0.05)
    assert standin.held() == CONTEXT_BYTES + WEIGHTS
    server.terminate()
    assert server.end() == 143


def test_it_can_hang_while_it_serves(standin: Standin) -> None:
    server = standin.healthy("VLLM", *PINNED["VLLM"], HANG="serve")
    with pytest.raises(TimeoutError):
        server.complete(3, timeout=0.5)
    with pytest.raises(TimeoutError):
        server.get(HEALTH, timeout=0.5)


def test_it_can_hang_after_a_while(standin: Standin) -> None:
    server = standin.healthy("VLLM", *PINNED["VLLM"], HANG="serve", HANG_AFTER_SECONDS=1)
    assert server.complete(3)[0] == 200
    time.sleep(1)
    with pytest.raises(TimeoutError):
        server.get(HEALTH, timeout=0.5)


def test_it_can_ignore_sigterm(standin: Standin) -> None:
    server = standin.healthy("SGLang", *PINNED["SGLang"], IGNORE_SIGTERM=1)
    server.terminate()
    time.sleep(0.5)
    assert server.get(HEALTH)[0] == 200


def test_it_can_never_become_ready(standin: Standin) -> None:
    server = standin.start("LightLLM", *PINNED["LightLLM"], NEVER_READY=1)
    until = time.monotonic() + 10
    while server.get(HEALTH)[0] == 0 and time.monotonic() < until:
        time.sleep(0.05)
    assert server.get(HEALTH)[0] == 503
    assert server.get("/metrics")[0] == 200


@pytest.mark.parametrize(("drain", "answered"), [(1, 200), (0, 0)])
def test_draining_finishes_what_runs(standin: Standin, drain: int, answered: int) -> None:
    server = standin.healthy("VLLM", *PINNED["VLLM"], HOLD_SECONDS=1.5, DRAIN=drain)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(server.complete(3)[0]))
    thread.start()
    until = time.monotonic() + 5
    while 'requests_running{engine="0"' not in server.get("/metrics")[1] or (
        " 1.0" not in server.get("/metrics")[1].split("requests_running{")[1].split("\n")[0]
    ):
        assert time.monotonic() < until
    server.terminate()
    if drain:
        time.sleep(0.3)
        assert server.get(HEALTH)[0] == 503
        assert server.complete(3)[0] == 503
    assert server.end() == 0
    thread.join()
    assert answers == [answered]


def test_requests_beyond_the_limit_wait(standin: Standin) -> None:
    server = standin.healthy(
        "SGLang", *PINNED["SGLang"], "--max-running-requests=1", "--enable-metrics", HOLD_SECONDS=1
    )
    threads = [threading.Thread(target=server.complete, args=(3,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    rows = server.get("/metrics")[1].splitlines()
    values = {row.split("{")[0]: row.rsplit(" ", 1)[1] for row in rows if "{" in row}
    assert values["sglang:num_running_reqs"] == "1.0"
    assert values["sglang:num_queue_reqs"] == "1.0"
    for thread in threads:
        thread.join()


def test_a_request_that_is_too_long_is_refused(standin: Standin) -> None:
    server = standin.healthy("VLLM", *PINNED["VLLM"], "--max-model-len=100")
    assert server.complete(97)[0] == 400
    status, text = server.complete(96)
    assert (status, json.loads(text)["usage"]["prompt_tokens"]) == (200, 96)


def test_a_switch_that_does_not_exist_is_named(standin: Standin) -> None:
    server = standin.start("VLLM", *PINNED["VLLM"], LOAD_SECOND=1)
    assert server.end() == 64
    assert "STANDIN_LOAD_SECOND: no such switch" in server.output()


def test_every_switch_is_documented_and_the_table_names_no_other() -> None:
    text = (build.STANDIN / "__init__.py").read_text()
    table = {line.split("``")[1] for line in text.splitlines() if line.startswith("``STANDIN_")}
    assert table == {f"STANDIN_{name}" for name in switches.NAMES}


def test_starts_are_counted_where_a_container_can_write(tmp_path: Path) -> None:
    assert [switches.count_start(tmp_path / "n") for _ in range(3)] == [1, 2, 3]
    assert [switches.count_start(tmp_path / "no" / "n") for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("version", ["0.5.6", "0.5.23"])
def test_flags_are_those_of_the_release(standin: Standin, version: str) -> None:
    """``--cuda-graph-max-bs`` became an ambiguous prefix."""
    args = (*PINNED["SGLang"], "--cuda-graph-max-bs=8")
    server = standin.start("SGLang", *args, VERSION=version, CRASH_STARTS="*", FAILURE_EXIT=7)
    assert server.end() == {"0.5.6": 7, "0.5.23": 2}[version]


@pytest.mark.parametrize("engine", ["LightLLM", "VLLM"])
def test_a_latent_cache_is_one_row_a_token(standin: Standin, engine: str) -> None:
    write_model(standin.model, kv_lora_rank=512, qk_rope_head_dim=64)
    standin.healthy(engine, *PINNED[engine])
    rows = TOKENS + 1 if engine == "LightLLM" else TOKENS * CELL // (8 * 576 * 2 * 16) * 16
    assert standin.held() - CONTEXT_BYTES - WEIGHTS - GRAPH_BYTES == rows * 8 * 576 * 2


def test_memory_of_other_programs_counts(standin: Standin) -> None:
    standin.devices(dataclasses.replace(GPU, used=20 * GIB))
    server = standin.start("LightLLM", *PINNED["LightLLM"])
    assert server.end() == 1
    assert "of which 1.03 GiB is free" in server.output()
