"""What people hear of conditions that no step waits for: once, when they turn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.controller.plan import plan
from plimsoll.core.drift import METRICS, PodReading
from plimsoll.core.engines.readback import Reading
from tests.unit.controller.builders import CONTEXT, NOW, TOKENS
from tests.unit.controller.plan_worlds import converged, text

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed


def told(world: Observed, tokens: int) -> Observed:
    """The world in which every engine says that it holds so many tokens."""
    readings = [
        PodReading(p["metadata"]["name"], p["metadata"]["uid"], Reading(tokens=tokens), METRICS)
        for p in world.server_pods
    ]
    return replace(world, readings=tuple(readings))


def test_drift_is_told_once_and_keeps_nobody_from_being_ready() -> None:
    world = told(converged(), TOKENS * 9 // 10)
    made = plan(world, CONTEXT, NOW)
    assert [(note.type, note.reason) for note in made.events] == [("Warning", "DriftExceeded")]
    assert made.status is not None
    assert made.status["capacity"]["engineReportedTokens"] == TOKENS * 9 // 10
    assert made.status["capacity"]["driftPercent"] == "-10.00"
    by_type = {c["type"]: c["status"] for c in made.status["conditions"]}
    assert (by_type["CapacityVerified"], by_type["Ready"]) == ("False", "True")
    again = plan(replace(world, raw={**world.raw, "status": made.status}), CONTEXT, NOW)
    assert (again.events, again.status) == ((), None)


def test_what_was_said_stays_while_nobody_can_be_asked() -> None:
    world = told(converged(), TOKENS)
    made = plan(world, CONTEXT, NOW)
    assert made.events == ()
    assert "reports" in text(made, "CapacityVerified")
    silent = replace(world, readings=(), raw={**world.raw, "status": made.status})
    assert text(plan(silent, CONTEXT, NOW), "CapacityVerified") == text(made, "CapacityVerified")
