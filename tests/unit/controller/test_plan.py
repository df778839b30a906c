"""plan as a table: given objects, wanted writes, wanted conditions, wanted events.

Read a row as: in this world, one pass writes exactly this, and says exactly that. This file has a
server's whole life; the others have what can go wrong in it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from plimsoll.controller.objects import (
    deployment,
    request_hash,
    sizing_key,
)
from plimsoll.controller.observed import observe_from, wanted_node
from plimsoll.controller.plan import Apply, Plan, plan
from tests.unit.controller.builders import (
    CONTEXT,
    GPU_LABEL,
    NOW,
    PRODUCT,
    REPORT,
    TOKENS,
    body,
    deleting,
    ended,
    node,
    scheduled,
    server,
    server_pod,
    stored,
    unschedulable,
)
from tests.unit.controller.plan_worlds import (
    NO_GPU,
    Row,
    after,
    check,
    child,
    conditions,
    converged,
    serving,
    sized_status,
    sizing,
    stamp,
    writes,
)

MORE_RESERVE = {"extraReserve": "1Gi"}
OTHER_SZ = f"llama-sz-{request_hash(server(sizing=MORE_RESERVE), CONTEXT)[:7]}"

TABLE = [
    # -- from a number to a server
    Row(
        "a persisted number is written",
        observe_from(body(status=sized_status()), pods=[ended(sizing())], node=node()),
        writes=["apply Service llama", "apply Deployment llama"],
        conditions={"Sized": "True Measured", "RolledOut": "False Progressing"},
        events=[],
    ),
    Row(
        "the sizing pod goes once the number is written",
        replace(serving(ready=False), sizing_pods=(ended(sizing()),)),
        writes=["delete Pod uid-of-pod"],
        conditions={"RolledOut": "False Progressing", "Available": "False NoReadyReplicas",
                    "Ready": "False Progressing", "Reconciling": "True Progressing"},
        events=[],
    ),
    Row(
        "all is well", serving(), writes=[],
        conditions={"Accepted": "True Valid", "ModelReady": "True Resolved",
                    "CapacityAvailable": "True Scheduled", "Sized": "True Measured",
                    "RolledOut": "True Complete", "Available": "True MinimumReplicas", "Ready": "True Ready"},
        events=["Normal Ready"], says="http://llama.team.svc:80",
    ),
    Row(
        "a Deployment that somebody deleted comes back with the same number",
        replace(converged(), deployment=None, server_pods=()),
        writes=["apply Deployment llama"],
        conditions={"Sized": "True Measured", "RolledOut": "False Progressing"}, events=["Normal Created"],
    ),
    Row(
        "a Service that somebody deleted comes back",
        replace(converged(), service=None), writes=["apply Service llama"],
        conditions={"RolledOut": "False Progressing", "Available": "True MinimumReplicas"},
        events=["Normal Created"],
    ),
    Row(
        "a child that is being deleted is waited for",
        replace(converged(), deployment=deleting(child()), server_pods=()), writes=[],
        conditions={"RolledOut": "False WaitingForTermination"}, events=[],
    ),
    Row(
        "scaled to zero", serving(replicas=0), writes=[],
        conditions={"RolledOut": "True ScaledToZero", "Available": "True ScaledToZero", "Ready": "True Ready"},
        events=["Normal Ready"], says="raise spec.replicas",
    ),
    # -- re-sizing
    Row(
        "a changed spec is measured while the old server goes on",
        replace(converged(), server=server(sizing=MORE_RESERVE),
                raw=body(generation=2, status=dict(converged().status), sizing=MORE_RESERVE)),
        writes=[f"create Pod {OTHER_SZ}"],
        conditions={"Sized": "Unknown SizingPending", "RolledOut": "False WaitingForSizing",
                    "Available": "True MinimumReplicas", "Ready": "Unknown SizingPending"},
        events=["Normal SizingStarted"],
    ),
    Row(
        "scaling goes on while a re-size waits",
        replace(converged(), server=server(replicas=0, sizing=MORE_RESERVE),
                raw=body(generation=2, status=dict(converged().status), replicas=0, sizing=MORE_RESERVE)),
        writes=[f"create Pod {OTHER_SZ}", "apply Deployment llama"],
        conditions={"Sized": "Unknown SizingPending"}, events=["Normal SizingStarted", "Normal Scaled"],
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_table(row: Row) -> None:
    check(row)


# -- facts that rows do not show ----------------------------------------------------------------


def test_a_deleted_resource_gets_no_plan() -> None:
    assert plan(observe_from(deleting(body()), pods=[sizing()]), CONTEXT, NOW) == Plan()


def test_converged_world_needs_nothing() -> None:
    """No write, no status, no event, no timer: rest."""
    assert plan(converged(), CONTEXT, NOW + timedelta(hours=1)) == Plan()
    assert plan(converged(replicas=0), CONTEXT, NOW) == Plan()
    assert plan(converged(replicas=3), CONTEXT, NOW) == Plan()


def test_capacity_in_full() -> None:
    capacity = sized_status()["capacity"]
    assert capacity["measuredAt"] == "2026-12-01T12:00:05Z"
    assert capacity["sizingKey"] == sizing_key(server())
    assert capacity["requestHash"] == request_hash(server(), CONTEXT)
    breakdown = capacity["breakdown"]
    terms = breakdown["weights"] + sum(breakdown["reserve"].values()) + breakdown["safety"]
    assert breakdown["freeAfterInit"] - terms == breakdown["kv"] == capacity["kvCacheBytes"]
    cells = (breakdown["kv"] - capacity["fixedPools"]) // capacity["bytesPerToken"]
    assert cells // capacity["granule"] * capacity["granule"] == capacity["maxTotalTokenNum"]
    assert capacity["concurrencyAtContext"] == {"context": 131072, "requests": "3.12"}
    assert capacity["gpu"] == {
        "product": PRODUCT, "totalBytes": REPORT.device_class.total_bytes,
        "freeBytes": REPORT.budget.device_free, "driver": "580.159.04", "count": 1,
    }  # fmt: skip
    assert capacity["pinnedLabel"] == {"key": GPU_LABEL, "value": PRODUCT}
    assert (capacity["source"], capacity["node"]) == ("Measured", "node-a")


def test_number_reaches_the_template() -> None:
    world = observe_from(body(status=sized_status()), node=node())
    (made,) = (
        a.obj
        for a in plan(world, CONTEXT, NOW).actions
        if isinstance(a, Apply) and a.obj["kind"] == "Deployment"
    )
    args = made["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--max_total_token_num={TOKENS}" in args
    assert made == deployment(server(), stamp(), CONTEXT)


def test_status_of_a_serving_server() -> None:
    status = converged(replicas=2).status
    assert status["ready"] == "2/2"
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (2, 2, 2)
    assert status["selector"] == "plimsoll.dev/server=llama"
    assert status["endpoint"] == "http://llama.team.svc:80"
    assert status["observedGeneration"] == 1
    assert [(p["name"], p["node"], p["tokens"], p["ready"]) for p in status["pods"]] == [
        ("llama-7d9f-0", "node-a", TOKENS, True),
        ("llama-7d9f-1", "node-a", TOKENS, True),
    ]
    assert status["effective"].items() >= {
        "mode": "Stamped", "strategy": "RollingUpdate", "maxSurge": 0, "maxUnavailable": 1,
        "contextLength": 131072, "tensor": 1, "engineVersion": "1.2.0",
    }.items()  # fmt: skip
    assert "sizing" not in status


def test_a_changed_argument_is_put_right_and_the_reason_told() -> None:
    world = converged()
    assert world.deployment is not None
    args = world.deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    spot = next(i for i, a in enumerate(args) if a.startswith("--max_total_token_num"))
    args[spot] = "--max_total_token_num=5"
    made = plan(world, CONTEXT, NOW)
    assert writes(made) == ["apply Deployment llama"]
    (note,) = made.events
    assert note.reason == "PutRight"
    assert (
        f'args[{spot}]: "--max_total_token_num=5" is not "--max_total_token_num={TOKENS}"'
        in note.message
    )


def test_operator_upgrade_is_no_news_to_a_running_server() -> None:
    """Another sizer image asks no GPU, writes no child, and is told in one condition."""
    newer = replace(
        CONTEXT, sizer_image="ghcr.io/plimsoll-dev/sizer:0.2.0", sizer_pull_policy="Always"
    )
    world = converged()
    made = plan(world, newer, NOW)
    assert made.status is not None
    told = [c for c in made.status["conditions"] if c["type"] == "UpdateAvailable"]
    assert [c["status"] for c in told] == ["True"]
    rest = [c for c in made.status["conditions"] if c["type"] != "UpdateAvailable"]
    assert {**made.status, "conditions": rest} == world.status
    assert (made.actions, made.events, made.requeue_after) == ((), (), None)


def test_old_pods_do_not_make_a_server_available() -> None:
    """A rollout whose new pod has not started: the ready pod is of the old template."""
    old = stored(deployment(server(), replace(stamp(), max_total_token_num=5), CONTEXT))
    world = replace(serving(), server_pods=(server_pod(old),))
    found = conditions(plan(world, CONTEXT, NOW), world)
    assert found["Available"] == ("False", "NoReadyReplicas")
    assert found["RolledOut"] == ("False", "Progressing")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"observedGeneration": 0}, "Progressing"),
        ({}, "Progressing"),  # never written, though its pods are there: their watch was ahead
        ({"observedGeneration": 1, "updatedReplicas": 0, "replicas": 1}, "Progressing"),
        (
            {
                "conditions": [
                    {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
                ]
            },
            "ReplicaCreateFailed",
        ),
        (
            {
                "conditions": [
                    {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
                ]
            },
            "ProgressDeadlineExceeded",
        ),
    ],
)
def test_the_deployments_status_gives_reasons_only(status: dict[str, Any], reason: str) -> None:
    world = serving(ready="conditions" not in status)
    assert world.deployment is not None
    world.deployment["status"] = status
    made = plan(world, CONTEXT, NOW)
    assert conditions(made, world)["RolledOut"] == ("False", reason)
    assert ("Stalled" in conditions(made, world)) is (reason == "ProgressDeadlineExceeded")


def test_condition_times_answer_since_when() -> None:
    first = after(observe_from(body()))
    later = after(observe_from(body()), now=NOW)
    assert first == later
    world = observe_from(body(status=first, generation=2), pods=[unschedulable(sizing(), NO_GPU)])
    status = plan(world, CONTEXT, NOW + timedelta(minutes=5)).status
    assert status is not None
    found = {c["type"]: c for c in status["conditions"]}
    assert found["Accepted"]["lastTransitionTime"] == "2026-12-01T12:00:00Z"
    assert found["CapacityAvailable"]["lastTransitionTime"] == "2026-12-01T12:05:00Z"
    assert {c["observedGeneration"] for c in found.values()} == {2}


def test_wanted_node() -> None:
    assert wanted_node(body(), [scheduled(sizing(), "node-b")]) == "node-b"
    assert wanted_node(body(), [sizing()]) is None
    assert wanted_node(body(status=sized_status()), []) is None  # it has found its label
    by_host = sized_status({"product": ""})
    assert wanted_node(body(status=by_host), []) == "node-a"
    keys = {"classLabelKeys": ["cloud/gpu"]}
    assert wanted_node(body(status=sized_status(), accelerator=keys), []) == "node-a"
    assert wanted_node(body(status=sized_status()), [scheduled(sizing(), "node-b")]) is None
    asked_anew = scheduled(sizing(sizing={"extraReserve": "1Gi"}), "node-b")
    assert wanted_node(body(status=sized_status()), [asked_anew]) == "node-b"


def test_only_a_replica_set_makes_server_pods() -> None:
    impostor = server_pod(child())
    impostor["metadata"]["ownerReferences"] = []
    assert observe_from(body(), pods=[impostor]).server_pods == ()
    assert len(observe_from(body(), pods=[server_pod(child())]).server_pods) == 1
