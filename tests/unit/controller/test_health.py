"""The probes say what is wrong, and metrics are well-formed."""

import aiohttp

from plimsoll.controller.health import Health, HealthServer
from plimsoll.controller.metrics import Counter, Histogram, Metrics


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_probes_follow_the_state() -> None:
    health, metrics = Health(), Metrics()
    server = HealthServer(health, metrics)
    port = await server.start("127.0.0.1", 0)
    try:
        assert await get(port, "/livez") == (200, "ok: starting\n")
        assert (await get(port, "/readyz"))[0] == 503
        health.phase, health.ready = "leading", True
        assert await get(port, "/readyz") == (200, "ok: leading\n")
        health.deaf = 1  # the watches are being restarted: not yet a reason to die
        assert (await get(port, "/livez"))[0] == 200
        health.deaf = 2
        status, text = await get(port, "/livez")
        assert (status, "watches" in text) == (503, True)
        health.deaf, health.oldest_busy = 0, lambda: 301.0
        status, text = await get(port, "/livez")
        assert (status, "301 s" in text) == (503, True)
        metrics.reconciles.inc(outcome="ok")
        status, text = await get(port, "/metrics")
        assert status == 200
        assert 'plimsoll_reconciles_total{outcome="ok"} 1\n' in text
    finally:
        await server.close()


def test_exposition_has_one_head_per_metric_and_escapes() -> None:
    counter = Counter("c_total", "A counter.")
    counter.inc(kind='a"b\\c\n')
    counter.inc(0.5, kind="z")
    assert counter.lines() == [
        "# HELP c_total A counter.",
        "# TYPE c_total counter",
        'c_total{kind="a\\"b\\\\c\\n"} 1',
        'c_total{kind="z"} 0.5',
    ]


def test_a_histogram_s_buckets_are_cumulative() -> None:
    histogram = Histogram("h_seconds", "Seconds.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.lines()[2:] == [
        'h_seconds_bucket{le="0.1"} 2',
        'h_seconds_bucket{le="1.0"} 3',
        'h_seconds_bucket{le="+Inf"} 4',
        "h_seconds_sum 7.65",
        "h_seconds_count 4",
    ]


def test_gauges_are_read_when_asked() -> None:
    metrics = Metrics()
    depth = 3
    metrics.gauge("g", "A gauge.", lambda: depth)
    assert "g 3\n" in metrics.render()
    depth = 4
    assert "g 4\n" in metrics.render()
