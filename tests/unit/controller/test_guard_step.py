"""A guard that refuses its device: patience, its own number, another question, and an end of it."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.plan import plan
from plimsoll.controller.status import timestamp
from plimsoll.controller.steps.capacity import STALE, believable
from plimsoll.controller.steps.correction import REFUSALS, RESIZES, SECOND_CHANCE
from plimsoll.core.report import Failure, Report, token_limit
from plimsoll.core.units import GIB
from tests.unit.controller.builders import (
    BUDGET,
    CONTEXT,
    DEVICE,
    FAILURE,
    NOW,
    REPORT,
    TOKENS,
    message,
    server_pod,
)
from tests.unit.controller.plan_worlds import child, conditions, serving, sized_status, text, writes

if TYPE_CHECKING:
    from plimsoll.controller.actions import Plan
    from plimsoll.controller.observed import Observed

STRANGER = 8 * GIB


def less(missing: int) -> Report:
    """What the guard measures where so many bytes are not free any more."""
    budget = replace(
        BUDGET,
        device_free=BUDGET.device_free - missing,
        free_after_init=BUDGET.free_after_init - missing,
        kv=BUDGET.kv - missing,
    )
    tokens = token_limit(budget.kv, 0, REPORT.kv_bytes_per_rank, 1)
    return replace(REPORT, budget=budget, max_total_token_num=tokens)


def refused(
    count: int,
    outcome: Report | Failure,
    code: int = 10,
    *,
    others: int = 0,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> Observed:
    """One server whose guard has refused so often, and others that serve."""
    spec["replicas"] = 1 + others
    live = child(**spec)
    pod = copy.deepcopy(server_pod(live, ready=False))
    end = {"exitCode": code, "message": message(pod, outcome), "finishedAt": "2026-12-01T12:00:05Z"}
    pod["status"]["initContainerStatuses"] = [
        {
            "name": "sizer",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": end},
            "restartCount": count - 1,
        }
    ]
    pods = (pod, *(server_pod(live, 1 + i) for i in range(others)))
    return replace(serving(status=status, **spec), server_pods=pods)


def step(world: Observed, seconds: float = 0) -> tuple[Any, dict[str, Any]]:
    made = plan(world, CONTEXT, NOW + timedelta(seconds=seconds))
    assert made.status is not None
    return made, made.status


@pytest.mark.parametrize("count", range(1, REFUSALS))
def test_the_first_refusals_are_only_said(count: int) -> None:
    world = refused(count, less(STRANGER))
    made, status = step(world)
    assert status["capacity"]["maxTotalTokenNum"] == TOKENS
    assert writes(made) == []
    found = conditions(made, world)
    assert found["Degraded"] == ("True", "ForeignMemoryOnDevice")
    assert found["Available"] == ("False", "GuardRejected")
    said = text(made, "Degraded")
    assert f"refusal {count}" in said
    assert "71.00 GiB are free" in said
    assert "79.00 GiB were" in said
    assert "GPU-1" in said


def test_after_the_last_refusal_its_own_number_is_persisted_and_then_stamped() -> None:
    measured = less(STRANGER)
    world = refused(REFUSALS, measured)
    made, status = step(world)
    assert writes(made) == []
    assert status["capacity"]["maxTotalTokenNum"] == measured.max_total_token_num < TOKENS
    assert status["capacity"]["shrinkSteps"] == 1
    assert status["capacity"]["predictedTokens"] == TOKENS
    assert believable(status) == status["capacity"]
    after = replace(world, raw={**world.raw, "status": status})
    assert writes(step(after)[0]) == ["apply Deployment llama"]


def test_a_little_less_is_no_stranger() -> None:
    world = refused(1, less(GIB // 4))
    assert conditions(step(world)[0], world)["Degraded"] == ("True", "GuardRejected")


def test_where_others_serve_with_the_number_this_device_is_wrong_and_not_the_number() -> None:
    world = refused(REFUSALS + 5, less(STRANGER), others=1)
    made, status = step(world)
    assert made.actions == ()
    assert status["capacity"]["maxTotalTokenNum"] == TOKENS
    assert conditions(made, world)["Degraded"] == ("True", "ForeignMemoryOnDevice")
    assert "Other servers go on" in text(made, "Degraded")


@pytest.mark.parametrize(("outcome", "spec"), [
    (replace(FAILURE, reason="WeightsDoNotFit", message="nothing fits"), {}),
    (less(STRANGER), {"sizing": {"minTotalTokenNum": TOKENS}}),
    (less(STRANGER), {"sizing": {"contextLength": TOKENS}}),
    (REPORT, {}),
], ids=["nothing fits", "below the least", "below the context", "not smaller"])  # fmt: skip
def test_a_number_of_no_use_ends_it_for_a_while(
    outcome: Report | Failure, spec: dict[str, Any]
) -> None:
    world = refused(REFUSALS, outcome, **spec)
    made, status = step(world)
    assert status["rollout"]["halted"]["reason"] in {"GuardRejected", "ForeignMemoryOnDevice"}
    assert conditions(made, world)["Stalled"][0] == "True"
    stands = replace(world, raw={**world.raw, "status": status})
    assert [a.obj["spec"]["replicas"] for a in plan(stands, CONTEXT, NOW).actions] == [0]  # type: ignore[union-attr]
    # Later the device may be free: without pods that refuse, servers are started again.
    stopped = child(replicas=1, **spec)
    stopped["spec"]["replicas"] = 0
    gone = replace(stands, deployment=stopped, server_pods=())
    assert plan(gone, CONTEXT, NOW).requeue_after == pytest.approx(SECOND_CHANCE)
    later, _ = step(gone, SECOND_CHANCE)
    assert [a.obj["spec"]["replicas"] for a in later.actions] == [1]


@pytest.mark.parametrize("outcome", [
    replace(REPORT, device_class=replace(DEVICE, product="NVIDIA-A100")),
    replace(FAILURE, reason="GuardMismatch", message="the model is another one"),
], ids=["another GPU", "another model"])  # fmt: skip
def test_a_mismatch_is_asked_again_and_not_for_ever(outcome: Report | Failure) -> None:
    world = refused(1, outcome, code=11)
    made, status = step(world)
    assert writes(made) == []
    assert conditions(made, world)["Degraded"] == ("True", "GuardMismatch")
    assert conditions(made, world)["Sized"] == ("False", "Stale")
    assert status["rollout"] == {"resizes": 1}
    asked = plan(replace(world, raw={**world.raw, "status": status}), CONTEXT, NOW)
    assert [line.split("-")[0] for line in writes(asked)] == ["create Pod llama"]
    assert asked.status is not None
    assert asked.status["rollout"] == {"resizes": 1}  # not forgotten before a server serves
    worn = {**world.status, "rollout": {"resizes": RESIZES}}
    made, status = step(replace(world, raw={**world.raw, "status": worn}))
    assert status["rollout"]["halted"]["reason"] == "GuardMismatch"


def test_a_guard_that_lets_its_server_start_after_all_is_no_news() -> None:
    world = serving()
    (pod,) = copy.deepcopy(world.server_pods)
    pod["status"]["initContainerStatuses"][0]["restartCount"] = 2
    made, status = step(replace(world, server_pods=(pod,)))
    assert "Degraded" not in conditions(made, world)
    assert "rollout" not in status


DOES_NOT_FIT = replace(FAILURE, reason="BudgetTooSmall", message="2.00 GiB are free")
OTHER_GPU = replace(REPORT, device_class=replace(DEVICE, product="NVIDIA-A100"))


def with_status(given: Observed, made: Plan) -> Observed:
    return replace(given, raw={**given.raw, "status": made.status or given.status})


def resized(count: int) -> dict[str, Any]:
    return {**sized_status(), "rollout": {"resizes": count}}


@pytest.mark.parametrize("ready", [True, False])
def test_servers_of_the_template_before_are_not_risked_for_a_second_chance(*, ready: bool) -> None:
    old = child(template={"annotations": {"example.com/edit": "before"}})
    made = plan(refused(REFUSALS, DOES_NOT_FIT), CONTEXT, NOW)
    later = with_status(serving(), made)
    later = replace(later, deployment=old, server_pods=(server_pod(old, ready=ready),))
    again = plan(later, CONTEXT, NOW + timedelta(seconds=2 * SECOND_CHANCE))
    assert again.actions == ()
    assert conditions(again, later)["Degraded"] == ("True", "GuardRejected")


def test_out_of_memory_has_no_second_chance() -> None:
    made = plan(refused(REFUSALS, DOES_NOT_FIT), CONTEXT, NOW)
    assert made.status is not None
    rollout = copy.deepcopy(made.status["rollout"])
    rollout["halted"] |= {"reason": "OutOfMemoryBackoff", "since": timestamp(NOW)}
    later = replace(serving(), server_pods=())
    later = replace(later, raw={**later.raw, "status": {**made.status, "rollout": rollout}})
    again = plan(later, CONTEXT, NOW + timedelta(days=1))
    assert again.status is not None
    assert again.status["rollout"] == rollout


@pytest.mark.parametrize(("replicas", "ready", "left"), [
    (1, 1, None), (2, 2, None), (2, 1, 2), (1, 0, 2), (0, 0, 2),
], ids=["it serves", "all serve", "one of two", "none", "nobody was asked"])  # fmt: skip
def test_askings_count_until_all_serve(replicas: int, ready: int, left: int | None) -> None:
    given = serving(replicas=replicas, status=resized(2))
    pods = [
        server_pod(given.deployment or {}, number, ready=number < ready)
        for number in range(replicas)
    ]
    made = plan(replace(given, server_pods=tuple(pods)), CONTEXT, NOW)
    assert made.status is not None
    assert (made.status.get("rollout") or {}).get("resizes") == left


def test_one_that_meets_another_gpu_beside_one_that_serves_is_not_asked_for_ever() -> None:
    """Each measurement gives the same number, with which one of two serves."""
    given = refused(1, OTHER_GPU, 11, others=1)
    asked = 0
    for _ in range(4 * RESIZES):
        made = plan(given, CONTEXT, NOW)
        given = with_status(given, made)
        if given.status["capacity"]["sizingKey"] == STALE:
            asked += 1
            # The sizing pod ended, and its result was stored.
            fresh = {**given.status, "capacity": sized_status()["capacity"]}
            given = replace(given, raw={**given.raw, "status": fresh})
    assert asked == RESIZES
    assert conditions(made, given)["Degraded"] == ("True", "GuardMismatch")
