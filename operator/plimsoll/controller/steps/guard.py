"""What a guard said that refused to let its server start, and the number it measured instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.objects.names import SIZER
from plimsoll.controller.status import DEGRADED, TRUE, Condition, clause
from plimsoll.controller.steps import capacity as capacities
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.survey import guard_outcome
from plimsoll.core.report import Failure, Report
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.crd.types import InferenceServer

# The sizer's exit codes as a guard.
TOO_LITTLE_MEMORY: Final = 10
MISMATCH: Final = 11

FOREIGN: Final = "ForeignMemoryOnDevice"
REJECTED: Final = "GuardRejected"
MEMORY_REASONS: Final = frozenset({FOREIGN, REJECTED})
# Free bytes may differ by a context or two from one start to the next; more is somebody's pool.
STRANGER: Final = GIB // 2


@dataclass(frozen=True, slots=True)
class Refusal:
    """One guard's last word; ``count``: how often it has refused in this pod."""

    pod: str
    node: str | None
    count: int
    mismatch: bool
    outcome: Report | Failure | None


def refusals(pods: Iterable[Mapping[str, Any]]) -> list[Refusal]:
    """The pods whose guard refused the last time it looked."""
    found = []
    for pod in pods:
        status = podstate.container(pod, SIZER)
        code = podstate.last_end(status).get("exitCode")
        if code not in {TOO_LITTLE_MEMORY, MISMATCH}:
            continue
        restarts = int(status.get("restartCount", 0))
        count = restarts if podstate.is_running(status) else restarts + 1
        outcome = guard_outcome(pod)
        found.append(
            Refusal(podstate.name(pod), podstate.node_name(pod), count, code == MISMATCH, outcome)
        )
    return found


def too_little(refusal: Refusal, capacity: Mapping[str, Any], follows: str) -> Condition:
    """The number does not fit on the device: because of a stranger there, or by itself.

    Args:
        refusal: what the guard said.
        capacity: the number that it refused.
        follows: what comes of it, a sentence.
    """
    where = f"pod {refusal.pod} on node {refusal.node}"
    looks = f"refusal {refusal.count}"
    if not isinstance(refusal.outcome, Report):
        said = refusal.outcome.message if refusal.outcome is not None else "it left no result"
        return Condition(
            DEGRADED, TRUE, REJECTED,
            f"The guard of {where} lets no server start ({looks}): {clause(said)} Free the device, "
            f"or lower what the server needs. {follows}",
        )  # fmt: skip
    report = refusal.outcome
    free, before = report.budget.device_free, capacity["gpu"]["freeBytes"]
    fits = f"{report.max_total_token_num} of {capacity['maxTotalTokenNum']} tokens fit there now"
    if before - free > STRANGER:
        device = ", ".join(report.devices)
        return Condition(
            DEGRADED, TRUE, FOREIGN,
            f"Something else holds memory of device {device}: {_gib(free)} are free for {where}, "
            f"{_gib(before)} were when it was sized, and {fits} ({looks}). Stop what runs there. "
            f"{follows}",
        )  # fmt: skip
    return Condition(
        DEGRADED, TRUE, REJECTED,
        f"The guard of {where} lets no server start ({looks}): {fits}. {follows}",
    )  # fmt: skip


def mismatch(refusal: Refusal) -> Condition:
    """The device or the model is another one than the number was made for."""
    said = "the GPU is another one"
    if isinstance(refusal.outcome, Report):
        said = f"the GPU is a {refusal.outcome.device_class.product}"
    elif refusal.outcome is not None:
        said = refusal.outcome.message
    return Condition(
        DEGRADED, TRUE, "GuardMismatch",
        f"The number was made for something else than pod {refusal.pod} on node {refusal.node} "
        f"found: {clause(said)}",
    )  # fmt: skip


def remeasured(
    server: InferenceServer, capacity: Mapping[str, Any], refusal: Refusal
) -> dict[str, Any] | None:
    """The capacity as the refusing guard measured it; None where that is of no use.

    Of no use is a number that is not smaller, and one below what the user asks for at least.
    """
    report = refusal.outcome
    if not isinstance(report, Report):
        return None
    asked = server.spec.sizing
    least = max(asked.min_total_token_num or 1, asked.context_length or 1)
    if not least <= report.max_total_token_num < capacity["maxTotalTokenNum"]:
        return None
    pin = capacity["pinnedLabel"]
    fresh = capacities.measured(
        server,
        report,
        node={"metadata": {"name": refusal.node or capacity["node"]}},
        request_hash=capacity["requestHash"],
        at=capacity["measuredAt"],
    )
    kept = {"pinnedLabel": pin, "shrinkSteps": capacity.get("shrinkSteps", 0) + 1}
    # What was free when the question was asked stays: it is how a stranger is recognised.
    gpu = {**fresh["gpu"], "freeBytes": capacity["gpu"]["freeBytes"]}
    return {**fresh, **kept, "gpu": gpu, "predictedTokens": capacity["predictedTokens"]}


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
