"""The server pods, counted and diagnosed.

Which pods are current is read off the pods themselves (the inputs hash in their annotations), not
off the Deployment's conditions: with one replica and maxUnavailable 1 a Deployment calls itself
Available with no pod running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd.types import ENGINE, FIXED
from plimsoll.controller.objects.names import SERVER, SIZER, inputs_hash_of
from plimsoll.controller.status import AVAILABLE, FALSE, Condition, sentence
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.capacity import USER_PROVIDED, believable
from plimsoll.controller.steps.obstacles import scheduling_obstacle
from plimsoll.controller.steps.shrink import shrunk
from plimsoll.core import report as reports
from plimsoll.core.engines.readback import classify_failure
from plimsoll.core.errors import ResultInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed
    from plimsoll.core.drift import PodReading

# status.pods lists at most this many, so that a status stays small with hundreds of replicas.
LISTED_PODS: Final = 16

_MEMORY_WORDS: Final = ("out of memory", "outofmemory", "cudamalloc failed", "failed to allocate")
_KILLED: Final = 137
# The guard's exit codes: too little memory, another GPU or model.
_REFUSALS: Final = (10, 11)
_LONGEST_QUOTE: Final = 400
RAISE_RESERVE: Final = (
    "Raise spec.sizing.extraReserve so that the engine has more memory beside its cache."
)


@dataclass(frozen=True, slots=True)
class Survey:
    """Server pods that have neither ended nor been asked to go, by template.

    ``memory_advice`` is what to do about an engine that ran out of device memory.
    """

    current: tuple[dict[str, Any], ...]
    old: tuple[dict[str, Any], ...]
    leaving: tuple[dict[str, Any], ...]
    memory_advice: str = RAISE_RESERVE

    @property
    def ready_current(self) -> int:
        """Pods of the current template that take requests."""
        return sum(podstate.is_ready(pod) for pod in self.current)

    @property
    def ready(self) -> int:
        """Pods of any template that take requests."""
        return self.ready_current + sum(podstate.is_ready(pod) for pod in self.old)


def survey(observed: Observed, fingerprint: str | None) -> Survey:
    """Sort the server pods.

    Args:
        observed: the world.
        fingerprint: the inputs hash of the wanted template; None while there is none yet, then the
            live Deployment's counts.
    """
    if fingerprint is None and observed.deployment is not None:
        fingerprint = inputs_hash_of(observed.deployment["spec"].get("template", {}))
    current, old, leaving = [], [], []
    for pod in observed.server_pods:
        if podstate.is_deleting(pod):
            leaving.append(pod)
        elif podstate.is_finished(pod):
            continue
        elif fingerprint is not None and inputs_hash_of(pod) == fingerprint:
            current.append(pod)
        else:
            old.append(pod)
    capacity = believable(observed.status)
    advice = memory_advice(observed.server, capacity) if observed.server else RAISE_RESERVE
    return Survey(tuple(current), tuple(old), tuple(leaving), advice)


def memory_advice(server: InferenceServer, capacity: Mapping[str, Any] | None) -> str:
    """What to do about an engine that ran out of device memory with this number: often nothing."""
    policy = server.spec.sizing.on_out_of_memory
    if server.spec.sizing.mode == FIXED:
        return "Lower the number in spec.sizing."
    if capacity is None or server.spec.sizing.mode == ENGINE or not policy.shrink:
        return RAISE_RESERVE
    left = policy.max_steps - int(capacity.get("shrinkSteps", 0))
    if left <= 0 or capacity["source"] == USER_PROVIDED or shrunk(server, capacity) is None:
        return RAISE_RESERVE
    return "Plimsoll makes the pool smaller by itself."


def placement_obstacle(found: Survey) -> Condition | None:
    """Why a current pod has no node, if one has none."""
    return next((o for pod in found.current if (o := scheduling_obstacle(pod)) is not None), None)


def failure_of(pod: Mapping[str, Any], advice: str = RAISE_RESERVE) -> Condition | None:
    """Why this pod does not serve, as Available=False; None while it merely starts, or is well.

    Args:
        pod: a server pod.
        advice: what to do where its engine ran out of device memory.
    """
    if podstate.is_ready(pod):
        return None
    sizer, server = podstate.container(pod, SIZER), podstate.container(pod, SERVER)
    for status in (sizer, server):
        found = _cannot_start(pod, status)
        if found is not None:
            return found
    end = podstate.last_end(sizer)
    if end.get("exitCode") in _REFUSALS:
        return _unavailable(
            "GuardRejected",
            f"The guard of pod {podstate.name(pod)} lets no server start on its device",
            "Condition Degraded says why; the kubelet tries again by itself.",
        )
    if podstate.terminated(sizer).get("exitCode") != 0 and end:
        return _sizer_failed(pod, podstate.last_end(sizer))
    return _crashed(pod, server, advice)


def _cannot_start(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Condition | None:
    waiting = podstate.waiting(status)
    reason = str(waiting.get("reason") or "")
    where = f"container {status.get('name')} of pod {podstate.name(pod)}"
    said = _quote(waiting.get("message"))
    if reason in podstate.IMAGE_REASONS:
        return _unavailable(
            "ImagePullFailed", f"The image of {where} cannot be pulled: {said}",
            "Correct spec.engine.image or set spec.template.imagePullSecrets.",
        )  # fmt: skip
    if reason in podstate.CREATE_REASONS:
        return _unavailable(
            "ContainerConfigError", f"The kubelet cannot create {where}: {said}",
            "Correct what it names (a Secret in spec.engine.env, for example).",
        )  # fmt: skip
    return None


def _sizer_failed(pod: Mapping[str, Any], end: Mapping[str, Any]) -> Condition:
    said = str(end.get("message") or "")
    outcome = _decoded(pod, said)
    if isinstance(outcome, reports.Failure):
        said = f"{outcome.reason}: {outcome.message}"
    return _unavailable(
        "SizerFailed",
        f"The sizer of pod {podstate.name(pod)} ended with exit code {end.get('exitCode')}: "
        f"{_quote(said)}",
        "The kubelet tries again by itself.",
    )


def _crashed(pod: Mapping[str, Any], server: Mapping[str, Any], advice: str) -> Condition | None:
    """The engine ended, and is or will be restarted. One orderly end is not a crash loop."""
    end = podstate.last_end(server)
    if not end:
        return None
    code, reason = end.get("exitCode"), str(end.get("reason") or "")
    said = str(end.get("message") or "")
    what = f"The server in pod {podstate.name(pod)} ended with exit code {code} ({reason})"
    if reason == "OOMKilled" or code == _KILLED:
        return _unavailable(
            "OutOfMemory", f"{what}: {_quote(said or 'killed')}",
            "Raise the memory limit in spec.template.resources.",
        )  # fmt: skip
    if _lacks_memory(said):
        return _unavailable("OutOfMemory", f"{what}: {_quote(said)}", advice)
    return _unavailable(
        "CrashLoop", f"{what}: {_quote(said or 'no last words')}",
        "Read its log; correct spec.engine.",
    )  # fmt: skip


def _unavailable(reason: str, what: str, advice: str) -> Condition:
    return Condition(AVAILABLE, FALSE, reason, f"{sentence(what)} {advice}")


def _quote(text: object) -> str:
    """The end of somebody's last words: an exception stands in the last lines of a log."""
    words = " ".join(str(text or "").split())
    return words if len(words) <= _LONGEST_QUOTE else f"...{words[-_LONGEST_QUOTE:]}"


def listed(
    pods: Iterable[Mapping[str, Any]],
    readings: Iterable[PodReading] = (),
    advice: str = RAISE_RESERVE,
) -> list[dict[str, Any]]:
    """``status.pods``: name, node, the tokens its own sizer found, and why it does not serve."""
    told = {reading.uid: reading.found.tokens for reading in readings}
    return [_listed(pod, told.get(podstate.uid(pod)), advice) for pod in list(pods)[:LISTED_PODS]]


def _listed(pod: Mapping[str, Any], told: int | None, advice: str) -> dict[str, Any]:
    failure = failure_of(pod, advice)
    end = podstate.last_end(podstate.container(pod, SERVER))
    found = {
        "name": podstate.name(pod),
        "node": podstate.node_name(pod),
        "ready": podstate.is_ready(pod),
        "tokens": _guard_tokens(pod),
        "engineTokens": told,
        "reason": failure.reason if failure else None,
        "message": failure.message if failure else None,
        "lastFailure": _last_failure(end) if end else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _last_failure(end: Mapping[str, Any]) -> str:
    return f"exit code {end.get('exitCode')} ({end.get('reason')}) at {end.get('finishedAt')}"


def _guard_tokens(pod: Mapping[str, Any]) -> int | None:
    outcome = guard_outcome(pod)
    return outcome.max_total_token_num if isinstance(outcome, reports.Report) else None


def guard_outcome(pod: Mapping[str, Any]) -> reports.Report | reports.Failure | None:
    """What the sizer inside the server pod found; None when it has not, or is not believed."""
    end = podstate.last_end(podstate.container(pod, SIZER))
    return _decoded(pod, str(end.get("message") or ""))


def lacked_device_memory(pod: Mapping[str, Any], engine: str, patience: int = 1) -> bool:
    """Whether the engine ended because the device's memory did not suffice, and is not well again.

    The container's own memory limit (OOMKilled) is another matter: a smaller pool on the device
    does not help there.

    Args:
        pod: a server pod.
        engine: the engine's type, whose last words are known.
        patience: ends after which it counts.
    """
    server = podstate.container(pod, SERVER)
    end = podstate.last_end(server)
    restarts = int(server.get("restartCount", 0))
    ends = restarts if podstate.is_running(server) else restarts + 1
    if podstate.is_ready(pod) or not end or end.get("reason") == "OOMKilled" or ends < patience:
        return False
    return _lacks_memory(str(end.get("message") or ""), engine)


def _lacks_memory(said: str, engine: str = "") -> bool:
    words = said.lower().replace("_", " ")
    if any(word in words for word in _MEMORY_WORDS):
        return True
    failure = classify_failure(engine, said) if engine else None
    return failure is not None and failure.kind == "OutOfMemory"


def _decoded(pod: Mapping[str, Any], text: str) -> reports.Report | reports.Failure | None:
    if not text:
        return None
    try:
        return reports.decode(text, pod_uid=podstate.uid(pod), request_hash=_asked(pod))
    except ResultInvalid:
        return None


def _asked(pod: Mapping[str, Any]) -> str:
    """The request hash that this pod's own sizer was given; an old pod was asked another one."""
    for container in pod.get("spec", {}).get("initContainers") or ():
        if container.get("name") == SIZER:
            for entry in container.get("env") or ():
                if entry.get("name") == "PLIMSOLL_REQUEST_HASH":
                    return str(entry.get("value"))
    return ""
