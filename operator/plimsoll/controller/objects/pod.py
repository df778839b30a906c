"""The parts that a sizing pod and a server pod have in common.

They must be common: the number holds only where the server runs under the same node constraints,
with the same devices and the same volume as the pod that was measured.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd import sizing_request
from plimsoll.controller.crd.types import TORCH
from plimsoll.controller.objects import names
from plimsoll.controller.objects.affinity import (
    class_preferences,
    class_requirements,
    with_node_preferences,
    with_node_requirements,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.crd.types import InferenceServer, Model
    from plimsoll.controller.objects.context import BuildContext, Pin

# The uid of "nonroot" in distroless images; the sizer image has no other needs.
SIZER_USER: Final = 65532

# What the init container does.
SIZE: Final = "size"
GUARD: Final = "guard"

# Generous for a program of 20 MiB: a GPU init container that is killed for memory can leave its
# pod stuck (NVIDIA/nvidia-container-toolkit#30). The pod is charged the maximum of init and server
# containers, so beside a real server this costs nothing.
SIZER_RESOURCES: Final[Mapping[str, Mapping[str, str]]] = {
    "requests": {"cpu": "50m", "memory": "64Mi"},
    "limits": {"memory": "512Mi"},
}


# torch and its libraries are loaded, and a CUDA context made, for the seconds of the probe.
TORCH_RESOURCES: Final[Mapping[str, Mapping[str, str]]] = {
    "requests": {"cpu": "50m", "memory": "64Mi"},
    "limits": {"memory": "8Gi"},
}


def model_path(model: Model) -> str:
    """Where the model is inside the container.

    The claim is mounted whole and the sub-path is appended, rather than mounted by
    ``volumeMounts[].subPath``: the kubelet would create a missing folder inside the user's volume,
    and a Hugging Face snapshot, whose files are links to ``../../blobs``, would lose its files.
    """
    return posixpath.join(model.mount_path, model.sub_path) if model.sub_path else model.mount_path


def literal(text: str) -> str:
    """The text as the kubelet must read it to hand over exactly ``text``.

    In command, args and env the kubelet replaces ``$(NAME)`` and turns ``$$`` into ``$``. User
    text is passed through literally, so every run of dollars that it would touch is doubled.
    """
    return re.sub(r"\$\$+|\$(?=\()", lambda run: run.group() * 2, text)


def volumes(server: InferenceServer) -> list[dict[str, Any]]:
    """The model (never written), the sizer's scratch folder and the engine's shared memory."""
    spec = server.spec
    return [
        {
            "name": names.MODEL_VOLUME,
            "persistentVolumeClaim": {"claimName": spec.model.claim_name},
        },
        {"name": names.WORK_VOLUME, "emptyDir": {"sizeLimit": _work_size(server)}},
        {
            "name": names.SHARED_MEMORY_VOLUME,
            "emptyDir": {"medium": "Memory", "sizeLimit": spec.template.shared_memory_size},
        },
    ]


def model_mount(server: InferenceServer) -> dict[str, Any]:
    """The mount of the model's claim."""
    return {
        "name": names.MODEL_VOLUME,
        "mountPath": server.spec.model.mount_path,
        "readOnly": True,
    }


def with_devices(
    server: InferenceServer, resources: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """The resources plus the accelerators.

    Every container of a pod asks for the same number of the same resource: then the kubelet gives
    an init container and the container after it the very same devices, and charges them once.
    """
    accelerator = server.spec.accelerator
    devices = {accelerator.resource: str(accelerator.count)}
    return {
        "requests": {**resources.get("requests", {}), **devices},
        "limits": {**resources.get("limits", {}), **devices},
    }


def sizer_containers(
    server: InferenceServer,
    context: BuildContext,
    *,
    request_hash: str,
    role: str = SIZE,
    extra_reserve: int = 0,
    more: Iterable[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The init container that measures (``size``) or, beside a stamped number, guards (``guard``).

    Args:
        server: the resource.
        context: the sizer's image.
        request_hash: comes back in the termination message, which is refused without it.
        role: ``SIZE`` or ``GUARD``.
        extra_reserve: bytes to leave free beside what the resource asks for.
        more: environment entries of that role.
    """
    request = sizing_request(server)
    request = replace(request, extra_reserve=request.extra_reserve + extra_reserve)
    env: list[dict[str, Any]] = [
        {"name": "PLIMSOLL_REQUEST", "value": literal(request.to_json())},
        {"name": "PLIMSOLL_REQUEST_HASH", "value": request_hash},
        {
            "name": "PLIMSOLL_POD_UID",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}},
        },
        {"name": "PLIMSOLL_MODEL_PATH", "value": model_path(server.spec.model)},
        {"name": "PLIMSOLL_DEVICE_COUNT", "value": str(server.spec.accelerator.count)},
    ]
    env.extend(dict(entry) for entry in more)
    sizer = {
        "name": names.SIZER,
        "image": context.sizer_image,
        "imagePullPolicy": context.sizer_pull_policy,
        "args": [role],
        "env": env,
        "resources": with_devices(server, SIZER_RESOURCES),
        "securityContext": sizer_security(server),
        "volumeMounts": [
            model_mount(server),
            {"name": names.WORK_VOLUME, "mountPath": names.WORK_PATH},
        ],
    }
    return [sizer] if server.spec.sizing.probe != TORCH else _beside_torch(server, sizer)


def _beside_torch(server: InferenceServer, sizer: dict[str, Any]) -> list[dict[str, Any]]:
    """CUDA's own word on the memory needs the engine's torch, and so its image.

    A first init container carries the sizer into a volume that both see; the second runs it there.
    """
    carrier = {
        **sizer,
        "name": names.SIZER_FILES,
        "args": ["copy", names.SIZER_FOLDER],
        "env": [],
        "volumeMounts": [{"name": names.WORK_VOLUME, "mountPath": names.WORK_PATH}],
    }
    engine = server.spec.engine
    carried = {
        **sizer,
        "image": engine.image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": ["python3", "-I", names.SIZER_FOLDER],
        "env": [*sizer["env"], {"name": "PLIMSOLL_PROBE", "value": TORCH}],
        "resources": with_devices(server, TORCH_RESOURCES),
    }
    return [carrier, carried]


def _work_size(server: InferenceServer) -> str:
    """The env file is some lines; the sizer itself, where it is carried, is 2 MB."""
    return "8Mi" if server.spec.sizing.probe == TORCH else "1Mi"


def sizer_security(server: InferenceServer) -> dict[str, Any]:
    """Pod Security ``restricted``, as the user's uid where one is given (it must read the model)."""
    user = server.spec.template.security_context
    return {
        "runAsNonRoot": True,
        "runAsUser": user.get("runAsUser", SIZER_USER),
        "runAsGroup": user.get("runAsGroup", SIZER_USER),
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def server_security(server: InferenceServer) -> dict[str, Any]:
    """Restricted where the user says which uid the engine runs as, else baseline.

    Many engine images run as root and the kubelet refuses those under ``runAsNonRoot``; a root
    process without capabilities may be unable to read its own files, so they stay too.
    """
    user = server.spec.template.security_context
    if "runAsUser" not in user:
        return {"allowPrivilegeEscalation": False}
    group = {"runAsGroup": user["runAsGroup"]} if "runAsGroup" in user else {}
    return {
        "runAsNonRoot": True,
        "runAsUser": user["runAsUser"],
        **group,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_base(server: InferenceServer, pin: Pin | None, *, ordered: bool = True) -> dict[str, Any]:
    """The pod fields outside the containers: no token, no links, volumes, scheduling.

    Args:
        server: the resource.
        pin: the kind of GPU, or the node, that it must run on.
        ordered: whether the first of several kinds of GPU is preferred.
    """
    template = server.spec.template
    security = template.security_context
    groups = {
        name: security[name] for name in ("fsGroup", "supplementalGroups") if name in security
    }
    if "fsGroup" in groups:
        # A recursive chown of 140 GB of weights takes minutes.
        groups["fsGroupChangePolicy"] = "OnRootMismatch"
    affinity = with_node_requirements(
        template.affinity, class_requirements(server.spec.accelerator, pin)
    )
    if ordered:
        affinity = with_node_preferences(affinity, class_preferences(server.spec.accelerator, pin))
    optional = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": [dict(toleration) for toleration in template.tolerations],
        "affinity": affinity,
        "topologySpreadConstraints": [dict(c) for c in template.topology_spread_constraints],
        "schedulerName": template.scheduler_name,
        "runtimeClassName": template.runtime_class_name,
        "priorityClassName": template.priority_class_name,
        "imagePullSecrets": [{"name": secret} for secret in template.image_pull_secrets],
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, **groups},
        "volumes": volumes(server),
        **{name: value for name, value in optional.items() if value},
    }
