"""What keeps one pod from running, as the condition that says so and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.controller.status import CAPACITY_AVAILABLE, FALSE, MODEL_READY, Condition, clause
from plimsoll.controller.steps import podstate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

UNSCHEDULABLE: Final = "Unschedulable"

_VOLUME_WORDS: Final = ("persistentvolumeclaim", "readwriteoncepod")


def scheduling_obstacle(pod: Mapping[str, Any]) -> Condition | None:
    """Why the scheduler has not placed the pod, or None when it has or has not said."""
    scheduled = podstate.condition(pod, "PodScheduled")
    if scheduled.get("status") != FALSE:
        return None
    reason, message = str(scheduled.get("reason")), str(scheduled.get("message") or "")
    if reason == "SchedulingGated":
        return Condition(
            CAPACITY_AVAILABLE, FALSE, "SchedulingGated",
            f"Pod {podstate.name(pod)} is held back by a scheduling gate; it goes on once whoever "
            "set the gate removes it.",
        )  # fmt: skip
    if reason != UNSCHEDULABLE:
        return None
    words = message.lower()
    if "insufficient" not in words and any(word in words for word in _VOLUME_WORDS):
        return _volume_obstacle(pod, message)
    return Condition(
        CAPACITY_AVAILABLE, FALSE, UNSCHEDULABLE,
        f"No node can take pod {podstate.name(pod)}: {clause(message)} Free a GPU, add a node, "
        "or change spec.accelerator or spec.template; it goes on by itself.",
    )  # fmt: skip


def _volume_obstacle(pod: Mapping[str, Any], message: str) -> Condition:
    if "readwriteoncepod" in message.lower():
        return Condition(
            MODEL_READY, FALSE, "VolumeUnavailable",
            f"Pod {podstate.name(pod)} cannot use the model's volume while another pod does: "
            f"{clause(message)} Use a claim that several pods may read.",
        )  # fmt: skip
    return Condition(
        MODEL_READY, FALSE, "VolumePending",
        f"The model's volume is not there yet: {clause(message)} Create or bind the claim named "
        "in spec.model.source; it goes on by itself.",
    )  # fmt: skip


def unmounted(pod: Mapping[str, Any], seconds: float) -> Condition:
    """The kubelet has had the pod for long and has not started its sandbox."""
    return Condition(
        MODEL_READY, FALSE, "VolumePending",
        f"Node {podstate.node_name(pod)} has not mounted the volumes of pod {podstate.name(pod)} "
        f"after {int(seconds)} s; `kubectl describe pod` shows the kubelet's events.",
    )  # fmt: skip
