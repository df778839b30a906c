"""The step "rolled out": do the children carry the number, and do the pods serve?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import Action, Apply, EventNote, Patch
from plimsoll.controller.objects import deployment, first_difference, scaled, service
from plimsoll.controller.objects.context import FREE_FIRST, Turns
from plimsoll.controller.objects.foreign import cleaning
from plimsoll.controller.objects.names import inputs_hash_of
from plimsoll.controller.objects.workload import with_turns
from plimsoll.controller.status import (
    FALSE,
    ROLLED_OUT,
    UNKNOWN,
    Condition,
    sentence,
)
from plimsoll.controller.steps import hints, podstate
from plimsoll.controller.steps.halt import Halt, halted_deployment
from plimsoll.controller.steps.progress import available, progress, progressing
from plimsoll.controller.steps.strategy import SURGE_PATIENCE, Choice, choose, situation, turns_of
from plimsoll.controller.steps.survey import Survey, placement_obstacle, survey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects import BuildContext, Stamp
    from plimsoll.controller.observed import Observed

# A child that is being deleted cannot be changed; look again soon.
WAIT_FOR_DELETION: Final = 2.0
# Seconds for which a new pod without a node is nobody's problem; the scheduler's own back-off is 1 s.
SCHEDULING_GRACE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """Outcome of the step.

    Attributes:
        conditions: later ones replace earlier ones of the same type.
        pods: the server pods, by the wanted template.
        actions: writes on the children.
        events: what people should see beside condition changes.
        requeue_after: seconds until the next look.
        settled: the live children are what we want them to be.
        terminal: only a person can get it going.
        turns: how old and new servers take turns.
        why: the reason for these turns.
        template: the wanted pod template; None where none can be rendered.
    """

    conditions: tuple[Condition, ...]
    pods: Survey
    actions: tuple[Action, ...] = ()
    events: tuple[EventNote, ...] = ()
    requeue_after: float | None = None
    settled: bool = False
    terminal: bool = False
    turns: Turns = FREE_FIRST
    why: str = ""
    template: Mapping[str, Any] | None = None


def hold(observed: Observed, why: str) -> Rollout:
    """Touch nothing: the resource is not accepted. What runs goes on running, and is reported."""
    found = survey(observed, None)
    replicas = _live_replicas(observed)
    conditions = (
        Condition(ROLLED_OUT, UNKNOWN, "NotAccepted", why),
        available(found, replicas),
    )
    return Rollout(conditions, found, turns=turns_of(observed.deployment) or FREE_FIRST)


def wait_for_number(observed: Observed, server: InferenceServer) -> Rollout:
    """There is no number for this spec yet. Running servers keep theirs, but scaling goes on."""
    live = observed.deployment
    waits = Condition(
        ROLLED_OUT, FALSE, "WaitingForSizing",
        "The Deployment waits for the number; running servers keep theirs."
        if live is not None else "The Deployment waits for the number.",
    )  # fmt: skip
    return _only_scaled(observed, server, waits)


def roll_out(
    observed: Observed,
    server: InferenceServer,
    stamp: Stamp,
    context: BuildContext,
    now: datetime,
    halt: Halt | None = None,
) -> Rollout:
    """Make the children what they should be, and say how far the pods are."""
    wanted = deployment(server, stamp, context, observed.deployment)
    found = survey(observed, inputs_hash_of(wanted["spec"]["template"]))
    choice = choose(situation(observed, wanted, found, now))
    wanted = with_turns(wanted, choice.turns)
    if halt is not None:
        return _halted(observed, server, wanted, found, halt)
    if server.spec.rollout.paused and _changes_pods(observed, wanted):
        return _paused(observed, server, wanted, choice)
    if any(
        c is not None and podstate.is_deleting(c) for c in (observed.deployment, observed.service)
    ):
        gone = "A child object is being deleted; it is created again once it is gone."
        conditions = (
            Condition(ROLLED_OUT, FALSE, "WaitingForTermination", gone),
            available(found, server.spec.replicas),
        )
        return Rollout(
            conditions, found, requeue_after=WAIT_FOR_DELETION, turns=choice.turns, why=choice.why
        )
    return _rolling(observed, server, wanted, found, choice, now)


def _rolling(
    observed: Observed,
    server: InferenceServer,
    wanted: dict[str, Any],
    found: Survey,
    choice: Choice,
    now: datetime,
) -> Rollout:
    actions, events = _writes(
        observed, ((wanted, observed.deployment), (service(server), observed.service))
    )
    obstacle, requeue_after = _obstacle(observed, found, choice, now)
    if actions and (observed.service is None or _moves_pods(observed, wanted)):
        done = progressing(f"{sentence(events[0].message)} The pods follow. Strategy {choice}.")
        if observed.deployment is None and observed.service is None:
            events = ()  # what every server begins with is in the condition, and no news
    else:
        done = progress(observed, server, found, str(choice))
    return Rollout(
        conditions=(
            *((obstacle,) if obstacle else ()),
            done,
            available(found, server.spec.replicas),
        ),
        pods=found,
        actions=actions,
        events=events,
        requeue_after=requeue_after,
        settled=not actions,
        terminal=done.reason == "ProgressDeadlineExceeded",
        turns=choice.turns,
        why=choice.why,
        template=wanted["spec"]["template"],
    )


def _writes(
    observed: Observed, children: tuple[tuple[dict[str, Any], dict[str, Any] | None], ...]
) -> tuple[tuple[Action, ...], tuple[EventNote, ...]]:
    """What makes the children as wanted; taking out what others added comes first, and alone."""
    wanted, live = children[0]
    if live is not None:
        cleaned = cleaning(wanted, live, observed.kept)
        if cleaned is not None:
            return (cleaned,), (_cleaning_note(wanted, live, cleaned),)
    found = [(w, c, text) for w, c in children if (text := _difference(w, c)) is not None]
    # The Service first: where its name is taken, no server is started.
    first = sorted(found, key=lambda each: each[0]["kind"] != "Service")
    return (
        tuple(Apply(w, text) for w, _, text in first),
        tuple(_note(w, c, text) for w, c, text in found),
    )


def _cleaning_note(wanted: Mapping[str, Any], live: Mapping[str, Any], cleaned: Patch) -> EventNote:
    """Whose change it is: what a new template lacks may be what we no longer render."""
    what = f"Deployment {wanted['metadata']['name']}"
    if _same_inputs(wanted, live):
        text = f"{what}: {cleaned.why}, which is taken out"
        return EventNote("Warning", "ForeignChange", text, retells=True)
    text = f"{what}: {first_difference(wanted, live)}; {cleaned.why}"
    return EventNote("Normal", "RolloutStarted", text, retells=True)


def _obstacle(
    observed: Observed, found: Survey, choice: Choice, now: datetime
) -> tuple[Condition | None, float | None]:
    """Why a pod has no node, if that is anybody's problem, and when to look again."""
    obstacle = placement_obstacle(found)
    if obstacle is None:
        return None, None
    youngest = min(podstate.age(pod, now) for pod in found.current)
    if found.leaving or any(not podstate.is_finished(pod) for pod in observed.sizing_pods):
        # A pod of ours that is about to leave still holds the GPU: nobody has to do anything.
        return None, None
    if youngest < SCHEDULING_GRACE:
        # The scheduler may not have seen yet that the sizing pod gave its GPU back.
        return None, SCHEDULING_GRACE
    obstacle = hints.explained(observed, obstacle, found.current, now)
    if choice.turns.max_surge and found.old and youngest < SURGE_PATIENCE:
        return obstacle, SURGE_PATIENCE - youngest + 0.5
    return obstacle, min(hints.look_after(pod, now) for pod in found.current)


def _halted(
    observed: Observed,
    server: InferenceServer,
    wanted: dict[str, Any],
    found: Survey,
    halt: Halt,
) -> Rollout:
    """The template was given up: its servers stop, those of the template before go on."""
    template = wanted["spec"]["template"]
    fingerprint = inputs_hash_of(template)
    stopped = halted_deployment(observed, server, str(fingerprint))
    live = observed.deployment
    children = [(stopped, live)] if stopped is not None else []
    if observed.service is None or not podstate.is_deleting(observed.service):
        children.append((service(server), observed.service))  # what goes on stays reachable
    actions = tuple(Apply(w, text) for w, c in children if (text := _difference(w, c)) is not None)
    given_up = Condition(
        ROLLED_OUT, FALSE, halt.reason,
        f"{sentence(halt.message)} Servers of the template before go on."
        if found.old else halt.message,
    )  # fmt: skip
    return Rollout(
        (given_up, available(found, server.spec.replicas)),
        found,
        actions,
        settled=not actions,
        terminal=True,
        turns=turns_of(live) or FREE_FIRST,
        template=template,
    )


def _paused(
    observed: Observed, server: InferenceServer, wanted: dict[str, Any], choice: Choice
) -> Rollout:
    """Computed and shown, not rolled out, until a person says so."""
    live = observed.deployment
    if live is None:
        what = f"create Deployment {server.name}"
    else:
        cleaned = cleaning(wanted, live, observed.kept)
        change = first_difference(wanted["spec"]["template"], live["spec"]["template"])
        if change is None and cleaned is not None:
            change = f"what {cleaned.why}"
        what = f"change {change}, by strategy {choice}"
    paused = Condition(
        ROLLED_OUT, FALSE, "Paused",
        f"Field spec.rollout.paused is true, and what waits would {what}. Set it to false to roll "
        "it out.",
    )  # fmt: skip
    rollout = _only_scaled(observed, server, paused)
    return Rollout(
        rollout.conditions,
        rollout.pods,
        rollout.actions,
        rollout.events,
        turns=choice.turns,
        why=choice.why,
    )


def _only_scaled(observed: Observed, server: InferenceServer, why: Condition) -> Rollout:
    """The template stays as it is; the number of servers does not."""
    found = survey(observed, None)
    live, replicas = observed.deployment, server.spec.replicas
    conditions = (why, available(found, _live_replicas(observed)))
    turns = turns_of(live) or FREE_FIRST
    if live is None or podstate.is_deleting(live) or live["spec"].get("replicas") == replicas:
        return Rollout(conditions, found, turns=turns)
    note = EventNote(
        "Normal", "Scaled", f"Deployment {server.name} scaled to {replicas}.", retells=True
    )
    return Rollout(
        conditions, found, (Apply(scaled(live, replicas), "scaling"),), (note,), turns=turns
    )


def _changes_pods(observed: Observed, wanted: Mapping[str, Any]) -> bool:
    """Whether rolling out would replace pods, or start the first."""
    live = observed.deployment
    if live is None:
        return True
    different = first_difference(wanted["spec"]["template"], live["spec"]["template"])
    return different is not None or cleaning(wanted, live, observed.kept) is not None


def _moves_pods(observed: Observed, wanted: Mapping[str, Any]) -> bool:
    """Whether what is written starts or stops pods; other turns or another deadline do not."""
    live = observed.deployment
    if live is not None and wanted["spec"]["replicas"] != live["spec"].get("replicas"):
        return True
    return _changes_pods(observed, wanted)


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
    if text.startswith("spec.strategy"):
        return EventNote("Normal", "StrategyChanged", f"{what}: {text}", retells=True)
    if not _same_inputs(wanted, live):
        return EventNote("Normal", "RolloutStarted", f"{what}: {text}", retells=True)
    return EventNote("Normal", "PutRight", f"{what}: {text}", retells=True)


def _same_inputs(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether both have a template of the same inputs, or neither has a template."""
    one, other = (inputs_hash_of(obj["spec"].get("template", {})) for obj in (wanted, live))
    return one == other


def _live_replicas(observed: Observed) -> int:
    live = observed.deployment
    return int(live["spec"].get("replicas", 1)) if live is not None else 1
