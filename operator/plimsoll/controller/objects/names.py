"""Every name that Plimsoll gives to something: one place, so that no two modules can disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer

# Containers.
SIZER: Final = "sizer"
SIZER_FILES: Final = "sizer-files"
SERVER: Final = "server"
DONE: Final = "done"

# Volumes and where they are mounted.
MODEL_VOLUME: Final = "model"
WORK_VOLUME: Final = "plimsoll"
WORK_PATH: Final = "/plimsoll"
SIZER_FOLDER: Final = "/plimsoll/bin"
SHARED_MEMORY_VOLUME: Final = "shm"
SHARED_MEMORY_PATH: Final = "/dev/shm"  # noqa: S108 -- the mount point NCCL and torch look for

HTTP_PORT: Final = "http"

# Annotations on the server's pod template (see workload.py for what they are for).
INPUTS_HASH: Final = "plimsoll.dev/inputs-hash"
SIZER_IMAGE: Final = "plimsoll.dev/sizer-image"
RENDER_VERSION: Final = "plimsoll.dev/render-version"
SIZER_PULL_POLICY: Final = "plimsoll.dev/sizer-pull-policy"

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"


def sizing_pod_name(server_name: str, request_hash: str) -> str:
    """The sizing pod's name; a server's name has at most 52 characters, so this has at most 63.

    It is a function of the question, which makes creation idempotent: a crash between "create" and
    "remember" cannot start a second measurement.
    """
    return f"{server_name}-sz-{request_hash[:7]}"


def endpoint(server: InferenceServer) -> str:
    """The address at which clients inside the cluster reach the server."""
    return f"http://{server.name}.{server.namespace}.svc:{server.spec.service.port}"


def inputs_hash_of(template_or_pod: Mapping[str, object]) -> str | None:
    """The inputs hash that a pod, or a pod template, carries."""
    metadata = template_or_pod.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    found = annotations.get(INPUTS_HASH) if isinstance(annotations, dict) else None
    return found if isinstance(found, str) else None
