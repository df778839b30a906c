"""Suites of a flow of new servers: all at once, and at a rate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.operator.contenders import running
from bench.operator.lab import TENANTS, Lab, say, stamp
from bench.operator.proc import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def burst(lab: Lab, who: str, number: int, argv: Sequence[str | Path] = ()) -> dict[str, Any]:
    """So many servers at once: from the first creation to the last child, the last status, the last deletion."""
    return _flow(lab, who, number, 0.0, argv)


def rate(lab: Lab, who: str, per_second: float, seconds: float) -> dict[str, Any]:
    """An open loop: a new server is due whatever became of the last."""
    return _flow(lab, who, round(per_second * seconds), per_second)


def _flow(
    lab: Lab, who: str, number: int, per_second: float, argv: Sequence[str | Path] = ()
) -> dict[str, Any]:
    with running(lab, who, argv=argv) as one:
        idle = one.memory()
        since, revision, cpu = stamp(), lab.revision(), one.cpu()
        plane = {name: cpu_seconds(pid) for name, pid in lab.pids().items()}
        marks: dict[str, float] = {}
        (seen,) = lab.load(
            [(TENANTS[0], number, per_second)],
            mark=lambda word: marks.__setitem__(word, one.cpu() - cpu),
        )
        one.quiet()
        settled, until = one.cpu() - cpu, stamp()
        spent = {name: round(cpu_seconds(pid) - plane[name], 2) for name, pid in lab.pids().items()}
        memory, revisions = one.memory(), lab.revision() - revision
        deletion = lab.clean()
        one.quiet()
        whole = one.cpu() - cpu
        time.sleep(0.3)
        result = {
            "who": who,
            "n": number,
            "rate": per_second,
            "load": seen,
            "cpuSeconds": {
                "toChildren": round(marks.get("children", settled), 3),
                "toSettled": round(settled, 3),
                "lifecycle": round(whole, 3),
            },
            "cpuMsEach": {
                "toChildren": round(1000 * marks.get("children", settled) / number, 3),
                "toSettled": round(1000 * settled / number, 3),
                "lifecycle": round(1000 * whole / number, 3),
            },
            "memoryMiB": {"idle": idle, "after": memory},
            "watchSeconds": round(one.watch_seconds, 3),
            "controlPlaneCpuSeconds": spent,
            "etcdRevisionsEach": round(revisions / number, 2),
            "calls": one.calls(since, number, until),
            "callsWithDeletion": one.calls(since, number),
            "deletionSeconds": round(deletion, 2),
        }
    say(line(result))
    return result


def line(result: dict[str, Any]) -> str:
    """One result for a person."""
    seen, calls = result["load"], result["calls"]
    lag, settled = seen["childLagMs"] or {}, seen["settledLagMs"] or {}
    return (
        f"{result['who']:9} n {result['n']}: {seen['childPerSecond']:.0f} CR/s to the first child, "
        f"lag p50 {lag.get('p50', 0):.1f} p99 {lag.get('p99', 0):.1f} ms; "
        f"settled {seen['settled']} in {seen['settledSeconds']:.1f} s "
        f"(p50 {settled.get('p50', 0):.0f} p99 {settled.get('p99', 0):.0f} ms); "
        f"CPU {result['cpuMsEach']['toChildren']:.2f}/{result['cpuMsEach']['toSettled']:.2f} ms each; "
        f"RSS {result['memoryMiB']['idle']['rss']:.0f} -> {result['memoryMiB']['after']['rss']:.0f} MiB; "
        f"writes {calls['writesEach']} reads {calls['readsEach']} events {calls['eventsEach']} each"
    )
