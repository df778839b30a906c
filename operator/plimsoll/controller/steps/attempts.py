"""Tries of one measurement: how often it failed, on which pod, and when to try again.

Kept in ``status.sizing``, because the operator's memory ends with its process: a restart must
neither forget a back-off nor count one failure twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.status import LADDER, Condition, timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds before the next try, doubled each time up to the longest. A failure that trying again may
# cure starts soon; one that only a person can cure (no such model, too large) is looked at again
# slowly, so that the server recovers by itself once the cause is gone.
SOON: Final = 5
SLOW: Final = 30
LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a try failed, as the condition it shows in; ``terminal``: only a person can cure it."""

    condition: Condition
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Attempts:
    """The tries of one question (``request_hash``); empty for a question just asked."""

    request_hash: str
    pod_uid: str | None = None
    count: int = 0
    failed_pod_uid: str | None = None
    failure: Failure | None = None
    failed_at: str | None = None
    next_at: str | None = None

    def seen(self, pod_uid: str) -> Attempts:
        """Note the pod of the current try; if it vanishes, that is a failed try."""
        return replace(self, pod_uid=pod_uid)

    def failed(self, pod_uid: str, failure: Failure, now: datetime) -> Attempts:
        """Count a failed try; its pod is remembered, so that it is counted once."""
        delay = back_off(self.count + 1, terminal=failure.terminal)
        return Attempts(
            self.request_hash,
            pod_uid,
            self.count + 1,
            pod_uid,
            failure,
            timestamp(now),
            timestamp(now + timedelta(seconds=delay)),
        )

    def seconds_left(self, now: datetime) -> float:
        """Seconds until the next try may start; 0 when it may.

        Never more than the longest back-off, so that a clock that jumped cannot stop us for days.
        """
        if self.next_at is None:
            return 0.0
        left = (_moment(self.next_at, now) - now).total_seconds()
        return min(max(0.0, left), float(LONGEST))

    def to_status(self, pod: str) -> dict[str, Any]:
        """The form in ``status.sizing``; ``pod`` is the name of the sizing pod."""
        found: dict[str, Any] = {
            "pod": pod,
            "podUID": self.pod_uid,
            "requestHash": self.request_hash,
            "attempts": self.count,
            "failedPodUID": self.failed_pod_uid,
            "lastFailureTime": self.failed_at,
            "nextAttemptTime": self.next_at,
        }
        if self.failure is not None:
            found["failure"] = {
                "type": self.failure.condition.type,
                "reason": self.failure.condition.reason,
                "message": self.failure.condition.message,
                "terminal": self.failure.terminal,
            }
        return {key: value for key, value in found.items() if value is not None}


def attempts_in(status: Mapping[str, Any], request_hash: str) -> Attempts:
    """What is known about tries of this question; another question starts afresh."""
    found = status.get("sizing") or {}
    if found.get("requestHash") != request_hash:
        return Attempts(request_hash)
    failure = found.get("failure")
    if failure and (failure.get("type") not in LADDER or not failure.get("reason")):
        return Attempts(request_hash)  # not ours: somebody else wrote into the status
    return Attempts(
        request_hash,
        found.get("podUID"),
        int(found.get("attempts", 0)),
        found.get("failedPodUID"),
        _failure(failure) if failure else None,
        found.get("lastFailureTime"),
        found.get("nextAttemptTime"),
    )


def back_off(count: int, *, terminal: bool) -> int:
    """Seconds to wait after the ``count``-th failure in a row."""
    first = SLOW if terminal else SOON
    return int(min(LONGEST, first * 2 ** min(count - 1, 10)))


def _failure(found: Mapping[str, Any]) -> Failure:
    condition = Condition(found["type"], "False", found["reason"], found.get("message", ""))
    return Failure(condition, terminal=bool(found.get("terminal")))


def _moment(text: str, otherwise: datetime) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return otherwise
