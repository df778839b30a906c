"""What autoscalers say of a pod without a node, from their events to the condition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.cluster import EVENTS, Page, Refused, Resource, Retry
from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.plan import plan
from plimsoll.controller.pod_events import (
    BUSY_SECONDS,
    FORGET_SECONDS,
    MOST_READS,
    REFUSED_SECONDS,
    TTL_SECONDS,
    PodEvents,
)
from plimsoll.controller.senses import Senses
from plimsoll.controller.status import CAPACITY_AVAILABLE, FALSE, Condition
from plimsoll.controller.steps import hints
from plimsoll.controller.steps.hints import Hint, explained, hint_of, waiting_pods
from tests.unit.controller.builders import (
    CONTEXT,
    NAMESPACE,
    NOW,
    body,
    deleting,
    node,
    server_pod,
    unschedulable,
)
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.plan_worlds import (
    NO_GPU,
    Row,
    check,
    child,
    conditions,
    serving,
    sizing,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Raw = dict[str, Any]

# The words are those of public clusters: an AKS node pool, an EKS Auto Mode one, a NodePool's limit.
GROWS = "pod triggered scale-up: [{aks-gpunp-98036146-vmss 1->2 (max: 2)}]"
FULL = "pod didn't trigger scale-up: 2 max node group size reached"
CLAIMED = "Pod should schedule on: nodeclaim/gpu-inf-dynamic-ggsvc"
NO_TYPE = (
    'Failed to schedule pod, incompatible with nodepool "default", no instance type satisfied '
    'resources {"cpu":"3","nvidia.com/gpu":"1","pods":"8"} and requirements'
)


def event(reason: str, message: str, minutes: float = 1, **more: Any) -> Raw:
    """An Event as the recorders of client-go write it, so many minutes old."""
    at = (NOW - timedelta(minutes=minutes)).isoformat()
    return {"reason": reason, "message": message, "lastTimestamp": at} | more


def fails(minutes: float) -> Raw:
    """The scheduler tried that long ago."""
    return event("FailedScheduling", NO_GPU, minutes)


TRIGGERED = Hint("ScaleUpTriggered", GROWS)
NOMINATED = Hint("NodeNominated", CLAIMED)
NONE_FITS = Hint("NoMatchingNodePool", FULL)

TABLE: dict[str, tuple[list[Raw], Hint | None]] = {
    "nothing": ([], None),
    "the scheduler alone": ([fails(0)], None),
    "others' words": ([event("Killing", "Stopping container")], None),
    "cluster autoscaler grows": ([event("TriggeredScaleUp", GROWS)], TRIGGERED),
    "cluster autoscaler cannot": ([event("NotTriggerScaleUp", FULL)], NONE_FITS),
    "Karpenter makes one": ([event("Nominated", CLAIMED)], NOMINATED),
    "Karpenter has no type": (
        [event("FailedScheduling", NO_TYPE)], Hint("NoMatchingNodePool", NO_TYPE),
    ),
    "Karpenter says it of the pool": (
        [event("NoCompatibleInstanceTypes", "NodePool requirements filtered out all types")],
        Hint("NoMatchingNodePool", "NodePool requirements filtered out all types"),
    ),
    "the newest of two": (
        [event("TriggeredScaleUp", GROWS, 5), event("NotTriggerScaleUp", FULL, 8)], TRIGGERED,
    ),
    "the newest of two, the other way round": (
        [event("TriggeredScaleUp", GROWS, 8), event("NotTriggerScaleUp", FULL, 5)], NONE_FITS,
    ),
    "the scheduler failed again soon after": (
        [event("TriggeredScaleUp", GROWS, 11), fails(1)], TRIGGERED,
    ),
    "the scheduler failed again long after": ([event("TriggeredScaleUp", GROWS, 12), fails(1)], None),
    "the scheduler's event is not kept up to date": (
        [event("TriggeredScaleUp", GROWS, 29), fails(35)], TRIGGERED,
    ),
    "the scheduler's event is gone": ([event("TriggeredScaleUp", GROWS, 29)], TRIGGERED),
    "Karpenter's words in somebody's mouth": ([event("Killing", NO_TYPE)], None),
    "too old": ([event("TriggeredScaleUp", GROWS, 31), fails(35)], None),
    "the newer API's times": (
        [{"reason": "Nominated", "message": CLAIMED, "lastTimestamp": None,
          "eventTime": (NOW - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
          "series": {"lastObservedTime": NOW.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}],
        NOMINATED,
    ),
    "no time but that of its creation": (
        [{"reason": "Nominated", "message": CLAIMED,
          "metadata": {"creationTimestamp": NOW.isoformat()}}],
        NOMINATED,
    ),
    "no time that can be read": (
        [event("Nominated", CLAIMED, firstTimestamp="2026-12-01T12:00:00", lastTimestamp="soon")],
        None,
    ),
    "no time at all": ([{"reason": "Nominated", "message": CLAIMED}], None),
    "lines and a long list": (
        [event("NotTriggerScaleUp", "pod didn't\n trigger " + "x" * 700)],
        Hint("NoMatchingNodePool", "pod didn't trigger " + "x" * 581 + "..."),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "hint"), TABLE.values(), ids=TABLE)
def test_table(events: list[Raw], hint: Hint | None) -> None:
    assert hint_of(events, NOW) == hint
    assert hint_of(reversed(events), NOW) == hint


def hinted(world: Observed, *events: Raw) -> Observed:
    """The world with these events about each pod that waits for a node."""
    return replace(
        world, hints={pod["metadata"]["uid"]: tuple(events) for pod in waiting_pods(world)}
    )


def sizing_world(pod: Raw) -> Observed:
    return observe_from(body(), pods=[pod], node=node())


def sizing_waits(*events: Raw) -> Observed:
    return hinted(sizing_world(unschedulable(sizing(), NO_GPU)), *events)


@dataclass(frozen=True)
class Said:
    """One event about the sizing pod, and what becomes of it in Ready."""

    event: Raw
    reason: str
    says: str
    warns: bool


@pytest.mark.parametrize(
    "said",
    [
        Said(
            event("TriggeredScaleUp", GROWS), "ScaleUpTriggered", "(max: 2)}]; nothing", warns=False
        ),
        Said(
            event("Nominated", CLAIMED), "NodeNominated", "gpu-inf-dynamic-ggsvc; not", warns=False
        ),
        Said(
            event("NotTriggerScaleUp", FULL), "NoMatchingNodePool", "add a node group", warns=True
        ),
        Said(
            event("FailedScheduling", NO_TYPE), "NoMatchingNodePool", "no instance type", warns=True
        ),
    ],
    ids=lambda said: said.event["reason"],
)
def test_a_sizing_pod_that_waits_for_a_node(said: Said) -> None:
    row = Row(
        said.reason, sizing_waits(said.event), writes=[],
        conditions={"CapacityAvailable": f"False {said.reason}", "Ready": f"False {said.reason}",
                    "Reconciling": f"True {said.reason}"},
        events=[f"Warning {said.reason}"] if said.warns else [],
        says=said.says,
    )  # fmt: skip
    check(row)


def test_what_no_autoscaler_would_do_keeps_the_schedulers_count() -> None:
    made = plan(sizing_waits(event("NotTriggerScaleUp", FULL)), CONTEXT, NOW)
    assert NO_GPU in text(made, CAPACITY_AVAILABLE)


def test_without_a_hint_the_scheduler_speaks() -> None:
    world = sizing_waits()
    assert conditions(plan(world, CONTEXT, NOW), world)["Ready"] == ("False", "Unschedulable")


def server_waits() -> Observed:
    """A server whose second pod has no node; the status is of the time before."""
    live = child(replicas=2)
    pods = [
        server_pod(live, 0),
        unschedulable(server_pod(live, 1, ready=False), NO_GPU),
    ]
    return replace(serving(replicas=2), server_pods=tuple(pods))


def test_a_server_pod_that_waits_for_a_node_is_looked_at_again() -> None:
    world = hinted(server_waits(), event("Nominated", CLAIMED))
    made = plan(world, CONTEXT, NOW)
    assert conditions(made, world)["CapacityAvailable"] == ("False", "NodeNominated")
    assert made.requeue_after == hints.LOOK
    later = NOW + timedelta(seconds=hints.LONG)
    assert plan(world, CONTEXT, later).requeue_after == hints.LATER_LOOK


def test_a_sizing_pod_that_waits_for_a_node_is_looked_at_again() -> None:
    for waited, after in (
        (0.0, hints.LOOK),
        (hints.LONG - 1, hints.LOOK),
        (hints.LONG, hints.LATER_LOOK),
    ):
        made = plan(sizing_waits(), CONTEXT, NOW + timedelta(seconds=waited))
        assert made.requeue_after == after


def test_a_word_is_at_most_ten_seconds_old() -> None:
    """It came just after a read, and a pass that used that read once more asked for the next look."""
    assert TTL_SECONDS + hints.LOOK < 10


def test_only_unschedulable_is_explained() -> None:
    world = sizing_waits(event("Nominated", CLAIMED))
    gated = Condition(CAPACITY_AVAILABLE, FALSE, "SchedulingGated", "Pod x is held back.")
    assert explained(world, gated, world.sizing_pods, NOW) is gated


def test_who_is_asked_about() -> None:
    """Pods that no node can take; not those that are held back, leave, have ended, or start."""
    waits = unschedulable(sizing(), NO_GPU)
    held = unschedulable(sizing(), "held", "SchedulingGated")
    volume = unschedulable(sizing(), "0/2 nodes: pod has unbound PersistentVolumeClaims")
    ended = {**waits, "status": {**waits["status"], "phase": "Failed"}}
    for pod, asked in (
        (waits, 1), (held, 0), (volume, 0), (deleting(waits), 0), (ended, 0), (sizing(), 0),
    ):  # fmt: skip
        assert len(waiting_pods(sizing_world(pod))) == asked
    live = child(replicas=9)
    many = [unschedulable(server_pod(live, n, ready=False), NO_GPU) for n in range(9)]
    world = observe_from(body(replicas=9), deployment=live, pods=many)
    assert len(waiting_pods(world)) == hints.MOST_PODS


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Told(FakeCluster):
    """The fake, with what was asked of events, and a failure in place of the answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked: list[tuple[str | None, str, int]] = []
        self.fails: Exception | None = None

    async def page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        fields: str = "",
        limit: int = 500,
        token: str = "",
    ) -> Page:
        assert resource is EVENTS
        self.asked.append((namespace, fields, limit))
        if self.fails is not None:
            raise self.fails
        return await super().page(
            resource, namespace=namespace, fields=fields, limit=limit, token=token
        )


def about(name: str, pod: Mapping[str, Any], namespace: str = NAMESPACE) -> Raw:
    """An event as the API server keeps it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"uid": pod["metadata"]["uid"]},
        **event("TriggeredScaleUp", GROWS),
    }


@pytest.fixture
def told() -> Told:
    return Told(namespaces={NAMESPACE, "other"})


async def test_the_events_of_one_pod_are_read_once_in_a_while(told: Told) -> None:
    clock, pod = Clock(), sizing()
    reader = PodEvents(told, clock)
    told.put(about("a", pod))
    told.put(about("b", {"metadata": {"uid": "another"}}))
    told.put(about("c", pod, "other"))
    (found,) = await reader.look(NAMESPACE, "uid-of-pod")
    assert found["metadata"]["name"] == "a"
    told.put(about("d", pod))
    clock.seconds = TTL_SECONDS - 1
    assert len(await reader.look(NAMESPACE, "uid-of-pod")) == 1
    clock.seconds = TTL_SECONDS
    assert len(await reader.look(NAMESPACE, "uid-of-pod")) == 2
    assert told.asked == [(NAMESPACE, "involvedObject.uid=uid-of-pod", 50)] * 2


async def test_a_refusal_is_no_answer_and_is_remembered(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    reader = PodEvents(told, clock)
    told.put(about("a", sizing()))
    told.fails = Refused(403, "Forbidden", "events is forbidden")
    assert await reader.look(NAMESPACE, "uid-of-pod") == ()
    clock.seconds = REFUSED_SECONDS - 1
    assert await reader.look(NAMESPACE, "another") == ()
    assert (len(told.asked), caplog.text.count("events cannot be listed")) == (1, 1)
    told.fails = None
    clock.seconds = REFUSED_SECONDS
    assert len(await reader.look(NAMESPACE, "uid-of-pod")) == 1


async def test_what_was_read_stands_while_the_api_server_is_away(told: Told) -> None:
    clock = Clock()
    reader = PodEvents(told, clock)
    told.put(about("a", sizing()))
    await reader.look(NAMESPACE, "uid-of-pod")
    told.fails = Retry("away")
    clock.seconds = TTL_SECONDS
    assert len(await reader.look(NAMESPACE, "uid-of-pod")) == 1


async def test_what_nobody_asks_about_is_forgotten(told: Told) -> None:
    clock = Clock()
    reader = PodEvents(told, clock)
    told.put(about("a", sizing()))
    await reader.look(NAMESPACE, "uid-of-pod")
    clock.seconds = FORGET_SECONDS
    await reader.look(NAMESPACE, "another")
    told.fails = Retry("away")
    assert await reader.look(NAMESPACE, "uid-of-pod") == ()


async def test_many_pods_do_not_read_the_namespace_for_ever(told: Told) -> None:
    clock = Clock()
    reader = PodEvents(told, clock)
    for number in range(MOST_READS + 5):
        await reader.look(NAMESPACE, f"uid-{number}")
    clock.seconds = BUSY_SECONDS - 1
    await reader.look(NAMESPACE, "uid-98")
    assert len(told.asked) == MOST_READS
    clock.seconds = BUSY_SECONDS
    await reader.look(NAMESPACE, "uid-99")
    assert len(told.asked) == MOST_READS + 1


class Nothing:
    """Readers that have nothing to tell."""

    async def look(self, within: float | None = None) -> None:  # noqa: ARG002 -- as the reader has it
        return None

    async def read(self, *_: object) -> tuple[()]:
        return ()


async def test_the_senses_ask_about_pods_that_wait_and_no_others(told: Told) -> None:
    senses = Senses(told, Nothing(), Nothing(), PodEvents(told, Clock()))
    told.put(about("a", sizing()))
    world = sizing_world(unschedulable(sizing(), NO_GPU))
    seen = await senses(world)
    assert hint_of(seen.hints["uid-of-pod"], NOW) == TRIGGERED
    assert (await senses(sizing_world(sizing()))).hints == {}
    assert len(told.asked) == 1
    deaf = Senses(told, Nothing(), Nothing())
    assert (await deaf(world)).hints == {}
