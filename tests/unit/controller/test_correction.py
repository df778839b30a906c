"""The closed loop: what servers went through corrects their number, a few times and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.plan import plan
from tests.unit.controller.builders import CONTEXT, NOW, TOKENS, crashed, server_pod
from tests.unit.controller.plan_worlds import child, conditions, serving, sized_status, writes

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed

OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory"


def out_of_memory(
    others: int = 0, reason: str = "Error", status: dict[str, Any] | None = None, **spec: Any
) -> Observed:
    """One server that ran out of memory three times, and others that serve."""
    live = child(replicas=1 + others, **spec)
    pods = (
        crashed(server_pod(live), 1, reason, OOM),
        *(server_pod(live, 1 + i) for i in range(others)),
    )
    return replace(serving(replicas=1 + others, status=status, **spec), server_pods=pods)


def spent() -> dict[str, Any]:
    """A status in which the last step was made."""
    status = sized_status()
    return {**status, "capacity": {**status["capacity"], "shrinkSteps": 3}}


def test_out_of_memory_shrinks_and_persists_before_it_stamps() -> None:
    made = plan(out_of_memory(), CONTEXT, NOW)
    assert made.status is not None
    assert made.status["capacity"]["maxTotalTokenNum"] < TOKENS
    assert made.status["capacity"]["shrinkSteps"] == 1
    assert writes(made) == []
    assert "PoolShrunk" in [event.reason for event in made.events]


@pytest.mark.parametrize(("world", "degraded"), [
    (out_of_memory(reason="OOMKilled"), False),
    (out_of_memory(sizing={"onOutOfMemory": {"action": "None"}}), False),
    (serving(), False),
], ids=["the container's own limit", "the user wants none", "it serves"])  # fmt: skip
def test_nothing_is_shrunk(world: Observed, *, degraded: bool) -> None:
    made = plan(world, CONTEXT, NOW)
    assert made.status is not None
    assert made.status["capacity"]["maxTotalTokenNum"] == TOKENS
    assert ("Degraded" in conditions(made, world)) is degraded


def test_servers_that_get_on_with_the_number_are_not_stopped_for_one_that_does_not() -> None:
    world = out_of_memory(others=2, status=spent())
    made = plan(world, CONTEXT, NOW)
    assert made.actions == ()
    assert made.status is not None
    assert "rollout" not in made.status
    assert conditions(made, world)["Degraded"] == ("True", "OutOfMemoryBackoff")
