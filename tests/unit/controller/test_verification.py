"""What the engines report, against what was stamped: who is asked, who decides, what is published."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.objects import service
from plimsoll.controller.observed import observe_from
from plimsoll.controller.plan import Apply, plan
from plimsoll.core.drift import LOG, METRICS, PodReading
from plimsoll.core.engines.readback import Reading
from tests.unit.controller.builders import (
    CONTEXT,
    NOW,
    PRODUCT,
    REPORT,
    TOKENS,
    body,
    ended,
    message,
    server,
    server_pod,
    stored,
)
from tests.unit.controller.inpod_worlds import edited, known, measuring
from tests.unit.controller.plan_worlds import conditions, converged, sizing, text

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed


def told(world: Observed, *tokens: int | None) -> Observed:
    """The world in which the engines of the first pods say so; None: nothing could be read."""
    readings = [
        PodReading(p["metadata"]["name"], p["metadata"]["uid"], Reading(tokens=t), METRICS)
        if t is not None
        else PodReading(p["metadata"]["name"], p["metadata"]["uid"], failure="it does not answer")
        for p, t in zip(world.server_pods, tokens, strict=False)
    ]
    return replace(world, readings=tuple(readings))


def verified(world: Observed) -> tuple[tuple[str, str] | None, dict[str, Any]]:
    """The condition and the capacity after a pass."""
    made = plan(world, CONTEXT, NOW)
    status = made.status or dict(world.status)
    by_type = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    return by_type.get("CapacityVerified"), status["capacity"]


@pytest.mark.parametrize(("tokens", "condition", "drift"), [
    ((TOKENS,), ("True", "WithinTolerance"), "0.00"),
    ((TOKENS * 96 // 100,), ("True", "WithinTolerance"), "-4.00"),
    ((TOKENS * 9 // 10,), ("False", "DriftExceeded"), "-10.00"),
    ((TOKENS * 11 // 10,), ("False", "DriftExceeded"), "10.00"),
    ((None,), ("Unknown", "NotReported"), None),
])  # fmt: skip
def test_verdicts(
    tokens: tuple[int | None, ...], condition: tuple[str, str], drift: str | None
) -> None:
    found, capacity = verified(told(converged(), *tokens))
    assert found == condition
    assert capacity.get("driftPercent") == drift
    assert capacity.get("engineReportedTokens") == tokens[0]


def test_without_engines_to_ask_there_is_no_such_condition() -> None:
    assert verified(converged())[0] is None


def test_the_pod_that_is_furthest_off_decides() -> None:
    world = told(converged(replicas=3), TOKENS, TOKENS * 8 // 10, TOKENS)
    found, capacity = verified(world)
    assert found == ("False", "DriftExceeded")
    assert capacity["engineReportedTokens"] == TOKENS * 8 // 10
    assert world.server_pods[1]["metadata"]["name"] in text(
        plan(world, CONTEXT, NOW), "CapacityVerified"
    )


def test_pods_of_another_template_or_that_do_not_serve_are_no_witnesses() -> None:
    world = told(converged(replicas=2), TOKENS, TOKENS // 2)
    other = copy.deepcopy(world.server_pods[1])
    other["metadata"]["annotations"]["plimsoll.dev/inputs-hash"] = "another"
    for pod in (other, _unready(world.server_pods[1])):
        found, _ = verified(replace(world, server_pods=(world.server_pods[0], pod)))
        assert found == ("True", "WithinTolerance")


def _unready(pod: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(pod)
    for condition in found["status"]["conditions"]:
        condition["status"] = "False" if condition["type"] == "Ready" else condition["status"]
    return found


def test_each_server_that_measured_for_itself_is_held_to_its_own_number() -> None:
    """One GPU is half as large: both engines hold exactly what their sizers found."""
    half = REPORT.max_total_token_num // 2
    world = measuring(products=(PRODUCT, "ACME-HALF"))
    small = copy.deepcopy(world.server_pods[1])
    end = small["status"]["initContainerStatuses"][0]["state"]["terminated"]
    end["message"] = message(small, replace(REPORT, max_total_token_num=half))
    world = known(replace(world, server_pods=(world.server_pods[0], small)))
    assert world.status["capacity"]["maxTotalTokenNum"] == half
    assert verified(told(world, TOKENS, half))[0] == ("True", "WithinTolerance")
    assert verified(told(world, half, half))[0] == ("False", "DriftExceeded")


def test_an_engine_that_sizes_itself_is_compared_with_the_prediction() -> None:
    world = measuring(sizing={"mode": "Engine"})
    live = next(
        a.obj  # type: ignore[union-attr]
        for a in plan(replace(world, deployment=None, server_pods=()), CONTEXT, NOW).actions
        if a.obj["kind"] == "Deployment"  # type: ignore[union-attr]
    )
    args = live["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not [word for word in args if word.startswith("--max_total_token_num")]
    pod = copy.deepcopy(world.server_pods[0])
    pod["metadata"]["annotations"] = live["spec"]["template"]["metadata"]["annotations"]
    world = replace(world, deployment=live, server_pods=(pod,))
    found, capacity = verified(told(world, TOKENS * 9 // 10))
    assert found == ("False", "DriftExceeded")
    assert capacity["source"] == "Engine"
    assert "predicted" in text(
        plan(told(world, TOKENS * 9 // 10), CONTEXT, NOW), "CapacityVerified"
    )


def test_a_log_that_tells_later_is_asked_for_again() -> None:
    """No watch reports it: an engine that has just become ready may not have printed its size."""
    silent = told(converged(), None)
    assert plan(silent, CONTEXT, NOW).requeue_after == pytest.approx(15.0)
    world = converged()
    pod = world.server_pods[0]["metadata"]
    reading = PodReading(pod["name"], pod["uid"], Reading(tokens=TOKENS), LOG)
    assert plan(replace(world, readings=(reading,)), CONTEXT, NOW).requeue_after is None
    assert conditions(plan(silent, CONTEXT, NOW), silent)["Ready"] == ("True", "Ready")


FIXED: dict[str, Any] = {"sizing": {"mode": "Fixed", "maxTotalTokenNum": 1000}}


def fixed() -> Observed:
    """A server with the user's number, whose engine has reported it."""
    world = known(serving_fixed())
    assert verified(told(world, 1000))[0] == ("True", "WithinTolerance")
    return replace(known(told(world, 1000)), readings=())


def serving_fixed() -> Observed:
    first = plan(observe_from(body(**FIXED)), CONTEXT, NOW)
    live = stored([a.obj for a in first.actions if isinstance(a, Apply)][-1])
    return observe_from(
        body(**FIXED),
        deployment=live,
        service=stored(service(server(**FIXED))),
        pods=[server_pod(live)],
    )


def test_a_pass_without_a_reading_forgets_nothing_of_the_users_number() -> None:
    found, capacity = verified(fixed())
    assert found == ("True", "WithinTolerance")
    assert (capacity["engineReportedTokens"], capacity["driftPercent"]) == (1000, "0.00")


def test_another_number_of_the_users_begins_anew() -> None:
    world = edited(fixed(), sizing={"mode": "Fixed", "maxTotalTokenNum": 2000})
    found, capacity = verified(world)
    assert found is None
    assert not {"engineReportedTokens", "driftPercent"} & capacity.keys()
    assert capacity["maxTotalTokenNum"] == 2000


def test_servers_that_wait_for_another_number_are_not_held_to_it() -> None:
    """While a rollout is paused the pods of the template that runs carry the number before."""
    wanted = {"mode": "Fixed", "maxTotalTokenNum": 2 * TOKENS}
    world = edited(converged(), rollout={"paused": True}, sizing=wanted)
    condition, capacity = verified(told(world, TOKENS))
    assert (condition, capacity["maxTotalTokenNum"]) == (None, 2 * TOKENS)


def test_a_number_that_was_just_measured_is_not_held_against_the_servers_before_it() -> None:
    """The same pass puts it into the status and into the template; the pods are of the one before."""
    spec: dict[str, Any] = {"sizing": {"extraReserve": "1Gi"}}
    world = replace(edited(converged(), **spec), sizing_pods=(ended(sizing(**spec)),))
    assert [type(action) for action in plan(world, CONTEXT, NOW).actions] == [Apply]
    condition, _ = verified(told(world, TOKENS // 2))
    assert condition is None
