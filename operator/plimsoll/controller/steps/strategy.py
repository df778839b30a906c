"""Which takes its turn first, the new server or the old one: a table over the free GPUs.

GPUs are scarce. A surge pod that waits for the GPU which the old pod holds is a deadlock; stopping
an old server although a GPU is free is an outage that nobody needed. So Auto looks at what is free
*now*, on nodes that the new pod may run on, and it looks again while the rollout is under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd.types import RECREATE, ROLLING_UPDATE
from plimsoll.controller.objects.context import FREE_FIRST, RECREATE_ALL, SURGE, Turns
from plimsoll.controller.objects.diff import first_difference
from plimsoll.controller.placement import demand_of, free_slots
from plimsoll.controller.status import seconds_since
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.obstacles import scheduling_obstacle
from plimsoll.controller.steps.survey import Survey, failure_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import Rollout
    from plimsoll.controller.observed import Observed

# Seconds that a surge pod may wait for a node before an old pod makes room for it. The count of
# free GPUs is a hint (no volumes, no pod affinity), and somebody else may have been quicker.
SURGE_PATIENCE: Final = 10.0


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice depends on.

    Attributes:
        asked: ``spec.rollout``.
        replicas: wanted servers.
        live: the turns of the live Deployment; None where there is none.
        begins: the template differs from the live one, or there is no live one.
        old: pods of other templates that have not been asked to go.
        broken: those of them that do not serve and will not by themselves.
        ready: pods of the wanted template that serve.
        starting: those of it that are not ready yet.
        free: such pods that would find a GPU now; None: not known.
        stuck: a pod of the wanted template has waited for a node for long.
        before: why the live turns were chosen.
    """

    asked: Rollout
    replicas: int
    live: Turns | None
    begins: bool
    old: int = 0
    broken: int = 0
    ready: int = 0
    starting: int = 0
    free: int | None = None
    stuck: bool = False
    before: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The turns, and why, as the end of a sentence that begins with the strategy's name."""

    turns: Turns
    why: str = ""

    def __str__(self) -> str:
        name = self.turns.strategy
        if self.turns.max_surge is not None:
            name += f" (surge {self.turns.max_surge}, unavailable {self.turns.max_unavailable})"
        return f"{name}: {self.why}" if self.why else name


def choose(s: Situation) -> Choice:
    """The first row that applies."""
    if s.asked.strategy is not None:
        return _asked(s.asked)
    if s.live is None:
        return Choice(FREE_FIRST)
    if not s.begins and not s.old:
        # A restart by hand or by an upgrade: old and new pods carry the same inputs.
        waits = s.stuck and bool(s.live.max_surge)
        return _by_free(s) if waits else Choice(s.live if _is_ours(s.live) else FREE_FIRST)
    serving = s.old - s.broken + s.ready
    if s.broken and serving < s.replicas:
        # Exactly as many may be away as are away already: those that serve are not for this.
        turns = Turns(ROLLING_UPDATE, 0, max(1, s.replicas - serving))
        return Choice(turns, "old servers that do not serve go first")
    if not s.begins and not _may_change_over(s):
        return Choice(s.live, s.before or "as this rollout began")
    return _by_free(s)


def _by_free(s: Situation) -> Choice:
    if s.stuck:
        return Choice(FREE_FIRST, "the new server found no node, so an old one makes room")
    if s.free is None:
        return Choice(FREE_FIRST, "the free GPUs are not known, so an old server makes room")
    if s.free > 0:
        return Choice(SURGE, "a GPU is free for a new server before an old one goes")
    if s.replicas == 1:
        return Choice(RECREATE_ALL, "no GPU is free, so the old server makes room")
    return Choice(FREE_FIRST, "no GPU is free, so an old server makes room")


def _may_change_over(s: Situation) -> bool:
    """Whether a rollout that is under way may go on by other turns.

    While its new pod starts, the count of free GPUs says nothing: that pod has just taken one.
    Shares in percent are somebody's edit, and may round to a surge that waits for ever.
    """
    if s.live is None or (s.live.strategy == ROLLING_UPDATE and None in _counts(s.live)):
        return True
    if s.live.max_surge:
        return s.stuck
    return s.old > 0 and not s.starting and bool(s.free)


def _asked(asked: Rollout) -> Choice:
    """The user's; a count that is missing is the least that lets the rollout go on."""
    if asked.strategy == RECREATE:
        return Choice(RECREATE_ALL, "as spec.rollout.strategy says")
    surge, away = asked.max_surge, asked.max_unavailable
    if surge is None:
        surge = 0 if away is None or away > 0 else 1
    if away is None:
        away = 0 if surge > 0 else 1
    return Choice(Turns(ROLLING_UPDATE, surge, away), "as spec.rollout says")


def _counts(live: Turns) -> tuple[int | None, int | None]:
    return live.max_surge, live.max_unavailable


def _is_ours(live: Turns) -> bool:
    """Whether Auto could have chosen it; anything else was asked for, or is somebody's edit."""
    return live in {FREE_FIRST, SURGE, RECREATE_ALL}


def situation(
    observed: Observed, wanted: Mapping[str, Any], found: Survey, now: datetime
) -> Situation:
    """Read the situation off the world.

    Args:
        observed: the world; its ``landscape`` tells the free GPUs.
        wanted: the Deployment as it is to be, whatever its turns.
        found: the server pods, by the wanted template.
        now: for how long a pod has waited.
    """
    assert observed.server is not None
    server, live = observed.server, observed.deployment
    template = wanted["spec"]["template"]
    # Not by the inputs alone: taking up a new sizer image, or putting a template right that somebody
    # edited, replaces pods as well.
    begins = live is None or first_difference(template, live["spec"]["template"]) is not None
    broken = frozenset(podstate.uid(pod) for pod in found.old if failure_of(pod) is not None)
    free = None
    if observed.landscape is not None and live is not None and (begins or found.old):
        # Pods that do not serve are the first that the Deployment controller takes away.
        free = free_slots(demand_of(template["spec"]), observed.landscape, without=broken)
    return Situation(
        asked=server.spec.rollout,
        replicas=server.spec.replicas,
        live=turns_of(live),
        begins=begins,
        old=len(found.old),
        broken=len(broken),
        ready=found.ready_current,
        starting=sum(not podstate.is_ready(pod) for pod in found.current),
        free=free,
        before=_reason_of(observed, turns_of(live)),
        stuck=any(_is_stuck(pod, now) for pod in found.current)
        and not any(_gives_way(pod, now) for pod in found.leaving),
    )


def _reason_of(observed: Observed, live: Turns | None) -> str:
    """Why the live turns were chosen, as the status has kept it."""
    known = observed.status.get("effective") or {}
    counts = known.get("maxSurge"), known.get("maxUnavailable")
    same = live is not None and (known.get("strategy"), *counts) == (live.strategy, *_counts(live))
    return str(known.get("strategyReason", "")) if same else ""


def turns_of(live: Mapping[str, Any] | None) -> Turns | None:
    """How the live Deployment takes turns."""
    if live is None:
        return None
    strategy = live["spec"].get("strategy") or {}
    counts = strategy.get("rollingUpdate") or {}
    kind = str(strategy.get("type", ROLLING_UPDATE))
    return Turns(kind, _count(counts.get("maxSurge")), _count(counts.get("maxUnavailable")))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _gives_way(pod: Mapping[str, Any], now: datetime) -> bool:
    """Whether a pod that was asked to go may be expected to: not where its node is lost.

    The API server writes the end of its grace period as the time of its deletion.
    """
    return seconds_since(str(pod["metadata"]["deletionTimestamp"]), now) < SURGE_PATIENCE


def _is_stuck(pod: Mapping[str, Any], now: datetime) -> bool:
    return scheduling_obstacle(pod) is not None and podstate.age(pod, now) >= SURGE_PATIENCE
