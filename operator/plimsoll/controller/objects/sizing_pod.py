"""The sizing pod: the server's pod with the engine replaced by nothing.

A plain pod, not a Job: a refusal by quota, LimitRange or Pod Security is then a synchronous answer
whose text becomes the condition. Retry and back-off are the planner's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.objects import names
from plimsoll.controller.objects.hashes import digest
from plimsoll.controller.objects.labels import owner_reference, sizing_labels
from plimsoll.controller.objects.pod import (
    SIZER_RESOURCES,
    pod_base,
    sizer_containers,
    sizer_security,
    with_devices,
)

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects.context import BuildContext

# Counted by the kubelet from the moment it accepts the pod, so waiting for a GPU is free. The
# sizer's own deadline is 300 s; the rest is for attaching the volume and pulling a small image.
ACTIVE_DEADLINE_SECONDS: Final = 900
# Nothing needs a goodbye, and a pod that lingers holds the name and the GPU.
GRACE_SECONDS: Final = 5

# A pod in its init phase looks idle to node autoscalers, and losing the node loses the answer.
PROTECTED: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}


def request_hash(server: InferenceServer, context: BuildContext) -> str:
    """The fingerprint of everything rendered into the sizing pod; it names the pod."""
    return digest(_render(server, context, request_hash="", name=""))


def sizing_pod(server: InferenceServer, context: BuildContext) -> dict[str, Any]:
    """The complete sizing pod."""
    fingerprint = request_hash(server, context)
    name = names.sizing_pod_name(server.name, fingerprint)
    return _render(server, context, request_hash=fingerprint, name=name)


def _render(
    server: InferenceServer, context: BuildContext, *, request_hash: str, name: str
) -> dict[str, Any]:
    template = server.spec.template
    done = {
        "name": names.DONE,
        "image": context.sizer_image,
        "imagePullPolicy": context.sizer_pull_policy,
        "args": ["done"],
        # The server's own requests: the pod must land where the server will fit.
        "resources": with_devices(server, template.resources or SIZER_RESOURCES),
        "securityContext": sizer_security(server),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": server.namespace,
            "labels": sizing_labels(server.name, template.labels),
            "annotations": {**template.annotations, **PROTECTED},
            "ownerReferences": [owner_reference(server)],
        },
        "spec": {
            **pod_base(server, None),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": ACTIVE_DEADLINE_SECONDS,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "initContainers": sizer_containers(server, context, request_hash=request_hash),
            "containers": [done],
        },
    }
