"""Reads ``spec.rollout``: in which order old and new servers take turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.controller.crd.fields import invalid
from plimsoll.controller.crd.types import (
    ON_SPEC_CHANGE,
    RECREATE,
    ROLLING_UPDATE,
    WITH_OPERATOR,
    Rollout,
)

if TYPE_CHECKING:
    from plimsoll.controller.crd.fields import Fields

# Absent is Auto: the free GPUs decide.
STRATEGIES: Final = (RECREATE, ROLLING_UPDATE)
UPDATE_POLICIES: Final = (ON_SPEC_CHANGE, WITH_OPERATOR)
DAY: Final = 86_400
MAX_REPLICAS: Final = 10_000

_FIELDS: Final = frozenset({
    "strategy", "paused", "drainSeconds", "maxUnavailable", "maxSurge", "progressDeadlineSeconds",
    "updatePolicy",
})  # fmt: skip


def parse_rollout(spec: Fields) -> Rollout:
    """The field ``rollout`` of the spec.

    Raises:
        InvalidSpec: a field of it is unknown, of the wrong kind, or at odds with another.
    """
    rollout = spec.child("rollout", _FIELDS)
    found = Rollout(
        strategy=rollout.choice("strategy", STRATEGIES) if rollout.has("strategy") else None,
        paused=rollout.flag("paused", default=False),
        drain_seconds=rollout.integer("drainSeconds", 0, DAY, default=300),
        max_unavailable=rollout.integer("maxUnavailable", 0, MAX_REPLICAS),
        max_surge=rollout.integer("maxSurge", 0, MAX_REPLICAS),
        progress_deadline_seconds=rollout.integer("progressDeadlineSeconds", 1, DAY),
        update_policy=rollout.choice("updatePolicy", UPDATE_POLICIES, ON_SPEC_CHANGE),
    )
    counted = found.max_surge is not None or found.max_unavailable is not None
    if counted and found.strategy != ROLLING_UPDATE:
        need = (
            "RollingUpdate where maxSurge or maxUnavailable is given; leave those out to let the "
            "free GPUs decide"
        )
        raise invalid(rollout.at("strategy"), found.strategy, need)
    if found.max_surge == 0 and found.max_unavailable == 0:
        need = "at least 1 where maxSurge is 0, or no server could ever be replaced"
        raise invalid(rollout.at("maxUnavailable"), 0, need)
    return found
