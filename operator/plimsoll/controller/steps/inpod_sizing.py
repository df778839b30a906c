"""The step "sized" where each server measures for itself: what their own sizers have found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.objects import inpod
from plimsoll.controller.objects.context import FILE_KEY_REF
from plimsoll.controller.objects.hashes import sizing_key
from plimsoll.controller.objects.versions import version_to_render
from plimsoll.controller.status import (
    CAPACITY_AVAILABLE,
    DEGRADED,
    MODEL_READY,
    SIZED,
    TRUE,
    UNKNOWN,
    Condition,
    timestamp,
)
from plimsoll.controller.steps import capacity as capacities
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.gpu_classes import node_of, reports
from plimsoll.controller.steps.survey import survey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects import Stamp
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.mode import InPod
    from plimsoll.core.report import Report

KUBELET_TOO_OLD: Final = "KubeletTooOld"


def conditions(capacity: Mapping[str, Any] | None, chosen: InPod) -> tuple[Condition, ...]:
    """What is known, in the words of people who wait for a number."""
    if capacity is None:
        sized = Condition(
            SIZED, UNKNOWN, "SizingPending",
            f"Each server measures its own GPU as it starts, because {chosen.why}; none has yet.",
        )  # fmt: skip
    else:
        gpu = (capacity.get("gpu") or {}).get("product")
        sized = Condition(
            SIZED, TRUE, "InPod",
            f"Each server measures its own GPU as it starts, because {chosen.why}: at least "
            f"{capacity['maxTotalTokenNum']} tokens on {gpu}.",
        )  # fmt: skip
    return (
        Condition(MODEL_READY, TRUE, "Resolved", "Each server reads the model as it starts."),
        Condition(CAPACITY_AVAILABLE, TRUE, "Scheduled", "No sizing pod is needed."),
        sized,
    )


def found_capacity(
    observed: Observed,
    server: InferenceServer,
    stored: Mapping[str, Any] | None,
    stamp: Stamp,
    now: datetime,
    source: str = capacities.IN_POD,
) -> dict[str, Any] | None:
    """The least of what the servers of this template have measured, in the form of the status.

    A stored number stays while it is the same, so that the status is not written on every pass.
    """
    _, fingerprint = version_to_render(server, stamp, observed.deployment)
    found = reports(survey(observed, fingerprint).current)
    kept = dict(stored) if stored is not None and stored["source"] == source else None
    if not found:
        return kept
    pod, least = min(found, key=lambda pair: pair[1].max_total_token_num)
    steps = (kept or {}).get("shrinkSteps")
    if kept is not None and _says_the_same(kept, least):
        return kept
    fresh = capacities.measured(
        server,
        least,
        node=node_of(observed, pod),
        request_hash=sizing_key(server),
        at=timestamp(now),
    )
    more = {"shrinkSteps": steps} if steps else {}
    return {**fresh, "source": source, **more}


def too_old_kubelet(observed: Observed, server: InferenceServer, stamp: Stamp) -> Condition | None:
    """Degraded, where a server got to a node whose kubelet leaves its numbers empty; else None.

    Such a node has come, or was let in, after the template was rendered; that is never changed
    under servers that run.
    """
    if stamp.transport != FILE_KEY_REF or observed.landscape is None:
        return None
    _, fingerprint = version_to_render(server, stamp, observed.deployment)
    kubelets = {node.name: node.kubelet for node in observed.landscape.nodes}
    for pod in survey(observed, fingerprint).current:
        node = podstate.node_name(pod)
        found = kubelets.get(node or "", _UNKNOWN)
        if _UNKNOWN < found < inpod.FILE_KEY_REF_SINCE:
            return Condition(
                DEGRADED, TRUE, KUBELET_TOO_OLD,
                f"Pod {podstate.name(pod)} gets no numbers, because the kubelet of node {node} is "
                f"{_version(found)} and fileKeyRef needs {_version(inpod.FILE_KEY_REF_SINCE)}. "
                "Upgrade that node, or keep servers away from it by spec.template.nodeSelector.",
            )  # fmt: skip
    return None


_UNKNOWN: Final = (0, 0)


def _version(kubelet: tuple[int, int]) -> str:
    return f"{kubelet[0]}.{kubelet[1]}"


def _says_the_same(kept: Mapping[str, Any], report: Report) -> bool:
    return (kept["maxTotalTokenNum"], kept["modelDigest"], kept["gpu"]["product"]) == (
        report.max_total_token_num,
        report.model_digest,
        report.device_class.product,
    )
