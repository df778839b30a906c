"""How many requests run, on literal answers of the engines."""

from __future__ import annotations

import time

import pytest

from plimsoll.core.engines import ENGINES
from plimsoll.core.engines.readback_running import RUNNING, read_running

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 3.0
vllm:num_requests_running{engine="1",model_name="a b"} 4.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 9.0
"""


@pytest.mark.parametrize(
    ("engine", "body", "running"),
    [
        ("VLLM", VLLM, 7),  # two engines: the sum
        ("VLLM", "vllm:num_requests_running 2\n", 2),
        ("VLLM", "vllm:num_requests_running_total 2\n", None),
        ("VLLM", "vllm:num_requests_running NaN\n", None),
        ("VLLM", "vllm:num_requests_running 2.5\n", None),
        ("LightLLM", 'lightllm_num_running_reqs{model_name="m"} 0.0', 0),
        ("SGLang", 'sglang:num_running_reqs{tp_rank="0"} 5.0', 5),
        ("TGI", "tgi_batch_current_size 6", 6),
        ("TensorRTLLM", 'trtllm_num_requests_running{model="m"} 1.0', 1),
        ("TensorRTLLM", "num_requests_running 1.0", 1),
        ("LlamaCpp", '[{"id":0,"is_processing":true},{"id":1,"is_processing": false}]', 1),
        ("LlamaCpp", '{"error":{"code":501}}', None),
        ("LlamaCpp", "[]", None),
        ("no such engine", VLLM, None),
        ("VLLM", "vllm:num_requests_running 9999999\n", None),  # no engine holds so many
    ],
)
def test_running(engine: str, body: str, running: int | None) -> None:
    assert read_running(engine, body) == running


def test_every_engine_is_covered() -> None:
    assert set(RUNNING) == set(ENGINES)


@pytest.mark.parametrize("engine", sorted(RUNNING))
def test_hostile_answers_end_quickly(engine: str) -> None:
    name = RUNNING[engine][1]
    begin = time.process_time()
    for filler in ("{" * 3000, "9" * 3000, '"' * 3000, " " * 3000):
        read_running(engine, f"{name}{filler}\n" * 300)
    assert time.process_time() - begin < 2
