"""What a pass looks at beside the store, and what it leaves alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.cluster import DEPLOYMENTS, Listing, Refused, Retry
from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.senses import FRESH, Senses, wants_nodes, wants_replica_sets, within
from tests.unit.controller.builders import NAMESPACE, body, deleting, server_pod, unschedulable
from tests.unit.controller.plan_worlds import child, converged, sizing

if TYPE_CHECKING:
    from collections.abc import Sequence

NEW = observe_from(body())
CHANGED = observe_from({**converged().raw, "metadata": body(generation=2)["metadata"]})
HALTED = {"inputsHash": "x", "halted": {"reason": "OutOfMemoryBackoff", "message": "", "since": ""}}


class Everything:
    """Readers that count how they are asked; as cluster they answer, or do not."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.asked: list[Any] = []
        self.answer = answer

    async def look(self, within: float | None = None) -> None:
        self.asked.append(("nodes", within))

    async def read(self, raw_pods: Sequence[Any], engine_type: str, port: int) -> tuple[()]:
        self.asked.append(("engines", engine_type, port, len(raw_pods)))
        return ()

    async def list(self, resource: Any, namespace: str | None = None) -> Listing:
        self.asked.append((resource.plural, namespace))
        if self.answer is not None:
            raise self.answer
        ours = {"metadata": {"name": "llama-1", "ownerReferences": [owner("uid-of-deployment")]}}
        other = {"metadata": {"name": "other-1", "ownerReferences": [owner("another")]}}
        return Listing([ours, other], "1")


def owner(uid: str) -> dict[str, Any]:
    return {"kind": DEPLOYMENTS.kind, "name": "llama", "uid": uid, "controller": True}


def sensed(world: Observed, every: Everything) -> Observed:
    senses = Senses(every, every, every)  # type: ignore[arg-type]  # one double for all
    return asyncio.run(senses(world))


def status_of(world: Observed, **more: Any) -> Observed:
    return replace(world, raw={**world.raw, "status": {**world.status, **more}})


@pytest.mark.parametrize(("world", "wanted"), [
    (NEW, True),
    (converged(), False),
    (CHANGED, True),
    (status_of(converged(), conditions=[]), True),
])  # fmt: skip
def test_nodes_are_looked_at_until_the_resource_is_as_asked_for(
    world: Observed, *, wanted: bool
) -> None:
    assert wants_nodes(world) is wanted


def test_nodes_are_looked_at_while_a_kubelet_is_said_to_be_too_old() -> None:
    """Nothing else would tell that it was upgraded: the server may be ready beside it."""
    for reason, wanted in (("KubeletTooOld", True), ("OutOfMemoryBackoff", False)):
        said = {"type": "Degraded", "status": "True", "reason": reason}
        world = converged()
        assert (
            wants_nodes(status_of(world, conditions=[*world.status["conditions"], said])) is wanted
        )


def test_a_rollout_that_begins_takes_a_fresh_look() -> None:
    progressing = {"type": "RolledOut", "status": "False", "reason": "Progressing"}
    assert within(NEW) == FRESH
    assert within(status_of(NEW, conditions=[progressing])) is None


def test_while_a_pod_waits_for_a_node_an_older_look_does() -> None:
    """It is looked at every few seconds; that it was given a node is told by the watch."""
    waits = unschedulable(sizing(), "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    assert within(replace(NEW, sizing_pods=(waits,))) is None
    assert within(replace(NEW, sizing_pods=(sizing(),))) == FRESH


def test_former_templates_are_read_only_where_one_was_given_up() -> None:
    assert not wants_replica_sets(converged())
    assert wants_replica_sets(status_of(converged(), rollout=HALTED))
    assert not wants_replica_sets(replace(status_of(NEW, rollout=HALTED), deployment=None))


def test_each_sense_is_asked_where_it_matters() -> None:
    for world, expected in (
        (NEW, [("nodes", FRESH)]),
        (converged(), [("engines", "LightLLM", 8000, 1)]),
        (replace(NEW, sizing_pods=(sizing(),)), [("nodes", FRESH)]),
        (observe_from(deleting(body())), []),
        (observe_from(body(replicas=-1)), []),
    ):
        every = Everything()
        sensed(world, every)
        assert every.asked == expected


def halted() -> Observed:
    world = status_of(converged(), rollout=HALTED)
    live = child()
    live["metadata"]["uid"] = "uid-of-deployment"
    return replace(world, deployment=live, server_pods=(server_pod(live),))


def test_the_replica_sets_are_those_of_our_deployment() -> None:
    every = Everything()
    found = sensed(halted(), every)
    assert ("replicasets", NAMESPACE) in every.asked
    assert [rs["metadata"]["name"] for rs in found.replica_sets] == ["llama-1"]


@pytest.mark.parametrize("answer", [Retry("later"), Refused(403, "Forbidden", "no")])
def test_what_may_not_be_read_fails_no_pass(answer: Exception) -> None:
    assert sensed(halted(), Everything(answer)).replica_sets == ()
