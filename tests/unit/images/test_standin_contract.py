"""The stand-in speaks as the engines do, and Plimsoll's own readers get from it exactly what it did."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.core.engines import ENGINES as REGISTERED
from plimsoll.core.engines.readback import ENDPOINTS, Reading, read_endpoint, read_log
from plimsoll.core.units import GIB, MIB

from .standin_kit import CELL, GRAPH_BYTES, WEIGHTS

if TYPE_CHECKING:
    from .standin_kit import Running, Standin

LINES = json.loads((Path(__file__).parents[2] / "data" / "standin" / "lines.json").read_text())
ENGINES = tuple(LINES)
TOKENS = 200_000
PINNED = {
    "LightLLM": (f"--max_total_token_num={TOKENS}", "--batch_max_tokens=8192"),
    "VLLM": (f"--kv-cache-memory-bytes={TOKENS * CELL}", "--gpu-memory-utilization=0.9"),
    "SGLang": (f"--max-total-tokens={TOKENS}", "--mem-fraction-static=0.8", "--enable-metrics"),
}
FAILING: dict[tuple[str, str], tuple[str, ...]] = {
    ("LightLLM", "pool"): ("--max_total_token_num=512", "--batch_max_tokens=512"),
    ("LightLLM", "length"): ("--max_total_token_num=8000", "--batch_max_tokens=512"),
    ("LightLLM", "prefill"): (*PINNED["LightLLM"], "OVERHEAD"),
    ("LightLLM", "memory"): ("--max_total_token_num=3000000",),
    ("LightLLM", "flag"): ("--nope=1",),
    ("VLLM", "pool"): (f"--kv-cache-memory-bytes={8192 * CELL}",),
    ("VLLM", "empty"): ("--kv-cache-memory-bytes=0",),
    ("VLLM", "share"): ("--gpu-memory-utilization=0.99",),
    ("VLLM", "length"): ("--max-model-len=9000",),
    ("VLLM", "memory"): (f"--kv-cache-memory-bytes={3_000_000 * CELL}",),
    ("VLLM", "flag"): ("--nope=1",),
    ("SGLang", "pool"): ("--mem-fraction-static=0.05",),
    ("SGLang", "empty"): ("--max-total-tokens=0",),
    ("SGLang", "length"): ("--context-length=9000",),
    ("SGLang", "prefill"): (*PINNED["SGLang"], "OVERHEAD"),
    ("SGLang", "flag"): ("--nope=1",),
}


def pattern(line: str) -> re.Pattern[str]:
    """A line of the data as an expression."""
    text = re.escape(line)
    for mark, expression in (("<x>", r"-?[0-9.]+"), ("<n>", r"[0-9,]+"), (r"<\*>", ".+")):
        text = text.replace(mark, expression)
    return re.compile(text)


def says(output: str, lines: list[str]) -> None:
    missing = [line for line in lines if not pattern(line).search(output)]
    assert not missing, output


def reading(server: Running, engine: str, path: str) -> Reading:
    status, text = server.get(path)
    assert status == 200
    kind = {endpoint.path: endpoint.kind for endpoint in ENDPOINTS[engine]}[path]
    document: Any = text if kind == "metrics" else json.loads(text)
    return read_endpoint(engine, path, document)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_start_prints_the_engines_lines_and_serves_its_endpoints(
    standin: Standin, engine: str
) -> None:
    server = standin.healthy(engine, *PINNED[engine])
    data = LINES[engine]
    says(server.output(), data["started"])
    assert {path: server.get(path)[0] for path in data["endpoints"]} == dict.fromkeys(
        data["endpoints"], 200
    )
    assert server.get("/nothing")[0] == 404
    metrics = server.get("/metrics")[1]
    assert [name for name in data["metrics"] if f"\n{name}{{" not in metrics] == []
    assert REGISTERED[engine].health_path in data["endpoints"]


@pytest.mark.parametrize("engine", ["LightLLM", "VLLM"])
def test_a_start_that_measures_prints_what_it_found(standin: Standin, engine: str) -> None:
    server = standin.healthy(engine, *({"LightLLM": ("--batch_max_tokens=8192",)}.get(engine, ())))
    says(server.output(), LINES[engine]["profiled"])


def test_the_table_of_failures_is_complete() -> None:
    assert set(FAILING) == {(e, name) for e in ENGINES for name in LINES[e]["failed"]}


@pytest.mark.parametrize(("engine", "name"), FAILING)
def test_a_failure_has_the_engines_text(standin: Standin, engine: str, name: str) -> None:
    args = FAILING[engine, name]
    overhead = 1 << 40 if "OVERHEAD" in args else 0
    given = [arg for arg in args if arg != "OVERHEAD"]
    server = standin.start(engine, *given, OVERHEAD_BYTES=overhead)
    server.end()
    says(server.output(), LINES[engine]["failed"][name])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factor", [1, 0.9])
def test_our_readers_get_the_number_that_it_claims(
    standin: Standin, engine: str, factor: float
) -> None:
    server = standin.healthy(engine, *PINNED[engine], REPORT_FACTOR=factor)
    claimed = round(TOKENS * factor)
    assert read_log(engine, server.output()).tokens == claimed
    for endpoint in ENDPOINTS[engine]:
        found = reading(server, engine, endpoint.path).tokens
        assert found == (TOKENS if engine == "LightLLM" else claimed), endpoint.path


def test_vllms_terms_are_read_back_exactly(standin: Standin) -> None:
    args = (f"--kv-cache-memory-bytes={GIB}", "--gpu-memory-utilization=0.9", "--block-size=32")
    server = standin.healthy("VLLM", *args)
    log = read_log("VLLM", server.output())
    assert (log.tokens, log.weights_bytes, log.context) == (GIB // CELL, WEIGHTS, 8192)
    assert log.graph_bytes == pytest.approx(GRAPH_BYTES, abs=GIB // 200)
    assert log.concurrency == pytest.approx(GIB / CELL / 8192)
    page = reading(server, "VLLM", "/metrics")
    assert (page.blocks, page.block_tokens, page.pool_bytes) == (GIB // CELL // 32, 32, GIB)


def test_sglangs_terms_are_read_back_exactly(standin: Standin) -> None:
    log = read_log("SGLang", standin.healthy("SGLang", *PINNED["SGLang"]).output())
    assert (log.weights_bytes, log.context) == (WEIGHTS, 8192)
    assert log.pool_bytes == pytest.approx(TOKENS * CELL, abs=GIB // 100)
    assert log.graph_bytes == pytest.approx(GRAPH_BYTES, abs=GIB // 200)


def test_lightllms_profile_is_its_law(standin: Standin) -> None:
    """(free after the weights - (1 - 0.8) * total) / cell."""
    log = read_log("LightLLM", standin.healthy("LightLLM", "--batch_max_tokens=8192").output())
    total = 24 * GIB - GIB // 2
    free = total - 480 * MIB - WEIGHTS
    assert log.cell_bytes == CELL
    assert log.tokens == pytest.approx((free - 0.2 * total) / CELL, abs=1)


def test_without_its_statistics_vllm_has_no_metric_of_its_own(standin: Standin) -> None:
    server = standin.healthy("VLLM", *PINNED["VLLM"], "--disable-log-stats")
    assert "vllm:" not in server.get("/metrics")[1]


def test_sglang_has_metrics_only_when_asked(standin: Standin) -> None:
    server = standin.healthy("SGLang", *PINNED["SGLang"][:2])
    assert server.get("/metrics")[0] == 404
