"""The last step: everything found, as one status, a few events and the time of the next look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import Delete, EventNote, Plan
from plimsoll.controller.crd.types import INPOD
from plimsoll.controller.objects.labels import selector_text
from plimsoll.controller.objects.names import endpoint, inputs_hash_of
from plimsoll.controller.objects.versions import LATEST, newest, version_of
from plimsoll.controller.objects.workload import (
    progress_deadline,
    server_port,
    startup_seconds,
)
from plimsoll.controller.status import (
    CAPACITY_AVAILABLE,
    CAPACITY_VERIFIED,
    DEGRADED,
    FALSE,
    LADDER,
    MODEL_READY,
    READY,
    RECONCILING,
    SIZED,
    STALLED,
    TRUE,
    UNKNOWN,
    WAITING_REASONS,
    Condition,
    merged,
    previous,
    same_status,
    seconds_since,
    summary,
    written,
)
from plimsoll.controller.steps.capacity import believable
from plimsoll.controller.steps.gpu_classes import classes, spoken
from plimsoll.controller.steps.learned import lesson
from plimsoll.controller.steps.survey import listed
from plimsoll.controller.steps.update import update_available
from plimsoll.controller.steps.verification import condition as verified
from plimsoll.controller.steps.verification import published, verify

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects import BuildContext
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.rollout import Rollout
    from plimsoll.controller.steps.sizing import Sizing
    from plimsoll.core.drift import Verdict

# How soon to look again at what no watch reports: a foreign object that went away.
RECHECK: Final = 15.0
# Seconds for which an engine that tells no size is asked again soon; after that, at each resync.
READING_PATIENCE: Final = 300.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What the steps of one pass found."""

    observed: Observed
    accepted: Condition
    sizing: Sizing
    rollout: Rollout
    tidied: tuple[Delete, ...]
    context: BuildContext

    @property
    def verdict(self) -> Verdict | None:
        """What the engines say about the number; None while none was asked.

        Without a template of this number the pods that run carry another, and would be called wrong.
        """
        server, capacity = self.observed.server, self.sizing.capacity
        if server is None or capacity is None or self.rollout.template is None:
            return None
        return verify(self.observed, server, capacity, self.rollout.pods)


def conclude(found: Findings, now: datetime) -> Plan:
    """The plan of a pass whose writes are expected to succeed."""
    conditions = all_conditions(found)
    return Plan(
        # Deletions first: what they free may be what a new pod needs.
        actions=(
            *found.tidied,
            *found.sizing.actions,
            *found.rollout.actions,
            *lesson(found.observed, found.sizing, found.rollout.pods, now),
        ),
        status=changed_status(found, conditions, now),
        events=(*found.sizing.events, *found.rollout.events, *transitions(found, conditions)),
        requeue_after=_soonest(
            found.sizing.requeue_after,
            found.rollout.requeue_after,
            RECHECK if found.accepted.reason == "Conflict" else None,
            _next_reading(found, now),
        ),
    )


def _next_reading(found: Findings, now: datetime) -> float | None:
    """An engine that has just become ready may not tell its size yet, and no watch reports it."""
    verdict = found.verdict
    if verdict is None or verdict.matches is not None:
        return None
    before = previous(found.observed.status, CAPACITY_VERIFIED)
    since = before.get("lastTransitionTime")
    fresh = since is None or seconds_since(str(since), now) < READING_PATIENCE
    return RECHECK if fresh else None


def all_conditions(found: Findings, *extra: Condition) -> list[Condition]:
    """The ladder, its summary, and the abnormal ones where they are true."""
    ladder = merged(
        (*_UNKNOWN, found.accepted, *found.sizing.conditions, *found.rollout.conditions, *extra)
    )
    ready = summary(ladder, _ready_message(found))
    beside = _beside(found, ladder)
    ladder = [condition for condition in ladder if condition.type in LADDER]
    if ready.status == TRUE:
        return merged((*ladder, ready, *beside))
    accepted = next(condition for condition in ladder if condition.type == "Accepted")
    stalled = found.sizing.terminal or found.rollout.terminal or accepted.status != TRUE
    # Never both: for kstatus one means "failed" and the other "wait".
    kind = STALLED if stalled else RECONCILING
    unfinished = Condition(kind, TRUE, ready.reason, ready.message)
    return merged((*ladder, ready, *beside, unfinished))


def _beside(found: Findings, conditions: Iterable[Condition]) -> list[Condition]:
    """The conditions that no step waits for."""
    verdict = found.verdict
    beside = [condition for condition in conditions if condition.type == DEGRADED]
    if verdict is not None:
        beside.append(verified(verdict))
    else:
        beside.extend(_kept(found, CAPACITY_VERIFIED))
    server, stamp = found.observed.server, found.sizing.stamp
    version = newest(server, stamp) if server is not None and stamp is not None else LATEST
    update = update_available(found.rollout.template, found.context, version)
    return [*beside, update] if update is not None else beside


def _kept(found: Findings, kind: str) -> list[Condition]:
    """What stood there, while the number that it is about is the same."""
    before = previous(found.observed.status, kind)
    same = found.sizing.capacity is not None and before.get("observedGeneration") is not None
    told = (found.sizing.capacity or {}).get("engineReportedTokens") is not None
    if not (same and told):
        return []
    return [Condition(kind, str(before["status"]), str(before["reason"]), str(before["message"]))]


_UNKNOWN: Final = tuple(
    Condition(kind, UNKNOWN, "NotAccepted", "Not looked at until the resource is accepted.")
    for kind in (MODEL_READY, CAPACITY_AVAILABLE, SIZED)
)


def changed_status(
    found: Findings, conditions: Iterable[Condition], now: datetime
) -> dict[str, Any] | None:
    """The whole status, or None when it is what stands there already."""
    status = {
        **_counts(found),
        **_facts(found),
        "conditions": written(found.observed, conditions, now),
    }
    return None if same_status(status, found.observed.status) else status


def _counts(found: Findings) -> dict[str, Any]:
    pods, observed = found.rollout.pods, found.observed
    serving = (*pods.current, *pods.old)
    return {
        "observedGeneration": observed.generation,
        "ready": f"{pods.ready}/{_wanted_replicas(observed)}",
        "replicas": len(serving),
        "readyReplicas": pods.ready,
        "updatedReplicas": len(pods.current),
        "availableReplicas": pods.ready,
        "selector": selector_text(observed.name),
        "pods": listed((*serving, *pods.leaving), observed.readings, pods.memory_advice),
    }


def _facts(found: Findings) -> dict[str, Any]:
    """Capacity, progress, address. A spec that cannot be read keeps what was known before."""
    observed, server = found.observed, found.observed.server
    kept = {
        key: observed.status[key] for key in ("effective", "endpoint") if key in observed.status
    }
    facts: dict[str, Any] = {
        "capacity": _capacity(found),
        "sizing": found.sizing.progress,
        "classes": _classes(found),
        "rollout": _rollout(found),
    }
    if found.accepted.status == TRUE and server is not None:
        kept = {
            "effective": effective(server, found.sizing, found.rollout),
            "endpoint": endpoint(server),
        }
    return {key: value for key, value in {**kept, **facts}.items() if value is not None}


def _capacity(found: Findings) -> dict[str, Any] | None:
    capacity = found.sizing.capacity or believable(found.observed.status)
    return None if capacity is None else published(capacity, found.verdict)


def _classes(found: Findings) -> list[dict[str, Any]] | None:
    """A result for each kind of GPU, where servers measure for themselves."""
    template, server = found.rollout.template, found.observed.server
    if found.sizing.mode != INPOD or template is None or server is None:
        return None
    fingerprint = inputs_hash_of(template)
    return classes(found.observed, server, fingerprint, found.sizing.capacity) or None


def _rollout(found: Findings) -> dict[str, Any] | None:
    """What must outlive this process: what was given up, and how often was asked again."""
    if found.sizing.halt is not None:
        return found.sizing.halt.to_status()
    before = (found.observed.status.get("rollout") or {}).get("resizes")
    wanted, ready = _wanted_replicas(found.observed), found.rollout.pods.ready_current
    # All of them: one that serves says nothing of the device that another has met.
    serves = 0 < wanted <= ready and found.rollout.settled
    resizes = found.sizing.resizes or (None if serves else before)
    return {"resizes": resizes} if resizes else None


def effective(server: InferenceServer, sizing: Sizing, rollout: Rollout) -> dict[str, Any]:
    """The values that are in force where the spec leaves the choice open."""
    asked, stamp, turns = server.spec.sizing, sizing.stamp, rollout.turns
    known = sizing.capacity or {}
    version = (version_of(rollout.template) if rollout.template else None) or LATEST
    values = {
        "servedName": server.spec.model.served_name,
        "engineVersion": server.spec.engine.version,
        "port": server_port(server),
        "tensor": server.spec.tensor,
        "mode": sizing.mode,
        "modeReason": sizing.why,
        "contextLength": known.get("contextLength", asked.context_length),
        "prefillTokens": known.get("prefillTokens", asked.prefill_tokens),
        "maxConcurrentRequests": known.get("maxSequences", asked.max_concurrent_requests),
        "cudaGraphMaxBatch": asked.cuda_graph_max_batch,
        "strategy": turns.strategy,
        "strategyReason": rollout.why or None,
        "maxSurge": turns.max_surge,
        "maxUnavailable": turns.max_unavailable,
        "startupSeconds": startup_seconds(server, stamp.weight_bytes) if stamp else None,
        "progressDeadlineSeconds": progress_deadline(server, stamp.weight_bytes, version)
        if stamp
        else None,
        "updatePolicy": server.spec.rollout.update_policy,
        "renderVersion": version if rollout.template else None,
    }
    return {key: value for key, value in values.items() if value is not None}


def transitions(found: Findings, conditions: Iterable[Condition]) -> list[EventNote]:
    """An Event for each condition that turned: to a cause of trouble, or to a result."""
    notes = []
    told = {note.message for note in (*found.sizing.events, *found.rollout.events)}
    for condition in conditions:
        before = previous(found.observed.status, condition.type)
        if (before.get("status"), before.get("reason")) == (condition.status, condition.reason):
            continue
        if condition.status == FALSE and condition.type in LADDER:
            if condition.reason not in WAITING_REASONS:
                notes.append(EventNote("Warning", condition.reason, condition.message))
        elif _is_a_result(condition):
            notes.append(EventNote("Normal", condition.reason, condition.message))
        elif _is_alarming(condition) and condition.message not in told:
            notes.append(EventNote("Warning", condition.reason, condition.message))
    return notes


def _is_a_result(condition: Condition) -> bool:
    """Whether it is something that people wait for; their own number is no news to them."""
    return (
        condition.status == TRUE
        and condition.type in {SIZED, READY}
        and condition.reason != "UserProvided"
    )


def _is_alarming(condition: Condition) -> bool:
    """Whether a condition that no step waits for is something that people should hear of."""
    return (condition.type, condition.status) in {(DEGRADED, TRUE), (CAPACITY_VERIFIED, FALSE)}


def _ready_message(found: Findings) -> str:
    server, capacity = found.observed.server, found.sizing.capacity
    if server is None or capacity is None:
        return ""
    if server.spec.replicas == 0:
        return "Scaled to zero; raise spec.replicas to serve."
    several = spoken(_classes(found) or ())
    if several:
        return (
            f"Serving, each server by its own GPU: {several}; send requests to {endpoint(server)}."
        )
    where = (capacity.get("gpu") or {}).get("product")
    on = f" on {where}" if where else ""
    pool = f"{capacity.get('kvCacheBytes')} bytes"
    if "maxTotalTokenNum" in capacity:
        pool = f"{capacity['maxTotalTokenNum']} tokens"
    return f"Serving with {pool} of KV cache{on}; send requests to {endpoint(server)}."


def _wanted_replicas(observed: Observed) -> int:
    if observed.server is not None:
        return observed.server.spec.replicas
    live = observed.deployment
    return int(live["spec"].get("replicas", 0)) if live is not None else 0


def _soonest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
