"""The text format, what is read of servers and of the process, and the lag of the loop."""

from __future__ import annotations

import asyncio
import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plimsoll import __version__
from plimsoll.controller.metrics import Metrics, measure_lag
from plimsoll.controller.metrics.process import process_families, start_time
from plimsoll.controller.metrics.registry import Counter, Gauge, Histogram, Registry
from plimsoll.controller.metrics.servers import SERIES_A_SERVER
from plimsoll.controller.metrics.transitions import FAILURE_REASONS, OTHER
from plimsoll.controller.status import ORDER
from plimsoll.controller.store import Store

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
OPERATOR = Path(__file__).resolve().parents[3] / "operator" / "plimsoll"
STATUS: dict[str, Any] = {
    "readyReplicas": 1,
    "effective": {"servedName": "llama", "engineVersion": "1.2.0", "mode": "Stamped"},
    "capacity": {
        "maxTotalTokenNum": 900,
        "predictedTokens": 1000,
        "engineReportedTokens": 882,
        "driftPercent": "-2.00",
        "kvCacheBytes": 90_000,
        "bytesPerToken": 100,
        "shrinkSteps": 2,
        "source": "Measured",
        "confidence": "estimated",
        "gpu": {"product": 'GPU "X"', "count": 2},
        "breakdown": {
            "deviceTotal": 200_000,
            "deviceFree": 199_000,
            "freeAfterInit": 190_000,
            "weights": 80_000,
            "reserve": {"activation": 10_000, "extra": 5_000},
            "safety": 5_000,
            "kv": 90_000,
        },
    },
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Ready"},
        {
            "type": "CapacityAvailable",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": "2026-12-01T11:58:30Z",
        },
        {"type": "CapacityVerified", "status": "Unknown", "reason": "NotReported"},
        {"type": "somebody.else/Happy", "status": "True", "reason": "Yes"},
    ],
}


def server(name: str = "s", status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "kind": "InferenceServer",
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"replicas": 3, "engine": {"type": "VLLM"}},
        **({"status": status} if status is not None else {}),
    }


def exposed(*servers: dict[str, Any]) -> dict[str, float]:
    """The samples about servers, by series without namespace and name."""
    metrics = Metrics()
    metrics.read_servers(lambda: servers, lambda: NOW)
    found = {}
    for line in metrics.registry.render().splitlines():
        if line.startswith("plimsoll_server_"):
            series, _, number = line.rpartition(" ")
            found[series.replace('namespace="ns",name="s"', "")] = float(number)
    return found


def test_a_counter_has_one_head_and_escapes() -> None:
    counter = Counter("c_total", "A counter.", ("kind",))
    counter.inc(kind='a"b\\c\n')
    counter.inc(0.5, kind="z")
    assert list(counter.lines()) == [
        "# HELP c_total A counter.",
        "# TYPE c_total counter",
        'c_total{kind="a\\"b\\\\c\\n"} 1',
        'c_total{kind="z"} 0.5',
    ]


def test_known_series_are_there_from_the_start() -> None:
    counter = Counter("c_total", "A counter.", ("verb", "kind"), (("put", "Pod"),))
    assert list(counter.lines())[2:] == ['c_total{verb="put",kind="Pod"} 0']
    assert list(Counter("d_total", "Without labels.").lines())[2:] == ["d_total 0"]
    histogram = Histogram("h_seconds", "Seconds.", (1.0,), ("verb",), (("put",),))
    assert 'h_seconds_count{verb="put"} 0' in list(histogram.lines())


def test_a_histogram_s_buckets_are_cumulative() -> None:
    histogram = Histogram("h_seconds", "Seconds.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert list(histogram.lines())[2:] == [
        'h_seconds_bucket{le="0.1"} 2',
        'h_seconds_bucket{le="1"} 3',
        'h_seconds_bucket{le="+Inf"} 4',
        "h_seconds_sum 7.65",
        "h_seconds_count 4",
    ]


def test_gauges_are_read_when_asked() -> None:
    gauge = Gauge("g", "A gauge.")
    assert list(gauge.lines())[2:] == []
    depth = 3
    gauge.show(lambda: depth)
    assert list(gauge.lines())[2:] == ["g 3"]
    depth = 4
    assert list(gauge.lines())[2:] == ["g 4"]


def test_defects_are_loud() -> None:
    counter = Counter("c_total", "A counter.", ("kind",))
    with pytest.raises(ValueError, match="c_total has the labels"):
        counter.inc(sort="x")
    registry = Registry()
    registry.add(counter)
    with pytest.raises(ValueError, match="c_total is registered twice"):
        registry.add(Counter("c_total", "Again."))


def test_chunks_are_the_whole_in_order() -> None:
    registry = Registry()
    for name in ("a_total", "b_total"):
        counter = Counter(name, "Many.", ("n",), [(f"{n:04}",) for n in range(700)])
        registry.add(counter)
    chunks = list(registry.chunks())
    assert [chunk.count("\n") for chunk in chunks] == [500, 500, 404]
    assert "".join(chunks) == registry.render()
    assert re.findall(r"# TYPE (\w+)", registry.render()) == ["a_total", "b_total"]


def test_what_is_known_of_a_server() -> None:
    found = exposed(server(status=STATUS))
    gauges = {re.sub(r"^plimsoll_server_|\{\}$", "", k): v for k, v in found.items() if "{}" in k}
    assert gauges == {
        "desired_replicas": 3,
        "ready_replicas": 1,
        "budget_tokens": 900,
        "predicted_tokens": 1000,
        "engine_reported_tokens": 882,
        "capacity_drift_ratio": -0.02,
        "kv_cache_bytes": 90_000,
        "token_bytes": 100,
        "shrink_steps": 2,
        "gpu_wait_seconds": 90,
    }
    info = (
        '{,model="llama",engine="VLLM",engine_version="1.2.0",gpu="GPU \\"X\\"",gpus="2",'
        'mode="Stamped",source="Measured",confidence="estimated"}'
    )
    assert found[f"plimsoll_server_info{info}"] == 1
    assert found['plimsoll_server_status_info{,reason="Ready"}'] == 1
    conditions = {
        k.split('"')[1]: v for k, v in found.items() if k.startswith("plimsoll_server_condition")
    }
    # One of somebody else's is not ours to count: it would be another series for each word.
    assert conditions == dict.fromkeys(ORDER, 0) | {"Ready": 1}
    assert len(found) == SERIES_A_SERVER


def test_the_terms_of_memory_are_the_device() -> None:
    found = exposed(server(status=STATUS))
    terms = {k.split('"')[1]: v for k, v in found.items() if "memory_bytes" in k}
    assert terms == {
        "before_load": 10_000,
        "weights": 80_000,
        "reserve": 15_000,
        "safety": 5_000,
        "kv_cache": 90_000,
    }
    assert sum(terms.values()) == STATUS["capacity"]["breakdown"]["deviceTotal"]


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"capacity": {"source": "UserProvided"}, "conditions": []},
        {"capacity": {"maxTotalTokenNum": "many", "driftPercent": "?", "shrinkSteps": True}},
        {
            "conditions": [
                {"type": "CapacityAvailable", "status": "False", "lastTransitionTime": "yesterday"}
            ]
        },
    ],
)
def test_what_is_not_there_has_no_sample(status: dict[str, Any] | None) -> None:
    found = exposed(server(status=status))
    assert not [key for key in found if "tokens" in key or "drift" in key]
    assert found["plimsoll_server_ready_replicas{}"] == 0


def test_a_server_that_waits_for_nothing_waits_zero_seconds() -> None:
    assert exposed(server(status={}))["plimsoll_server_gpu_wait_seconds{}"] == 0


def test_servers_come_from_the_store_and_go_with_it() -> None:
    store = Store()
    obj = server(status=STATUS)
    obj["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    store.put(obj)
    store.put({**obj, "kind": "Deployment", "metadata": {**obj["metadata"], "uid": "d"}})
    assert [o["kind"] for o in store.objects("InferenceServer")] == ["InferenceServer"]
    metrics = Metrics()
    metrics.read_servers(lambda: store.objects("InferenceServer"), lambda: NOW)
    assert 'plimsoll_server_budget_tokens{namespace="ns",name="s"} 900' in metrics.registry.render()
    store.remove(obj)
    assert "plimsoll_server_budget_tokens{" not in metrics.registry.render()


def test_a_server_that_goes_while_it_is_listed_is_left_out() -> None:
    store = Store()
    for name in "ab":
        obj = server(name)
        obj["metadata"] |= {"uid": name, "resourceVersion": "7"}
        store.put(obj)
    found = store.objects("InferenceServer")
    assert next(found)["metadata"]["name"] == "a"
    store.remove(obj)
    assert list(found) == []


def test_calls_are_counted_by_method_and_code() -> None:
    metrics = Metrics()
    metrics.api_call("GET", 404, 0.1)
    metrics.api_call("GET", None, 30.0)
    assert metrics.api_requests.value(verb="GET", code="404") == 1
    assert metrics.api_requests.value(verb="GET", code="none") == 1
    assert metrics.api_requests.value(verb="GET", code="200") == 0
    assert metrics.api_seconds.count(verb="GET") == 2


def test_the_process_as_the_kernel_sees_it(tmp_path: Path) -> None:
    samples = {}
    for family in process_families():
        *_, line = family.lines()
        name, number = line.split()
        samples[name] = float(number)
    assert samples["process_start_time_seconds"] == start_time()
    assert time.time() - 86_400 < start_time() < time.time()
    assert 0 < samples["process_cpu_seconds_total"] <= time.process_time()
    assert 8 << 20 < samples["process_resident_memory_bytes"] < 4 << 30
    assert 3 <= samples["process_open_fds"] <= samples["process_max_fds"]
    elsewhere = [line for f in process_families(tmp_path) for line in f.lines() if line[0] != "#"]
    assert [line.split()[0] for line in elsewhere] == [
        "process_cpu_seconds_total",
        "process_max_fds",
    ]


def test_start_time_reads_past_a_name_with_blanks(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/stat").write_text(f"7 (a) b) S {' '.join('0' * 18)} 500 0\n")
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1000\n")
    assert start_time(tmp_path) == 1000 + 500 / os.sysconf("SC_CLK_TCK")


async def test_lag_is_how_much_too_late_a_task_wakes() -> None:
    seen: list[float] = []
    now, late = 0.0, iter((0.0, 0.25, -0.1))

    async def sleep(seconds: float) -> None:
        nonlocal now
        try:
            now += seconds + next(late)
        except StopIteration:
            raise asyncio.CancelledError from None

    with pytest.raises(asyncio.CancelledError):
        await measure_lag(seen.append, lambda: now, sleep)
    assert seen == pytest.approx([0.0, 0.25, 0.0])


def test_the_version_is_exposed() -> None:
    assert f'plimsoll_build_info{{version="{__version__}"}} 1\n' in Metrics().registry.render()


def test_every_reason_of_a_failed_sizing_is_a_label() -> None:
    """Reasons that the sizer and its library name; what is missing here would be counted as Other."""
    named = set()
    for folder in ("core", "checkpoint", "sizer"):
        for path in (OPERATOR / folder).rglob("*.py"):
            named |= set(re.findall(r'reason="([A-Z]\w+)"', path.read_text()))
    errors = (OPERATOR / "core/errors.py").read_text()
    named |= set(re.findall(r'default_reason = "(\w+)"', errors))
    result = (OPERATOR / "controller/steps/sizing_result.py").read_text()
    named |= set(re.findall(r'FALSE, "(\w+)"', result))
    # An argument is refused as InvalidSpec; a guard's word is no sizing's; a flag is seen before.
    named -= {"InvalidArgument", "GuardMismatch", "FlagNotAllowed", "ImagePullFailed"}
    assert named - set(FAILURE_REASONS) == set()
    assert len(named) > 12
    assert OTHER in FAILURE_REASONS


def test_a_scrape_of_many_servers_is_cheap() -> None:
    """2,000 servers in well under a second, so that no bound of a scrape is ever near."""
    many = [server(f"s{n}", STATUS) for n in range(2000)]
    metrics = Metrics()
    metrics.read_servers(lambda: many, lambda: NOW + timedelta(seconds=1))
    began = time.process_time()
    lines = sum(chunk.count("\n") for chunk in metrics.registry.chunks())
    assert lines > 2000 * SERIES_A_SERVER
    assert time.process_time() - began < 2.0
