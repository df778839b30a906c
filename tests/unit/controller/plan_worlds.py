"""Worlds that a pass may find, and how a row of a plan table is checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plimsoll.controller.actions import Patch
from plimsoll.controller.objects import Stamp, deployment, request_hash, service, sizing_pod
from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.plan import Action, Delete, Plan, plan
from plimsoll.controller.steps.capacity import stamp_of
from tests.unit.controller.builders import (
    CONTEXT,
    FAILURE,
    NOW,
    body,
    born,
    ended,
    node,
    server,
    server_pod,
    stored,
)

if TYPE_CHECKING:
    from datetime import datetime


def sizing(**spec: Any) -> dict[str, Any]:
    """The sizing pod of the spec, as stored."""
    return born(sizing_pod(server(**spec), CONTEXT))


def after(*worlds: Observed, now: datetime = NOW) -> dict[str, Any]:
    """The status after passes over these worlds, each seeing the status of the one before."""
    status: dict[str, Any] = {}
    for world in worlds:
        made = plan(observe_from({**world.raw, "status": status}, **_children(world)), CONTEXT, now)
        status = made.status if made.status is not None else status
    return status


def _children(world: Observed) -> dict[str, Any]:
    return {
        "deployment": world.deployment,
        "service": world.service,
        "pods": (*world.sizing_pods, *world.server_pods),
        "node": world.node,
    }


def sized_status(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """The status right after a result was persisted."""
    pod = ended(sizing(**spec))
    return after(observe_from(body(**spec), pods=[pod], node=node(**(labels or {}))))


def stamp(**spec: Any) -> Stamp:
    """What that result puts into the template."""
    return stamp_of(server(**spec), sized_status(**spec)["capacity"])


def child(**spec: Any) -> dict[str, Any]:
    """The Deployment of a measured server, as stored."""
    return stored(deployment(server(**spec), stamp(**spec), CONTEXT))


def serving(*, ready: bool = True, status: dict[str, Any] | None = None, **spec: Any) -> Observed:
    """A measured server with all its children."""
    live = child(**spec)
    pods = [server_pod(live, i, ready=ready) for i in range(live["spec"]["replicas"])]
    return observe_from(
        body(**spec, status=status if status is not None else sized_status(**spec)),
        deployment=live,
        service=stored(service(server(**spec))),
        pods=pods,
        node=node(),
    )


def converged(**spec: Any) -> Observed:
    """The same, once its status says so."""
    world = serving(**spec)
    return replace(world, raw={**world.raw, "status": _settle(world)})


def _settle(world: Observed) -> dict[str, Any]:
    made = plan(world, CONTEXT, NOW)
    assert made.status is not None
    return made.status


def conditions(made: Plan, observed: Observed) -> dict[str, tuple[str, str]]:
    status = made.status if made.status is not None else observed.status
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def text(made: Plan, kind: str) -> str:
    assert made.status is not None
    (found,) = (c["message"] for c in made.status["conditions"] if c["type"] == kind)
    return str(found)


def writes(made: Plan) -> list[str]:
    """The writes, one word and one name each."""
    return [_said(action) for action in made.actions]


def _said(action: Action) -> str:
    if isinstance(action, Delete):
        return f"delete {action.kind} {action.uid}"
    obj = action.live if isinstance(action, Patch) else action.obj
    return f"{type(action).__name__.lower()} {obj['kind']} {obj['metadata']['name']}"


SZ = f"llama-sz-{request_hash(server(), CONTEXT)[:7]}"
NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def refuses(reason: str, message: str, code: int) -> dict[str, Any]:
    return ended(sizing(), replace(FAILURE, reason=reason, message=message), code)


def forged(message: str) -> dict[str, Any]:
    return ended(sizing(), message)


@dataclass(frozen=True)
class Row:
    """One row of the table; ``says`` are words of the message of Ready."""

    name: str
    given: Observed
    writes: list[str]
    conditions: dict[str, str]
    events: list[str]
    says: str = ""


def waiting(name: str, pod: dict[str, Any] | None, **more: Any) -> Row:
    """A row about a sizing pod and nothing else."""
    given = observe_from(body(), pods=[pod] if pod else [], node=node())
    return Row(name, given, **more)


OLD = born({**sizing_pod(server(sizing={"extraReserve": "9Gi"}), CONTEXT)}, "uid-of-old-question")


def check(row: Row) -> None:
    """One pass over the row's world writes exactly this, and says exactly that."""
    made = plan(row.given, CONTEXT, NOW)
    if made.status is None:  # it said so before
        made = replace(made, status=dict(row.given.status))
    found = {kind: " ".join(pair) for kind, pair in conditions(made, row.given).items()}
    assert writes(made) == row.writes
    assert found.items() >= row.conditions.items(), found
    assert [f"{e.type} {e.reason}" for e in made.events] == row.events
    assert row.says in text(made, "Ready")
    well_formed(made)
    _told_once(row.given, made)


def well_formed(made: Plan) -> None:
    """What holds for every status: one sentence each, the summary is consistent, no nulls."""
    assert made.status is not None
    found = {c["type"]: c for c in made.status["conditions"]}
    for condition in found.values():
        assert condition["message"].endswith("."), condition
        assert re.match(r"[A-Z]", condition["message"]), condition
        assert condition["observedGeneration"] >= 1
        assert "\n" not in condition["message"]
        assert condition["lastTransitionTime"].endswith("Z")
    ladder = ("Accepted", "ModelReady", "CapacityAvailable", "Sized", "RolledOut", "Available")
    all_true = all(found[kind]["status"] == "True" for kind in ladder)
    assert (found["Ready"]["status"] == "True") is all_true
    assert ". " not in found["Ready"]["message"]  # it is one sentence
    beside = {"CapacityVerified", "UpdateAvailable", "Degraded"}
    assert found.keys() - {*ladder, "Ready"} - beside <= {"Reconciling", "Stalled"}
    assert ("Reconciling" in found) + ("Stalled" in found) == (0 if all_true else 1)
    assert not re.search(r"(node|pod|on|in) None", str([c["message"] for c in found.values()]))
    assert "null" not in repr(made.status)
    assert None not in made.status.values()


def _told_once(given: Observed, made: Plan) -> None:
    """The next pass over the same world tells no transition again."""
    world = replace(given, raw={**given.raw, "status": made.status})
    again = plan(world, CONTEXT, NOW)
    about_actions = {"SizingStarted", "Created", "Scaled", "RolloutStarted", "PutRight"}
    old = {(e.reason, e.message) for e in made.events}
    assert not [
        e for e in again.events if e.reason not in about_actions and (e.reason, e.message) in old
    ]
