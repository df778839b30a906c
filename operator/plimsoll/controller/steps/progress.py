"""How far the pods are: the conditions RolledOut and Available, computed from the pods themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.status import (
    AVAILABLE,
    FALSE,
    ROLLED_OUT,
    TRUE,
    Condition,
    clause,
    previous,
)
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.survey import Survey, failure_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed

# Servers that may be away while a server still counts as available.
MAY_BE_AWAY: Final = 1


def progress(
    observed: Observed, server: InferenceServer, found: Survey, strategy: str
) -> Condition:
    """How far the pods are, the children being as wanted.

    The Deployment's conditions only give reasons; ``strategy`` says who takes turns how, and why.
    """
    live, replicas = observed.deployment, server.spec.replicas
    assert live is not None
    status = live.get("status") or {}
    current, old, ready = len(found.current), len(found.old), found.ready_current
    behind = _controller_is_behind(live, replicas)
    if replicas == 0 and not behind and not current and not old:
        return Condition(ROLLED_OUT, TRUE, "ScaledToZero", "There are no replicas, as asked for.")
    if replicas > 0 and not behind and current == replicas and not old:
        done = previous(observed.status, ROLLED_OUT)
        was_done = done.get("status") == TRUE
        # Once complete it stays complete while the same pods are there: a server that crashes
        # later is not a rollout, and Available says so.
        if ready >= replicas or (was_done and done.get("reason") == "Complete"):
            text = f"Replicas on the current template: {replicas} of {replicas}."
            return Condition(ROLLED_OUT, TRUE, "Complete", text)
    trouble = _deployment_trouble(status)
    if trouble is not None:
        return trouble
    if found.leaving and current < replicas + old:
        names = ", ".join(podstate.name(pod) for pod in found.leaving[:3])
        return Condition(
            ROLLED_OUT, FALSE, "WaitingForTermination",
            f"Pods that drain still hold their GPUs: {names}.",
        )  # fmt: skip
    return progressing(
        f"Replicas ready on the current template: {ready} of {replicas} ({current - ready} "
        f"starting, {old} still on an older one); wait for the rollout. {_by(strategy)}"
    )


def _controller_is_behind(live: Mapping[str, Any], replicas: int) -> bool:
    """Whether the Deployment controller has yet to act on what is written.

    The pods alone cannot tell after `kubectl rollout restart`: old and new carry the same inputs.
    """
    status, generation = live.get("status") or {}, live["metadata"].get("generation")
    # A status without a generation was never written: our watch of pods can be ahead of that of Deployments.
    if generation is not None and status.get("observedGeneration", 0) < generation:
        return True
    # The API leaves out a count of 0.
    return int(status.get("updatedReplicas", 0)) < replicas


def _deployment_trouble(status: Mapping[str, Any]) -> Condition | None:
    by_type = {c.get("type"): c for c in status.get("conditions") or ()}
    failure = by_type.get("ReplicaFailure") or {}
    if failure.get("status") == TRUE:
        text = clause(str(failure.get("message") or failure.get("reason")))
        return Condition(
            ROLLED_OUT, FALSE, "ReplicaCreateFailed",
            f"The API server refuses server pods: {text} Remove the cause; it goes on by itself.",
        )  # fmt: skip
    progressing = by_type.get("Progressing") or {}
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        return Condition(
            ROLLED_OUT, FALSE, "ProgressDeadlineExceeded",
            "The rollout made no progress within its deadline; look at the newest pod, or raise "
            "spec.rollout.progressDeadlineSeconds.",
        )  # fmt: skip
    return None


def available(found: Survey, replicas: int) -> Condition:
    """Whether enough pods of the current template take requests."""
    ready = found.ready_current
    if replicas == 0:
        return Condition(AVAILABLE, TRUE, "ScaledToZero", "There are no replicas, as asked for.")
    if ready >= max(1, replicas - MAY_BE_AWAY):
        return Condition(
            AVAILABLE, TRUE, "MinimumReplicas", f"Replicas ready: {ready} of {replicas}."
        )
    failures = (failure_of(pod, found.memory_advice) for pod in found.current)
    failure = next((f for f in failures if f is not None), None)
    if failure is not None:
        return failure
    text = f"Replicas ready: {ready} of {replicas}; wait until the engine has started."
    return Condition(AVAILABLE, FALSE, "NoReadyReplicas", text)


def progressing(text: str) -> Condition:
    """The pods are on their way."""
    return Condition(ROLLED_OUT, FALSE, "Progressing", text)


def _by(strategy: str) -> str:
    return f"Strategy {strategy}."
