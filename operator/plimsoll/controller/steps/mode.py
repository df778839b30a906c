"""Who finds the number: a sizing pod beforehand (Stamped), or each server pod for itself (InPod).

Stamped is the contract: the number stands in the template, for people and autoscalers to see. It
needs a GPU for some seconds. Where none can be had because our own servers hold them all, or where
one number cannot be right (several kinds of GPU), each server measures as it starts.

What runs is never restarted to change the way: a template keeps its way until its inputs change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from plimsoll.controller.crd.types import AUTO, INPOD, RECREATE
from plimsoll.controller.objects import inpod
from plimsoll.controller.objects.context import FILE_KEY_REF, WRAPPER, Stamp
from plimsoll.controller.objects.names import inputs_hash_of, sizing_pod_name
from plimsoll.controller.objects.pod import pod_base
from plimsoll.controller.objects.sizing_pod import request_hash
from plimsoll.controller.objects.versions import inputs_hash, version_of, version_to_render
from plimsoll.controller.placement import demand_of, oldest_kubelet
from plimsoll.controller.steps import capacity as capacities
from plimsoll.controller.steps import podstate
from plimsoll.controller.steps.gpu_classes import kinds
from plimsoll.controller.steps.halt import halt_key, standing
from plimsoll.controller.steps.obstacles import scheduling_obstacle
from plimsoll.core.engines import lookup

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Any

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects import BuildContext
    from plimsoll.controller.observed import Observed

# Seconds for which a sizing pod waits for a GPU before servers that hold one measure for
# themselves. A node autoscaler needs longer, and then there is no server that holds one.
GPU_PATIENCE: Final = 15.0

# The ways of an InPod template: its transport, and whether it measures again by itself.
_WAYS: Final = ((FILE_KEY_REF, True), (FILE_KEY_REF, None), (WRAPPER, None))

_MODE_ASKED: Final = "spec.sizing.mode says so"
_SEVERAL_ASKED: Final = "several kinds of GPU are allowed and no one number is right on all"
_SHARED_ASKED: Final = "the devices are shared"
_RECREATE_ASKED: Final = "with strategy Recreate the GPU is free when the next server starts"
_ASKED: Final = frozenset({_MODE_ASKED, _SEVERAL_ASKED, _SHARED_ASKED, _RECREATE_ASKED})


@dataclass(frozen=True, slots=True)
class InPod:
    """Each server measures for itself: what its template holds in place of numbers, and why."""

    stamp: Stamp
    why: str


def in_pod(
    observed: Observed,
    server: InferenceServer,
    stored: Mapping[str, Any] | None,
    context: BuildContext,
    now: datetime,
) -> InPod | None:
    """Whether the servers measure for themselves; None: the number is found beforehand.

    Args:
        observed: the world.
        server: its resource.
        stored: the answer to the question that it asks now, if there is one.
        context: names the sizing pod.
        now: for how long that pod has waited.
    """
    if server.spec.sizing.mode not in {AUTO, INPOD} or impossible(server) is not None:
        return None
    stamped = _is_stamped(observed, server, stored)
    kept = None if stamped else _live(observed, server, stored)
    kept = kept or _given_up(observed, server, stored)
    if kept is not None:
        return InPod(kept, _why_asked(server) or _why_before(observed))
    if server.spec.sizing.mode == AUTO and stamped:
        return None
    why = (
        _why_asked(server)
        or _why_still(observed, server, stored)
        or _why_now(observed, server, stored, context, now)
    )
    if why is None:
        return None
    stamp = in_pod_stamp(observed, server, stored)
    return InPod(stamp, why) if stamp is not None else None


def impossible(server: InferenceServer) -> str | None:
    """Why this server cannot measure for itself, whatever the cluster; None: it can."""
    engine, spec = lookup(server.spec.engine.type), server.spec
    if engine.formats == {"gguf"} and spec.model.file is None:
        return f"engine {engine.type} is told a file: set spec.model.file"
    return None


def _why_asked(server: InferenceServer) -> str | None:
    """The reasons that the resource itself gives."""
    spec = server.spec
    if spec.sizing.mode == INPOD:
        return _MODE_ASKED
    if len(spec.accelerator.products) > 1:
        return _SEVERAL_ASKED
    if spec.accelerator.memory_budget is not None:
        return _SHARED_ASKED
    if spec.rollout.strategy == RECREATE:
        return _RECREATE_ASKED
    return None


def _why_before(observed: Observed) -> str:
    """The reason that the status has kept; what runs is not restarted to change the way."""
    known = (observed.status.get("effective") or {}).get("modeReason")
    if not known or known in _ASKED:  # the resource asked for it then, and does not any more
        return "they began so and nothing has changed since"
    return str(known)


def _why_still(
    observed: Observed, server: InferenceServer, stored: Mapping[str, Any] | None
) -> str | None:
    """Why a number that the servers found for themselves cannot be stamped for all of them."""
    if stored is None or stored["source"] != capacities.IN_POD:
        return None
    if len(kinds(observed)) > 1:
        return "the servers run on several kinds of GPU and no one number is right on all"
    pinned = capacities.repinned(server, dict(stored), observed.node)
    if capacities.is_unpinnable(server, pinned):
        return "no label of the node tells its kind of GPU, which a stamped number is kept to"
    return None


def _why_now(
    observed: Observed,
    server: InferenceServer,
    stored: Mapping[str, Any] | None,
    context: BuildContext,
    now: datetime,
) -> str | None:
    """The reasons that the cluster gives: no GPU, or no volume, beside our own servers'."""
    if stored is not None:
        return None
    if not any(_holds_gpu(pod) for pod in observed.server_pods):
        return None
    name = sizing_pod_name(server.name, request_hash(server, context))
    pod = next((p for p in observed.sizing_pods if podstate.name(p) == name), None)
    obstacle = scheduling_obstacle(pod) if pod is not None else None
    if pod is None or obstacle is None:
        return None
    if obstacle.reason == "VolumeUnavailable":
        return "the model's volume admits one pod at a time"
    if obstacle.reason == "Unschedulable" and podstate.age(pod, now) >= GPU_PATIENCE:
        return "no GPU is free for a sizing pod while servers of this resource run"
    return None


def _holds_gpu(pod: Mapping[str, Any]) -> bool:
    """A server that waits for a node itself is in nobody's way."""
    return podstate.node_name(pod) is not None and not podstate.is_finished(pod)


def _is_stamped(
    observed: Observed, server: InferenceServer, stored: Mapping[str, Any] | None
) -> bool:
    """Whether the live template already carries the stored number."""
    if stored is None or observed.deployment is None:
        return False
    stamp = capacities.stamp_of(server, stored)
    _, fingerprint = version_to_render(server, stamp, observed.deployment)
    return inputs_hash_of(observed.deployment["spec"]["template"]) == fingerprint


def _live(
    observed: Observed, server: InferenceServer, stored: Mapping[str, Any] | None
) -> Stamp | None:
    """The stamp of the live template, if that is InPod and its inputs are what they were."""
    if observed.deployment is None:
        return None
    template = observed.deployment["spec"]["template"]
    # An upgrade of the operator is no reason to choose again, so the template's own rules count.
    version, fingerprint = version_of(template), inputs_hash_of(template)
    if version is None:
        return None
    for transport, remeasures in _WAYS:
        stamp = _stamp(server, stored, transport, remeasures=remeasures)
        if inputs_hash(server, stamp, version) == fingerprint:
            return stamp
    return None


def _given_up(
    observed: Observed, server: InferenceServer, stored: Mapping[str, Any] | None
) -> Stamp | None:
    """The stamp of an InPod template of these inputs that was given up, if one was.

    It may not be the live one any more: where older servers go on, theirs is. A number in its place,
    or the other transport, would be another template, and so the same crash once more.
    """
    if not (observed.status.get("rollout") or {}).get("halted"):
        return None
    for transport, remeasures in _WAYS:
        stamp = _stamp(server, stored, transport, remeasures=remeasures)
        if standing(observed.status, halt_key(server, inputs_hash(server, stamp))) is not None:
            return stamp
    return None


def in_pod_stamp(
    observed: Observed, server: InferenceServer, stored: Mapping[str, Any] | None
) -> Stamp | None:
    """What this cluster's kubelets can do; None where nothing would start the engine.

    ``fileKeyRef`` needs every kubelet that may get the pod to know it: an older one starts the
    engine with an empty value. The wrapper needs to know the engine's command.
    """
    kubelet = None
    if observed.landscape is not None:
        kubelet = oldest_kubelet(demand_of(_placing(server)), observed.landscape)
    if kubelet is not None and kubelet >= inpod.FILE_KEY_REF_SINCE:
        again = True if kubelet >= inpod.RESTART_ALL_SINCE else None
        return _stamp(server, stored, FILE_KEY_REF, remeasures=again)
    engine = lookup(server.spec.engine.type)
    if not (server.spec.engine.command or engine.default_command):
        return None
    return _stamp(server, stored, WRAPPER, remeasures=None)


def _placing(server: InferenceServer) -> dict[str, Any]:
    """The part of the pod that decides which nodes may get it."""
    accelerator = server.spec.accelerator
    limits = {accelerator.resource: str(accelerator.count)}
    return {**pod_base(server, None), "containers": [{"resources": {"limits": limits}}]}


def _stamp(
    server: InferenceServer,
    stored: Mapping[str, Any] | None,
    transport: str,
    *,
    remeasures: bool | None,
) -> Stamp:
    extra = None
    if stored is not None and stored["source"] == capacities.IN_POD and stored.get("shrinkSteps"):
        # What was learnt by running out of memory; the user's own share is in the request.
        learnt = stored["breakdown"]["reserve"].get("extra", 0) - server.spec.sizing.extra_reserve
        extra = max(0, learnt) or None
    return Stamp(transport=transport, remeasures=remeasures, extra_reserve=extra)
