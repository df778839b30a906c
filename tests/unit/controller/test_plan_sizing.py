"""The step "sized": one question, one pod, one answer, and everything that can come instead."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.objects import (
    sizing_pod,
)
from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.plan import Create, plan
from tests.unit.controller.builders import (
    CONTEXT,
    FAILURE,
    NOW,
    REPORT,
    body,
    born,
    deleting,
    ended,
    message,
    node,
    rejected,
    scheduled,
    server,
    sizer_state,
    unschedulable,
)
from tests.unit.controller.plan_worlds import (
    NO_GPU,
    OLD,
    SZ,
    Row,
    after,
    check,
    conditions,
    forged,
    refuses,
    sized_status,
    sizing,
    text,
    waiting,
    well_formed,
    writes,
)

if TYPE_CHECKING:
    from plimsoll.core.report import Failure, Report

TABLE = [
    # -- from nothing to a number
    waiting(
        "a new server asks a GPU", None,
        writes=[f"create Pod {SZ}"],
        conditions={"Accepted": "True Valid", "ModelReady": "Unknown Checking",
                    "CapacityAvailable": "Unknown SizingPending", "Sized": "Unknown SizingPending",
                    "RolledOut": "False WaitingForSizing", "Available": "False NoReadyReplicas",
                    "Ready": "Unknown SizingPending", "Reconciling": "True SizingPending"},
        events=["Normal SizingStarted"],
    ),
    waiting(
        "nobody has looked at the pod yet", sizing(),
        writes=[], events=[],
        conditions={"Sized": "Unknown SizingPending", "Reconciling": "True SizingPending"},
    ),
    waiting(
        "no GPU is free", unschedulable(sizing(), NO_GPU),
        writes=[], events=["Warning Unschedulable"],
        conditions={"CapacityAvailable": "False Unschedulable", "Ready": "False Unschedulable",
                    "Reconciling": "True Unschedulable"},
        says="nvidia.com/gpu",
    ),
    waiting(
        "somebody gates the pod", unschedulable(sizing(), "gated", "SchedulingGated"),
        writes=[], events=["Warning SchedulingGated"],
        conditions={"CapacityAvailable": "False SchedulingGated"},
        says="gate",
    ),
    waiting(
        "the scheduler itself failed: not for us", unschedulable(sizing(), "x", "SchedulerError"),
        writes=[], events=[], conditions={"CapacityAvailable": "Unknown SizingPending"},
    ),
    waiting(
        "the claim does not exist",
        unschedulable(sizing(), '0/2 nodes are available: persistentvolumeclaim "models" not found.'),
        writes=[], events=["Warning VolumePending"],
        conditions={"ModelReady": "False VolumePending", "Ready": "False VolumePending"},
        says="claim",
    ),
    waiting(
        "the claim is taken by a pod that shares with none",
        unschedulable(sizing(), "node has pod using PersistentVolumeClaim with the same name and "
                      "ReadWriteOncePod access mode"),
        writes=[], events=["Warning VolumeUnavailable"],
        conditions={"ModelReady": "False VolumeUnavailable"},
    ),
    waiting(
        "the volume is being mounted",
        scheduled(sizing(), conditions=[{"type": "PodReadyToStartContainers", "status": "False"}]),
        writes=[], events=[],
        conditions={"ModelReady": "Unknown Checking", "CapacityAvailable": "True Scheduled"},
    ),
    waiting(
        "the volume does not come",
        {**scheduled(sizing()), "status": {
            "phase": "Pending", "startTime": "2026-12-01T11:58:00Z",
            "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]}},
        writes=[], events=["Warning VolumePending"],
        conditions={"ModelReady": "False VolumePending"}, says="kubectl describe pod",
    ),
    waiting(
        "the sizer's image cannot be had",
        sizer_state(scheduled(sizing()), waiting={"reason": "ImagePullBackOff", "message": "not found"}),
        writes=[], events=["Warning ImagePullFailed"],
        conditions={"Sized": "False ImagePullFailed"}, says="not found",
    ),
    waiting(
        "the sizer cannot be created",
        sizer_state(scheduled(sizing()), waiting={"reason": "CreateContainerConfigError", "message": "runAsNonRoot"}),
        writes=[], events=["Warning MeasurementFailed"],
        conditions={"Sized": "False MeasurementFailed"}, says="runAsNonRoot",
    ),
    waiting(
        "the sizer measures", sizer_state(scheduled(sizing()), running={}),
        writes=[], events=[],
        conditions={"CapacityAvailable": "True Scheduled", "Sized": "Unknown SizingRunning",
                    "Ready": "Unknown SizingRunning"},
    ),
    waiting(
        "a result is rolled out by the pass that stores it", ended(sizing()),
        writes=["apply Service llama", "apply Deployment llama"],
        events=["Normal Measured"],
        conditions={"ModelReady": "True Resolved", "CapacityAvailable": "True Scheduled",
                    "Sized": "True Measured", "RolledOut": "False Progressing"},
    ),
    Row(
        "a result whose node could not be read waits for the node's labels",
        observe_from(body(), pods=[ended(sizing())], node=None),
        writes=[], events=[], conditions={"Sized": "Unknown SizingRunning"},
    ),
    Row(
        "a result is not pinned by another node's labels",
        observe_from(body(), pods=[ended(sizing())], node=node("node-b", product="A10")),
        writes=[], events=[], conditions={"Sized": "Unknown SizingRunning"},
    ),
    # -- failures of the sizer: the exit-code table of the design
    waiting(
        "exit 1: too large", refuses("WeightsDoNotFit", "140.00 GiB of weights, 79.00 GiB free", 1),
        writes=[], events=["Warning WeightsDoNotFit"],
        conditions={"Sized": "False WeightsDoNotFit", "Ready": "False WeightsDoNotFit",
                    "Stalled": "True WeightsDoNotFit"},
        says="140.00 GiB",
    ),
    waiting(
        "exit 1: too small a rest", refuses("BudgetTooSmall", "less than minTotalTokenNum", 1),
        writes=[], events=["Warning BudgetTooSmall"],
        conditions={"Sized": "False BudgetTooSmall", "Stalled": "True BudgetTooSmall"},
    ),
    waiting(
        "exit 2: no model", refuses("ModelNotFound", "/models/llama-8b does not exist", 2),
        writes=[], events=["Warning ModelNotFound"],
        conditions={"ModelReady": "False ModelNotFound", "Ready": "False ModelNotFound",
                    "Stalled": "True ModelNotFound"},
        says="Path /models/llama-8b does not exist; put the model into claim models at llama-8b",
    ),
    waiting(
        "exit 2: an argument of the engine, not the model", refuses("InvalidArgument", "--x is odd", 2),
        writes=[], events=["Warning InvalidSpec"],
        conditions={"Accepted": "False InvalidSpec", "ModelReady": "Unknown Checking",
                    "Stalled": "True InvalidSpec"},
    ),
    waiting(
        "exit 3: unknown architecture", refuses("UnsupportedArchitecture", "perceptron9000", 3),
        writes=[], events=["Warning UnsupportedArchitecture"],
        conditions={"Accepted": "False UnsupportedArchitecture", "Stalled": "True UnsupportedArchitecture"},
        says="perceptron9000",
    ),
    waiting(
        "exit 4: no driver", refuses("NVMLUnavailable", "driver not loaded", 4),
        writes=[], events=["Warning NVMLUnavailable"],
        conditions={"Sized": "False NVMLUnavailable", "Reconciling": "True NVMLUnavailable"},
        says="node-a",
    ),
    waiting(
        "exit 5: out of time", refuses("MeasurementFailed", "no answer in 300 s", 5),
        writes=[], events=["Warning MeasurementFailed"],
        conditions={"Sized": "False MeasurementFailed", "Reconciling": "True MeasurementFailed"},
    ),
    # -- results that are not believed
    waiting(
        "forged: another pod's UID",
        forged(message(born(sizing_pod(server(), CONTEXT), "another"))),
        writes=[], events=["Warning ResultInvalid"],
        conditions={"Sized": "False ResultInvalid", "Reconciling": "True ResultInvalid"},
        says="message",
    ),
    waiting("cut off", forged('{"schema":"plimsoll.dev/report.v1","podUID"'), writes=[],
            events=["Warning ResultInvalid"], conditions={"Sized": "False ResultInvalid"}),
    waiting("exit 0 and silence", forged(""), writes=[],
            events=["Warning ResultInvalid"], conditions={"Sized": "False ResultInvalid"}),
    waiting("a result with a failing exit code", ended(sizing(), REPORT, 1), writes=[],
            events=["Warning ResultInvalid"], conditions={"Sized": "False ResultInvalid"}),
    waiting("an error with exit code 0", ended(sizing(), FAILURE, 0), writes=[],
            events=["Warning ResultInvalid"], conditions={"Sized": "False ResultInvalid"}),
    waiting("killed", ended(sizing(), "", 137, reason="OOMKilled"), writes=[],
            events=["Warning MeasurementFailed"], conditions={"Sized": "False MeasurementFailed"},
            says="OOMKilled"),
    waiting("the runtime cannot start it", ended(sizing(), "runc create failed", 128, reason="StartError"),
            writes=[], events=["Warning SizerCannotStart"], conditions={"Sized": "False SizerCannotStart"},
            says="runtime of that node"),
    # -- pods that never came to measure
    waiting("the device plugin is away", rejected(sizing(), "UnexpectedAdmissionError", "no healthy devices present"),
            writes=[], events=["Warning DevicePluginNotReady"],
            conditions={"CapacityAvailable": "False DevicePluginNotReady"}, says="no healthy devices"),
    waiting("the kubelet counts otherwise", rejected(sizing(), "OutOfnvidia.com/gpu", "not enough resource"),
            writes=[], events=["Warning DevicePluginNotReady"],
            conditions={"CapacityAvailable": "False DevicePluginNotReady"}),
    waiting("evicted", rejected(sizing(), "Evicted", "The node was low on memory"),
            writes=[], events=["Warning MeasurementFailed"],
            conditions={"Sized": "False MeasurementFailed"}, says="low on memory"),
    waiting("past its deadline", rejected(sizing(), "DeadlineExceeded", "Pod was active too long"),
            writes=[], events=["Warning SizingTimeout"], conditions={"Sized": "False SizingTimeout"}),
    # -- another question
    Row(
        "a pod of another question gives its GPU to the new one",
        observe_from(body(), pods=[OLD], node=node()),
        writes=["delete Pod uid-of-old-question", f"create Pod {SZ}"],
        conditions={"Sized": "Unknown SizingPending"}, events=["Normal SizingStarted"],
    ),
    Row(
        "a pod that goes away is waited for",
        observe_from(body(), pods=[deleting(sizing())], node=node()),
        writes=[], conditions={"Sized": "Unknown SizingPending"}, events=[],
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_table(row: Row) -> None:
    check(row)


# -- tries --------------------------------------------------------------------------------------


def _tries(outcome: Failure | Report | str, code: int, count: int) -> list[float]:
    """Seconds between the failures and the next pods, over `count` tries of the same outcome."""
    status: dict[str, Any] = {}
    now, delays = NOW, []
    for number in range(count):
        pod = born(sizing_pod(server(), CONTEXT), f"uid-{number}")
        made = plan(
            observe_from(body(status=status), pods=[ended(pod, outcome, code)], node=node()),
            CONTEXT,
            now,
        )
        assert made.actions == ()  # the failure is counted before its pod is touched
        assert made.status is not None
        status = made.status
        assert made.requeue_after is not None
        delays.append(made.requeue_after)
        world = observe_from(body(status=status), pods=[ended(pod, outcome, code)], node=node())
        assert plan(world, CONTEXT, now + timedelta(seconds=made.requeue_after - 0.1)).actions == ()
        now += timedelta(seconds=made.requeue_after)
        restart = plan(world, CONTEXT, now)
        assert writes(restart) == [f"delete Pod uid-{number}"]
        gone = observe_from(body(status=status), node=node())
        assert writes(plan(gone, CONTEXT, now)) == [f"create Pod {SZ}"]
    return delays


def test_what_trying_again_may_cure_is_tried_soon() -> None:
    assert _tries(FAILURE, 4, 8) == [5, 10, 20, 40, 80, 160, 300, 300]
    assert _tries("forged", 0, 2) == [5, 10]


def test_what_only_a_person_can_cure_is_looked_at_slowly() -> None:
    assert _tries(replace(FAILURE, reason="ModelNotFound"), 2, 6) == [30, 60, 120, 240, 300, 300]


def test_a_failure_is_counted_once_for_each_pod() -> None:
    pod = ended(sizing(), FAILURE, 4)
    status: dict[str, Any] = {}
    for _ in range(3):
        made = plan(observe_from(body(status=status), pods=[pod], node=node()), CONTEXT, NOW)
        status = made.status if made.status is not None else status
    assert status["sizing"]["attempts"] == 1


def test_the_failure_stays_visible_while_the_next_try_runs() -> None:
    failed = after(
        observe_from(body(), pods=[ended(sizing(), replace(FAILURE, reason="ModelNotFound"), 2)])
    )
    second = born(sizing_pod(server(), CONTEXT), "uid-second")
    for pods in ([], [second], [sizer_state(scheduled(second), running={})]):
        world = observe_from(body(status=failed), pods=pods)
        made = plan(world, CONTEXT, NOW + timedelta(minutes=1))
        found = conditions(made, world)
        assert found["ModelReady"] == ("False", "ModelNotFound")
        assert found["Stalled"] == ("True", "ModelNotFound")
        assert [e.reason for e in made.events if e.type == "Warning"] == []


def test_a_new_obstacle_replaces_the_old_failure_of_its_kind() -> None:
    status = after(observe_from(body(), pods=[rejected(sizing(), "UnexpectedAdmissionError", "x")]))
    second = unschedulable(born(sizing_pod(server(), CONTEXT), "uid-second"), NO_GPU)
    world = observe_from(body(status=status), pods=[second])
    assert conditions(plan(world, CONTEXT, NOW), world)["CapacityAvailable"] == (
        "False",
        "Unschedulable",
    )


def test_recovery_clears_what_was_wrong() -> None:
    failed = after(
        observe_from(body(), pods=[ended(sizing(), replace(FAILURE, reason="ModelNotFound"), 2)])
    )
    second = ended(born(sizing_pod(server(), CONTEXT), "uid-second"))
    world = observe_from(body(status=failed), pods=[second], node=node())
    made = plan(world, CONTEXT, NOW + timedelta(minutes=1))
    assert conditions(made, world)["ModelReady"] == ("True", "Resolved")
    assert "Stalled" not in conditions(made, world)
    assert made.status is not None
    assert "sizing" not in made.status


def test_a_new_question_starts_afresh() -> None:
    failed = after(observe_from(body(), pods=[ended(sizing(), FAILURE, 4)]))
    spec: dict[str, Any] = {"sizing": {"extraReserve": "1Gi"}}
    made = plan(observe_from(body(status=failed, generation=2, **spec)), CONTEXT, NOW)
    assert [type(a) for a in made.actions] == [Create]
    assert made.status is not None
    assert made.status["sizing"]["attempts"] == 0
    assert "failure" not in made.status["sizing"]


def test_a_vanished_pod_counts_as_a_failed_try() -> None:
    seen = after(observe_from(body(), pods=[scheduled(sizing())]))
    world = observe_from(body(status=seen))
    made = plan(world, CONTEXT, NOW)
    assert made.actions == ()
    assert conditions(made, world)["Sized"] == ("False", "MeasurementFailed")
    assert made.status is not None
    again = observe_from(body(status=made.status))
    assert writes(plan(again, CONTEXT, NOW + timedelta(seconds=5))) == [f"create Pod {SZ}"]


def test_a_clock_that_jumps_cannot_stop_the_tries() -> None:
    status = after(
        observe_from(body(), pods=[ended(sizing(), FAILURE, 4)]), now=NOW + timedelta(days=9)
    )
    made = plan(observe_from(body(status=status), pods=[ended(sizing(), FAILURE, 4)]), CONTEXT, NOW)
    assert made.requeue_after is not None
    assert made.requeue_after <= 300


def _forge(path: str, value: Any) -> Observed:
    """The status after a measurement, with one value of the capacity replaced (None: removed)."""
    status = copy.deepcopy(sized_status())
    *parents, last = path.split(".")
    where = status["capacity"]
    for parent in parents:
        where = where[parent]
    if value is None:
        del where[last]
    else:
        where[last] = value
    return observe_from(body(status=status), node=node())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("maxTotalTokenNum", 999_999_999),
        ("maxTotalTokenNum", 0),
        ("maxTotalTokenNum", -1),
        ("kvCacheBytes", 2**60),
        ("breakdown.kv", 2**60),
        ("breakdown.weights", -(2**60)),
        ("breakdown.deviceFree", 2**60),
        ("bytesPerToken", 0),
        ("granule", 0),
        ("fixedPools", -(2**60)),
        ("modelFile", "../../etc/passwd"),
        ("pinnedLabel.value", None),
        ("pinnedLabel", None),
        ("breakdown", None),
        ("source", "Cached"),
    ],
)
def test_a_stored_number_that_does_not_add_up_is_measured_again(path: str, value: Any) -> None:
    made = plan(_forge(path, value), CONTEXT, NOW)
    assert writes(made) == [f"create Pod {SZ}"]
    assert made.status is not None
    assert "capacity" not in made.status


def test_a_stored_number_that_adds_up_is_used() -> None:
    made = plan(_forge("confidence", "exact"), CONTEXT, NOW)
    assert writes(made) == ["apply Service llama", "apply Deployment llama"]


@pytest.mark.parametrize(
    "failure",
    [{"type": "Ready", "reason": "X", "message": "x"}, {"type": "Sized"}, {"message": "x"}],
)
def test_progress_that_somebody_else_wrote_is_forgotten(failure: dict[str, str]) -> None:
    status = after(observe_from(body()))
    status["sizing"] |= {
        "failure": failure,
        "attempts": 9,
        "nextAttemptTime": "2099-01-01T00:00:00Z",
    }
    made = plan(observe_from(body(status=status)), CONTEXT, NOW)
    assert writes(made) == [f"create Pod {SZ}"]
    well_formed(made)


def test_an_engines_image_without_python_is_for_a_person_to_change() -> None:
    """The torch probe carries the sizer into that image."""
    spec: dict[str, Any] = {"sizing": {"probe": "Torch"}}
    pod = ended(sizing(**spec), 'exec: "python3": not found', 128, reason="StartError")
    world = observe_from(body(**spec), pods=[pod])
    made = plan(world, CONTEXT, NOW)
    assert conditions(made, world)["Sized"] == ("False", "SizerCannotStart")
    assert conditions(made, world)["Stalled"] == ("True", "SizerCannotStart")
    assert "spec.sizing.probe" in text(made, "Sized")
