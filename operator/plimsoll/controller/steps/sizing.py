"""The step "sized": what the number is, or what is in the way of it.

One question, one pod, one answer. The order of writes makes a crash harmless at any point:

1. the sizing pod is created under a name that is a function of the question;
2. its result is persisted in ``status.capacity`` (this pass writes nothing else);
3. the Deployment is rendered from ``status.capacity``, never from the pod;
4. the pod is deleted once the Deployment carries the number (see ``plan.tidy``).

A failed try is counted in ``status.sizing`` before its pod is deleted, and its pod stays for people
to look at until the next try begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import Action, Create, Delete, EventNote, delete_pod
from plimsoll.controller.crd.types import ENGINE, FIXED, INPOD, STAMPED
from plimsoll.controller.objects import Stamp, request_hash, sizing_pod
from plimsoll.controller.objects.names import sizing_pod_name
from plimsoll.controller.objects.pod import model_path
from plimsoll.controller.status import (
    CAPACITY_AVAILABLE,
    FALSE,
    MODEL_READY,
    SIZED,
    TRUE,
    UNKNOWN,
    Condition,
    seconds_since,
    timestamp,
)
from plimsoll.controller.steps import capacity as capacities
from plimsoll.controller.steps import hints, inpod_sizing, learned, podstate
from plimsoll.controller.steps.attempts import Attempts, Failure, attempts_in
from plimsoll.controller.steps.mode import impossible, in_pod
from plimsoll.controller.steps.sizing_result import (
    AGAIN,
    UNASKED,
    ModelPlace,
    Reading,
    read_sizing_pod,
)
from plimsoll.controller.steps.verification import remembered

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects import BuildContext
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.halt import Halt
    from plimsoll.controller.steps.mode import InPod

# The status write is itself an event that brings the next pass; this is for when it is missed.
AFTER_STATUS: Final = 1.0
# Between looks at a node that could not be read, and until it is given up. The garbage collector
# needs up to a minute to remove the pods of a node that is gone.
NODE_POLL: Final = 5.0
NODE_PATIENCE: Final = 120.0
# The same where it is not ours to read: rights that are just being replaced are back by then.
REFUSED_PATIENCE: Final = 10.0
# Looking again at something whose change the watch should report.
MISSED_EVENT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sizing:
    """Outcome of the step.

    Attributes:
        conditions: later ones replace earlier ones of the same type.
        actions: writes on the sizing pod.
        events: what people should see beside condition changes.
        requeue_after: seconds until the next look.
        capacity: what ``status.capacity`` is to hold; None leaves what is there.
        progress: what ``status.sizing`` is to hold; None: nothing is under way.
        stamp: what the template is to carry; None while that is not settled.
        keep: names of sizing pods that are still of use.
        terminal: only a person can get it going.
        mode: who finds the number.
        why: the reason, where it was Plimsoll's to choose.
        halt: the template with this number was given up.
        resizes: how often the question was asked again because a guard met something else.
    """

    conditions: tuple[Condition, ...]
    actions: tuple[Action, ...] = ()
    events: tuple[EventNote, ...] = ()
    requeue_after: float | None = None
    capacity: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    stamp: Stamp | None = None
    keep: frozenset[str] = frozenset()
    terminal: bool = False
    mode: str = STAMPED
    why: str | None = None
    halt: Halt | None = None
    resizes: int = 0


def size(
    observed: Observed, server: InferenceServer, context: BuildContext, now: datetime
) -> Sizing:
    """Find the number: given by the user, answered before, or to be measured."""
    if server.spec.sizing.mode == FIXED:
        return _given(observed, server)
    stored = capacities.answer_in(server, observed.status)
    if server.spec.sizing.mode == ENGINE:
        return _left_to_the_engine(observed, server, stored, now)
    chosen = in_pod(observed, server, stored, context, now)
    if chosen is not None:
        found = _in_pod(observed, server, stored, chosen, now)
        asked = sizing_pod_name(server.name, request_hash(server, context))
        # What waits for a person keeps the pod that it was decided by, or another is created.
        return replace(found, keep=frozenset({asked})) if server.spec.rollout.paused else found
    if server.spec.sizing.mode == INPOD:
        return _in_pod_impossible(server)
    if stored is not None:
        return _answered(server, capacities.repinned(server, stored, observed.node))
    return _measure(observed, server, context, now)


def _in_pod(
    observed: Observed,
    server: InferenceServer,
    stored: Mapping[str, Any] | None,
    chosen: InPod,
    now: datetime,
) -> Sizing:
    """Each server measures for itself; what they found is shown, and kept for the next rollout."""
    capacity = inpod_sizing.found_capacity(observed, server, stored, chosen.stamp, now)
    before = (observed.status.get("effective") or {}).get("mode")
    note = EventNote(
        "Normal", "SizingModeSwitched", f"Each server measures for itself, because {chosen.why}."
    )
    old = inpod_sizing.too_old_kubelet(observed, server, chosen.stamp)
    return Sizing(
        conditions=(*inpod_sizing.conditions(capacity, chosen), *((old,) if old else ())),
        events=(note,) if before not in {None, INPOD} else (),
        capacity=capacity,
        stamp=chosen.stamp,
        mode=INPOD,
        why=chosen.why,
    )


def _left_to_the_engine(
    observed: Observed, server: InferenceServer, stored: Mapping[str, Any] | None, now: datetime
) -> Sizing:
    """The engine sizes itself; the pods' own sizers say what it should come to."""
    stamp = Stamp(unpinned=True)
    capacity = inpod_sizing.found_capacity(
        observed, server, stored, stamp, now, capacities.ENGINES_OWN
    )
    return Sizing(
        conditions=(
            Condition(MODEL_READY, TRUE, "Resolved", "The engine checks the model as it starts."),
            Condition(CAPACITY_AVAILABLE, TRUE, "Scheduled", "No sizing pod is needed."),
            Condition(
                SIZED, TRUE, "EngineSized",
                "The engine sizes its own KV cache, as spec.sizing.mode says; condition "
                "CapacityVerified compares it with what Plimsoll predicts.",
            ),
        ),
        capacity=capacity,
        stamp=stamp,
        mode=ENGINE,
    )  # fmt: skip


def _in_pod_impossible(server: InferenceServer) -> Sizing:
    why = impossible(server) or (
        f"engine {server.spec.engine.type} has no command of its own that a kubelet before 1.35 "
        "could be told: set spec.engine.command"
    )
    text = f"In sizing.mode InPod the server cannot be started: {why}, or use mode Stamped."
    return Sizing((Condition(SIZED, FALSE, "InPodImpossible", text),), terminal=True, mode=INPOD)


def _given(observed: Observed, server: InferenceServer) -> Sizing:
    """The user's number; no sizing pod."""
    capacity = remembered(capacities.user_provided(server), observed.status)
    number = (
        f"{capacity['maxTotalTokenNum']} tokens"
        if "maxTotalTokenNum" in capacity
        else f"{capacity['kvCacheBytes']} bytes"
    )
    return Sizing(
        conditions=(
            Condition(MODEL_READY, TRUE, "Resolved", "The engine checks the model as it starts."),
            Condition(CAPACITY_AVAILABLE, TRUE, "Scheduled", "No sizing pod is needed."),
            Condition(SIZED, TRUE, "UserProvided", f"The number is {number}, as spec.sizing says."),
        ),
        capacity=capacity,
        stamp=capacities.stamp_of(server, capacity),
        mode=FIXED,
    )


def _answered(server: InferenceServer, capacity: dict[str, Any]) -> Sizing:
    """There is a result. The status is written before the template, so it is persisted first."""
    tokens, gpu = capacity["maxTotalTokenNum"], capacity.get("gpu") or {}
    sized = Condition(
        SIZED, TRUE, "Measured",
        f"Measured {tokens} tokens on {gpu.get('product')} ({capacity.get('confidence')})"
        f"{learned.told(capacity)}.{_one_of_several(server)}",
    )  # fmt: skip
    unpinnable = capacities.is_unpinnable(server, capacity)
    if unpinnable:
        sized = _unpinnable(server, capacity)
    return Sizing(
        conditions=(
            Condition(MODEL_READY, TRUE, "Resolved", "The model's headers were read."),
            Condition(CAPACITY_AVAILABLE, TRUE, "Scheduled", "A GPU was found."),
            sized,
        ),
        capacity=capacity,
        stamp=None if unpinnable else capacities.stamp_of(server, capacity),
        keep=frozenset({sizing_pod_name(server.name, str(capacity.get("requestHash")))}),
        terminal=unpinnable,
    )


def _one_of_several(server: InferenceServer) -> str:
    """That there is no fallback: one number in a template is right on one kind of GPU."""
    if len(server.spec.accelerator.products) <= 1:
        return ""
    return (
        " Servers stay on GPUs of that kind, for a stamped number is not right on the other "
        "spec.accelerator.products; in sizing.mode InPod they use all of them."
    )


def _unpinnable(server: InferenceServer, capacity: Mapping[str, Any]) -> Condition:
    keys = ", ".join(server.spec.accelerator.class_label_keys) or "(none)"
    return Condition(
        SIZED, FALSE, "ClassUnpinnable",
        f"Node {capacity.get('node')} has none of the labels {keys}, so its number cannot be kept "
        f"on GPUs of its kind with {server.spec.replicas} replicas. Label the nodes (GPU feature "
        "discovery does), set spec.accelerator.classLabelKeys, or set spec.replicas to 1.",
    )  # fmt: skip


def _measure(
    observed: Observed, server: InferenceServer, context: BuildContext, now: datetime
) -> Sizing:
    """Ask the GPU: create the sizing pod, wait for it, read it, or try again."""
    question = request_hash(server, context)
    name = sizing_pod_name(server.name, question)
    attempts = attempts_in(observed.status, question)
    pod = next((p for p in observed.sizing_pods if podstate.name(p) == name), None)
    if pod is None:
        return _without_pod(server, context, name, attempts, now)
    attempts = attempts.seen(podstate.uid(pod))
    if podstate.is_deleting(pod):
        going = Condition(SIZED, UNKNOWN, "SizingPending", f"Pod {name} is still going away.")
        return _under_way(name, attempts, (*UNASKED, going), requeue_after=MISSED_EVENT)
    if podstate.uid(pod) == attempts.failed_pod_uid:
        return _between_tries(name, attempts, now, restart=delete_pod(pod))
    reading = read_sizing_pod(pod, question, _place(server), now)
    if reading.failure is not None:
        attempts = attempts.failed(podstate.uid(pod), reading.failure, now)
        return _between_tries(name, attempts, now)
    if reading.report is not None:
        return _read_result(observed, server, pod, reading, attempts, now)
    said = tuple(hints.explained(observed, c, (pod,), now) for c in reading.conditions)
    return _under_way(name, attempts, said, requeue_after=reading.requeue_after)


def _without_pod(
    server: InferenceServer, context: BuildContext, name: str, attempts: Attempts, now: datetime
) -> Sizing:
    """No pod: a first try, a next try, or the pod of the current try vanished with its node."""
    vanished = attempts.pod_uid not in {None, attempts.failed_pod_uid}
    if vanished:
        gone = Condition(
            SIZED, FALSE, "MeasurementFailed",
            f"Pod {name} was removed before it had a result (was its node lost?). {AGAIN}",
        )  # fmt: skip
        attempts = attempts.failed(str(attempts.pod_uid), Failure(gone), now)
    if attempts.seconds_left(now) > 0:
        return _between_tries(name, attempts, now)
    started = EventNote(
        "Normal", "SizingStarted", f"Created pod {name} to measure a GPU.", retells=True
    )
    return _under_way(
        name,
        attempts,
        UNASKED,
        actions=(Create(sizing_pod(server, context)),),
        events=(started,),
        requeue_after=MISSED_EVENT,
    )


def _between_tries(
    name: str, attempts: Attempts, now: datetime, restart: Delete | None = None
) -> Sizing:
    """A try failed. Wait, then delete its pod; once that is gone the next try begins."""
    left = attempts.seconds_left(now)
    if left > 0 or restart is None:
        return _under_way(name, attempts, UNASKED, requeue_after=max(left, AFTER_STATUS))
    return _under_way(name, attempts, UNASKED, actions=(restart,), requeue_after=MISSED_EVENT)


def _under_way(
    name: str,
    attempts: Attempts,
    conditions: tuple[Condition, ...],
    *,
    actions: tuple[Action, ...] = (),
    events: tuple[EventNote, ...] = (),
    requeue_after: float | None = None,
) -> Sizing:
    """No result yet.

    The last failure keeps being shown until a try succeeds or fails otherwise: a condition that
    turned Unknown for the seconds of every try would only flicker.
    """
    failure = attempts.failure
    if failure is not None and not _is_false(conditions, failure.condition.type):
        conditions = (*conditions, failure.condition)
    return Sizing(
        conditions=conditions,
        actions=actions,
        events=events,
        requeue_after=requeue_after,
        progress=attempts.to_status(name),
        keep=frozenset({name}),
        terminal=failure is not None and failure.terminal,
    )


def _read_result(
    observed: Observed,
    server: InferenceServer,
    pod: Mapping[str, Any],
    reading: Reading,
    attempts: Attempts,
    now: datetime,
) -> Sizing:
    """A result. It needs the node's labels too: they are what the number is pinned to."""
    assert reading.report is not None
    node, why = _node_of(observed, pod, reading.ended_at, now), "could not be read"
    if node is not None and capacities.awaits_labels(server, node, reading.ended_at, now):
        keys = ", ".join(server.spec.accelerator.class_label_keys)
        node, why = None, f"is new and has none of the labels {keys}"
    if node is None:
        waits = Condition(
            SIZED, UNKNOWN, "SizingRunning",
            f"Pod {podstate.name(pod)} has a result; node {podstate.node_name(pod)} {why} yet.",
        )  # fmt: skip
        return _under_way(podstate.name(pod), attempts, (*UNASKED, waits), requeue_after=NODE_POLL)
    capacity = capacities.measured(
        server,
        reading.report,
        node=node,
        request_hash=attempts.request_hash,
        at=reading.ended_at or timestamp(now),
    )
    capacity, notes = learned.applied(observed, server, capacity)
    return replace(_answered(server, capacity), events=notes)


def _node_of(
    observed: Observed, pod: Mapping[str, Any], ended_at: str, now: datetime
) -> Mapping[str, Any] | None:
    """The node that the pod was measured on; None while that is open.

    A node that cannot be read is either gone, then so is the pod soon, or not ours to read (an
    install without rights on nodes). Of the latter all that is known is its name, and the number is
    pinned to that.
    """
    name, node = podstate.node_name(pod), observed.node
    if node is not None and node["metadata"]["name"] == name:
        return node
    patience = REFUSED_PATIENCE if observed.nodes_refused else NODE_PATIENCE
    if not ended_at or seconds_since(ended_at, now) < patience:
        return None
    return {"metadata": {"name": name}}


def _is_false(conditions: tuple[Condition, ...], kind: str) -> bool:
    last = [condition for condition in conditions if condition.type == kind][-1:]
    return any(condition.status == FALSE for condition in last)


def _place(server: InferenceServer) -> ModelPlace:
    model = server.spec.model
    return ModelPlace(model.claim_name, model.sub_path or model.file or model_path(model))
