"""Giving a template up: no more servers are started from it until the resource changes.

A crash that repeats for ever helps nobody: it holds a GPU, and its noise hides the cause. What was
given up stands in ``status.rollout.halted`` together with the fingerprint of what it is about, so
an edit of the resource lifts it, and a restart of the operator does not. It is persisted before it
is acted on: servers that were stopped tell no more, so a halt that was lost would be found out by
one more crash.

A halt also stops the servers of a paused rollout. Pausing keeps new templates from being started,
and a halt starts none: it stops what crashes, or goes back to what served.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.controller.objects import scaled
from plimsoll.controller.objects.hashes import digest
from plimsoll.controller.objects.names import inputs_hash_of
from plimsoll.controller.status import timestamp
from plimsoll.controller.steps import podstate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.observed import Observed

_POD_TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Halt:
    """Why a template was given up; ``key`` tells which, and under which policy."""

    key: str
    reason: str
    message: str
    since: str

    def to_status(self) -> dict[str, Any]:
        """The form in ``status.rollout``."""
        return {
            "inputsHash": self.key,
            "halted": {"reason": self.reason, "message": self.message, "since": self.since},
        }


def halt_key(server: InferenceServer, fingerprint: str) -> str:
    """What a halt is about: the template, and the policy that led to it."""
    return digest([fingerprint, server.spec.sizing.on_out_of_memory])


def new_halt(key: str, reason: str, message: str, now: datetime) -> Halt:
    """A halt that begins now."""
    return Halt(key, reason, message, timestamp(now))


def standing(status: Mapping[str, Any], key: str) -> Halt | None:
    """The halt that stands for this template, if any."""
    found = status.get("rollout") or {}
    halted = found.get("halted")
    if found.get("inputsHash") != key or not isinstance(halted, dict) or not halted.get("reason"):
        return None
    text, since = str(halted.get("message", "")), str(halted.get("since", ""))
    return Halt(key, str(halted["reason"]), text, since)


def halted_deployment(
    observed: Observed, server: InferenceServer, fingerprint: str
) -> dict[str, Any] | None:
    """The Deployment that starts no more servers from the template; None: there is nothing to do.

    Where servers of an older template still serve, it goes back to that template, so that they go
    on; otherwise it has no replicas.
    """
    live = observed.deployment
    if live is None or podstate.is_deleting(live):
        return None
    if standing(observed.status, halt_key(server, fingerprint)) is None:
        return None  # the status comes first
    if inputs_hash_of(live["spec"]["template"]) != fingerprint:
        return scaled(live, server.spec.replicas)  # gone back before
    serving = _serving(observed, fingerprint)
    if not serving:
        return scaled(live, 0)
    former = _replica_set(observed, serving)
    if former is None:
        # Not readable now, or not allowed to be: what serves is worth more than what crashes.
        return None
    back = scaled(live, server.spec.replicas)
    template = deepcopy(former["spec"]["template"])
    template["metadata"].get("labels", {}).pop(_POD_TEMPLATE_HASH, None)
    template["metadata"].pop("creationTimestamp", None)
    back["spec"]["template"] = template
    return back


def _serving(observed: Observed, fingerprint: str) -> dict[str, int]:
    """Ready pods of other templates, by the name of their ReplicaSet."""
    ready: dict[str, int] = {}
    for pod in observed.server_pods:
        if podstate.is_ready(pod) and inputs_hash_of(pod) != fingerprint:
            for owner in pod["metadata"].get("ownerReferences") or ():
                ready[owner["name"]] = ready.get(owner["name"], 0) + 1
    return ready


def _replica_set(observed: Observed, serving: Mapping[str, int]) -> Mapping[str, Any] | None:
    """The ReplicaSet that most of the serving pods belong to, if it was read."""
    known = [rs for rs in observed.replica_sets if rs["metadata"]["name"] in serving]
    return max(known, key=lambda rs: serving[rs["metadata"]["name"]], default=None)
