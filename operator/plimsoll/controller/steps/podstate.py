"""Reading one pod: what its container statuses and conditions say, without judging it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.status import seconds_since

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_FINISHED: Final = ("Succeeded", "Failed")
# Waiting reasons of a container whose image cannot be had.
IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
     "ImageInspectError", "RegistryUnavailable"}
)  # fmt: skip
# Waiting reasons of a container that the kubelet cannot create (a missing Secret, a bad mount).
CREATE_REASONS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


def name(pod: Mapping[str, Any]) -> str:
    """The pod's name."""
    return str(pod["metadata"]["name"])


def uid(pod: Mapping[str, Any]) -> str:
    """The pod's UID."""
    return str(pod["metadata"]["uid"])


def node_name(pod: Mapping[str, Any]) -> str | None:
    """The node it was bound to, if any."""
    found: str | None = pod.get("spec", {}).get("nodeName")
    return found


def age(pod: Mapping[str, Any], now: datetime) -> float:
    """Seconds since the API server created it."""
    return seconds_since(str(pod["metadata"]["creationTimestamp"]), now)


def is_deleting(pod: Mapping[str, Any]) -> bool:
    """Whether somebody asked for its deletion; it may still run and hold its GPU."""
    return "deletionTimestamp" in pod["metadata"]


def phase(pod: Mapping[str, Any]) -> str:
    """The phase; a pod without a status has just been created."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_finished(pod: Mapping[str, Any]) -> bool:
    """Whether it has ended for good. Failed pods of a Deployment pile up and serve nobody."""
    return phase(pod) in _FINISHED


def condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The pod condition of that type, or an empty mapping."""
    conditions = pod.get("status", {}).get("conditions") or ()
    found: Mapping[str, Any] = next((c for c in conditions if c.get("type") == kind), {})
    return found


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether it takes requests."""
    return condition(pod, "Ready").get("status") == "True" and not is_deleting(pod)


def container(pod: Mapping[str, Any], container_name: str) -> Mapping[str, Any]:
    """The status of a container or init container, or an empty mapping."""
    status = pod.get("status", {})
    for kind in ("initContainerStatuses", "containerStatuses"):
        for found in status.get(kind) or ():
            if found.get("name") == container_name:
                return dict(found)
    return {}


def terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container ended this time; empty while it has not."""
    found: Mapping[str, Any] = (status.get("state") or {}).get("terminated") or {}
    return found


def last_end(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the container ended, this time or the time before (while it waits to be restarted)."""
    before: Mapping[str, Any] = (status.get("lastState") or {}).get("terminated") or {}
    return terminated(status) or before


def waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Why the container does not run yet; empty when it does or did."""
    found: Mapping[str, Any] = (status.get("state") or {}).get("waiting") or {}
    return found


def is_running(status: Mapping[str, Any]) -> bool:
    """Whether the container runs."""
    return (status.get("state") or {}).get("running") is not None
