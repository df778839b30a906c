"""The step "accepted", the user's own number, and what the API server refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from plimsoll.controller.objects import (
    service,
)
from plimsoll.controller.observed import observe_from
from plimsoll.controller.plan import Plan, plan, plan_refusal
from tests.unit.controller.builders import (
    CONTEXT,
    LLAMACPP,
    NOW,
    body,
    node,
    server,
    server_pod,
    stored,
)
from tests.unit.controller.plan_worlds import (
    SZ,
    Row,
    check,
    child,
    conditions,
    converged,
    sized_status,
    sizing,
    text,
    well_formed,
    writes,
)

TABLE = [
    # -- not accepted
    Row(
        "an owned flag: nothing is measured, what runs stays",
        replace(observe_from(
            body(generation=2, status=dict(converged().status),
                 engine={"type": "LightLLM", "image": "x:v1.2.0", "args": ["--max-total-token-num=5"]}),
            deployment=child(), service=stored(service(server())), pods=[server_pod(child())], node=node())),
        writes=[],
        conditions={"Accepted": "False FlagNotAllowed", "Sized": "Unknown NotAccepted",
                    "RolledOut": "Unknown NotAccepted", "Available": "True MinimumReplicas",
                    "Ready": "False FlagNotAllowed", "Stalled": "True FlagNotAllowed"},
        events=["Warning FlagNotAllowed"], says="--max-total-token-num",
    ),
    Row(
        "an abbreviated owned flag",
        observe_from(body(engine={"type": "LightLLM", "image": "x:v1.2.0", "args": ["--max_total_token_n", "5"]})),
        writes=[], conditions={"Accepted": "False FlagNotAllowed"}, events=["Warning FlagNotAllowed"],
        says="--max_total_token_n",
    ),
    Row(
        "an owned environment name",
        observe_from(body(engine=LLAMACPP | {"env": [{"name": "LLAMA_ARG_CTX_SIZE", "value": "5"}]})),
        writes=[], conditions={"Accepted": "False FlagNotAllowed"}, events=["Warning FlagNotAllowed"],
        says="LLAMA_ARG_CTX_SIZE",
    ),
    Row(
        "a spec that cannot be read: a measurement that nobody will use ends",
        observe_from(body(engine={"type": "Abacus", "image": "x"}), pods=[sizing()], deployment=child()),
        writes=["delete Pod uid-of-pod"],
        conditions={"Accepted": "False InvalidSpec", "Stalled": "True InvalidSpec"},
        events=["Warning InvalidSpec"], says="spec.engine.type",
    ),
    Row(
        "a foreign Deployment has the name",
        observe_from(body(), deployment={"kind": "Deployment", "metadata": {"name": "llama"}, "spec": {}}),
        writes=[], conditions={"Accepted": "False Conflict", "Stalled": "True Conflict"},
        events=["Warning Conflict"], says="controlled by nobody",
    ),
    Row(
        "a foreign Service has the name",
        observe_from(body(), service={"metadata": {"name": "llama", "ownerReferences": [
            {"kind": "Widget", "name": "w", "uid": "other", "controller": True}]}}),
        writes=[], conditions={"Accepted": "False Conflict"}, events=["Warning Conflict"], says="Widget w",
    ),
    Row(
        "a foreign pod has the sizing pod's name",
        observe_from(body(), pods=[{**sizing(), "metadata": {**sizing()["metadata"], "ownerReferences": []}}]),
        writes=[], conditions={"Accepted": "False Conflict"}, events=["Warning Conflict"], says=SZ,
    ),
    # -- the user's own number
    Row(
        "a fixed number needs no GPU to be asked",
        observe_from(body(sizing={"mode": "Fixed", "maxTotalTokenNum": 4096})),
        writes=["apply Service llama", "apply Deployment llama"],
        conditions={"Sized": "True UserProvided", "RolledOut": "False Progressing"},
        events=[],
    ),
    Row(
        "a fixed number of a one-file engine needs the file",
        observe_from(body(engine=LLAMACPP, sizing={"mode": "Fixed", "maxTotalTokenNum": 4096})),
        writes=[], conditions={"Accepted": "False InvalidSpec"}, events=["Warning InvalidSpec"],
        says="spec.model.file",
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_table(row: Row) -> None:
    check(row)


# -- refusals -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class No:
    status: int
    reason: str
    message: str


QUOTA = No(
    403,
    "Forbidden",
    f'pods "{SZ}" is forbidden: exceeded quota: no-gpus, requested: requests.nvidia.com/gpu=1',
)
REFUSALS = [
    (QUOTA, "CapacityAvailable", "QuotaExceeded", "no-gpus"),
    (
        No(403, "Forbidden", f'pods "{SZ}" is forbidden: violates PodSecurity "restricted:latest": x'),
        "CapacityAvailable", "PodSecurityViolation", "restricted:latest",
    ),
    (
        No(403, "Forbidden", f'pods "{SZ}" is forbidden: maximum memory usage per Container is 1Mi'),
        "CapacityAvailable", "PodRefused", "maximum memory",
    ),
    (No(422, "Invalid", f'Pod "{SZ}" is invalid: spec.x: bad'), "Accepted", "InvalidSpec", "spec.x"),
]  # fmt: skip


@pytest.mark.parametrize(("refusal", "kind", "reason", "word"), REFUSALS)
def test_refused_sizing_pod(refusal: No, kind: str, reason: str, word: str) -> None:
    world = observe_from(body())
    made = plan_refusal(world, CONTEXT, NOW, refusal)
    assert made.actions == ()
    assert conditions(made, world)[kind] == ("False", reason)
    assert word in text(made, "Ready")
    assert [(e.type, e.reason) for e in made.events] == [("Warning", reason)]
    assert made.requeue_after == 5
    well_formed(made)


def test_refused_again_is_no_news_and_tried_ever_more_rarely() -> None:
    status = plan_refusal(observe_from(body()), CONTEXT, NOW, QUOTA).status
    world = observe_from(body(status=status))
    waits = []
    for minutes in (0, 1, 10):
        made = plan_refusal(world, CONTEXT, NOW + timedelta(minutes=minutes), QUOTA)
        assert (made.status, made.events) == (None, ())
        waits.append(made.requeue_after)
    assert waits == [5, 30, 60]
    assert writes(plan(world, CONTEXT, NOW)) == [f"create Pod {SZ}"]


def test_refused_deployment() -> None:
    world = observe_from(body(status=sized_status()), node=node())
    made = plan_refusal(
        world, CONTEXT, NOW, No(403, "Forbidden", "deployments.apps is forbidden: no")
    )
    assert conditions(made, world)["RolledOut"] == ("False", "ApplyRefused")
    assert conditions(made, world)["Sized"] == ("True", "Measured")


def test_refused_scaling_is_not_blamed_on_the_sizing_pod() -> None:
    spec: dict[str, Any] = {"replicas": 0, "sizing": {"extraReserve": "1Gi"}}
    world = replace(
        converged(), raw=body(status=dict(converged().status), **spec), server=server(**spec)
    )
    made = plan_refusal(
        world, CONTEXT, NOW, No(403, "Forbidden", "deployments.apps llama is forbidden: no")
    )
    assert conditions(made, world)["RolledOut"] == ("False", "ApplyRefused")


@pytest.mark.parametrize(
    ("refusal", "wait"),
    [
        (No(404, "NotFound", "namespaces not found"), None),
        (
            No(403, "Forbidden", f'pods "{SZ}" is forbidden: namespace team is being terminated'),
            None,
        ),
        (No(429, "TooManyRequests", "later"), 1),
    ],
)
def test_refusals_that_need_no_words(refusal: No, wait: float | None) -> None:
    assert plan_refusal(observe_from(body()), CONTEXT, NOW, refusal) == Plan(requeue_after=wait)


def test_a_name_taken_by_somebody_else_s_pod_is_a_conflict_and_looked_at_again() -> None:
    said = f"Pod {SZ} exists and is not this InferenceServer's; delete it, or rename the server"
    made = plan_refusal(observe_from(body()), CONTEXT, NOW, No(409, "Conflict", said))
    assert conditions(made, observe_from(body()))["Ready"] == ("False", "Conflict")
    assert made.requeue_after
    well_formed(made)
