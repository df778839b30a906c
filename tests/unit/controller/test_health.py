"""The probes say what is wrong, and /metrics is served in parts."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from plimsoll.controller.health import (
    FILLING,
    LEADING,
    STANDBY,
    STARTING,
    STOPPING,
    Health,
    HealthServer,
)
from plimsoll.controller.metrics import Metrics
from plimsoll.controller.metrics.registry import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable

DEAF = "the watches deliver nothing although objects change"


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize(
    ("phase", "state", "says"),
    [
        (STARTING, {}, "the operator is starting"),
        (FILLING, {}, "the operator is filling its store"),
        (STOPPING, {}, "the operator is stopping"),
        (STANDBY, {}, None),
        (STANDBY, {"lease_silence": lambda: 15.0}, None),
        (STANDBY, {"lease_silence": lambda: 16.0}, "has not answered about the Lease for 16 s"),
        # Of the leader's own troubles a standby knows nothing.
        (STANDBY, {"deaf": 1, "lists_failed": 9, "short_watches": lambda: 9}, None),
        (LEADING, {}, None),
        (LEADING, {"lease_silence": lambda: 16.0}, "has not answered about the Lease for 16 s"),
        (LEADING, {"deaf": 1}, DEAF),
        (LEADING, {"short_watches": lambda: 2, "lists_failed": 2}, None),
        (LEADING, {"short_watches": lambda: 3}, "the watches ended at once 3 times in a row"),
        (LEADING, {"lists_failed": 3}, "full lists failed 3 times in a row"),
    ],
)
def test_readiness(phase: str, state: dict[str, Any], says: str | None) -> None:
    problems = Health(phase, **state).ready_problems()
    assert len(problems) == (says is not None)
    assert says is None or says in problems[0]


@pytest.mark.parametrize(
    ("phase", "state", "says"),
    [
        (LEADING, {}, None),
        (LEADING, {"oldest_busy": lambda: 300.0}, None),
        (LEADING, {"oldest_busy": lambda: 301.0}, "a pass has been running for 301 s"),
        (LEADING, {"deaf": 1}, None),  # the watches are being restarted: not yet a reason to die
        (LEADING, {"deaf": 2}, DEAF),
        (LEADING, {"watching": lambda: False}, "the thread of the watches has ended"),
        (STANDBY, {"watching": lambda: False}, None),  # it has none yet
        # A restart cures none of these.
        (STARTING, {}, None),
        (LEADING, {"lease_silence": lambda: 999.0, "lists_failed": 99}, None),
    ],
)
def test_liveness(phase: str, state: dict[str, Any], says: str | None) -> None:
    assert Health(phase, **state).live_problems() == ([] if says is None else [says])


async def test_probes_follow_the_state() -> None:
    health, metrics = Health(), Metrics()
    server = HealthServer(health, metrics)
    port = await server.start("127.0.0.1", 0)
    try:
        assert await get(port, "/livez") == (200, "ok: starting\n")
        assert await get(port, "/readyz") == (503, "the operator is starting\n")
        health.phase = LEADING
        assert await get(port, "/readyz") == (200, "ok: leading\n")
        health.deaf = 2
        assert await get(port, "/livez") == (503, f"{DEAF}\n")
        metrics.reconciles.inc(outcome="ok")
        status, text = await get(port, "/metrics")
        assert status == 200
        assert 'plimsoll_reconciles_total{outcome="ok"} 1\n' in text
    finally:
        await server.close()


def _probe(port: int) -> Callable[[], int]:
    def ask() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.3)
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status
        finally:
            connection.close()

    return ask


async def test_a_stuck_loop_answers_no_probe() -> None:
    server = HealthServer(Health(LEADING), Metrics())
    port = await server.start("127.0.0.1", 0)
    try:
        assert await asyncio.to_thread(_probe(port)) == 200
        probe = asyncio.create_task(asyncio.to_thread(_probe(port)))
        asyncio.get_running_loop().call_soon(time.sleep, 0.8)
        with pytest.raises(TimeoutError):
            await probe
        assert await asyncio.to_thread(_probe(port)) == 200
    finally:
        await server.close()


async def test_a_long_exposition_lets_others_run() -> None:
    metrics = Metrics()
    turns = itertools.count()
    seen: list[int] = []
    gauge = Gauge("plimsoll_many", "Many.", ("n",))

    def many() -> Any:
        for number in range(3000):
            seen.append(turn)
            yield (str(number),), 1.0

    gauge.read_by(many)
    metrics.registry.add(gauge)
    server = HealthServer(Health(), metrics)
    port = await server.start("127.0.0.1", 0)
    turn = next(turns)

    async def others() -> None:
        nonlocal turn
        while True:
            turn = next(turns)
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    try:
        _, text = await get(port, "/metrics")
    finally:
        running.cancel()
        await server.close()
    assert text.count("plimsoll_many{") == 3000
    assert len(set(seen)) >= 6  # a chunk is 500 lines
