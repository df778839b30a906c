"""The closed loop: what the servers themselves say about a number that was stamped.

* An engine that ran out of device memory as it started gets a smaller pool, a few times at most.
* A guard that refuses a device three times gets the number that it measured there itself.
* A guard that meets another GPU or another model has the question asked again.
* So have servers that wait for the one node that was measured, when that is gone (`lost_node`).

Each answer is a new ``status.capacity``, persisted before it is stamped, and a bound: what does not
come right within it is given up (see ``halt``), so that nothing crashes for ever. Which pods speak
is decided by the template they carry, so an answer that was given is never given twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import EventNote
from plimsoll.controller.objects.versions import version_to_render
from plimsoll.controller.status import DEGRADED, FALSE, SIZED, TRUE, Condition, seconds_since
from plimsoll.controller.steps import capacity as capacities
from plimsoll.controller.steps import guard, podstate, shrink
from plimsoll.controller.steps.halt import Halt, halt_key, new_halt, standing
from plimsoll.controller.steps.lost_node import lost_node
from plimsoll.controller.steps.survey import Survey, lacked_device_memory, survey

if TYPE_CHECKING:
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.sizing import Sizing

# The status write is itself an event that brings the next pass; this is for when it is missed.
AFTER_STATUS: Final = 1.0
# Refusals of one guard after which its own number is taken. The kubelet tries it again by itself,
# so until then memory that is still being released, or a stranger that leaves, costs nothing.
REFUSALS: Final = 3
# Seconds after which a template that guards refused is tried again: the device may be free now.
SECOND_CHANCE: Final = 900.0
# Sizings anew because of another GPU or model, before it is called a mismatch for good.
RESIZES: Final = 3


# The user's number, and the engine's: it is served with, or it is not, but it is not ours to change.
NOT_OURS: Final = frozenset({capacities.USER_PROVIDED, capacities.ENGINES_OWN})


@dataclass(frozen=True, slots=True)
class Case:
    """One resource with a number, and the pods that carry it."""

    server: InferenceServer
    capacity: dict[str, Any]
    pods: Survey
    key: str
    now: datetime


def correct(observed: Observed, server: InferenceServer, sizing: Sizing, now: datetime) -> Sizing:
    """The sizing, corrected by what servers of its own number have been through."""
    if sizing.stamp is None:
        return sizing
    _, fingerprint = version_to_render(server, sizing.stamp, observed.deployment)
    key = halt_key(server, fingerprint)
    pods, halted = survey(observed, fingerprint), standing(observed.status, key)
    if halted is not None and not _has_second_chance(halted, pods, now):
        return replace(
            sizing,
            halt=halted,
            conditions=(*sizing.conditions, _given_up(halted)),
            requeue_after=_until_second_chance(halted, pods, now),
        )
    if sizing.capacity is None or sizing.capacity["source"] in NOT_OURS:
        return sizing
    case = Case(server, sizing.capacity, pods, key, now)
    return (
        _lost(observed, case, sizing)
        or _out_of_memory(case, sizing)
        or _refused(observed, case, sizing)
        or _settled(case, sizing)
    )


def _lost(observed: Observed, case: Case, sizing: Sizing) -> Sizing | None:
    """The only node that the number holds on is gone: ask again, on whatever node there is."""
    assert sizing.stamp is not None
    node = lost_node(observed, case.capacity, sizing.stamp, case.now)
    if node is None:
        return None
    text = (
        f"The number holds on node {node} only, which is gone, and no label tells the kind of its "
        "GPU. Plimsoll measures again by itself; name such a label in "
        "spec.accelerator.classLabelKeys, so that a number holds on all nodes of its kind."
    )
    return replace(
        sizing,
        conditions=(*sizing.conditions, Condition(SIZED, FALSE, "Stale", text)),
        events=(*sizing.events, EventNote("Normal", "NodeLost", text)),
        capacity={**case.capacity, "sizingKey": capacities.STALE},
        stamp=None,
        requeue_after=AFTER_STATUS,
    )


def _settled(case: Case, sizing: Sizing) -> Sizing:
    """Nothing to correct (any more); say so while the smaller pool has yet to prove itself."""
    steps = case.capacity.get("shrinkSteps", 0)
    if not steps or case.pods.ready_current or not case.server.spec.replicas:
        return sizing
    text = (
        "Device memory did not suffice for a larger pool; servers start with "
        f"{shrink.size_of(case.capacity)} (made smaller {steps} times)."
    )
    degraded = Condition(DEGRADED, TRUE, "OutOfMemoryBackoff", text)
    return replace(sizing, conditions=(*sizing.conditions, degraded))


def _out_of_memory(case: Case, sizing: Sizing) -> Sizing | None:
    engine = case.server.spec.engine
    patience = 1 if case.pods.ready_current == 0 else REFUSALS
    failed = [pod for pod in case.pods.current if lacked_device_memory(pod, engine.type, patience)]
    if not failed:
        return None
    policy, steps = case.server.spec.sizing.on_out_of_memory, case.capacity.get("shrinkSteps", 0)
    if not policy.shrink:
        return None
    smaller = shrink.shrunk(case.server, case.capacity) if steps < policy.max_steps else None
    if smaller is None and case.pods.ready_current:
        # Others serve with this number, and giving it up would stop them.
        text = shrink.beside_others(podstate.name(failed[0]), case.capacity)
        degraded = Condition(DEGRADED, TRUE, "OutOfMemoryBackoff", text)
        return replace(sizing, conditions=(*sizing.conditions, degraded))
    if smaller is None:
        return _halted(
            case, sizing, "OutOfMemoryBackoff", shrink.exhausted(case.server, case.capacity)
        )
    text = (
        f"The engine ran out of device memory with {shrink.size_of(case.capacity)}; it gets "
        f"{shrink.size_of(smaller)} (step {steps + 1} of {policy.max_steps})"
    )
    degraded = Condition(DEGRADED, TRUE, "OutOfMemoryBackoff", f"{text}.")
    return _restamp(sizing, smaller, degraded, EventNote("Warning", "PoolShrunk", f"{text}."))


def _refused(observed: Observed, case: Case, sizing: Sizing) -> Sizing | None:
    """A guard refused its device; see ``guard`` for what it said."""
    refusals = guard.refusals(case.pods.current)
    if not refusals:
        return None
    worst = max(refusals, key=lambda refusal: refusal.count)
    if worst.mismatch:
        return _mismatch(observed, case, sizing, worst)
    steps, most = case.capacity.get("shrinkSteps", 0), capacities.MAX_STEPS
    smaller = guard.remeasured(case.server, case.capacity, worst) if steps < most else None
    follows = _what_follows(case, smaller)
    degraded = guard.too_little(worst, case.capacity, follows)
    if worst.count < REFUSALS or case.pods.ready_current:
        # Where others serve with this number it is not wrong: this device is.
        return replace(sizing, conditions=(*sizing.conditions, degraded))
    if smaller is None:
        return _halted(case, sizing, degraded.reason, degraded.message)
    text = (
        f"{shrink.size_of(smaller)} replace {shrink.size_of(case.capacity)}, as the guard measured"
    )
    return _restamp(sizing, smaller, degraded, EventNote("Warning", "Restamped", f"{text}."))


def _what_follows(case: Case, smaller: dict[str, Any] | None) -> str:
    """What comes of the refusals, for people who wonder whether to do something."""
    if case.pods.ready_current:
        return "Other servers go on with this number; the kubelet tries again by itself."
    if smaller is not None:
        return f"After refusal {REFUSALS} the smaller number is taken."
    minutes = int(SECOND_CHANCE // 60)
    return f"After refusal {REFUSALS} no server is started for {minutes} minutes."


def _mismatch(observed: Observed, case: Case, sizing: Sizing, refusal: guard.Refusal) -> Sizing:
    """Another GPU or another model than the number was made for: ask again, or stop."""
    count = int((observed.status.get("rollout") or {}).get("resizes", 0))
    degraded = guard.mismatch(refusal)
    if count >= RESIZES and case.pods.ready_current:
        return replace(sizing, conditions=(*sizing.conditions, degraded))
    if count >= RESIZES:
        return _halted(case, sizing, degraded.reason, degraded.message)
    stale = {**case.capacity, "sizingKey": capacities.STALE}
    again = Condition(
        SIZED, FALSE, "Stale", f"{degraded.message} Plimsoll measures again by itself."
    )
    return replace(
        sizing,
        conditions=(*sizing.conditions, again, degraded),
        events=(*sizing.events, EventNote("Warning", degraded.reason, degraded.message)),
        capacity=stale,
        stamp=None,
        resizes=count + 1,
        requeue_after=AFTER_STATUS,
    )


def _restamp(
    sizing: Sizing, capacity: dict[str, Any], degraded: Condition, note: EventNote
) -> Sizing:
    """Persist the new number first; the next pass stamps what it reads back."""
    return replace(
        sizing,
        conditions=(*sizing.conditions, degraded),
        events=(*sizing.events, note),
        capacity=capacity,
        stamp=None,
        requeue_after=AFTER_STATUS,
    )


def _halted(case: Case, sizing: Sizing, reason: str, message: str) -> Sizing:
    """Persist that it is given up; the next pass acts on what it reads back."""
    halt = new_halt(case.key, reason, message, case.now)
    conditions = (*sizing.conditions, _given_up(halt))
    note = EventNote("Warning", "GivenUp", halt.message)
    return replace(
        sizing,
        halt=halt,
        conditions=conditions,
        events=(*sizing.events, note),
        terminal=True,
        requeue_after=AFTER_STATUS,
    )


def _given_up(halt: Halt) -> Condition:
    return Condition(DEGRADED, TRUE, halt.reason, halt.message)


def _has_second_chance(halt: Halt, pods: Survey, now: datetime) -> bool:
    """Whether a refused device is looked at again: whoever held its memory may have left."""
    left = _until_second_chance(halt, pods, now)
    return left is not None and left <= 0


def _until_second_chance(halt: Halt, pods: Survey, now: datetime) -> float | None:
    """Seconds until then; None: there is none.

    Servers of the template before are not stopped for one, not even while they are not ready for
    a moment: only an edit takes them away.
    """
    if halt.reason not in guard.MEMORY_REASONS or not halt.since or pods.old or pods.ready:
        return None
    return max(0.0, SECOND_CHANCE - seconds_since(halt.since, now))
