"""What a refusal by the API server means, in its own words.

Sizing pods are plain pods so that quota, LimitRange and Pod Security answer at once and here,
instead of in the events of some other controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.controller.actions import Create, Plan, Refusal
from plimsoll.controller.status import (
    ACCEPTED,
    CAPACITY_AVAILABLE,
    FALSE,
    ROLLED_OUT,
    Condition,
    clause,
    previous,
    seconds_since,
)
from plimsoll.controller.steps.conclusion import (
    Findings,
    all_conditions,
    changed_status,
    transitions,
)

if TYPE_CHECKING:
    from datetime import datetime

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
INVALID: Final = 422

# No watch tells when a quota is raised, so the try is repeated: soon at first, then at half the
# time that it has been refused for.
SOONEST: Final = 5.0
LATEST: Final = 60.0
RACE: Final = 1.0

_AGAIN: Final = "Plimsoll tries again by itself."


def refused(found: Findings, refusal: Refusal, now: datetime) -> Plan:
    """The plan instead of the one that was refused.

    A namespace or resource that is going away (404, or forbidden because it is terminating) needs
    no plan; an overloaded server needs only another look.
    """
    message = refusal.message
    if refusal.status == NOT_FOUND or "being terminated" in message:
        return Plan()
    if refusal.status not in {FORBIDDEN, CONFLICT, INVALID}:
        return Plan(requeue_after=RACE)
    condition = _condition(found, refusal)
    conditions = all_conditions(found, condition)
    return Plan(
        status=changed_status(found, conditions, now),
        events=tuple(transitions(found, conditions)),
        requeue_after=_next_try(found, condition, now),
    )


def _condition(found: Findings, refusal: Refusal) -> Condition:
    said = clause(refusal.message)
    if refusal.status == CONFLICT:
        return Condition(ACCEPTED, FALSE, "Conflict", said)
    if refusal.status == INVALID:
        return Condition(
            ACCEPTED, FALSE, "InvalidSpec",
            f"The API server does not take what the spec asks for: {said} Correct the spec.",
        )  # fmt: skip
    if not _is_sizing_pod(found, refusal.message):
        return Condition(
            ROLLED_OUT, FALSE, "ApplyRefused",
            f"The API server refuses a child object: {said} Remove the cause; {_AGAIN}",
        )  # fmt: skip
    if "quota" in refusal.message.lower():
        return Condition(
            CAPACITY_AVAILABLE, FALSE, "QuotaExceeded",
            f"The namespace's quota refuses the sizing pod: {said} Raise the quota or free what "
            f"it counts; {_AGAIN}",
        )  # fmt: skip
    reason = "PodSecurityViolation" if "PodSecurity" in refusal.message else "PodRefused"
    return Condition(
        CAPACITY_AVAILABLE, FALSE, reason,
        f"The API server refuses the sizing pod: {said} Remove the cause; {_AGAIN}",
    )  # fmt: skip


def _is_sizing_pod(found: Findings, message: str) -> bool:
    """Whether the refused write was the sizing pod's; a pass may also scale a Deployment."""
    creates = [a for a in found.sizing.actions if isinstance(a, Create)]
    others = found.rollout.actions
    return any(not others or create.obj["metadata"]["name"] in message for create in creates)


def _next_try(found: Findings, condition: Condition, now: datetime) -> float:
    before = previous(found.observed.status, condition.type)
    since = before.get("lastTransitionTime") if before.get("status") == FALSE else None
    if since is None:
        return SOONEST
    return min(LATEST, max(SOONEST, seconds_since(str(since), now) / 2))
