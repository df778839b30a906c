"""`rollout.paused`: computed and shown, and not rolled out until a person says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll.controller.actions import Apply, Create
from plimsoll.controller.observed import observe_from
from plimsoll.controller.plan import Plan, plan
from tests.unit.controller.builders import CONTEXT, NOW, TOKENS, body, node
from tests.unit.controller.inpod_worlds import EDITED, edit, edited, known
from tests.unit.controller.plan_worlds import conditions, converged, sized_status, text, writes

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed

PAUSED: dict[str, Any] = {"rollout": {"paused": True}}
LABELLED: dict[str, Any] = {"template": {"labels": {"team": "search"}}}


def step(world: Observed) -> Plan:
    return plan(world, CONTEXT, NOW)


def test_pausing_alone_changes_nothing() -> None:
    """What runs is what is asked for: there is nothing to hold back."""
    world = edited(converged(), **PAUSED)
    made = step(world)
    assert writes(made) == []
    assert conditions(made, world)["Ready"] == ("True", "Ready")


def test_an_edit_is_shown_and_not_written() -> None:
    world = edited(converged(), **PAUSED, **LABELLED)
    made = step(world)
    assert writes(made) == []
    found = conditions(made, world)
    assert (found["RolledOut"], found["Ready"]) == (("False", "Paused"), ("False", "Paused"))
    assert found["Available"] == ("True", "MinimumReplicas")  # what runs goes on serving
    said = text(made, "RolledOut")
    assert "spec.rollout.paused" in said
    assert "labels" in said
    assert "strategy" in said


def test_the_resume_writes_it() -> None:
    world = edited(converged(), rollout={"paused": False}, **LABELLED)
    assert writes(step(world)) == ["apply Deployment llama"]


def test_scaling_goes_on_with_the_template_that_runs() -> None:
    world = edited(converged(), replicas=3, **PAUSED, **LABELLED)
    (action,) = step(world).actions
    assert isinstance(action, Apply)
    assert world.deployment is not None
    assert action.obj["spec"]["replicas"] == 3
    assert action.obj["spec"]["template"] == world.deployment["spec"]["template"]


def test_a_new_number_is_measured_and_waits() -> None:
    """Compute first, approve later: the sizing pod runs, and its number is shown."""
    world = edited(converged(), **PAUSED, sizing={"extraReserve": "1Gi"})
    assert [type(action) for action in step(world).actions] == [Create]


def test_nothing_is_created_either() -> None:
    raw = body(status=sized_status(), **PAUSED)
    world = observe_from(raw, node=node())
    made = step(world)
    assert writes(made) == []
    assert "create Deployment llama" in text(made, "RolledOut")
    assert made.status is not None
    assert made.status["capacity"]["maxTotalTokenNum"] == TOKENS


def test_what_others_added_waits_too() -> None:
    """Taking it out restarts servers, which is what pausing forbids."""
    world = edited(converged(), **PAUSED)
    assert world.deployment is not None
    live = {**world.deployment, "spec": {**world.deployment["spec"]}}
    pod = {**live["spec"]["template"]["spec"], "hostNetwork": True}
    live["spec"]["template"] = {**live["spec"]["template"], "spec": pod}
    made = step(replace(world, deployment=live))
    assert writes(made) == []


def test_a_sizing_pod_that_led_to_measuring_in_the_pods_is_not_created_again_and_again() -> None:
    """No GPU is free for it, so servers would measure for themselves, but that waits."""
    world = edit(spec={**EDITED, **PAUSED})
    for _ in range(3):
        made = step(world)
        assert writes(made) == []
        assert conditions(made, world)["RolledOut"] == ("False", "Paused")
        world = known(world) if made.status is not None else world
    resumed = edited(world, rollout={"paused": False})
    assert [line.split("-")[0] for line in writes(step(resumed))] == [
        "delete Pod uid", "patch Deployment llama",
    ]  # fmt: skip
