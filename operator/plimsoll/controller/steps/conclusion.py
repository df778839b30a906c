"""The last step: everything found, as one status, a few events and the time of the next look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import Delete, EventNote, Plan
from plimsoll.controller.objects.labels import selector_text
from plimsoll.controller.objects.names import endpoint
from plimsoll.controller.objects.workload import (
    MAX_SURGE,
    MAX_UNAVAILABLE,
    progress_deadline,
    server_port,
    startup_seconds,
)
from plimsoll.controller.status import (
    CAPACITY_AVAILABLE,
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
    summary,
    written,
)
from plimsoll.controller.steps.capacity import believable
from plimsoll.controller.steps.survey import listed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.steps.rollout import Rollout
    from plimsoll.controller.steps.sizing import Sizing

# How soon to look again at what no watch reports: a foreign object that went away.
RECHECK: Final = 15.0


@dataclass(frozen=True, slots=True)
class Findings:
    """What the steps of one pass found."""

    observed: Observed
    accepted: Condition
    sizing: Sizing
    rollout: Rollout
    tidied: tuple[Delete, ...]


def conclude(found: Findings, now: datetime) -> Plan:
    """The plan of a pass whose writes are expected to succeed."""
    conditions = all_conditions(found)
    return Plan(
        # Deletions first: what they free may be what a new pod needs.
        actions=(*found.tidied, *found.sizing.actions, *found.rollout.actions),
        status=changed_status(found, conditions, now),
        events=(*found.sizing.events, *found.rollout.events, *transitions(found, conditions)),
        requeue_after=_soonest(
            found.sizing.requeue_after,
            found.rollout.requeue_after,
            RECHECK if found.accepted.reason == "Conflict" else None,
        ),
    )


def all_conditions(found: Findings, *extra: Condition) -> list[Condition]:
    """The ladder, its summary, and the abnormal ones where they are true."""
    ladder = merged(
        (*_UNKNOWN, found.accepted, *found.sizing.conditions, *found.rollout.conditions, *extra)
    )
    ready = summary(ladder, _ready_message(found))
    if ready.status == TRUE:
        return [*ladder, ready]
    accepted = next(condition for condition in ladder if condition.type == "Accepted")
    stalled = found.sizing.terminal or found.rollout.terminal or accepted.status != TRUE
    # Never both: for kstatus one means "failed" and the other "wait".
    kind = STALLED if stalled else RECONCILING
    return [*ladder, ready, Condition(kind, TRUE, ready.reason, ready.message)]


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
        "pods": listed((*serving, *pods.leaving)),
    }


def _facts(found: Findings) -> dict[str, Any]:
    """Capacity, progress, address. A spec that cannot be read keeps what was known before."""
    observed, server = found.observed, found.observed.server
    kept = {
        key: observed.status[key] for key in ("effective", "endpoint") if key in observed.status
    }
    facts: dict[str, Any] = {
        "capacity": found.sizing.capacity or believable(observed.status),
        "sizing": found.sizing.progress,
    }
    if found.accepted.status == TRUE and server is not None:
        kept = {"effective": effective(server, found.sizing), "endpoint": endpoint(server)}
    return {key: value for key, value in {**kept, **facts}.items() if value is not None}


def effective(server: InferenceServer, sizing: Sizing) -> dict[str, Any]:
    """The values that are in force where the spec leaves the choice open."""
    asked, stamp = server.spec.sizing, sizing.stamp
    values = {
        "servedName": server.spec.model.served_name,
        "engineVersion": server.spec.engine.version,
        "port": server_port(server),
        "tensor": server.spec.tensor,
        "mode": asked.mode,
        "contextLength": stamp.context_length if stamp else asked.context_length,
        "prefillTokens": stamp.prefill_tokens if stamp else asked.prefill_tokens,
        "maxConcurrentRequests": stamp.max_sequences if stamp else asked.max_concurrent_requests,
        "cudaGraphMaxBatch": asked.cuda_graph_max_batch,
        "strategy": "RollingUpdate",
        "maxSurge": MAX_SURGE,
        "maxUnavailable": MAX_UNAVAILABLE,
        "startupSeconds": startup_seconds(server, stamp.weight_bytes) if stamp else None,
        "progressDeadlineSeconds": progress_deadline(server),
    }
    return {key: value for key, value in values.items() if value is not None}


def transitions(found: Findings, conditions: Iterable[Condition]) -> list[EventNote]:
    """An Event for each condition that turned: to a cause of trouble, or to a result."""
    notes = []
    for condition in conditions:
        before = previous(found.observed.status, condition.type)
        if (before.get("status"), before.get("reason")) == (condition.status, condition.reason):
            continue
        if condition.status == FALSE and condition.type in LADDER:
            if condition.reason not in WAITING_REASONS:
                notes.append(EventNote("Warning", condition.reason, condition.message))
        elif condition.status == TRUE and condition.type in {SIZED, READY}:
            notes.append(EventNote("Normal", condition.reason, condition.message))
    return notes


def _ready_message(found: Findings) -> str:
    server, capacity = found.observed.server, found.sizing.capacity
    if server is None or capacity is None:
        return ""
    if server.spec.replicas == 0:
        return "Scaled to zero; raise spec.replicas to serve."
    where = (capacity.get("gpu") or {}).get("product")
    on = f" on {where}" if where else ""
    return (
        f"Serving with {capacity['maxTotalTokenNum']} tokens of KV cache{on}; send requests to "
        f"{endpoint(server)}."
    )


def _wanted_replicas(observed: Observed) -> int:
    if observed.server is not None:
        return observed.server.spec.replicas
    live = observed.deployment
    return int(live["spec"].get("replicas", 0)) if live is not None else 0


def _soonest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
