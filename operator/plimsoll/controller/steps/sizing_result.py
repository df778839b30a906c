"""Reading a sizing pod: a result, a failure, or what it is waiting for.

The termination message is untrusted input. It counts only when it decodes, names this very pod and
question, and agrees with the exit code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.objects.names import SIZER, SIZER_FILES
from plimsoll.controller.status import (
    ACCEPTED,
    CAPACITY_AVAILABLE,
    FALSE,
    MODEL_READY,
    SIZED,
    TRUE,
    UNKNOWN,
    Condition,
    clause,
    seconds_since,
    sentence,
    timestamp,
)
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.attempts import Failure
from plimsoll.controller.steps.hints import look_after
from plimsoll.controller.steps.obstacles import scheduling_obstacle, unmounted
from plimsoll.core import report as reports
from plimsoll.core.errors import ResultInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

AGAIN: Final = "Plimsoll tries again by itself."

# The sizer's exit codes: the condition each belongs to, and whether only a person can cure it.
EXITS: Final[Mapping[int, tuple[str, bool]]] = {
    1: (SIZED, True),
    2: (MODEL_READY, True),
    3: (ACCEPTED, True),
    4: (SIZED, False),
    5: (SIZED, False),
}
# Of what is tried again, what stays as it is until the spec or the image changes.
_FOR_GOOD: Final = frozenset({"TorchUnavailable", "CudaUnavailable"})
# Reasons of an end that was no end of the sizer: the runtime could not start it.
_NOT_STARTED: Final = ("StartError", "ContainerCannotRun")
# What to do, by reason, where the sizer cannot know it (that nothing fits, it explains itself).
# {claim} and {path} are the model's place, {node} is where it was tried.
ADVICE: Final[Mapping[str, str]] = {
    "ModelNotFound": "Put the model into claim {claim} at {path}, or correct spec.model; " + AGAIN,
    "ConfigUnreadable": "Repair the model in claim {claim} at {path}; " + AGAIN,
    "WeightsUnreadable": "Repair the model in claim {claim} at {path}; " + AGAIN,
    "UnsupportedArchitecture": "Use a model and engine that docs/limits.md lists, or set "
    "spec.sizing.mode to Fixed.",
    "TorchUnavailable": "Use an image with torch, or set spec.sizing.probe to NVML; " + AGAIN,
    "CudaUnavailable": "Check the driver on node {node} and the CUDA of the engine's image, or set "
    "spec.sizing.probe to NVML; " + AGAIN,
    "SharedDeviceNeedsBudget": "Set spec.accelerator.memoryBudget to the server's share.",
    "NVMLUnavailable": "Check the GPU driver on node {node}; " + AGAIN,
}
# Pod-level rejections by the kubelet: devices that are not (or no longer) there.
_DEVICE_REASONS: Final = ("UnexpectedAdmissionError", "OutOf")
# Mounting and pulling usually end within seconds; later than this, people want to know.
MOUNT_PATIENCE: Final = 60


@dataclass(frozen=True, slots=True)
class Reading:
    """What one sizing pod says; exactly one of report, failure and conditions is set."""

    report: reports.Report | None = None
    failure: Failure | None = None
    conditions: tuple[Condition, ...] = ()
    ended_at: str = ""
    requeue_after: float | None = None


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """Where the model is, for sentences."""

    claim: str
    path: str


def read_sizing_pod(
    pod: Mapping[str, Any], request_hash: str, place: ModelPlace, now: datetime
) -> Reading:
    """Say what the pod has to tell.

    Args:
        pod: a sizing pod of ours.
        request_hash: the question it was asked.
        place: where the model is.
        now: for how long it has been mounting.
    """
    sizer = podstate.container(pod, SIZER)
    end = podstate.terminated(sizer)
    if end:
        return _ended(pod, end, request_hash, place)
    if podstate.is_finished(pod):
        return Reading(failure=_rejected(pod))
    return _waiting(pod, sizer, now)


def _ended(
    pod: Mapping[str, Any], end: Mapping[str, Any], request_hash: str, place: ModelPlace
) -> Reading:
    code, text = int(end.get("exitCode", -1)), str(end.get("message") or "")
    if end.get("reason") in _NOT_STARTED or (code != 0 and not text):
        return Reading(failure=_no_result(pod, end))
    try:
        outcome = reports.decode(text, pod_uid=podstate.uid(pod), request_hash=request_hash)
    except ResultInvalid as error:
        return Reading(failure=_invalid(pod, error.message))
    if isinstance(outcome, reports.Report):
        if code != 0:
            return Reading(failure=_invalid(pod, f"it holds a result but the exit code is {code}"))
        return Reading(report=outcome, ended_at=str(end.get("finishedAt") or ""))
    if code not in EXITS:
        return Reading(failure=_invalid(pod, f"it holds an error but the exit code is {code}"))
    return Reading(failure=_refused(pod, code, outcome, place))


def _refused(
    pod: Mapping[str, Any], code: int, error: reports.Failure, place: ModelPlace
) -> Failure:
    """The sizer's own refusal, in the condition that its exit code belongs to."""
    kind, terminal = EXITS[code]
    reason = error.reason
    terminal = terminal or reason in _FOR_GOOD
    if reason == "InvalidArgument":  # an engine argument, not the model, though the code is 2
        kind, reason = ACCEPTED, "InvalidSpec"
    advice = ADVICE.get(reason, AGAIN).format(
        claim=place.claim, path=place.path, node=podstate.node_name(pod)
    )
    return Failure(Condition(kind, FALSE, reason, f"{sentence(error.message)} {advice}"), terminal)


def _not_started(pod: Mapping[str, Any], said: str) -> Failure:
    carried = any(c.get("name") == SIZER_FILES for c in pod["spec"].get("initContainers") or ())
    advice = "Check the runtime of that node; " + AGAIN
    if carried:  # by the torch probe, into the engine's image
        advice = "The engine's image needs python3 for spec.sizing.probe Torch; set it to NVML."
    message = (
        f"Node {podstate.node_name(pod)} cannot start the sizer of pod {podstate.name(pod)}: "
        f"{clause(said)} {advice}"
    )
    return Failure(Condition(SIZED, FALSE, "SizerCannotStart", message), terminal=carried)


def _invalid(pod: Mapping[str, Any], why: str) -> Failure:
    message = (
        f"The termination message of pod {podstate.name(pod)} is no valid result: {clause(why)} "
        f"It is not used; {AGAIN}"
    )
    return Failure(Condition(SIZED, FALSE, "ResultInvalid", message))


def _no_result(pod: Mapping[str, Any], end: Mapping[str, Any]) -> Failure:
    if end.get("reason") in _NOT_STARTED:
        return _not_started(pod, str(end.get("message") or end["reason"]))
    if pod.get("status", {}).get("reason") == "DeadlineExceeded":
        return _timed_out(pod)
    message = (
        f"The sizer in pod {podstate.name(pod)} left no result (exit code {end.get('exitCode')}, "
        f"{end.get('reason') or 'no reason given'}); see its log. {AGAIN}"
    )
    return Failure(Condition(SIZED, FALSE, "MeasurementFailed", message))


def _timed_out(pod: Mapping[str, Any]) -> Failure:
    message = (
        f"Pod {podstate.name(pod)} did not finish within its deadline; `kubectl describe pod` "
        f"shows where it stood. {AGAIN}"
    )
    return Failure(Condition(SIZED, FALSE, "SizingTimeout", message))


def _rejected(pod: Mapping[str, Any]) -> Failure:
    """The pod ended before its sizer did: the kubelet or the node would not have it."""
    status = pod.get("status", {})
    reason, text = str(status.get("reason") or "Failed"), str(status.get("message") or "")
    if reason == "DeadlineExceeded":
        return _timed_out(pod)
    where = f"node {podstate.node_name(pod)}"
    said = clause(f"{reason}: {text}" if text else reason)
    if reason.startswith(_DEVICE_REASONS):
        message = f"The kubelet on {where} refused pod {podstate.name(pod)}: {said}"
        advice = f"Check the device plugin there; {AGAIN}"
        return Failure(
            Condition(CAPACITY_AVAILABLE, FALSE, "DevicePluginNotReady", f"{message} {advice}")
        )
    message = f"Pod {podstate.name(pod)} on {where} ended without a result: {said} {AGAIN}"
    return Failure(Condition(SIZED, FALSE, "MeasurementFailed", message))


UNASKED: Final = (
    Condition(MODEL_READY, UNKNOWN, "Checking", "The sizing pod will look at the model."),
    Condition(CAPACITY_AVAILABLE, UNKNOWN, "SizingPending", "The sizing pod has no node yet."),
    Condition(SIZED, UNKNOWN, "SizingPending", "The sizing pod has not started yet."),
)
_PLACED: Final = Condition(CAPACITY_AVAILABLE, TRUE, "Scheduled", "A GPU was found.")


def _waiting(pod: Mapping[str, Any], sizer: Mapping[str, Any], now: datetime) -> Reading:
    """The pod has not come to an end: where it stands."""
    obstacle = scheduling_obstacle(pod)
    if obstacle is not None:
        return Reading(conditions=(*UNASKED, obstacle), requeue_after=look_after(pod, now))
    if podstate.node_name(pod) is None:
        return Reading(conditions=UNASKED)
    placed = (*UNASKED, _PLACED)
    if podstate.is_running(sizer):
        running = f"The sizer measures in pod {podstate.name(pod)}."
        return Reading(conditions=(*placed, Condition(SIZED, UNKNOWN, "SizingRunning", running)))
    container = _container_obstacle(pod, sizer)
    if container is not None:
        return Reading(conditions=(*placed, container))
    return _starting(pod, placed, now)


def _starting(pod: Mapping[str, Any], placed: tuple[Condition, ...], now: datetime) -> Reading:
    """The kubelet has the pod; mounting its volumes may take, or fail, without a word in it."""
    waited = _seconds_unmounted(pod, now)
    if waited is None:
        return Reading(conditions=placed)
    if waited < MOUNT_PATIENCE:
        return Reading(conditions=placed, requeue_after=MOUNT_PATIENCE - waited)
    return Reading(conditions=(*placed, unmounted(pod, MOUNT_PATIENCE)))


def _container_obstacle(pod: Mapping[str, Any], sizer: Mapping[str, Any]) -> Condition | None:
    """The kubelet cannot start the sizer, and keeps trying by itself."""
    waiting = podstate.waiting(sizer)
    reason, said = str(waiting.get("reason") or ""), clause(str(waiting.get("message") or ""))
    if reason in podstate.IMAGE_REASONS:
        return Condition(
            SIZED, FALSE, "ImagePullFailed",
            f"Node {podstate.node_name(pod)} cannot get the sizer's image: {said} Make the image "
            "available or set spec.template.imagePullSecrets; it goes on by itself.",
        )  # fmt: skip
    if reason in podstate.CREATE_REASONS:
        return Condition(
            SIZED, FALSE, "MeasurementFailed",
            f"Node {podstate.node_name(pod)} cannot start the sizer ({reason}): {said} {AGAIN}",
        )  # fmt: skip
    return None


def _seconds_unmounted(pod: Mapping[str, Any], now: datetime) -> float | None:
    """For how long the kubelet has had the pod without a sandbox; None when it has one."""
    if podstate.condition(pod, "PodReadyToStartContainers").get("status") != FALSE:
        return None
    started = pod.get("status", {}).get("startTime") or timestamp(now)
    return seconds_since(started, now)
