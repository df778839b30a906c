"""The step "rolled out": do the children carry the number, and do the pods serve?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import Action, Apply, EventNote
from plimsoll.controller.objects import (
    Stamp,
    deployment,
    first_difference,
    inputs_hash,
    scaled,
    service,
)
from plimsoll.controller.objects.names import inputs_hash_of
from plimsoll.controller.objects.workload import MAX_UNAVAILABLE
from plimsoll.controller.status import (
    AVAILABLE,
    FALSE,
    ROLLED_OUT,
    TRUE,
    Condition,
    clause,
    previous,
    sentence,
)
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.survey import Survey, failure_of, placement_obstacle, survey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects import BuildContext
    from plimsoll.controller.observed import Observed

# A child that is being deleted cannot be changed; look again soon.
WAIT_FOR_DELETION: Final = 2.0
# Seconds for which a new pod without a node is nobody's problem; the scheduler's own back-off is 1 s.
SCHEDULING_GRACE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """Outcome of the step; ``settled``: the live children are what we want them to be."""

    conditions: tuple[Condition, ...]
    pods: Survey
    actions: tuple[Action, ...] = ()
    events: tuple[EventNote, ...] = ()
    requeue_after: float | None = None
    settled: bool = False
    terminal: bool = False


def hold(observed: Observed, why: str) -> Rollout:
    """Touch nothing: the resource is not accepted. What runs goes on running, and is reported."""
    found = survey(observed, None)
    replicas = _live_replicas(observed)
    return Rollout(
        (Condition(ROLLED_OUT, "Unknown", "NotAccepted", why), _available(found, replicas)), found
    )


def wait_for_number(observed: Observed, server: InferenceServer) -> Rollout:
    """There is no number for this spec yet. Running servers keep theirs, but scaling goes on."""
    found = survey(observed, None)
    live, replicas = observed.deployment, server.spec.replicas
    waits = Condition(
        ROLLED_OUT, FALSE, "WaitingForSizing",
        "The Deployment waits for the number; running servers keep theirs."
        if live is not None else "The Deployment waits for the number.",
    )  # fmt: skip
    conditions = (waits, _available(found, _live_replicas(observed)))
    if live is None or podstate.is_deleting(live) or live["spec"].get("replicas") == replicas:
        return Rollout(conditions, found)
    note = EventNote(
        "Normal", "Scaled", f"Deployment {server.name} scaled to {replicas}.", retells=True
    )
    return Rollout(conditions, found, (Apply(scaled(live, replicas), "scaling"),), (note,))


def roll_out(
    observed: Observed, server: InferenceServer, stamp: Stamp, context: BuildContext, now: datetime
) -> Rollout:
    """Make the children what they should be, and say how far the pods are."""
    fingerprint = inputs_hash(server, stamp)
    found = survey(observed, fingerprint)
    available = _available(found, server.spec.replicas)
    children = (
        (deployment(server, stamp, context, observed.deployment), observed.deployment),
        (service(server), observed.service),
    )
    if any(live is not None and podstate.is_deleting(live) for _, live in children):
        gone = "A child object is being deleted; it is created again once it is gone."
        condition = Condition(ROLLED_OUT, FALSE, "WaitingForTermination", gone)
        return Rollout((condition, available), found, requeue_after=WAIT_FOR_DELETION)

    differences = [(wanted, live, _difference(wanted, live)) for wanted, live in children]
    actions = tuple(Apply(wanted, text) for wanted, _, text in differences if text is not None)
    events = tuple(_note(w, live, text) for w, live, text in differences if text is not None)
    obstacle, requeue_after = placement_obstacle(found), None
    if found.leaving or any(not podstate.is_finished(pod) for pod in observed.sizing_pods):
        # A pod of ours that is about to leave still holds the GPU: nobody has to do anything.
        obstacle = None
    elif obstacle is not None and any(
        podstate.age(p, now) < SCHEDULING_GRACE for p in found.current
    ):
        # The scheduler may not have seen yet that the sizing pod gave its GPU back.
        obstacle, requeue_after = None, SCHEDULING_GRACE
    if actions:
        progress = _progressing(f"{sentence(events[0].message)} The pods follow.")
    else:
        progress = _progress(observed, server, found)
    return Rollout(
        conditions=(*((obstacle,) if obstacle else ()), progress, available),
        pods=found,
        actions=actions,
        events=events,
        requeue_after=requeue_after,
        settled=not actions,
        terminal=progress.reason == "ProgressDeadlineExceeded",
    )


def _difference(wanted: Mapping[str, Any], live: Mapping[str, Any] | None) -> str | None:
    if live is None:
        return "it does not exist"
    return first_difference(wanted, live)


def _note(wanted: Mapping[str, Any], live: Mapping[str, Any] | None, text: str) -> EventNote:
    """Why this child is written, in the words of the first difference."""
    what = f"{wanted['kind']} {wanted['metadata']['name']}"
    if live is None:
        return EventNote("Normal", "Created", f"{what} created", retells=True)
    if text.startswith("spec.replicas:"):
        return EventNote("Normal", "Scaled", f"{what}: {text}", retells=True)
    template = wanted["spec"].get("template", {})
    if inputs_hash_of(template) != inputs_hash_of(live["spec"].get("template", {})):
        return EventNote("Normal", "RolloutStarted", f"{what}: {text}", retells=True)
    return EventNote("Normal", "PutRight", f"{what}: {text}", retells=True)


def _progress(observed: Observed, server: InferenceServer, found: Survey) -> Condition:
    """How far the pods are, the children being as wanted. Deployment conditions only give reasons."""
    live, replicas = observed.deployment, server.spec.replicas
    assert live is not None
    status = live.get("status") or {}
    current, old, ready = len(found.current), len(found.old), found.ready_current
    behind = _controller_is_behind(live, replicas)
    if replicas == 0 and not behind and not current and not old:
        return Condition(ROLLED_OUT, TRUE, "ScaledToZero", "There are no replicas, as asked for.")
    if replicas > 0 and not behind and current == replicas and not old:
        done = previous(observed.status, ROLLED_OUT)
        was_done = done.get("status") == TRUE
        # Once complete it stays complete while the same pods are there: a server that crashes
        # later is not a rollout, and Available says so.
        if ready >= replicas or (was_done and done.get("reason") == "Complete"):
            text = f"Replicas on the current template: {replicas} of {replicas}."
            return Condition(ROLLED_OUT, TRUE, "Complete", text)
    trouble = _deployment_trouble(status)
    if trouble is not None:
        return trouble
    if found.leaving and current < replicas + old:
        names = ", ".join(podstate.name(pod) for pod in found.leaving[:3])
        return Condition(
            ROLLED_OUT, FALSE, "WaitingForTermination",
            f"Pods that drain still hold their GPUs: {names}.",
        )  # fmt: skip
    return _progressing(
        f"Replicas ready on the current template: {ready} of {replicas} ({current - ready} "
        f"starting, {old} still on an older one); wait for the rollout."
    )


def _controller_is_behind(live: Mapping[str, Any], replicas: int) -> bool:
    """Whether the Deployment controller has yet to act on what is written.

    The pods alone cannot tell after `kubectl rollout restart`: old and new carry the same inputs.
    """
    status, generation = live.get("status") or {}, live["metadata"].get("generation")
    if generation is not None and status.get("observedGeneration", generation) < generation:
        return True
    # The API leaves out a count of 0. A status without any generation was never written.
    return "observedGeneration" in status and int(status.get("updatedReplicas", 0)) < replicas


def _deployment_trouble(status: Mapping[str, Any]) -> Condition | None:
    by_type = {c.get("type"): c for c in status.get("conditions") or ()}
    failure = by_type.get("ReplicaFailure") or {}
    if failure.get("status") == TRUE:
        text = clause(str(failure.get("message") or failure.get("reason")))
        return Condition(
            ROLLED_OUT, FALSE, "ReplicaCreateFailed",
            f"The API server refuses server pods: {text} Remove the cause; it goes on by itself.",
        )  # fmt: skip
    progressing = by_type.get("Progressing") or {}
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        return Condition(
            ROLLED_OUT, FALSE, "ProgressDeadlineExceeded",
            "The rollout made no progress within its deadline; look at the newest pod, or raise "
            "spec.rollout.progressDeadlineSeconds.",
        )  # fmt: skip
    return None


def _available(found: Survey, replicas: int) -> Condition:
    """Whether enough pods of the current template take requests."""
    ready = found.ready_current
    if replicas == 0:
        return Condition(AVAILABLE, TRUE, "ScaledToZero", "There are no replicas, as asked for.")
    if ready >= max(1, replicas - MAX_UNAVAILABLE):
        return Condition(
            AVAILABLE, TRUE, "MinimumReplicas", f"Replicas ready: {ready} of {replicas}."
        )
    failure = next((f for pod in found.current if (f := failure_of(pod)) is not None), None)
    if failure is not None:
        return failure
    text = f"Replicas ready: {ready} of {replicas}; wait until the engine has started."
    return Condition(AVAILABLE, FALSE, "NoReadyReplicas", text)


def _progressing(text: str) -> Condition:
    return Condition(ROLLED_OUT, FALSE, "Progressing", text)


def _live_replicas(observed: Observed) -> int:
    live = observed.deployment
    return int(live["spec"].get("replicas", 1)) if live is not None else 1
