"""What servers that measure for themselves have found, and a kubelet that gives them nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.objects import Stamp
from plimsoll.controller.objects.context import FILE_KEY_REF
from plimsoll.controller.plan import plan
from plimsoll.controller.steps.gpu_classes import MOST_CLASSES
from tests.unit.controller.builders import CONTEXT, NOW, PRODUCT, REPORT, TOKENS, message
from tests.unit.controller.inpod_worlds import A100, WRAPPED, known, kubelets, measuring
from tests.unit.controller.plan_worlds import conditions, text, writes

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.placement import Landscape

BY_KUBELET = Stamp(transport=FILE_KEY_REF)
HALF = TOKENS // 2


def said(world: Observed, number: int, tokens: int) -> Observed:
    """The world in which that server's sizer found so many tokens."""
    pods = copy.deepcopy(world.server_pods)
    device = next(iter(_reported(pods[number])))
    end = pods[number]["status"]["initContainerStatuses"][0]["state"]["terminated"]
    report = replace(REPORT, device_class=replace(REPORT.device_class, product=device))
    end["message"] = message(pods[number], replace(report, max_total_token_num=tokens))
    return replace(world, server_pods=pods)


def _reported(pod: dict[str, Any]) -> set[str]:
    end = pod["status"]["initContainerStatuses"][0]["state"]["terminated"]
    return {product for product in (PRODUCT, A100) if product in end["message"]}


def capacity(world: Observed) -> dict[str, Any]:
    found = known(world).status["capacity"]
    assert isinstance(found, dict)
    return found


def test_the_least_is_what_is_promised() -> None:
    found = capacity(said(measuring(products=(PRODUCT, PRODUCT, A100)), 2, HALF))
    assert found["maxTotalTokenNum"] == HALF
    assert (found["gpu"]["product"], found["node"]) == (A100, "n2")


def test_what_is_known_stays_while_servers_restart_and_say_the_same() -> None:
    world = known(measuring())
    assert plan(world, CONTEXT, NOW + timedelta(hours=1)).status is None
    gone = replace(world, server_pods=())
    made = plan(gone, CONTEXT, NOW)
    assert conditions(made, gone)["Sized"] == ("True", "InPod")
    assert known(gone).status["capacity"] == world.status["capacity"]


def test_what_was_made_smaller_is_counted_on() -> None:
    world = known(measuring())
    steps = {**world.status["capacity"], "shrinkSteps": 2}
    status = {**world.status, "capacity": steps}
    shrunk = replace(world, raw={**world.raw, "status": status})
    found = capacity(said(shrunk, 0, HALF))
    assert (found["maxTotalTokenNum"], found["shrinkSteps"]) == (HALF, 2)


def test_a_result_of_a_sizing_pod_is_not_theirs() -> None:
    """Another number was measured under another way; the servers' own replaces it."""
    world = known(measuring(sizing={"mode": "InPod"}))
    status = {**world.status, "capacity": {**world.status["capacity"], "source": "Measured"}}
    world = replace(world, raw={**world.raw, "status": status})
    assert capacity(world)["source"] == "InPod"


def test_a_class_has_its_least_number_and_its_pods() -> None:
    world = said(measuring(products=(PRODUCT, A100, PRODUCT)), 2, HALF)
    pods = copy.deepcopy(world.server_pods)
    for condition in pods[0]["status"]["conditions"]:
        condition["status"] = "False" if condition["type"] == "Ready" else condition["status"]
    found = known(replace(world, server_pods=pods)).status["classes"]
    assert [(c["product"], c["maxTotalTokenNum"], c["pods"], c["ready"]) for c in found] == [
        (A100, TOKENS, 1, 1),
        (PRODUCT, HALF, 2, 1),
    ]


def test_a_status_lists_so_many_classes_and_no_more() -> None:
    products = tuple(f"ACME-{number:02}" for number in range(MOST_CLASSES + 1))
    assert len(known(measuring(products=products)).status["classes"]) == MOST_CLASSES


# -- a kubelet that does not fill in the numbers ------------------------------------------------

OLD: list[tuple[str, Stamp, Landscape | None, bool]] = [
    ("old", BY_KUBELET, kubelets("v1.34.9"), True),
    ("old, another one first", BY_KUBELET, kubelets("v1.35.0", "v1.30.0"), True),
    ("new", BY_KUBELET, kubelets("v1.35.0", "v1.36.0"), False),
    ("an old node without a server", BY_KUBELET, kubelets("v1.35.0", "v1.35.0", "v1.30.0"), False),
    ("the wrapper does not care", WRAPPED, kubelets("v1.34.9"), False),
    ("nodes unknown", BY_KUBELET, None, False),
    ("a version that says nothing", BY_KUBELET, kubelets("unknown"), False),
    ("the node is not listed", BY_KUBELET, kubelets(), False),
]


@pytest.mark.parametrize(("stamp", "nodes", "told"), [r[1:] for r in OLD], ids=[r[0] for r in OLD])
def test_a_kubelet_that_is_too_old(stamp: Stamp, nodes: Landscape | None, *, told: bool) -> None:
    world = replace(measuring(stamp, products=(PRODUCT, PRODUCT)), landscape=nodes)
    made = plan(world, CONTEXT, NOW)
    assert writes(made) == []  # what runs is not restarted for a node that came later
    degraded = conditions(made, world).get("Degraded")
    assert degraded == (("True", "KubeletTooOld") if told else None)


def test_it_names_the_pod_the_node_and_both_versions() -> None:
    world = replace(measuring(BY_KUBELET), landscape=kubelets("v1.34.9"))
    said = text(plan(world, CONTEXT, NOW), "Degraded")
    for word in ("llama-7d9f-0", "node n0", "1.34", "1.35", "spec.template.nodeSelector"):
        assert word in said


def test_it_goes_with_the_pod_and_with_an_upgrade_of_the_node() -> None:
    world = known(replace(measuring(BY_KUBELET), landscape=kubelets("v1.34.9")))
    for later in (
        replace(world, server_pods=()),
        replace(world, landscape=kubelets("v1.36.0")),
    ):
        assert "Degraded" not in conditions(plan(later, CONTEXT, NOW), later)
