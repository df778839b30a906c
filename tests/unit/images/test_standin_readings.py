"""The operator reads a running stand-in over its port and its log, and judges what it claims."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.fetch import fetch
from plimsoll.controller.readings import EngineReader, Fetch
from plimsoll.core.drift import INFO, LOG, METRICS, PodReading, Stamped, judge
from tests.unit.controller.fake_cluster import FakeCluster

from .standin_kit import CELL

if TYPE_CHECKING:
    from .standin_kit import Running, Standin

TOKENS = 200_000
BLOCK = 16
PINNED = {
    "LightLLM": (f"--max_total_token_num={TOKENS}", "--batch_max_tokens=8192"),
    "VLLM": (f"--kv-cache-memory-bytes={TOKENS * CELL}", "--gpu-memory-utilization=0.9"),
    "SGLang": (f"--max-total-tokens={TOKENS}", "--mem-fraction-static=0.8", "--enable-metrics"),
}
STAMPED = {
    "LightLLM": Stamped("LightLLM", tokens=TOKENS),
    "VLLM": Stamped("VLLM", tokens=TOKENS, granule=BLOCK, kv_bytes=TOKENS * CELL),
    "SGLang": Stamped("SGLang", tokens=TOKENS),
}


async def hasty(url: str) -> bytes | None:
    return await fetch(url, seconds=0.3)


async def read(server: Running, engine: str, ask: Fetch = fetch) -> PodReading:
    """As the operator would, with the process's output for the pod's log."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    cluster = FakeCluster()
    cluster.put(pod)
    cluster.logs["default", "p", "server"] = server.output()
    reader = EngineReader(cluster, ask, time.monotonic, local=True)
    (reading,) = await reader.read([pod], engine, server.port, running=True)
    return reading


@pytest.mark.parametrize(
    ("engine", "extra", "where"),
    [
        ("LightLLM", (), (LOG, 0)),
        ("VLLM", (), (METRICS, 0)),
        ("VLLM", ("--disable-log-stats",), (LOG, None)),
        # A longest request that is no multiple of a block: the log's number is smaller.
        ("VLLM", ("--disable-log-stats", "--max-model-len=1000"), (LOG, None)),
        ("SGLang", (), (INFO, 0)),
    ],
)
@pytest.mark.parametrize(
    ("factor", "wanted"),
    [
        (1, (0.00, "WithinTolerance")),
        (0.96, (-4.00, "WithinTolerance")),
        (0.9, (-10.00, "DriftExceeded")),
        (1.1, (10.00, "DriftExceeded")),
    ],
)
async def test_what_the_engine_claims_is_what_is_judged(
    standin: Standin,
    engine: str,
    extra: tuple[str, ...],
    where: tuple[str, int | None],
    factor: float,
    wanted: tuple[float, str],
) -> None:
    server = standin.healthy(engine, *PINNED[engine], *extra, REPORT_FACTOR=factor)
    reading = await read(server, engine)
    assert (reading.source, reading.running, reading.failure) == (*where, None)
    verdict = judge(STAMPED[engine], [reading])
    assert verdict.drift_percent is not None
    assert float(verdict.drift_percent) == pytest.approx(wanted[0], abs=0.01)
    assert verdict.reason == wanted[1]
    assert verdict.reported_tokens == pytest.approx(TOKENS * factor, abs=BLOCK)


async def test_a_hanging_engine_is_read_from_its_log(standin: Standin) -> None:
    server = standin.healthy("SGLang", *PINNED["SGLang"], HANG="serve", HANG_AFTER_SECONDS=1)
    await asyncio.sleep(1)
    reading = await read(server, "SGLang", hasty)
    assert (reading.source, reading.found.tokens, reading.running) == (LOG, TOKENS, None)
