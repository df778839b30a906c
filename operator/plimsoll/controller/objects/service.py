"""The Service in front of the server pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.controller.objects import names
from plimsoll.controller.objects.labels import owner_reference, selector, server_labels

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import InferenceServer


def service(server: InferenceServer) -> dict[str, Any]:
    """The complete Service, named as the resource."""
    wanted = server.spec.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": server.name,
            "namespace": server.namespace,
            "labels": server_labels(server.name, wanted.labels),
            "annotations": dict(wanted.annotations),
            "ownerReferences": [owner_reference(server)],
        },
        "spec": {
            "type": wanted.type,
            "selector": selector(server.name),
            "ports": [
                {
                    "name": names.HTTP_PORT,
                    "port": wanted.port,
                    "targetPort": names.HTTP_PORT,
                    "protocol": "TCP",
                }
            ],
        },
    }
