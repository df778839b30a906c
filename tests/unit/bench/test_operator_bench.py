"""The harness of `make bench`: how calls are counted, what becomes of the results on the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bench.operator import audit, page, startup

if TYPE_CHECKING:
    from pathlib import Path

USER = "system:serviceaccount:bench:floor"
AT = "2026-12-03T08:00:0{}.000000Z"


def event(number: int, second: int, verb: str, resource: str, user: str = USER, **ref: str) -> str:
    return json.dumps(
        {
            "auditID": f"id-{number}",
            "user": {"username": user},
            "verb": verb,
            "requestURI": f"/apis/x/{resource}",
            "objectRef": {"resource": resource, **ref},
            "requestReceivedTimestamp": AT.format(second),
        },
        separators=(",", ":"),
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An audit log that was rotated once."""
    old, new = tmp_path / "audit-2026.log", tmp_path / "audit.log"
    old.write_text(event(0, 0, "patch", "deployments") + "\n")
    lines = [
        event(1, 1, "patch", "deployments"),
        event(2, 2, "patch", "inferenceservers", subresource="status"),
        event(3, 2, "watch", "inferenceservers"),
        event(3, 2, "watch", "inferenceservers"),  # its second stage
        event(4, 3, "get", "services"),
        event(5, 3, "create", "events"),
        event(6, 3, "update", "leases"),
        event(7, 3, "patch", "deployments", user="somebody"),
        event(8, 9, "patch", "deployments"),
    ]
    new.write_text("\n".join(lines) + "\n" + event(9, 3, "get", "services")[:40])
    return new


def test_calls_of_an_account_and_an_interval(log: Path) -> None:
    found = audit.calls(log, USER, AT.format(1), AT.format(9))
    assert found == {
        "patch deployments": 1,
        "patch inferenceservers/status": 1,
        "watch inferenceservers": 1,
        "get services": 1,
        "create events": 1,
        "update leases": 1,
    }
    assert audit.calls(log, USER, AT.format(0))["patch deployments"] == 3


def test_events_and_leases_are_no_writes_of_a_life(log: Path) -> None:
    summary = audit.summary(audit.calls(log, USER, AT.format(1), AT.format(9)), 2)
    assert (summary["writes"], summary["writesEach"]) == (2, 1.0)
    assert (summary["reads"], summary["readsEach"], summary["eventsEach"]) == (1, 0.5, 0.5)


def burst(who: str, rate: float, cpu: float) -> dict[str, Any]:
    calls = {"byCall": {"patch deployments": 1000}, "writesEach": 1.0, "readsEach": 0.0}
    lags = {"p50": 1000.0, "p99": 3000.0}
    return {
        "who": who,
        "n": 1000,
        "load": {"childPerSecond": rate, "settledSeconds": 10.0, "childLagMs": lags},
        "cpuMsEach": {"toChildren": 1.0, "toSettled": cpu, "lifecycle": 9.0},
        "controlPlaneCpuSeconds": {"kube-apiserver": 18.0},
        "memoryMiB": {"after": {"peak": 60.0}},
        "callsWithDeletion": calls,
        "etcdRevisionsEach": 9.0,
    }


def restart(servers: int, rss: float, writes: int = 0) -> dict[str, Any]:
    return {
        "who": "plimsoll",
        "what": "restart",
        "servers": servers,
        "convergeSeconds": 1.0,
        "calls": {"writes": writes, "reads": 4},
        "cpuSeconds": 1.0,
        "memoryMiB": {"rss": rss, "pss": rss, "peak": rss},
    }


def kept(result: object) -> dict[str, Any]:
    machine = {
        "at": "2026-12-03T09:00Z", "commit": "abc", "cores": 2, "cpu": "x", "kernel": "6", "python": "3.11",
        "loadBefore": 0.1,
    }  # fmt: skip
    return {"machine": machine, "seconds": 60, "result": result}


def test_a_goal_that_is_not_met_says_so() -> None:
    runs = [burst("plimsoll", 80, 7.0), burst("floor", 100, 2.0), burst("plimsoll", 90, 5.0)]
    runs.append(burst("floor", 100, 2.0))
    results = {
        "burst": kept(runs),
        "restart": kept([restart(0, 70.0), restart(10_000, 200.0, writes=1)]),
    }
    found = {goal.asked: goal for goal in page.goals(results)}
    share = found["burst of 1,000: at least 0.8 of the Go operator's servers a second"]
    assert (share.found, share.met) == ("0.85", True)
    assert found["burst of 1,000: at most 6 ms of own CPU each"].found == "6 ms"
    assert found["at most 75 MiB idle"].met
    slope = found["at most 12 kB for each of 10,000 servers"]
    assert (slope.found, slope.met) == ("13.63 kB", False)
    assert not found["no write on a warm restart with 10,000"].met
    unmeasured = found["at most 8 writes a life, Events apart"]
    assert (unmeasured.found, unmeasured.met) == (None, False)
    text = page.render(results)
    assert "| at most 12 kB for each of 10,000 servers | 13.63 kB | **not met** |" in text
    assert "| Go floor | 2 | 100 |" in text


def test_only_what_is_between_the_markers_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "performance.md"
    target.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "PAGE", target)
    (tmp_path / "restart.json").write_text(json.dumps(kept([restart(0, 70.0)])))
    page.write(tmp_path)
    page.write(tmp_path)
    text = target.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("### Restart and memory") == 1


def test_imports_by_package() -> None:
    trace = """\
import time: self [us] | cumulative | imported package
import time:       500 |        500 |   kopf._core
import time:      1500 |       2000 | kopf
import time:       100 |        100 | json
"""
    assert startup.by_package(trace) == {"kopf": 2.0, "json": 0.1}
