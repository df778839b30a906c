"""`verify` and `top`: what engines say, and what is made of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.core.engines import ENGINES
from plimsoll.core.engines.readback_usage import HELD, RESERVED, SLOTS, USAGE, Usage, read_usage
from tests.unit.cli.conftest import golden, pods, server

if TYPE_CHECKING:
    from tests.unit.cli.conftest import FakeKubectl

GONE = "Error from server (NotFound): the server could not find the requested resource"
POD = pods("smollm2")[0]["metadata"]["name"]
PROXY = f"/api/v1/namespaces/demo/pods/{POD}:8080/proxy"
VLLM = pods("chat-vllm")[0]["metadata"]["name"]
VLLM_METRICS = f"/api/v1/namespaces/demo/pods/{VLLM}:8000/proxy/metrics"


def props(slots: int, context: int) -> str:
    return json.dumps({"total_slots": slots, "default_generation_settings": {"n_ctx": context}})


def slots(busy: str) -> str:
    """A slot for each digit; 1 is processing."""
    return json.dumps([{"id": 0, "n_ctx": 8192, "is_processing": word == "1"} for word in busy])


def gauges(**rows: float) -> str:
    labels = '{engine="0",model_name="x"}'
    lines = [
        f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {value}\n" for name, value in rows.items()
    ]
    return "".join(lines)


@pytest.fixture
def one(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.answers("get", "--", "smollm2", out=server())
    kubectl.answers("pods", out={"items": pods("smollm2")})
    return kubectl


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (props(3, 8192), 0, "WithinTolerance"),
        (props(3, 8000), 0, "WithinTolerance"),  # within what slots are rounded by
        (props(2, 8192), 1, "DriftExceeded"),
        ("{}", 4, "NotReported"),
    ],
)
def test_verify(one: FakeKubectl, plimsoll: Any, answer: str, code: int, reason: str) -> None:
    one.answers(f"{PROXY}/props", out=answer)
    one.answers("--raw", out="a log without numbers")
    outcome = plimsoll("verify", "smollm2", "-n", "demo", "-o", "json")
    document = outcome.json()
    (pod,) = document["pods"]
    assert (outcome.code, pod["reason"]) == (code, reason)
    assert (document["schema"], pod["stampedTokens"]) == ("plimsoll.dev/verify.v1", 24576)
    assert plimsoll("verify", "smollm2", "-n", "demo").code == code


def test_the_screen_of_verify(one: FakeKubectl, plimsoll: Any) -> None:
    one.answers(f"{PROXY}/props", out=props(2, 8192))
    golden("verify-drift.txt", plimsoll("verify", "smollm2", "-n", "demo").out)


def test_where_no_page_tells_the_log_is_read(one: FakeKubectl, plimsoll: Any) -> None:
    one.answers(f"{PROXY}/props", err=GONE)
    path = f"/api/v1/namespaces/demo/pods/{POD}/log?container=server&limitBytes=262144"
    one.answers(path, out="llama_context: n_ctx         = 24576\n")
    document = plimsoll("verify", "smollm2", "-n", "demo", "-o", "json").json()
    (pod,) = document["pods"]
    assert (pod["source"], pod["engineTokens"], pod["matches"]) == ("Log", 24576, True)


def test_the_pods_own_number_counts_where_they_measure_themselves(
    kubectl: FakeKubectl, plimsoll: Any
) -> None:
    raw = server()
    raw["status"]["capacity"]["source"] = "InPod"
    raw["status"]["pods"][0]["tokens"] = 16384
    kubectl.answers("get", "--", "smollm2", out=raw)
    kubectl.answers("pods", out={"items": pods("smollm2")})
    kubectl.answers(f"{PROXY}/props", out=props(2, 8192))
    outcome = plimsoll("verify", "smollm2", "-n", "demo", "-o", "json")
    assert (outcome.code, outcome.json()["pods"][0]["stampedTokens"]) == (0, 16384)


def test_pods_that_are_not_ready_are_not_asked(kubectl: FakeKubectl, plimsoll: Any) -> None:
    waiting = pods("smollm2")
    waiting[0]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    kubectl.answers("get", "--", "smollm2", out=server())
    kubectl.answers("pods", out={"items": waiting})
    outcome = plimsoll("verify", "smollm2", "-n", "demo")
    assert outcome.code == 4
    assert "NotReady" in outcome.out
    assert not any("--raw" in call for call in kubectl.calls())


def test_a_missing_right_is_said_and_not_taken_for_silence(one: FakeKubectl, plimsoll: Any) -> None:
    refusal = (
        'Error from server (Forbidden): pods "x" is forbidden: User "u" cannot get resource "pods/proxy" in API group '
        '"" in the namespace "demo"'
    )
    one.answers("--raw", err=refusal)
    for command in ("verify", "top"):
        outcome = plimsoll(command, "smollm2", "-n", "demo")
        assert outcome.code == 5
        assert "resources [pods/proxy]" in outcome.err


def test_top(kubectl: FakeKubectl, plimsoll: Any) -> None:
    kubectl.answers("pods", out={"items": [*pods("smollm2"), *pods("chat-vllm")]})
    kubectl.answers("--output=json", out={"items": [server(), server("chat-vllm")]})
    kubectl.answers(f"{PROXY}/slots", out=slots("101"))
    kubectl.answers(f"{PROXY}/metrics", err="Error from server (InternalError): 501")
    rows = gauges(kv_cache_usage_perc=0.93, num_requests_running=5, num_requests_waiting=2)
    kubectl.answers(VLLM_METRICS, out=rows)
    outcome = plimsoll("top", "-n", "demo")
    assert outcome.code == 0
    golden("top.txt", outcome.out)
    golden("top-pods.txt", plimsoll("top", "-n", "demo", "--pods").out)
    document = plimsoll("top", "-n", "demo", "-o", "json").json()
    llama, vllm = document["servers"]
    assert (llama["usedTokens"], llama["usedPercent"], llama["waiting"]) == (16384, 66.7, None)
    assert (vllm["usedTokens"], vllm["usedPercent"]) == (round(0.93 * 4917264), 93.0)


def test_top_of_an_engine_that_tells_nothing(one: FakeKubectl, plimsoll: Any) -> None:
    one.answers("--raw", err=GONE)
    outcome = plimsoll("top", "smollm2", "-n", "demo")
    assert outcome.code == 0
    assert outcome.out.splitlines()[1].split() == [
        "demo", "smollm2", "LlamaCpp", "0/1", "24,576", "-", "-", "-", "-", "-",
    ]  # fmt: skip


def test_every_engine_has_a_row() -> None:
    assert USAGE.keys() == set(ENGINES)


@pytest.mark.parametrize(
    ("engine", "bodies", "expected"),
    [
        ("VLLM", {"/metrics": gauges(gpu_cache_usage_perc=0.5)}, Usage(None, 0.5, basis=HELD)),
        (
            "VLLM",
            {"/metrics": gauges(gpu_cache_usage_perc=0.9, kv_cache_usage_perc=0.25)},
            Usage(None, 0.25, basis=HELD),
        ),
        (
            "SGLang",
            {
                "/metrics": 'sglang:num_used_tokens{dp="0"} 10\nsglang:num_used_tokens{dp="1"} 30\n'
                'sglang:token_usage{dp="0"} 0.1\nsglang:token_usage{dp="1"} 0.3\n'
                'sglang:num_running_reqs{dp="0"} 1\nsglang:num_running_reqs{dp="1"} 2\n'
                "sglang:num_used_tokens_other 99\n"
            },
            Usage(30, 0.3, 3, None, HELD),
        ),
        (
            "LightLLM",
            {
                "/token_load": '{"current_load": [0.1, 0.4], "dynamic_max_load": [0.9, 0.9]}',
                "/metrics": "lightllm_queue_size 3\nlightllm_num_running_reqs 7.0\n",
            },
            Usage(None, 0.4, 7, 3, HELD),
        ),
        ("LightLLM", {"/token_load": '{"current_load": 0.2}'}, Usage(None, 0.2, basis=HELD)),
        (
            "TGI",
            {"/metrics": "tgi_batch_current_max_tokens 4096\ntgi_queue_size 0\n"},
            Usage(4096, None, None, 0, RESERVED),
        ),
        (
            "TensorRTLLM",
            {"/prometheus/metrics": 'trtllm_kv_cache_utilization{model="a"} 1.2e-01\n'},
            Usage(None, 0.12, basis=HELD),
        ),
        ("LlamaCpp", {"/slots": slots("01")}, Usage(8192, 0.5, 1, None, SLOTS)),
        (
            "LlamaCpp",  # an older build with its own gauges: they mean tokens held, and win
            {
                "/metrics": "llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:kv_cache_tokens 100\n",
                "/slots": slots("11"),
            },
            Usage(100, 0.25, 2, None, HELD),
        ),
        ("LlamaCpp", {"/slots": '[{"n_ctx": "x"}]'}, Usage()),
        ("LlamaCpp", {"/slots": "[]"}, Usage()),
        (
            "VLLM",
            {"/metrics": "vllm:kv_cache_usage_perc NaN\nvllm:kv_cache_usage_perc -1\n"},
            Usage(),
        ),
        ("VLLM", {"/metrics": gauges(kv_cache_usage_perc=7)}, Usage(None, 1.0, basis=HELD)),
        ("LightLLM", {"/token_load": "[" * 100_000}, Usage()),
        ("Unknown", {"/metrics": "a 1"}, Usage()),
    ],
)
def test_usage(engine: str, bodies: dict[str, str], expected: Usage) -> None:
    assert read_usage(engine, bodies) == expected
