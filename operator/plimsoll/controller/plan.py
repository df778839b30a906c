"""What to do about one InferenceServer: the whole decision of a pass, without doing any of it.

    accepted -> sized -> corrected -> rolled out -> tidied -> verified, concluded

Each step is a pure function of what was observed. It answers with conditions, writes and the time
of the next look; no step waits, and nothing is remembered between passes but what stands in the
status and in the children. So a pass may be repeated, lost or cut off anywhere: the next one starts
from the world as it is and arrives at the same end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.controller.actions import (
    Action,
    Apply,
    Create,
    Delete,
    EventNote,
    Plan,
    Refusal,
    delete_pod,
)
from plimsoll.controller.status import TRUE, Condition
from plimsoll.controller.steps.acceptance import accept
from plimsoll.controller.steps.conclusion import Findings, conclude
from plimsoll.controller.steps.correction import correct
from plimsoll.controller.steps.podstate import is_deleting, name
from plimsoll.controller.steps.refusals import refused
from plimsoll.controller.steps.rollout import Rollout, hold, roll_out, wait_for_number
from plimsoll.controller.steps.sizing import Sizing, size

if TYPE_CHECKING:
    from datetime import datetime

    from plimsoll.controller.objects import BuildContext
    from plimsoll.controller.observed import Observed

__all__ = [
    "Action",
    "Apply",
    "Create",
    "Delete",
    "EventNote",
    "Plan",
    "Refusal",
    "plan",
    "plan_refusal",
]


def plan(observed: Observed, context: BuildContext, now: datetime) -> Plan:
    """Decide one pass.

    Args:
        observed: the resource and its children as they are.
        context: the operator's own settings that end up in pods.
        now: the time, in UTC.

    Returns:
        The writes, in order; the whole new status if it differs; what to announce; when to look
        again. A resource that is being deleted gets an empty plan: garbage collection does it all.
    """
    if observed.deleting:
        return Plan()
    return conclude(_find(observed, context, now), now)


def plan_refusal(
    observed: Observed, context: BuildContext, now: datetime, refusal: Refusal
) -> Plan:
    """Decide what to say when the API server refused a write of ``plan`` for the same world.

    Returns:
        A plan without writes. Its status explains the refusal; its requeue time is the next try.
    """
    if observed.deleting:
        return Plan()
    findings = _find(observed, context, now)
    return refused(findings, refusal, now)


def _find(observed: Observed, context: BuildContext, now: datetime) -> Findings:
    """Take the steps. A step whose condition is not met leaves what runs as it is."""
    accepted = accept(observed)
    if accepted.status != TRUE or observed.server is None:
        return _rejected(observed, accepted, context)

    server = observed.server
    sizing = correct(observed, server, size(observed, server, context, now), now)
    if sizing.stamp is None:
        rollout = wait_for_number(observed, server)
    else:
        rollout = roll_out(observed, server, sizing.stamp, context, now, sizing.halt)
    tidied = tidy(observed, sizing, rollout)
    return Findings(observed, accepted, sizing, rollout, tidied, context)


def _rejected(observed: Observed, accepted: Condition, context: BuildContext) -> Findings:
    """Not accepted: servers are left untouched; a measurement nobody will use gives its GPU back."""
    why = "Nothing is done until the resource is accepted."
    nothing = Sizing(conditions=())
    rollout = hold(observed, why)
    tidied = tidy(observed, nothing, rollout)
    return Findings(observed, accepted, nothing, rollout, tidied, context)


def tidy(observed: Observed, sizing: Sizing, rollout: Rollout) -> tuple[Delete, ...]:
    """Sizing pods that are of no more use.

    Pods of another question go at once: they may hold the GPU that the new question needs. The pod
    of the current answer goes last, once the live Deployment carries its number.
    """
    keep = frozenset() if rollout.settled else sizing.keep
    return tuple(
        delete_pod(pod)
        for pod in observed.sizing_pods
        if name(pod) not in keep and not is_deleting(pod)
    )
