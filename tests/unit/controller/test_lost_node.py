"""Nodes that come and go: a number that is kept to one of them, and labels that are late."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.objects.workload import deployment
from plimsoll.controller.observed import observe_from
from plimsoll.controller.placement import landscape_from
from plimsoll.controller.plan import plan
from plimsoll.controller.status import timestamp
from plimsoll.controller.steps.capacity import LABEL_PATIENCE, NEW_NODE, STALE, stamp_of
from plimsoll.controller.steps.lost_node import PATIENCE
from tests.unit.controller.builders import (
    CONTEXT,
    NOW,
    body,
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
    conditions,
    sized_status,
    sizing,
    text,
    writes,
)

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed

BARE = {"product": ""}
OTHER = node("node-b", product="")


def lost(*, labels: dict[str, str] | None = None, age: float = PATIENCE) -> Observed:
    """Measured on a node, without a label where none is given, that is gone; its server waits."""
    status = sized_status(BARE if labels is None else labels)
    asked = server()
    live = stored(deployment(asked, stamp_of(asked, status["capacity"]), CONTEXT))
    pod = unschedulable(server_pod(live, 0, ready=False), NO_GPU)
    pod["spec"].pop("nodeName", None)
    pod["metadata"]["creationTimestamp"] = timestamp(NOW - timedelta(seconds=age))
    world = observe_from(body(status=status), deployment=live, pods=[pod])
    return replace(world, landscape=landscape_from([OTHER], [], NOW))


def placed(world: Observed) -> Observed:
    """Another server of the same template, which has a node."""
    assert world.deployment is not None
    other = scheduled(server_pod(world.deployment, 1, ready=False), "node-c")
    return replace(world, server_pods=(*world.server_pods, other))


ROWS: dict[str, tuple[Observed, bool]] = {
    "gone, and the server waits": (lost(), True),
    "the server does not wait for long yet": (lost(age=PATIENCE - 1), False),
    "pinned by a label": (lost(labels={}), False),
    "the node is there": (replace(lost(), node=node("node-a", product="")), False),
    "nodes may not be read": (replace(lost(), nodes_refused=True), False),
    "no picture of the nodes": (replace(lost(), landscape=None), False),
    "a node of that hostname is there": (
        replace(lost(), landscape=landscape_from([node("node-a", product="")], [], NOW)), False,
    ),
    "no node at all": (replace(lost(), landscape=landscape_from([], [], NOW)), True),
    "scaled to zero": (replace(lost(), server_pods=()), False),
    "another server still has a node": (placed(lost()), False),
}  # fmt: skip


@pytest.mark.parametrize(("world", "again"), ROWS.values(), ids=ROWS)
def test_a_number_of_a_node_that_is_gone(world: Observed, *, again: bool) -> None:
    made = plan(world, CONTEXT, NOW)
    status = made.status if made.status is not None else world.status
    assert (status["capacity"]["sizingKey"] == STALE) is again
    assert (conditions(made, world)["Sized"] == ("False", "Stale")) is again
    if again:
        assert writes(made) == []
        assert "The number holds on node node-a only, which is gone" in text(made, "Sized")


def test_it_is_measured_again_and_the_waiting_server_is_left_alone() -> None:
    world = lost()
    status = plan(world, CONTEXT, NOW).status
    asked = replace(world, raw={**world.raw, "status": status})
    made = plan(asked, CONTEXT, NOW)
    assert [line.split("-")[0] for line in writes(made)] == ["create Pod llama"]
    # It may take a node autoscaler minutes, and still no server holds a GPU that is in the way.
    pod = unschedulable(sizing(), NO_GPU)
    waits = replace(asked, sizing_pods=(pod,))
    assert plan(waits, CONTEXT, NOW + timedelta(seconds=600)).actions == ()


@pytest.mark.parametrize(("age", "since", "waits"), [
    (NEW_NODE - 1, 0.0, True),
    (NEW_NODE - 1, LABEL_PATIENCE, False),
    (NEW_NODE + 1, 0.0, False),
    (None, 0.0, False),
], ids=["new", "new, and long enough", "old", "of unknown age"])  # fmt: skip
def test_the_label_of_a_new_node_is_waited_for(
    age: float | None, since: float, *, waits: bool
) -> None:
    now = NOW + timedelta(seconds=since)
    for product, expected in (("", waits), ("NVIDIA-L40S", False)):
        found: dict[str, Any] = node("node-a", product=product)
        if age is not None:
            found["metadata"]["creationTimestamp"] = timestamp(now - timedelta(seconds=age))
        pod = ended(sizing())
        pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["finishedAt"] = timestamp(
            NOW
        )
        world = observe_from(body(), pods=[pod], node=found)
        made = plan(world, CONTEXT, now)
        assert made.status is not None
        assert ("capacity" not in made.status) is expected
        if expected:
            assert "is new and has none of the labels nvidia.com/gpu.product yet" in text(
                made, "Sized"
            )
