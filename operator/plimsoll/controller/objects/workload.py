"""The Deployment: the engine, its arguments with the stamped number, and the guard before it.

Two annotations of the pod template make the operator's own upgrades harmless. ``inputs-hash`` is
the fingerprint of what the *user's* resource and the stamped numbers put into the template; a pod
belongs to the current template exactly when it carries the wanted hash. ``sizer-image`` tells which
sizer was rendered: while the inputs are the same, a new operator keeps it, because another image
would restart every server. The annotation, not the container, is believed, so that a tampered
container is still put right.
"""

from __future__ import annotations

import json
import math
import posixpath
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd import sizing_request
from plimsoll.controller.crd.types import WITH_OPERATOR
from plimsoll.controller.objects import drain, inpod, names, versions
from plimsoll.controller.objects.context import FREE_FIRST, WRAPPER, BuildContext
from plimsoll.controller.objects.hashes import sizing_key
from plimsoll.controller.objects.labels import owner_reference, selector, server_labels
from plimsoll.controller.objects.pod import (
    GUARD,
    SIZE,
    literal,
    model_mount,
    model_path,
    pod_base,
    server_security,
    sizer_containers,
    with_devices,
)
from plimsoll.controller.objects.versions import version_to_render
from plimsoll.core.engines import lookup
from plimsoll.core.engines.base import Pinned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects.context import Stamp, Turns

# A rollout may take two starts (the guard's refusal, a smaller pool) and an image pull.
PULL_SECONDS: Final = 600
# What render version 1 wrote for every server.
FIRST_PROGRESS_DEADLINE: Final = 3600
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


def progress_deadline(
    server: InferenceServer, weight_bytes: int | None, version: int = versions.LATEST
) -> int:
    """Seconds after which a rollout without progress is called stuck.

    Derived from the time that a start may take, which is derived from the bytes of the weights.
    """
    asked = server.spec.rollout.progress_deadline_seconds
    if version == versions.FIRST:
        return asked or FIRST_PROGRESS_DEADLINE
    return asked or 2 * startup_seconds(server, weight_bytes) + PULL_SECONDS


def server_port(server: InferenceServer) -> int:
    """The port the engine listens on."""
    return server.spec.engine.port or lookup(server.spec.engine.type).default_port


def deployment(
    server: InferenceServer,
    stamp: Stamp,
    context: BuildContext,
    live: Mapping[str, Any] | None = None,
    turns: Turns = FREE_FIRST,
) -> dict[str, Any]:
    """The complete Deployment, named as the resource.

    Args:
        server: the resource.
        stamp: the numbers to write, and where they hold.
        context: the sizer image of this operator.
        live: the Deployment that exists; its sizer image and its render version are kept while its
            inputs are the same.
        turns: how old and new pods take turns.
    """
    version, fingerprint = version_to_render(server, stamp, live)
    sizer = _rendered_sizer(server, live, fingerprint) or context
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
            "strategy": _strategy(turns),
            "progressDeadlineSeconds": progress_deadline(server, stamp.weight_bytes, version),
            "template": _pod_template(server, stamp, sizer, version, fingerprint),
        },
    }


def with_turns(wanted: Mapping[str, Any], turns: Turns) -> dict[str, Any]:
    """The rendered Deployment with other turns, which the template knows nothing of."""
    return {**wanted, "spec": {**wanted["spec"], "strategy": _strategy(turns)}}


def _strategy(turns: Turns) -> dict[str, Any]:
    if turns.max_surge is None:
        return {"type": turns.strategy}
    # Both values, or the API server's default for the missing one would count.
    counts = {"maxSurge": turns.max_surge, "maxUnavailable": turns.max_unavailable}
    return {"type": turns.strategy, "rollingUpdate": counts}


def _pod_template(
    server: InferenceServer, stamp: Stamp, sizer: BuildContext, version: int, fingerprint: str
) -> dict[str, Any]:
    template = server.spec.template
    annotations = {
        **template.annotations,
        names.INPUTS_HASH: fingerprint,
        names.SIZER_IMAGE: sizer.sizer_image,
        names.SIZER_PULL_POLICY: sizer.sizer_pull_policy,
    }
    if version > versions.FIRST:
        annotations[names.RENDER_VERSION] = str(version)
    return {
        "metadata": {
            "labels": server_labels(server.name, template.labels),
            "annotations": annotations,
        },
        "spec": _pod_spec(server, stamp, sizer, version),
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


def _rendered_sizer(
    server: InferenceServer, live: Mapping[str, Any] | None, fingerprint: str
) -> BuildContext | None:
    """The sizer of the live template, if that template was rendered from the same inputs."""
    template = (live or {}).get("spec", {}).get("template", {})
    if names.inputs_hash_of(template) != fingerprint:
        return None
    if server.spec.rollout.update_policy == WITH_OPERATOR:
        return None
    annotations = template["metadata"]["annotations"]
    image = annotations.get(names.SIZER_IMAGE)
    policy = annotations.get(names.SIZER_PULL_POLICY)
    return BuildContext(image, policy) if image and policy else None


def _pod_spec(
    server: InferenceServer, stamp: Stamp, sizer: BuildContext, version: int
) -> dict[str, Any]:
    sizers = sizer_containers(
        server,
        sizer,
        # The sizing key, not the request hash: the latter contains the operator's own image.
        request_hash=sizing_key(server),
        role=SIZE if stamp.transport else GUARD,
        extra_reserve=stamp.extra_reserve or 0,
        more=inpod.sizer_env(server) if stamp.transport else guard_env(stamp, version),
    )
    return {
        **pod_base(server, stamp.pin, ordered=version >= versions.ORDERED),
        "terminationGracePeriodSeconds": drain.grace_seconds(server),
        # The last init container: the kubelet keeps the record of that one only, so it is not run
        # again when the server container restarts.
        "initContainers": sizers,
        "containers": [_server_container(server, stamp, version)],
    }


def guard_env(stamp: Stamp, version: int) -> list[dict[str, str]]:
    """What the guard compares the device with; since version 2 it may refuse.

    A number of the user's own, or the engine's own choice, is looked at and never refused.
    """
    found: dict[str, object] = {"PLIMSOLL_STAMPED_TOKENS": stamp.max_total_token_num}
    if version > versions.FIRST:
        found["PLIMSOLL_GUARD"] = "Report" if stamp.gpu is None else "Refuse"
        found["PLIMSOLL_STAMPED_BYTES"] = stamp.kv_bytes
        found["PLIMSOLL_STAMPED_MODEL"] = stamp.model_digest
        if stamp.gpu is not None:
            found["PLIMSOLL_STAMPED_CLASS"] = json.dumps(
                dict(stamp.gpu), sort_keys=True, separators=(",", ":")
            )
    given = {key: str(value) for key, value in found.items() if value is not None}
    return [{"name": key, "value": literal(value)} for key, value in given.items()]


def _server_container(server: InferenceServer, stamp: Stamp, version: int) -> dict[str, Any]:
    engine, spec = lookup(server.spec.engine.type), server.spec
    health = {"httpGet": {"path": engine.health_path, "port": names.HTTP_PORT}, "timeoutSeconds": 5}
    budget = startup_seconds(server, stamp.weight_bytes)
    return {
        "name": names.SERVER,
        "image": spec.engine.image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        **_entry_point(server, stamp),
        "env": server_env(server, stamp, version),
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
        "lifecycle": drain.sleeping()
        if version == versions.FIRST
        else drain.draining(server, server_port(server)),
        # The last lines of the log then become the reason in the condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(server, stamp),
        **_restarts(stamp),
    }


def _mounts(server: InferenceServer, stamp: Stamp) -> list[dict[str, Any]]:
    mounts = [
        model_mount(server),
        {"name": names.SHARED_MEMORY_VOLUME, "mountPath": names.SHARED_MEMORY_PATH},
    ]
    if stamp.transport == WRAPPER:
        work = {"name": names.WORK_VOLUME, "mountPath": names.WORK_PATH, "readOnly": True}
        mounts.append(work)
    return mounts


def _restarts(stamp: Stamp) -> dict[str, Any]:
    """An engine that ended badly is started again behind a new measurement, where that exists."""
    if not stamp.remeasures:
        return {}
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
    return {"restartPolicy": "Always", "restartPolicyRules": [rule]}


def _entry_point(server: InferenceServer, stamp: Stamp) -> Mapping[str, list[str]]:
    engine = lookup(server.spec.engine.type)
    if stamp.transport is not None:
        command = server.spec.engine.command or engine.default_command
        return inpod.entry_point(server, stamp.transport, command, _own_words(server, stamp))
    command = tuple(literal(word) for word in server.spec.engine.command)
    return {"command": list(command or engine.default_command), "args": server_args(server, stamp)}


def server_args(server: InferenceServer, stamp: Stamp) -> list[str]:
    """The engine's arguments: what it serves, what the user adds, what Plimsoll pins."""
    if stamp.unpinned:
        return [literal(word) for word in _own_words(server, stamp)]
    engine = lookup(server.spec.engine.type)
    pinned = engine.pinned_args(pinned_numbers(stamp), sizing_request(server))
    return [literal(word) for word in (*_own_words(server, stamp), *engine.argv(pinned))]


def _own_words(server: InferenceServer, stamp: Stamp) -> list[str]:
    """The arguments that hold no number: what is served, and the user's own."""
    engine, spec = lookup(server.spec.engine.type), server.spec
    serve = engine.serve_args(
        model_path=served_path(server, stamp),
        served_name=spec.model.served_name,
        host="0.0.0.0",  # noqa: S104 -- the Service reaches the pod from outside
        port=server_port(server),
        request=sizing_request(server),
    )
    return [*engine.argv(serve), *spec.engine.args]


def pinned_numbers(stamp: Stamp) -> Pinned:
    """The numbers behind the engine's flags."""
    if stamp.pinned is not None:
        return Pinned.from_mapping(stamp.pinned)
    return Pinned(
        max_total_token_num=stamp.max_total_token_num,
        max_sequences=stamp.max_sequences,
        context_length=stamp.context_length,
        prefill_tokens=stamp.prefill_tokens,
    )


def server_env(server: InferenceServer, stamp: Stamp, version: int) -> list[dict[str, Any]]:
    """The engine's environment: the user's entries, then what Plimsoll pins there."""
    user = [_env(entry) for entry in server.spec.engine.env]
    if version == versions.FIRST or stamp.unpinned:
        return user
    if stamp.transport is not None:
        return [*user, *inpod.env(server, stamp.transport)]
    engine = lookup(server.spec.engine.type)
    pinned = engine.pinned_env(pinned_numbers(stamp), sizing_request(server))
    return [*user, *({"name": key, "value": literal(text)} for key, text in pinned.items())]


def served_path(server: InferenceServer, stamp: Stamp) -> str:
    """What the engine is told to load: the folder, or exactly the file that was sized."""
    model = server.spec.model
    file = model.file or stamp.model_file
    return posixpath.join(model_path(model), file) if file else model_path(model)


def _env(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "value": literal(entry["value"])} if "value" in entry else dict(entry)
