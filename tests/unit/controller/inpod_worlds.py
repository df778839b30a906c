"""Worlds in which servers measure for themselves, and worlds of nodes with kubelets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plimsoll.controller.objects import Stamp, deployment, service, sizing_pod
from plimsoll.controller.objects.context import WRAPPER
from plimsoll.controller.observed import observe_from
from plimsoll.controller.placement import Landscape, landscape_from
from plimsoll.controller.plan import plan
from tests.unit.controller.builders import (
    CONTEXT,
    DEVICE,
    GPU_LABEL,
    NOW,
    PRODUCT,
    REPORT,
    body,
    born,
    message,
    node,
    server,
    server_pod,
    stored,
    unschedulable,
)
from tests.unit.controller.plan_worlds import NO_GPU, child, sized_status

if TYPE_CHECKING:
    from plimsoll.controller.observed import Observed

A100 = "NVIDIA-A100-SXM4-80GB"
PATIENCE = 15
WRAPPED = Stamp(transport=WRAPPER)
EDITED: dict[str, Any] = {"sizing": {"extraReserve": "1Gi"}}
ONE_POD_VOLUME = (
    "0/1 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and "
    "ReadWriteOncePod access mode."
)


def kubelets(*versions: str, **labels: str) -> Landscape:
    """Nodes n0, n1, ... of these kubelets with a free GPU each; labels are those of the first."""
    nodes = []
    for number, version in enumerate(versions):
        found = node(f"n{number}", **(labels if number == 0 else {}))
        amounts = {"nvidia.com/gpu": "1", "cpu": "64", "memory": "512Gi", "pods": "110"}
        found["status"] = {
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": version},
        }
        nodes.append(found)
    return landscape_from(nodes, [], NOW)


def waiting_pod(seconds: float, text: str = NO_GPU, **spec: Any) -> dict[str, Any]:
    """The sizing pod of the spec, for so long without a node."""
    made = born(sizing_pod(server(**spec), CONTEXT), at=NOW - timedelta(seconds=seconds))
    return unschedulable(made, text)


def edit(
    seconds: float = PATIENCE, text: str = NO_GPU, *, spec: dict[str, Any] | None = None
) -> Observed:
    """A measured server serves, and the sizing pod of its edited resource has no node."""
    wanted = EDITED if spec is None else spec
    live = child()
    return observe_from(
        body(generation=2, status=sized_status(), **wanted),
        deployment=live,
        service=stored(service(server())),
        pods=[server_pod(live), waiting_pod(seconds, text, **wanted)],
        node=node(),
    )


def measuring(
    stamp: Stamp = WRAPPED,
    products: tuple[str, ...] = (PRODUCT,),
    *,
    status: dict[str, Any] | None = None,
    ready: bool = True,
    **spec: Any,
) -> Observed:
    """Each server has measured for itself, one on each of these kinds of GPU."""
    spec = {"replicas": len(products), **spec}
    live = stored(deployment(server(**spec), stamp, CONTEXT))
    pods = []
    for number, product in enumerate(products):
        pod = server_pod(live, number, ready=ready, node_name=f"n{number}")
        report = replace(REPORT, device_class=replace(DEVICE, product=product))
        end = {"exitCode": 0, "message": message(pod, report)}
        pod["status"]["initContainerStatuses"][0]["state"]["terminated"] = end
        pods.append(pod)
    return observe_from(
        body(**spec, status=status),
        deployment=live,
        service=stored(service(server(**spec))),
        pods=pods,
        node=node("n0", **{GPU_LABEL: products[0]}),
    )


def known(world: Observed) -> Observed:
    """The same world once a pass has written what it found."""
    made = plan(world, CONTEXT, NOW)
    assert made.status is not None
    return replace(world, raw={**world.raw, "status": made.status})


def edited(world: Observed, **spec: Any) -> Observed:
    """The world after an edit of these parts of the spec; `known` nodes and status stay."""
    wanted = {**world.raw["spec"], **spec}
    raw = body(generation=2, status=dict(world.status), **wanted)
    return replace(world, raw=raw, server=observe_from(raw).server)
