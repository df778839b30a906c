"""The step "rolled out": servers in trouble, and the node label that a number is pinned to."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from plimsoll.controller.actions import Patch
from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.plan import Apply, Plan, plan
from plimsoll.controller.status import timestamp
from tests.unit.controller.builders import (
    CONTEXT,
    FAILURE,
    GPU_LABEL,
    NOW,
    body,
    crashed,
    deleting,
    ended,
    message,
    node,
    scheduled,
    server,
    server_pod,
    sizer_state,
    unschedulable,
)
from tests.unit.controller.plan_worlds import (
    NO_GPU,
    Row,
    check,
    child,
    conditions,
    converged,
    serving,
    sized_status,
    sizing,
)


def sizer_crashed(pod: dict[str, Any]) -> dict[str, Any]:
    """The guard failed with a report of its own and waits to be restarted."""
    found = sizer_state(pod, waiting={"reason": "CrashLoopBackOff", "message": "back-off"})
    end = {"exitCode": 4, "message": message(pod, FAILURE)}
    found["status"]["initContainerStatuses"][0]["lastState"] = {"terminated": end}
    return found


def born_now(pod: dict[str, Any]) -> dict[str, Any]:
    """Created a second ago."""
    pod["metadata"]["creationTimestamp"] = timestamp(NOW - timedelta(seconds=1))
    return pod


CUDA_OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory"
NO_SHRINK: dict[str, Any] = {"onOutOfMemory": {"action": "None"}}

TABLE = [
    # -- servers in trouble
    Row(
        "the engine is killed for memory",
        replace(serving(ready=False), server_pods=(crashed(server_pod(child()), 137, "OOMKilled"),)),
        writes=[], events=["Warning OutOfMemory"],
        conditions={"Available": "False OutOfMemory", "Ready": "False OutOfMemory"}, says="memory limit",
    ),
    Row(
        "the engine runs out of GPU memory: a smaller pool is stored before it is stamped",
        replace(serving(ready=False), server_pods=(
            crashed(server_pod(child()), 1, "Error", CUDA_OOM),)),
        writes=[], events=["Warning PoolShrunk", "Warning OutOfMemory"],
        conditions={"Available": "False OutOfMemory", "Degraded": "True OutOfMemoryBackoff"},
        says="CUDA out of memory",
    ),
    Row(
        "the engine runs out of GPU memory and the pool is the user's to change",
        replace(serving(ready=False, sizing=NO_SHRINK), server_pods=(
            crashed(server_pod(child(sizing=NO_SHRINK)), 1, "Error", CUDA_OOM),)),
        writes=[], events=["Warning OutOfMemory"],
        conditions={"Available": "False OutOfMemory", "RolledOut": "False Progressing"},
        says="extraReserve",
    ),
    Row(
        "the engine crashes",
        replace(serving(ready=False), server_pods=(crashed(server_pod(child()), 2, "Error", "no such flag"),)),
        writes=[], events=["Warning CrashLoop"],
        conditions={"Available": "False CrashLoop", "Ready": "False CrashLoop"}, says="no such flag",
    ),
    Row(
        "a server that was complete and crashes is no rollout",
        replace(converged(), server_pods=(crashed(server_pod(child()), 2, "Error", "segfault"),)),
        writes=[], events=["Warning CrashLoop"],
        conditions={"RolledOut": "True Complete", "Available": "False CrashLoop", "Ready": "False CrashLoop"},
    ),
    Row(
        "the server pod finds no GPU",
        replace(serving(ready=False), server_pods=(unschedulable(server_pod(child(), ready=False), NO_GPU),)),
        writes=[], events=["Warning Unschedulable"],
        conditions={"CapacityAvailable": "False Unschedulable", "Ready": "False Unschedulable"},
    ),
    Row(
        "the server pod waits for a GPU that a draining pod holds: nothing to do",
        replace(serving(ready=False), server_pods=(
            unschedulable(server_pod(child(), ready=False), NO_GPU), deleting(server_pod(child(), 1)))),
        writes=[], events=[],
        conditions={"CapacityAvailable": "True Scheduled", "RolledOut": "False Progressing"},
    ),
    Row(
        "the server pod waits for the GPU that its sizing pod is about to give back: nothing to do",
        replace(serving(ready=False), sizing_pods=(scheduled(sizing()),), server_pods=(
            unschedulable(server_pod(child(), ready=False), NO_GPU),)),
        writes=["delete Pod uid-of-pod"], events=[],
        conditions={"CapacityAvailable": "True Scheduled", "RolledOut": "False Progressing"},
    ),
    Row(
        "a server pod of this second finds no GPU: the scheduler has not seen that one was given back",
        replace(serving(ready=False), server_pods=(
            born_now(unschedulable(server_pod(child(), ready=False), NO_GPU)),)),
        writes=[], events=[],
        conditions={"CapacityAvailable": "True Scheduled", "RolledOut": "False Progressing"},
    ),
    Row(
        "the sizer in the server pod fails",
        replace(serving(ready=False), server_pods=(sizer_crashed(server_pod(child(), ready=False)),)),
        writes=[], events=["Warning SizerFailed"],
        conditions={"Available": "False SizerFailed", "Ready": "False SizerFailed"},
        says="NVMLUnavailable: NVML says: driver not loaded",
    ),
    # -- no class label
    Row(
        "without a class label one replica stays on its node",
        observe_from(body(status=sized_status({"product": ""})), node=node(product="")),
        writes=["apply Service llama", "apply Deployment llama"],
        conditions={"Sized": "True Measured"}, events=[],
    ),
    Row(
        "without a class label two replicas cannot be kept on their kind of GPU",
        observe_from(body(replicas=2, status=sized_status({"product": ""})), node=node(product="")),
        writes=[], conditions={"Sized": "False ClassUnpinnable", "Stalled": "True ClassUnpinnable"},
        events=["Warning ClassUnpinnable"], says="classLabelKeys",
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_table(row: Row) -> None:
    check(row)


# -- the pin ------------------------------------------------------------------------------------


def _pin_of(world: Observed) -> Any:
    made = plan(world, CONTEXT, NOW)
    (wanted,) = (
        a.obj for a in made.actions if isinstance(a, Apply) and a.obj["kind"] == "Deployment"
    )
    affinity = wanted["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    return expression["key"], expression["values"]


def test_pin_falls_back_to_the_hostname() -> None:
    world = observe_from(body(status=sized_status({"product": ""})))
    assert _pin_of(world) == ("kubernetes.io/hostname", ["node-a"])


def test_a_node_that_may_not_be_read_is_pinned_by_its_name_after_a_while() -> None:
    world = observe_from(body(), pods=[ended(sizing())])
    assert plan(world, CONTEXT, NOW + timedelta(seconds=120)).requeue_after == 5
    made = plan(world, CONTEXT, NOW + timedelta(seconds=130))
    assert made.status is not None
    assert made.status["capacity"]["pinnedLabel"] == {
        "key": "kubernetes.io/hostname",
        "value": "node-a",
    }


def test_unpinnable_server_recovers_when_its_node_is_labelled() -> None:
    status = sized_status({"product": ""})
    world = observe_from(body(replicas=2, status=status), node=node(product="H100"))
    assert _pin_of(world) == (GPU_LABEL, ["H100"])


def test_pin_survives_what_happens_to_the_nodes_labels() -> None:
    """Another pin is another template: a label that changes or goes must not restart servers."""
    for world in (node(product="renamed"), node(product=""), node("node-z"), None):
        assert plan(replace(converged(), node=world), CONTEXT, NOW) == Plan()


def test_pin_follows_the_keys_that_the_user_wants() -> None:
    spec: dict[str, Any] = {"accelerator": {"classLabelKeys": ["cloud/gpu"]}}
    world = observe_from(body(status=sized_status(), **spec), node=node(**{"cloud/gpu": "h100"}))
    assert _pin_of(world) == ("cloud/gpu", ["h100"])


def test_a_count_that_the_api_leaves_out_is_zero() -> None:
    """`kubectl rollout restart`: for a moment the old pods are all there is, with the same inputs."""
    world = converged()
    live = copy.deepcopy(world.deployment)
    assert live is not None
    live["metadata"]["generation"] = 2
    live["status"] = {"observedGeneration": 2, "replicas": 1}
    made = plan(replace(world, deployment=live), CONTEXT, NOW)
    assert conditions(made, world)["RolledOut"] == ("False", "Progressing")
    assert made.actions == ()


def test_a_field_that_the_user_takes_away_is_not_said_to_be_others() -> None:
    """One patch brings the whole new template; who once wrote the field is not known from it."""
    world = converged(template={"nodeSelector": {"pool": "gpu"}})
    spec: dict[str, Any] = {"sizing": {"mode": "Fixed", "maxTotalTokenNum": 4096}}
    edited = replace(
        world, server=server(**spec), raw=body(generation=2, status=dict(world.status), **spec)
    )
    made = plan(edited, CONTEXT, NOW)
    (patch,) = made.actions
    assert isinstance(patch, Patch)
    (note,) = (event for event in made.events if event.retells)
    assert (note.type, note.reason) == ("Normal", "RolloutStarted")
    assert "nodeSelector" in note.message
    assert "others" not in note.message + patch.why


def test_what_others_add_is_said_to_be_theirs() -> None:
    world = converged()
    assert world.deployment is not None
    world.deployment["spec"]["template"]["spec"]["hostNetwork"] = True
    made = plan(world, CONTEXT, NOW)
    (note,) = made.events
    assert (note.type, note.reason) == ("Warning", "ForeignChange")
    assert "others added spec.template.spec.hostNetwork" in note.message
