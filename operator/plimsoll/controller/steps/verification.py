"""Is the number true? What the engines report of themselves, against what was stamped."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.status import CAPACITY_VERIFIED, FALSE, TRUE, UNKNOWN, Condition
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.capacity import ENGINES_OWN, IN_POD, believable
from plimsoll.controller.steps.survey import guard_outcome
from plimsoll.core.drift import Stamped, Verdict, judge
from plimsoll.core.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.survey import Survey
    from plimsoll.core.drift import PodReading

# What is put to a capacity by the engines, and not by whoever found it.
_FOUND: Final = frozenset({"engineReportedTokens", "driftPercent"})
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
    own = capacity.get("source") == IN_POD
    by_tokens: dict[int | None, list[PodReading]] = {}
    told = {reading.uid: reading for reading in observed.readings}
    for pod in pods.current:
        reading = told.get(podstate.uid(pod))
        if reading is None or not podstate.is_ready(pod):
            continue
        outcome = guard_outcome(pod) if own else None
        tokens = outcome.max_total_token_num if isinstance(outcome, Report) else None
        by_tokens.setdefault(tokens, []).append(reading)
    verdicts = [
        judge(stamped_of(server, capacity, tokens), readings)
        for tokens, readings in by_tokens.items()
    ]
    return max(verdicts, key=_distance, default=None)


def _distance(verdict: Verdict) -> Decimal:
    """How far off; what could not be compared is less telling than what could."""
    return Decimal(-1) if verdict.drift_percent is None else abs(verdict.drift_percent)


def stamped_of(
    server: InferenceServer, capacity: Mapping[str, Any], tokens: int | None = None
) -> Stamped:
    """The stored capacity as the comparison takes it.

    Args:
        server: the resource.
        capacity: what was stamped.
        tokens: the number of pods that measured for themselves; None: the stored one.
    """
    pinned = capacity.get("pinned") or {}
    same = tokens is None or tokens == capacity.get("maxTotalTokenNum")
    return Stamped(
        engine=server.spec.engine.type,
        tokens=capacity.get("maxTotalTokenNum") if tokens is None else tokens,
        blocks=capacity.get("blocks") if same else None,
        block_tokens=capacity.get("blockTokens") or pinned.get("blockTokens"),
        kv_bytes=(pinned.get("kvCacheBytes") or capacity.get("kvCacheBytes")) if same else None,
        meaning=capacity.get("tokenMeaning", "AllLayersFull"),
        granule=capacity.get("granule", 1),
        predicted=capacity.get("source") == ENGINES_OWN,
    )


def condition(verdict: Verdict) -> Condition:
    """CapacityVerified; it is for people, and no step waits for it."""
    return Condition(CAPACITY_VERIFIED, _STATUS[verdict.matches], verdict.reason, verdict.text)


def remembered(capacity: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """The capacity with what the engines last reported of this very number, as the status has it."""
    before = believable(status) or {}
    same = {key: value for key, value in before.items() if key not in _FOUND} == dict(capacity)
    return dict(before) if same else dict(capacity)


def published(capacity: Mapping[str, Any], verdict: Verdict | None) -> dict[str, Any]:
    """The capacity with what the engines report, or with what they last did."""
    if verdict is None:
        return dict(capacity)
    kept = {key: value for key, value in capacity.items() if key not in _FOUND}
    drift = verdict.drift_percent
    found = {
        "engineReportedTokens": verdict.reported_tokens,
        "driftPercent": None if drift is None else str(drift),
    }
    return {**kept, **{key: value for key, value in found.items() if value is not None}}
