"""Is the number true? What the engines report of themselves, against what was stamped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.status import CAPACITY_VERIFIED, FALSE, TRUE, UNKNOWN, Condition
from plimsoll.controller.steps import podstate
from plimsoll.core.drift import Stamped, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.survey import Survey

_STATUS: Final[Mapping[bool | None, str]] = {True: TRUE, False: FALSE, None: UNKNOWN}


def verify(
    observed: Observed, server: InferenceServer, capacity: Mapping[str, Any], pods: Survey
) -> Verdict | None:
    """Compare the ready pods of the current template; None while no engine could be asked.

    Args:
        observed: the world; its ``readings`` are what engines said.
        server: the resource.
        capacity: what was stamped.
        pods: the server pods, by the wanted template.
    """
    current = {podstate.uid(pod) for pod in pods.current if podstate.is_ready(pod)}
    readings = [reading for reading in observed.readings if reading.uid in current]
    return judge(stamped_of(server, capacity), readings) if readings else None


def stamped_of(server: InferenceServer, capacity: Mapping[str, Any]) -> Stamped:
    """The stored capacity as the comparison takes it."""
    pinned = capacity.get("pinned") or {}
    return Stamped(
        engine=server.spec.engine.type,
        tokens=capacity.get("maxTotalTokenNum"),
        blocks=capacity.get("blocks"),
        block_tokens=capacity.get("blockTokens") or pinned.get("blockTokens"),
        kv_bytes=pinned.get("kvCacheBytes") or capacity.get("kvCacheBytes"),
        meaning=capacity.get("tokenMeaning", "AllLayersFull"),
        granule=capacity.get("granule", 1),
    )


def condition(verdict: Verdict) -> Condition:
    """CapacityVerified; it is for people, and no step waits for it."""
    return Condition(CAPACITY_VERIFIED, _STATUS[verdict.matches], verdict.reason, verdict.text)


def published(capacity: Mapping[str, Any], verdict: Verdict | None) -> dict[str, Any]:
    """The capacity with what the engines report, or with what they last did."""
    if verdict is None:
        return dict(capacity)
    kept = {k: v for k, v in capacity.items() if k not in {"engineReportedTokens", "driftPercent"}}
    drift = verdict.drift_percent
    found = {
        "engineReportedTokens": verdict.reported_tokens,
        "driftPercent": None if drift is None else str(drift),
    }
    return {**kept, **{key: value for key, value in found.items() if value is not None}}
