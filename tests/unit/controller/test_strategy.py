"""Which takes its turn first: one row a branch, and a Deployment controller that is driven by it."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.crd import InvalidSpec
from plimsoll.controller.crd.types import Rollout
from plimsoll.controller.objects import deployment
from plimsoll.controller.objects.context import FREE_FIRST, RECREATE_ALL, SURGE, Turns
from plimsoll.controller.placement import landscape_from
from plimsoll.controller.status import timestamp
from plimsoll.controller.steps.strategy import (
    SURGE_PATIENCE,
    Situation,
    choose,
    situation,
    turns_of,
)
from plimsoll.controller.steps.survey import survey
from tests.unit.controller.builders import (
    CONTEXT,
    NOW,
    crashed,
    deleting,
    node,
    server,
    server_pod,
    stored,
    unschedulable,
)
from tests.unit.controller.inpod_worlds import edited as changed
from tests.unit.controller.plan_worlds import NO_GPU, child, serving, stamp

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed


def asked(
    strategy: str | None = None, surge: int | None = None, away: int | None = None
) -> Rollout:
    return Rollout(strategy, paused=False, drain_seconds=300, max_unavailable=away, max_surge=surge,
                   progress_deadline_seconds=None, update_policy="OnSpecChange")  # fmt: skip


AUTO = asked()
PERCENT = Turns("RollingUpdate", None, None)
WIDE = Turns("RollingUpdate", 0, 3)
NEW = Situation(AUTO, 1, None, begins=True)
EDIT = Situation(AUTO, 1, FREE_FIRST, begins=True, old=1, free=0)
UNDER_WAY = Situation(AUTO, 3, FREE_FIRST, begins=False, old=2, free=0)
QUIET = Situation(AUTO, 3, FREE_FIRST, begins=False)

TABLE: list[tuple[str, Situation, Turns, str]] = [
    # -- the user's own, whatever the world
    ("asked: Recreate", replace(EDIT, asked=asked("Recreate"), free=9), RECREATE_ALL, "as spec.rollout"),
    ("asked: no counts", replace(EDIT, asked=asked("RollingUpdate"), free=9), FREE_FIRST, "as spec.rollout says"),
    ("asked: only surge", replace(EDIT, asked=asked("RollingUpdate", surge=2)), Turns("RollingUpdate", 2, 0), ""),
    ("asked: surge 0", replace(EDIT, asked=asked("RollingUpdate", surge=0)), FREE_FIRST, ""),
    ("asked: only unavailable", replace(EDIT, asked=asked("RollingUpdate", away=2)), Turns("RollingUpdate", 0, 2), ""),
    ("asked: unavailable 0", replace(EDIT, asked=asked("RollingUpdate", away=0)), SURGE, ""),
    ("asked: both", replace(EDIT, asked=asked("RollingUpdate", 2, 3)), Turns("RollingUpdate", 2, 3), ""),
    ("asked: stays when stuck", replace(EDIT, asked=asked("RollingUpdate", 1, 0), stuck=True), SURGE, ""),
    # -- nothing to replace
    ("there is no Deployment", NEW, FREE_FIRST, ""),
    ("no rollout: what Auto chose stays", replace(QUIET, live=SURGE), SURGE, ""),
    ("no rollout: Recreate stays", replace(QUIET, live=RECREATE_ALL), RECREATE_ALL, ""),
    ("no rollout: what broken pods needed is over", replace(QUIET, live=WIDE), FREE_FIRST, ""),
    ("no rollout: somebody's percentages", replace(QUIET, live=PERCENT), FREE_FIRST, ""),
    ("only scaled, GPUs free", replace(QUIET, replicas=5, starting=2, free=7), FREE_FIRST, ""),
    ("only scaled, and no GPU", replace(QUIET, replicas=5, starting=2, stuck=True), FREE_FIRST, ""),
    ("a restart with the same inputs waits for a GPU", replace(QUIET, live=SURGE, starting=1, stuck=True),
     FREE_FIRST, "found no node"),
    # -- a rollout begins
    ("begins with a free GPU", replace(EDIT, free=1), SURGE, "a GPU is free"),
    ("begins with one server and no GPU", EDIT, RECREATE_ALL, "no GPU is free, so the old"),
    ("begins with three servers and no GPU", replace(EDIT, replicas=3, old=3), FREE_FIRST, "no GPU is free"),
    ("begins, GPUs unknown", replace(EDIT, free=None), FREE_FIRST, "not known"),
    ("begins, the one before still waits", replace(EDIT, stuck=True, free=1), FREE_FIRST, "found no node"),
    ("begins with broken servers", replace(EDIT, replicas=3, old=3, broken=2, free=4), Turns("RollingUpdate", 0, 2),
     "do not serve"),
    # -- a rollout is under way
    ("surge has taken the last GPU: it goes on", replace(UNDER_WAY, live=SURGE, starting=1), SURGE, "as this rollout"),
    ("surge waits for a GPU", replace(UNDER_WAY, live=SURGE, starting=1, stuck=True), FREE_FIRST, "found no node"),
    ("surge waits, one server",
     replace(UNDER_WAY, replicas=1, old=1, live=SURGE, starting=1, stuck=True), FREE_FIRST, ""),
    ("one by one goes on", UNDER_WAY, FREE_FIRST, "as this rollout"),
    ("one by one, and a GPU comes free", replace(UNDER_WAY, free=1), SURGE, "a GPU is free"),
    ("that GPU is for the pod that starts", replace(UNDER_WAY, free=1, starting=1), FREE_FIRST, "as this rollout"),
    ("Recreate before the old one went, a GPU comes free",
     replace(UNDER_WAY, live=RECREATE_ALL, old=1, free=1), SURGE, ""),
    ("GPUs are no longer known", replace(UNDER_WAY, free=None), FREE_FIRST, "as this rollout"),
    ("old servers broke", replace(UNDER_WAY, live=SURGE, broken=1, ready=1), FREE_FIRST, "do not serve"),
    ("broken beside enough that serve", replace(UNDER_WAY, live=SURGE, old=4, broken=1), SURGE, "as this rollout"),
    ("the reason is remembered", replace(UNDER_WAY, before="no GPU was free"), FREE_FIRST, "no GPU was free"),
    ("somebody's percentages would wait for ever", replace(UNDER_WAY, live=PERCENT, starting=1), FREE_FIRST, "no GPU"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "turns", "why"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE]
)
def test_choice(given: Situation, turns: Turns, why: str) -> None:
    found = choose(given)
    assert found.turns == turns
    assert why in found.why
    text = str(found)
    assert text.startswith(turns.strategy)
    assert "None" not in text


@pytest.mark.parametrize("rollout", [
    {"maxSurge": 1}, {"maxUnavailable": 1}, {"strategy": "Recreate", "maxSurge": 1},
    {"strategy": "RollingUpdate", "maxSurge": 0, "maxUnavailable": 0},
])  # fmt: skip
def test_counts_that_cannot_be_kept_are_refused(rollout: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        server(rollout=rollout)


@pytest.mark.parametrize(("surge", "away"), [*product((None, 0, 1, 2), (None, 0, 1, 2))])
def test_what_is_asked_is_never_a_rollout_that_cannot_go_on(
    surge: int | None, away: int | None
) -> None:
    if (surge, away) == (0, 0):
        return  # refused by the schema, and above
    turns = choose(replace(EDIT, asked=asked("RollingUpdate", surge, away))).turns
    assert (turns.max_surge or 0) + (turns.max_unavailable or 0) > 0
    assert surge in {None, turns.max_surge}
    assert away in {None, turns.max_unavailable}


# -- the situation ------------------------------------------------------------------------------

GPU = "nvidia.com/gpu"


def with_gpus(world: Observed, gpus: int) -> Observed:
    """The world on one node with so many GPUs."""
    there = node()
    amounts = {GPU: str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"}
    there["status"] = {
        "allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.37.2"},
    }  # fmt: skip
    return replace(world, landscape=landscape_from([there], world.server_pods, NOW))


def seen(world: Observed, *, edited: bool = True) -> Situation:
    """The situation when the resource wants another context length, or what is there."""
    assert world.server is not None
    number = stamp(replicas=world.server.spec.replicas)
    number = replace(number, context_length=4096) if edited else number
    wanted = deployment(world.server, number, CONTEXT, world.deployment)
    fingerprint = wanted["spec"]["template"]["metadata"]["annotations"]["plimsoll.dev/inputs-hash"]
    return situation(world, wanted, survey(world, fingerprint), NOW)


def test_situation_of_an_edit() -> None:
    found = seen(with_gpus(serving(replicas=3), 5))
    assert (found.begins, found.old, found.broken, found.starting, found.free) == (True, 3, 0, 0, 2)
    assert found.live == FREE_FIRST


def test_situation_without_a_rollout_looks_at_no_gpus() -> None:
    found = seen(with_gpus(serving(replicas=3), 5), edited=False)
    assert (found.begins, found.old, found.starting, found.free) == (False, 0, 0, None)


def test_situation_without_nodes() -> None:
    assert seen(serving()).free is None


def test_situation_counts_old_servers_that_crash() -> None:
    world = serving(replicas=2)
    bad = crashed(world.server_pods[0], 1, "Error", "boom")
    assert seen(replace(world, server_pods=(bad, world.server_pods[1]))).broken == 1


def test_the_gpu_of_a_server_that_crashes_is_as_good_as_free() -> None:
    """Two serve, the third crashed and its template changes: none of the two is to make room."""
    world = serving(replicas=3)
    bad = crashed(world.server_pods[2], 1, "Error", "boom")
    world = changed(
        with_gpus(replace(world, server_pods=(*world.server_pods[:2], bad)), 3), replicas=2
    )
    found = seen(world)
    assert (found.old, found.broken, found.free) == (3, 1, 1)
    assert choose(found).turns == SURGE


def test_taking_up_another_sizer_image_replaces_pods_too() -> None:
    """The inputs are the same, so only the template tells that a rollout begins."""
    world = serving(rollout={"updatePolicy": "WithOperator"})
    assert world.server is not None
    newer = replace(CONTEXT, sizer_image="ghcr.io/plimsoll-dev/sizer:9.9.9")
    wanted = deployment(world.server, stamp(), newer, world.deployment)
    assert situation(world, wanted, survey(world, None), NOW).begins
    same = deployment(world.server, stamp(), CONTEXT, world.deployment)
    assert not situation(world, same, survey(world, None), NOW).begins


def waiting_pod(seconds: float) -> dict[str, Any]:
    pod = unschedulable(server_pod(child(), 1, ready=False), NO_GPU)
    del pod["spec"]["nodeName"]
    pod["metadata"]["creationTimestamp"] = timestamp(NOW - timedelta(seconds=seconds))
    return pod


def gone_since(seconds: float) -> dict[str, Any]:
    pod = deleting(server_pod(child(), 2))
    pod["metadata"]["deletionTimestamp"] = timestamp(NOW - timedelta(seconds=seconds))
    return pod


@pytest.mark.parametrize(("seconds", "leaving", "stuck"), [
    (SURGE_PATIENCE - 1, [], False),
    (SURGE_PATIENCE, [], True),
    # A pod that drains gives its GPU back within its grace period; on a lost node it never does.
    (60, [gone_since(-30)], False),
    (60, [gone_since(1)], False),
    (60, [gone_since(60)], True),
])  # fmt: skip
def test_stuck(seconds: float, leaving: list[dict[str, Any]], *, stuck: bool) -> None:
    world = serving()
    world = replace(world, server_pods=(waiting_pod(seconds), *leaving))
    assert seen(world, edited=False).stuck is stuck


def test_turns_are_read_off_the_deployment() -> None:
    live = stored(deployment(server(), stamp(), CONTEXT, None, SURGE))
    assert turns_of(live) == SURGE
    live["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}
    assert turns_of(live) == PERCENT
    live["spec"]["strategy"] = {"type": "Recreate"}
    assert turns_of(live) == RECREATE_ALL
    assert turns_of(None) is None


# -- a Deployment controller, driven by it ------------------------------------------------------


@dataclass
class Pod:
    """A server pod of a template; it has a GPU or waits for one."""

    template: int
    gpu: bool = False
    ready: bool = False
    bad: bool = False
    waits: int = 0


@dataclass
class World:
    """G GPUs, and one Deployment as apps/v1 treats it: a step is about five seconds."""

    gpus: int
    replicas: int
    live: Turns = FREE_FIRST
    template: int = 0
    pods: list[Pod] = field(default_factory=list)
    leaving: list[Pod] = field(default_factory=list)
    least: int = 0

    def __post_init__(self) -> None:
        self.pods = [Pod(0, gpu=True, ready=True) for _ in range(min(self.gpus, self.replicas))]

    def free(self) -> int:
        return self.gpus - sum(pod.gpu for pod in (*self.pods, *self.leaving))

    def current(self, wanted: int) -> list[Pod]:
        return [pod for pod in self.pods if pod.template == wanted]

    def observe(self, wanted: int) -> Situation:
        now, old = self.current(wanted), [p for p in self.pods if p.template != wanted]
        return Situation(
            AUTO, self.replicas, self.live, begins=self.template != wanted, old=len(old),
            broken=sum(p.bad for p in old), starting=sum(not p.ready for p in now), free=self.free(),
            stuck=any(not p.gpu and p.waits >= 2 for p in now) and not self.leaving,
        )  # fmt: skip

    def operator(self, wanted: int) -> None:
        found = choose(self.observe(wanted))
        self.live, self.template = found.turns, wanted

    def controller(self) -> None:
        """One sync: k8s.io/kubernetes/pkg/controller/deployment (rolling.go, recreate.go)."""
        new = self.current(self.template)
        old = [p for p in self.pods if p.template != self.template]
        if self.live.strategy == "Recreate":
            for pod in old:
                self.stop(pod)
            if not old and not self.leaving:
                self.start(self.replicas - len(new))
            self.trim(new)
            return
        surge, away = self.live.max_surge or 0, self.live.max_unavailable or 0
        room = self.replicas + surge - len(self.pods)
        if len(new) < self.replicas and room > 0:
            self.start(min(room, self.replicas - len(new)))
            return
        self.trim(new)
        least = self.replicas - away
        most = len(self.pods) - least - sum(not p.ready for p in new)
        for pod in [p for p in old if not p.ready][: max(0, most)]:
            self.stop(pod)
        old = [p for p in old if p in self.pods]
        spare = sum(p.ready for p in self.pods) - least
        for pod in old[: max(0, min(spare, most))]:
            self.stop(pod)

    def start(self, count: int) -> None:
        self.pods += [Pod(self.template) for _ in range(count)]

    def trim(self, new: list[Pod]) -> None:
        for pod in sorted(new, key=lambda p: (p.ready, p.gpu))[: max(0, len(new) - self.replicas)]:
            self.stop(pod)

    def stop(self, pod: Pod) -> None:
        self.pods.remove(pod)
        if pod.gpu:
            self.leaving.append(pod)

    def kubelet(self) -> None:
        self.leaving.clear()
        for pod in self.pods:
            if pod.gpu:
                pod.ready = not pod.bad
            elif self.free() > 0:
                pod.gpu = True
            else:
                pod.waits += 1

    def step(self, wanted: int, rng: random.Random) -> None:
        """The three act in any order, as they do."""
        turns = [lambda: self.operator(wanted), self.controller, self.kubelet]
        rng.shuffle(turns)
        for turn in turns:
            before = sum(p.ready for p in self.pods)
            turn()
            ready = sum(p.ready for p in self.pods)
            if ready < before:
                promised = self.promise()
                assert ready >= min(before, promised), (self, before)

    def promise(self) -> int:
        if self.live.strategy == "Recreate":
            return 0
        return self.replicas - (self.live.max_unavailable or 0)

    def done(self, wanted: int) -> bool:
        fits = min(self.replicas, self.gpus)
        return (
            all(p.template == wanted for p in self.pods)
            and sum(p.ready for p in self.pods) == fits
            and len(self.pods) == self.replicas
        )


def settles(world: World, wanted: int, rng: random.Random, steps: int = 120) -> None:
    for _ in range(steps):
        world.step(wanted, rng)
        if world.done(wanted):
            return
    raise AssertionError(f"no end: {world}")


SIZES = [(g, r) for g in range(1, 6) for r in range(1, 5) if g >= r]


@pytest.mark.parametrize(("gpus", "replicas"), SIZES)
def test_every_edit_comes_to_its_end(gpus: int, replicas: int) -> None:
    for seed in range(20):
        settles(World(gpus, replicas), 1, random.Random(seed))


@pytest.mark.parametrize(("gpus", "replicas"), SIZES)
def test_three_quick_edits_and_a_revert(gpus: int, replicas: int) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        world = World(gpus, replicas)
        for wanted in (1, 2, 3):
            for _ in range(rng.randrange(1, 4)):
                world.step(wanted, rng)
        settles(world, rng.choice([3, 0]), rng)


@pytest.mark.parametrize(("gpus", "replicas"), SIZES)
def test_a_revert_keeps_the_generation_that_serves(gpus: int, replicas: int) -> None:
    """What still runs of the template that one goes back to is never stopped."""
    for seed in range(20):
        rng = random.Random(seed)
        world = World(gpus, replicas)
        for _ in range(rng.randrange(4)):
            world.step(1, rng)
        world.operator(0)
        kept = [p for p in world.current(0) if p.ready][:replicas]
        settles(world, 0, rng)
        assert all(any(pod is p for p in world.pods) for pod in kept)


@pytest.mark.parametrize(("gpus", "replicas"), SIZES)
def test_gpus_come_and_go(gpus: int, replicas: int) -> None:
    """A neighbour takes what is free, or gives something back, in the middle of a rollout."""
    for seed in range(20):
        rng = random.Random(seed)
        world = World(gpus, replicas)
        for _ in range(12):
            world.step(1, rng)
            world.gpus += rng.choice([-1, 0, 1]) if world.free() > 0 else rng.choice([0, 1])
        # At the end there is room for every server: a neighbour may always keep what it took.
        world.gpus = max(world.gpus, replicas)
        settles(world, 1, rng)


@pytest.mark.parametrize(("gpus", "replicas"), SIZES)
def test_broken_servers_go_first(gpus: int, replicas: int) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        world = World(gpus, replicas)
        broken = copy.copy(world.pods[: rng.randrange(1, replicas + 1)])
        for pod in broken:
            pod.bad, pod.ready = True, False
        healthy = [p for p in world.pods if p.ready]
        for _ in range(200):
            before = [p for p in healthy if p in world.pods]
            world.step(1, rng)
            gone = [p for p in before if not any(p is q for q in world.pods)]
            assert not gone or not any(p.bad for p in world.pods)
            if world.done(1):
                break
        else:
            raise AssertionError(world)
