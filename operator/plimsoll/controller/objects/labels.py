"""Labels and owners of the child objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd.types import API_VERSION, KIND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer

SERVER_LABEL: Final = "plimsoll.dev/server"
SIZING_LABEL: Final = "plimsoll.dev/sizing-for"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "plimsoll"


def server_labels(name: str, user: Mapping[str, str] | None = None) -> dict[str, str]:
    """Labels of the Deployment, the Service and the server pods; ours win over the user's."""
    return {**(user or {}), SERVER_LABEL: name, MANAGED_BY_LABEL: MANAGED_BY}


def sizing_labels(name: str, user: Mapping[str, str] | None = None) -> dict[str, str]:
    """Labels of the sizing pod.

    Never the label of ``status.selector``: a sizing pod must count neither for the Service nor for
    an autoscaler.
    """
    return {**(user or {}), SIZING_LABEL: name, MANAGED_BY_LABEL: MANAGED_BY}


def selector(name: str) -> dict[str, str]:
    """What selects the server pods; immutable on a Deployment, so it must never change."""
    return {SERVER_LABEL: name}


def selector_text(name: str) -> str:
    """The selector as ``status.selector`` carries it for the scale subresource."""
    return f"{SERVER_LABEL}={name}"


def owner_reference(server: InferenceServer) -> dict[str, Any]:
    """The controller reference through which garbage collection removes every child."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": server.name,
        "uid": server.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_uid(obj: Mapping[str, Any]) -> str | None:
    """The UID of the object that controls `obj`, or None."""
    for owner in obj.get("metadata", {}).get("ownerReferences") or ():
        if owner.get("controller"):
            uid: str | None = owner.get("uid")
            return uid
    return None
