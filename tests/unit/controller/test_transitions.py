"""What is counted as a server's status changes: a table of (before, after) and what happened."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from plimsoll.controller.metrics import Metrics, turns
from plimsoll.controller.metrics.transitions import (
    COMPLETED,
    FAILURE_REASONS,
    GIVEN_UP,
    GPU_WAIT_SECONDS,
    GUARD,
    GUARD_REFUSALS,
    OTHER,
    OUT_OF_MEMORY,
    REFUSAL_REASONS,
    ROLLOUT_RESULTS,
    ROLLOUTS,
    SHRINK_CAUSES,
    SHRINKS,
    SIZING_FAILURES,
    SIZING_SECONDS,
    STUCK,
    Turn,
)

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
Status = dict[str, Any]


def tries(count: int, reason: str = "NVMLUnavailable", question: str = "q1") -> Status:
    failure = {"failure": {"type": "Sized", "reason": reason}} if count else {}
    return {"sizing": {"requestHash": question, "attempts": count, **failure}}


def capacity(steps: int = 0, at: str = "2026-12-01T11:59:50Z", **more: Any) -> Status:
    found = {"source": "Measured", "requestHash": "abcdef0123", "measuredAt": at, **more}
    return {"capacity": found | ({"shrinkSteps": steps} if steps else {})}


def condition(kind: str, status: str, reason: str, since: str = "2026-12-01T11:58:00Z") -> Status:
    return {
        "conditions": [
            {"type": kind, "status": status, "reason": reason, "lastTransitionTime": since}
        ]
    }


def rolled(status: str, reason: str) -> Status:
    return condition("RolledOut", status, reason)


def degraded(reason: str, status: str = "True") -> Status:
    return condition("Degraded", status, reason)


def gpu(status: str, reason: str = "Unschedulable") -> Status:
    return condition("CapacityAvailable", status, reason)


def halted(key: str) -> Status:
    return {"rollout": {"inputsHash": key, "halted": {"reason": "OutOfMemoryBackoff"}}}


PENDING, DONE = rolled("False", "Progressing"), rolled("True", "Complete")
LATE = rolled("False", "ProgressDeadlineExceeded")
OOM, FOREIGN = degraded("OutOfMemoryBackoff"), degraded("ForeignMemoryOnDevice")

CASES: tuple[tuple[str, Status, Status, list[Turn]], ...] = (
    ("nothing", {}, {}, []),
    # Sizing: a failed try, and its repeats.
    ("first failure", {}, tries(1), [Turn(SIZING_FAILURES, "NVMLUnavailable")]),
    ("next failure", tries(1), tries(2), [Turn(SIZING_FAILURES, "NVMLUnavailable")]),
    ("two at once", tries(1), tries(3), [Turn(SIZING_FAILURES, "NVMLUnavailable", 2)]),
    ("the same, said again", tries(2), tries(2), []),
    ("asked, not failed", {}, tries(0), []),
    (
        "another question",
        tries(5),
        tries(1, "ModelNotFound", "q2"),
        [Turn(SIZING_FAILURES, "ModelNotFound")],
    ),
    ("answered", tries(2), {}, []),
    ("a word of a pod", {}, tries(1, "Buy"), [Turn(SIZING_FAILURES, OTHER)]),
    # Rollouts.
    ("complete", PENDING, DONE, [Turn(ROLLOUTS, COMPLETED)]),
    ("late, then complete", LATE, DONE, [Turn(ROLLOUTS, COMPLETED)]),
    ("still complete", DONE, DONE, []),
    ("a status that was lost", {}, DONE, []),
    ("begins", DONE, PENDING, []),
    ("scaled to zero", PENDING, rolled("True", "ScaledToZero"), []),
    ("stuck", PENDING, LATE, [Turn(ROLLOUTS, STUCK)]),
    ("still stuck", LATE, LATE, []),
    ("given up", {}, halted("a"), [Turn(ROLLOUTS, GIVEN_UP)]),
    ("still given up", halted("a"), halted("a"), []),
    ("the next one given up", halted("a"), halted("b"), [Turn(ROLLOUTS, GIVEN_UP)]),
    ("lifted", halted("a"), {"rollout": {"resizes": 1}}, []),
    # A smaller pool.
    ("out of memory", capacity(), {**capacity(1), **OOM}, [Turn(SHRINKS, OUT_OF_MEMORY)]),
    ("once more", {**capacity(1), **OOM}, {**capacity(2), **OOM}, [Turn(SHRINKS, OUT_OF_MEMORY)]),
    ("as small as before", {**capacity(2), **OOM}, capacity(2), []),
    ("measured anew", capacity(2), capacity(at="2026-12-01T11:59:59Z"), []),
    (
        "by the guard",
        {**capacity(), **FOREIGN},
        {**capacity(1), **FOREIGN},
        [Turn(SHRINKS, GUARD)],
    ),
    # Guards.
    ("refuses", {}, FOREIGN, [Turn(GUARD_REFUSALS, "ForeignMemoryOnDevice")]),
    ("still refuses", FOREIGN, FOREIGN, []),
    ("otherwise", FOREIGN, degraded("GuardRejected"), [Turn(GUARD_REFUSALS, "GuardRejected")]),
    ("no guard's word", {}, OOM, []),
    ("not true", {}, degraded("GuardMismatch", "False"), []),
    # The wait for a GPU: NOW is two minutes after the condition turned.
    ("waits", {}, gpu("False"), []),
    ("goes on waiting", gpu("False"), gpu("False", "ScaleUpTriggered"), []),
    ("found", gpu("False"), gpu("True", "Scheduled"), [Turn(GPU_WAIT_SECONDS, amount=120.0)]),
    ("asked for less", gpu("False"), gpu("Unknown", "SizingPending"), []),
    ("found at once", gpu("Unknown"), gpu("True", "Scheduled"), []),
)


@pytest.mark.parametrize(
    ("before", "after", "happened"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_turns(before: Status, after: Status, happened: list[Turn]) -> None:
    assert list(turns(before, after, (), NOW)) == happened


def pod(name: str, created: str = "2026-12-01T11:59:20Z") -> Status:
    return {"metadata": {"name": name, "creationTimestamp": created}}


@pytest.mark.parametrize(
    ("before", "after", "pods", "seconds"),
    [
        ({}, capacity(), [pod("llama-sz-abcdef0"), pod("llama-sz-7777777")], [30.0]),
        (capacity(), capacity(at="2026-12-01T11:59:55Z"), [pod("llama-sz-abcdef0")], [35.0]),
        (capacity(), capacity(), [pod("llama-sz-abcdef0")], []),
        (capacity(), capacity(1), [pod("llama-sz-abcdef0")], []),  # corrected, not measured
        ({}, capacity(), [pod("llama-sz-7777777")], []),
        ({}, capacity(source="InPod"), [pod("llama-sz-abcdef0")], []),
    ],
)
def test_how_long_a_sizing_took(
    before: Status, after: Status, pods: list[Status], seconds: list[float]
) -> None:
    found = [t.amount for t in turns(before, after, pods, NOW) if t.what == SIZING_SECONDS]
    assert found == seconds


def test_each_kind_of_turn_has_a_family() -> None:
    metrics = Metrics()
    metrics.count(
        [
            *(Turn(SIZING_FAILURES, reason, 2) for reason in FAILURE_REASONS),
            *(Turn(ROLLOUTS, result) for result in ROLLOUT_RESULTS),
            *(Turn(SHRINKS, cause) for cause in SHRINK_CAUSES),
            *(Turn(GUARD_REFUSALS, reason) for reason in REFUSAL_REASONS),
            Turn(SIZING_SECONDS, amount=3),
            Turn(GPU_WAIT_SECONDS, amount=4),
        ]
    )
    assert all(metrics.sizing_failures.value(reason=r) == 2 for r in FAILURE_REASONS)
    assert all(metrics.rollouts.value(result=r) == 1 for r in ROLLOUT_RESULTS)
    assert all(metrics.shrinks.value(cause=c) == 1 for c in SHRINK_CAUSES)
    assert all(metrics.guard_refusals.value(reason=r) == 1 for r in REFUSAL_REASONS)
    text = metrics.registry.render()
    assert "plimsoll_sizing_duration_seconds_sum 3\n" in text
    assert "plimsoll_gpu_wait_duration_seconds_sum 4\n" in text
