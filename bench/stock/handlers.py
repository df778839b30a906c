"""The stock kopf operator of the comparison: what kopf's documentation shows, no more and no less.

Change handlers on the resource, an event handler on the child, the synchronous kubernetes client in kopf's
threads, kopf's defaults. Like the other two it applies one Deployment and one Service for each InferenceServer
and keeps the status. The children come from the JSON file that ``BENCH_OBJECTS`` names, the same for all.

    kopf run --standalone -A bench/stock/handlers.py
"""

from __future__ import annotations

import copy
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kopf
import kubernetes

OBJECTS = json.loads(Path(os.environ["BENCH_OBJECTS"]).read_text())
LABEL = "plimsoll.dev/server"
GROUP, VERSION, PLURAL = "plimsoll.dev", "v1alpha1", "inferenceservers"
APPLY = {
    "field_manager": "stock",
    "force": True,
    "_content_type": "application/apply-patch+yaml",
}


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:  # noqa: ANN401
    """As many workers as the Go operator has; the rest is kopf's."""
    settings.execution.max_workers = 32


@kopf.on.create(GROUP, VERSION, PLURAL)
@kopf.on.update(GROUP, VERSION, PLURAL)
@kopf.on.resume(GROUP, VERSION, PLURAL)
def bring_about(
    spec: kopf.Spec,
    name: str,
    namespace: str | None,
    meta: kopf.Meta,
    patch: kopf.Patch,
    status: kopf.Status,
    **_: Any,  # noqa: ANN401
) -> None:
    """Apply both children."""
    deployment, service = copy.deepcopy(OBJECTS["deployment"]), copy.deepcopy(OBJECTS["service"])
    labels = {LABEL: name, "app.kubernetes.io/managed-by": "stock"}
    for child in (deployment, service):
        child["metadata"] = {"name": name, "labels": labels}
        kopf.adopt(child)
    deployment["spec"]["replicas"] = spec.get("replicas", 1)
    deployment["spec"]["selector"] = {"matchLabels": {LABEL: name}}
    deployment["spec"]["template"]["metadata"]["labels"] = labels
    service["spec"]["selector"] = {LABEL: name}
    kubernetes.client.AppsV1Api().patch_namespaced_deployment(name, namespace, deployment, **APPLY)
    kubernetes.client.CoreV1Api().patch_namespaced_service(name, namespace, service, **APPLY)
    patch.status["observedGeneration"] = meta["generation"]
    patch.status["selector"] = f"{LABEL}={name}"
    if not status.get("conditions"):
        patch.status["conditions"] = conditions(meta["generation"], rolled=False)


@kopf.on.event("apps", "v1", "deployments", labels={"app.kubernetes.io/managed-by": "stock"})
def follow(
    body: kopf.Body,
    name: str,
    namespace: str | None,
    event: kopf.RawEvent,
    **_: Any,  # noqa: ANN401
) -> None:
    """Tell in the server's status what became of its Deployment."""
    live = body.get("status", {})
    behind = live.get("observedGeneration", 0) < body["metadata"]["generation"]
    if event["type"] == "DELETED" or behind:
        return
    rolled = live.get("readyReplicas", 0) == body["spec"]["replicas"]
    status = {
        "replicas": live.get("replicas", 0),
        "readyReplicas": live.get("readyReplicas", 0),
        "conditions": conditions(1, rolled=rolled),
    }
    kubernetes.client.CustomObjectsApi().patch_namespaced_custom_object_status(
        GROUP, VERSION, namespace, PLURAL, name, {"status": status}
    )


def conditions(generation: int, *, rolled: bool) -> list[dict[str, Any]]:
    """The three conditions that every operator under comparison writes."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = {"Accepted": True, "Ready": rolled, "RolledOut": rolled}
    return [
        {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": "RolledOut" if holds else "Progressing",
            "message": "The Deployment has been looked at.",
            "lastTransitionTime": now,
            "observedGeneration": generation,
        }
        for kind, holds in said.items()
    ]
