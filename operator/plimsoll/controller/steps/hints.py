"""What a node autoscaler says of a pod that no node can take: whether anybody has to do anything.

The scheduler only says that there is no node now. Whether one is on its way, or none ever will be,
stands in the pod's Events, as words of the autoscaler that are not ours to parse further than to
tell which of the two it is; so they are quoted. Events are lost, thinned out and gone after an hour:
nothing is decided by them, they only make a condition tell more.

The events and their words: Cluster Autoscaler, ``processors/status/eventing_scale_up_processor.go``;
Karpenter, ``pkg/controllers/provisioning/scheduling/events.go``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.status import (
    CAPACITY_AVAILABLE,
    FALSE,
    NODE_NOMINATED,
    SCALE_UP_TRIGGERED,
    Condition,
    clause,
)
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.obstacles import UNSCHEDULABLE, scheduling_obstacle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.observed import Observed

NO_MATCHING_NODE_POOL: Final = "NoMatchingNodePool"

# An Event's reason, and what it comes to.
_MEANING: Final[Mapping[str, str]] = {
    "TriggeredScaleUp": SCALE_UP_TRIGGERED,
    "Nominated": NODE_NOMINATED,
    "NotTriggerScaleUp": NO_MATCHING_NODE_POOL,
    "NoCompatibleInstanceTypes": NO_MATCHING_NODE_POOL,
}
# Both the scheduler and Karpenter write events of this reason; only Karpenter's begin so.
_FAILED: Final = "FailedScheduling"
_KARPENTERS: Final = "failed to schedule pod"

# The scheduler has tried again this long after the autoscaler spoke, and in vain.
LATE: Final = timedelta(minutes=10)
# An event about a repeated failure is brought up to date every half hour only; nothing older counts.
LIFE: Final = timedelta(minutes=30)
# Pods of one server whose events are asked for: what is said of one holds for its likes.
MOST_PODS: Final = 4
# Seconds until the next look at a pod without a node: no watch reports its events. With
# `pod_events.TTL_SECONDS` an autoscaler's word is shown within 10 s; who has waited for long waits
# for a person or for a market, and is looked at less often.
LOOK: Final = 6.0
LATER_LOOK: Final = 15.0
LONG: Final = 600.0

# Karpenter names what the pod asks for after all that the NodePool has.
_LONGEST_QUOTE: Final = 600


@dataclass(frozen=True, slots=True)
class Hint:
    """The reason of the condition, and the autoscaler's own words."""

    reason: str
    words: str


def hint_of(events: Iterable[Mapping[str, Any]], now: datetime) -> Hint | None:
    """What the newest word of an autoscaler comes to; None where none speaks, or not of today.

    Args:
        events: Events about one pod that has no node.
        now: the time, in UTC.
    """
    told, failed = [], []
    for event in events:
        at, meaning = _time(event), _meaning(event)
        if at is None:
            continue
        if meaning is not None:
            told.append((at, Hint(meaning, _quote(event.get("message")))))
        elif event.get("reason") == _FAILED:
            failed.append(at)
    since = max([now - LIFE, *(at - LATE for at in failed)])
    recent = [pair for pair in told if pair[0] >= since]
    return max(recent, key=lambda pair: pair[0])[1] if recent else None


def _meaning(event: Mapping[str, Any]) -> str | None:
    reason, message = str(event.get("reason")), str(event.get("message") or "")
    if reason == _FAILED and message.lower().startswith(_KARPENTERS):
        return NO_MATCHING_NODE_POOL
    return _MEANING.get(reason)


def _time(event: Mapping[str, Any]) -> datetime | None:
    """When it was last seen; the two APIs for events keep that in different fields."""
    series, metadata = event.get("series") or {}, event.get("metadata") or {}
    given = (
        series.get("lastObservedTime"),
        *(event.get(key) for key in ("lastTimestamp", "eventTime", "firstTimestamp")),
        metadata.get("creationTimestamp"),
    )
    times = (_parsed(str(text)) for text in given if text)
    return max((time for time in times if time is not None), default=None)


def _parsed(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _quote(text: object) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= _LONGEST_QUOTE else f"{words[:_LONGEST_QUOTE]}..."


def look_after(pod: Mapping[str, Any], now: datetime) -> float:
    """Seconds until a pod without a node is looked at again."""
    return LOOK if podstate.age(pod, now) < LONG else LATER_LOOK


def waiting_pods(observed: Observed) -> tuple[dict[str, Any], ...]:
    """The pods whose events can tell why there is no node for them, at most `MOST_PODS`."""
    pods = (*observed.sizing_pods, *observed.server_pods)
    return tuple(
        pod
        for pod in pods
        if not podstate.is_deleting(pod) and not podstate.is_finished(pod) and _is_waiting(pod)
    )[:MOST_PODS]


def _is_waiting(pod: Mapping[str, Any]) -> bool:
    obstacle = scheduling_obstacle(pod)
    return obstacle is not None and obstacle.reason == UNSCHEDULABLE


def explained(
    observed: Observed, obstacle: Condition, pods: Iterable[Mapping[str, Any]], now: datetime
) -> Condition:
    """The obstacle in the autoscaler's words, where one has said something about such a pod.

    Args:
        observed: the world; its ``hints`` are the events.
        obstacle: of one of the pods; anything but Unschedulable is handed back.
        pods: of one template: what is said of one holds for its likes.
        now: the time, in UTC.
    """
    if (obstacle.type, obstacle.reason) != (CAPACITY_AVAILABLE, UNSCHEDULABLE):
        return obstacle
    for pod in pods:
        hint = hint_of(observed.hints.get(podstate.uid(pod), ()), now)
        if hint is not None and _is_waiting(pod):
            return Condition(CAPACITY_AVAILABLE, FALSE, hint.reason, _told(hint, pod))
    return obstacle


def _told(hint: Hint, pod: Mapping[str, Any]) -> str:
    who, words = f"pod {podstate.name(pod)}", clause(hint.words)
    if hint.reason == SCALE_UP_TRIGGERED:
        return (
            f"A node is being added for {who}, as the cluster autoscaler says: {words} Nothing has "
            "to be done; it goes on by itself once the node has its GPU."
        )
    if hint.reason == NODE_NOMINATED:
        return (
            f"Karpenter has chosen a node for {who}, which may still be starting: {words} Nothing "
            "has to be done; it goes on by itself once the node has its GPU."
        )
    scheduler = clause(_quote(podstate.condition(pod, "PodScheduled").get("message")))
    return (
        f"No node can take {who} and the autoscaler adds none: {words} The scheduler says: "
        f"{scheduler} Add a node group or NodePool with such GPUs, raise its limit, or change "
        "spec.accelerator or spec.template; it goes on by itself."
    )
