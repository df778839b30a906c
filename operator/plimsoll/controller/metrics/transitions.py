"""What happened to a server, read from two of its statuses: the one before and the one after.

Everything that is counted of a server's life is counted here, once for each status that was
written, and not where it is decided. A decision may be taken again after a conflict or a restart;
a status is written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.objects.names import sizing_pod_name
from plimsoll.controller.status import (
    CAPACITY_AVAILABLE,
    DEGRADED,
    FALSE,
    ROLLED_OUT,
    TRUE,
    previous,
    seconds_since,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Status = Mapping[str, Any]

SIZING_FAILURES: Final = "sizing_failures"
SIZING_SECONDS: Final = "sizing_seconds"
ROLLOUTS: Final = "rollouts"
SHRINKS: Final = "shrinks"
GUARD_REFUSALS: Final = "guard_refusals"
GPU_WAIT_SECONDS: Final = "gpu_wait_seconds"

OTHER: Final = "Other"
# Reasons come out of pods, so out of a server's own container: only known ones become a label.
FAILURE_REASONS: Final = (
    "BudgetTooSmall",
    "ConfigUnreadable",
    "CudaUnavailable",
    "DevicePluginNotReady",
    "InvalidSpec",
    "MeasurementFailed",
    "ModelNotFound",
    "NVMLUnavailable",
    "ResultInvalid",
    "SharedDeviceNeedsBudget",
    "SizerCannotStart",
    "SizingTimeout",
    "TorchUnavailable",
    "UnsupportedArchitecture",
    "UnsupportedEngine",
    "UnsupportedEngineVersion",
    "UnsupportedParallelism",
    "UnsupportedSharing",
    "WeightsDoNotFit",
    "WeightsUnreadable",
    OTHER,
)
COMPLETED, STUCK, GIVEN_UP = "completed", "deadline_exceeded", "given_up"
ROLLOUT_RESULTS: Final = (COMPLETED, STUCK, GIVEN_UP)
OUT_OF_MEMORY, GUARD = "out_of_memory", "guard"
SHRINK_CAUSES: Final = (OUT_OF_MEMORY, GUARD)
REFUSAL_REASONS: Final = ("ForeignMemoryOnDevice", "GuardMismatch", "GuardRejected")

_MEASURED: Final = "Measured"
_OOM_REASON: Final = "OutOfMemoryBackoff"
_DEADLINE: Final = "ProgressDeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing to count.

    Attributes:
        what: one of the constants above; those that end in ``_seconds`` are durations.
        label: the value of the only label; "" where there is none.
        amount: how many, or how many seconds.
    """

    what: str
    label: str = ""
    amount: float = 1.0


def turns(
    before: Status, after: Status, pods: Iterable[Mapping[str, Any]], now: datetime
) -> tuple[Turn, ...]:
    """What happened between two statuses of one server.

    Args:
        before: the status as it was read.
        after: the status that replaced it.
        pods: the server's sizing pods; the one that answered tells when it was asked.
        now: wall time in UTC.
    """
    return (
        *_failed(before.get("sizing") or {}, after.get("sizing") or {}),
        *_measured(before, after, pods),
        *_rolled_out(before, after),
        *_shrunk(before, after),
        *_refused(before, after),
        *_waited(before, after, now),
    )


def _failed(before: Status, after: Status) -> Iterator[Turn]:
    """Failed tries; another question starts counting afresh."""
    same = before.get("requestHash") == after.get("requestHash")
    count = int(after.get("attempts", 0)) - (int(before.get("attempts", 0)) if same else 0)
    reason = (after.get("failure") or {}).get("reason")
    if count > 0 and reason:
        yield Turn(SIZING_FAILURES, reason if reason in FAILURE_REASONS else OTHER, count)


def _measured(before: Status, after: Status, pods: Iterable[Mapping[str, Any]]) -> Iterator[Turn]:
    """A sizing pod's answer: from the pod's creation to the sizer's end."""
    old, new = before.get("capacity") or {}, after.get("capacity") or {}
    if new.get("source") != _MEASURED or _answer(old) == _answer(new):
        return
    asked, ended = str(new.get("requestHash")), new.get("measuredAt")
    for pod in pods:
        metadata = pod["metadata"]
        created = metadata.get("creationTimestamp")
        if created and ended and metadata["name"].endswith(sizing_pod_name("", asked)):
            yield Turn(
                SIZING_SECONDS,
                amount=seconds_since(str(created), datetime.fromisoformat(str(ended))),
            )


def _answer(capacity: Status) -> tuple[object, object]:
    """Which measurement it is; corrections of its number leave this as it is."""
    return capacity.get("requestHash"), capacity.get("measuredAt")


def _rolled_out(before: Status, after: Status) -> Iterator[Turn]:
    old, new = previous(before, ROLLED_OUT), previous(after, ROLLED_OUT)
    if old and old.get("status") != TRUE and _said(new) == (TRUE, "Complete"):
        yield Turn(ROLLOUTS, COMPLETED)
    if _said(new) == (FALSE, _DEADLINE) != _said(old):
        yield Turn(ROLLOUTS, STUCK)
    halted, was = (
        (status.get("rollout") or {}).get("inputsHash")
        if (status.get("rollout") or {}).get("halted")
        else None
        for status in (after, before)
    )
    if halted is not None and halted != was:
        yield Turn(ROLLOUTS, GIVEN_UP)


def _shrunk(before: Status, after: Status) -> Iterator[Turn]:
    old, new = before.get("capacity") or {}, after.get("capacity") or {}
    same = _answer(old) == _answer(new)
    steps = int(new.get("shrinkSteps", 0)) - (int(old.get("shrinkSteps", 0)) if same else 0)
    if steps > 0:
        by_engine = previous(after, DEGRADED).get("reason") == _OOM_REASON
        yield Turn(SHRINKS, OUT_OF_MEMORY if by_engine else GUARD, steps)


def _refused(before: Status, after: Status) -> Iterator[Turn]:
    """A guard that refuses again and again is one refusal until it lets the server start."""
    new = _said(previous(after, DEGRADED))
    if new[0] == TRUE and new[1] in REFUSAL_REASONS and new != _said(previous(before, DEGRADED)):
        yield Turn(GUARD_REFUSALS, str(new[1]))


def _waited(before: Status, after: Status, now: datetime) -> Iterator[Turn]:
    """A wait that ended with a GPU. One that ended otherwise, with another spec, is no answer."""
    old, new = previous(before, CAPACITY_AVAILABLE), previous(after, CAPACITY_AVAILABLE)
    since = old.get("lastTransitionTime")
    if (old.get("status"), new.get("status")) == (FALSE, TRUE) and since:
        yield Turn(GPU_WAIT_SECONDS, amount=seconds_since(str(since), now))


def _said(condition: Mapping[str, Any]) -> tuple[object, object]:
    return condition.get("status"), condition.get("reason")
