"""The Deployment: the engine, its arguments with the stamped number, and the guard before it.

Two annotations of the pod template make the operator's own upgrades harmless. ``inputs-hash`` is
the fingerprint of what the *user's* resource and the stamped numbers put into the template; a pod
belongs to the current template exactly when it carries the wanted hash. ``sizer-image`` tells which
sizer was rendered: while the inputs are the same, a new operator keeps it, because another image
would restart every server. The annotation, not the container, is believed, so that a tampered
container is still put right.
"""

from __future__ import annotations

import math
import posixpath
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd import sizing_request
from plimsoll.controller.objects import names
from plimsoll.controller.objects.affinity import class_requirements
from plimsoll.controller.objects.context import BuildContext
from plimsoll.controller.objects.hashes import digest, request_of, sizing_key
from plimsoll.controller.objects.labels import owner_reference, selector, server_labels
from plimsoll.controller.objects.pod import (
    literal,
    model_mount,
    model_path,
    pod_base,
    server_security,
    sizer_container,
    with_devices,
)
from plimsoll.core.engines import lookup
from plimsoll.core.engines.base import Pinned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects.context import Stamp

# GPUs are scarce: a surge pod would wait for a GPU that the old pod holds. Both values are always
# written, or a later switch of the strategy is refused by the API server.
MAX_SURGE: Final = 0
MAX_UNAVAILABLE: Final = 1
DEFAULT_PROGRESS_DEADLINE: Final = 3600
# Seconds between "no longer an endpoint" and SIGTERM; clients follow endpoints with a delay.
PRE_STOP_SECONDS: Final = 5
PROBE_PERIOD: Final = 2

# Start-up budget: 10 minutes for weights up to 15 GB, 30 minutes from 200 GB, linear between.
SMALL_WEIGHTS: Final = 15 * 10**9
LARGE_WEIGHTS: Final = 200 * 10**9
SHORTEST_START: Final = 600
LONGEST_START: Final = 1800


def startup_seconds(server: InferenceServer, weight_bytes: int | None) -> int:
    """Seconds a server may take until it answers, rounded up to whole minutes when derived.

    Args:
        server: ``probes.startupSeconds`` wins.
        weight_bytes: bytes of the whole model; None (nobody measured it) takes the longest.
    """
    if server.spec.probes.startup_seconds is not None:
        return server.spec.probes.startup_seconds
    if weight_bytes is None:
        return LONGEST_START
    share = (weight_bytes - SMALL_WEIGHTS) / (LARGE_WEIGHTS - SMALL_WEIGHTS)
    seconds = SHORTEST_START + min(max(share, 0.0), 1.0) * (LONGEST_START - SHORTEST_START)
    return math.ceil(seconds / 60) * 60


def progress_deadline(server: InferenceServer) -> int:
    """Seconds after which a rollout without progress is called stuck."""
    return server.spec.rollout.progress_deadline_seconds or DEFAULT_PROGRESS_DEADLINE


def server_port(server: InferenceServer) -> int:
    """The port the engine listens on."""
    return server.spec.engine.port or lookup(server.spec.engine.type).default_port


def inputs_hash(server: InferenceServer, stamp: Stamp) -> str:
    """The fingerprint of what the resource and the stamped numbers put into the pod template.

    It must not change when only the operator does: a new field of the resource must be absent or
    empty when not set (see :func:`.hashes.digest`), or an upgrade would restart every server.
    """
    spec = server.spec
    return digest(
        {
            "request": request_of(server),
            "model": spec.model,
            "engine": spec.engine,
            # Only what the template shows: a pin stands in place of products and label keys, and
            # the progress deadline is the Deployment's. Editing those must restart nothing.
            "accelerator": [spec.accelerator.resource, spec.accelerator.count],
            "classes": class_requirements(spec.accelerator, stamp.pin),
            "drainSeconds": spec.rollout.drain_seconds,
            "probes": spec.probes,
            "template": spec.template,
            "stamp": stamp,
        }
    )


def deployment(
    server: InferenceServer,
    stamp: Stamp,
    context: BuildContext,
    live: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The complete Deployment, named as the resource.

    Args:
        server: the resource.
        stamp: the numbers to write, and where they hold.
        context: the sizer image of this operator.
        live: the Deployment that exists; its sizer image is kept while its inputs are the same.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": server.name,
            "namespace": server.namespace,
            "labels": server_labels(server.name),
            "ownerReferences": [owner_reference(server)],
        },
        "spec": {
            # Autoscalers write the resource's replicas through its scale subresource; on the
            # child the number is the operator's.
            "replicas": server.spec.replicas,
            "selector": {"matchLabels": selector(server.name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": MAX_SURGE, "maxUnavailable": MAX_UNAVAILABLE},
            },
            "progressDeadlineSeconds": progress_deadline(server),
            "template": _pod_template(server, stamp, context, live),
        },
    }


def _pod_template(
    server: InferenceServer, stamp: Stamp, context: BuildContext, live: Mapping[str, Any] | None
) -> dict[str, Any]:
    fingerprint = inputs_hash(server, stamp)
    sizer = _rendered_sizer(live, fingerprint) or context
    template = server.spec.template
    annotations = {
        **template.annotations,
        names.INPUTS_HASH: fingerprint,
        names.SIZER_IMAGE: sizer.sizer_image,
        names.SIZER_PULL_POLICY: sizer.sizer_pull_policy,
    }
    return {
        "metadata": {
            "labels": server_labels(server.name, template.labels),
            "annotations": annotations,
        },
        "spec": _pod_spec(server, stamp, sizer),
    }


def scaled(live: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    """The live Deployment with another number of replicas and nothing else changed.

    For the time in which no new template can be rendered yet (a re-size waits for a GPU): scaling
    must go on, and scaling down may be what frees that GPU.
    """
    metadata = live["metadata"]
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {key: deepcopy(metadata[key]) for key in kept if key in metadata},
        "spec": {**deepcopy(dict(live["spec"])), "replicas": replicas},
    }


def _rendered_sizer(live: Mapping[str, Any] | None, fingerprint: str) -> BuildContext | None:
    """The sizer of the live template, if that template was rendered from the same inputs."""
    template = (live or {}).get("spec", {}).get("template", {})
    if names.inputs_hash_of(template) != fingerprint:
        return None
    annotations = template["metadata"]["annotations"]
    image = annotations.get(names.SIZER_IMAGE)
    policy = annotations.get(names.SIZER_PULL_POLICY)
    return BuildContext(image, policy) if image and policy else None


def _pod_spec(server: InferenceServer, stamp: Stamp, sizer: BuildContext) -> dict[str, Any]:
    guard = sizer_container(
        server,
        sizer,
        # The sizing key, not the request hash: the latter contains the operator's own image.
        request_hash=sizing_key(server),
        stamped_tokens=stamp.max_total_token_num,
    )
    return {
        **pod_base(server, stamp.pin),
        "terminationGracePeriodSeconds": server.spec.rollout.drain_seconds + PRE_STOP_SECONDS,
        # The last init container: the kubelet keeps the record of that one only, so it is not run
        # again when the server container restarts.
        "initContainers": [guard],
        "containers": [_server_container(server, stamp)],
    }


def _server_container(server: InferenceServer, stamp: Stamp) -> dict[str, Any]:
    engine, spec = lookup(server.spec.engine.type), server.spec
    health = {"httpGet": {"path": engine.health_path, "port": names.HTTP_PORT}, "timeoutSeconds": 5}
    budget = startup_seconds(server, stamp.weight_bytes)
    return {
        "name": names.SERVER,
        "image": spec.engine.image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": [literal(word) for word in spec.engine.command] or list(engine.default_command),
        "args": server_args(server, stamp),
        "env": [_env(entry) for entry in spec.engine.env],
        "ports": [
            {
                "name": names.HTTP_PORT,
                "containerPort": server_port(server),
                "protocol": "TCP",
            }
        ],
        "resources": with_devices(server, spec.template.resources),
        "securityContext": server_security(server),
        "startupProbe": {
            **health,
            "periodSeconds": PROBE_PERIOD,
            "failureThreshold": math.ceil(budget / PROBE_PERIOD),
        },
        # No liveness probe: it would kill a server that is busy with one long prefill.
        "readinessProbe": {**health, "periodSeconds": 5, "failureThreshold": 3},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        # The last lines of the log then become the reason in the condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            model_mount(server),
            {"name": names.SHARED_MEMORY_VOLUME, "mountPath": names.SHARED_MEMORY_PATH},
        ],
    }


def server_args(server: InferenceServer, stamp: Stamp) -> list[str]:
    """The engine's arguments: what it serves, what the user adds, what Plimsoll pins."""
    engine, spec, request = lookup(server.spec.engine.type), server.spec, sizing_request(server)
    serve = engine.serve_args(
        model_path=served_path(server, stamp),
        served_name=spec.model.served_name,
        host="0.0.0.0",  # noqa: S104 -- the Service reaches the pod from outside
        port=server_port(server),
        request=request,
    )
    pinned = engine.pinned_args(
        Pinned(
            max_total_token_num=stamp.max_total_token_num,
            max_sequences=stamp.max_sequences,
            context_length=stamp.context_length,
            prefill_tokens=stamp.prefill_tokens,
        ),
        request,
    )
    words = [*engine.argv(serve), *spec.engine.args, *engine.argv(pinned)]
    return [literal(word) for word in words]


def served_path(server: InferenceServer, stamp: Stamp) -> str:
    """What the engine is told to load: the folder, or exactly the file that was sized."""
    model = server.spec.model
    file = model.file or stamp.model_file
    return posixpath.join(model_path(model), file) if file else model_path(model)


def _env(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "value": literal(entry["value"])} if "value" in entry else dict(entry)
