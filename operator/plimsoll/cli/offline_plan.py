"""The operator's own plan for a resource that no cluster has seen. Pure but for reading the model's files."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli.options import device_of
from plimsoll.controller.actions import Apply, Create
from plimsoll.controller.crd import sizing_request
from plimsoll.controller.objects import Stamp, deployment, service
from plimsoll.controller.objects.inpod import flags_of
from plimsoll.controller.observed import observe_from
from plimsoll.controller.placement import Landscape, NodeView
from plimsoll.controller.plan import plan
from plimsoll.controller.steps import capacity as capacities
from plimsoll.core.engines import lookup
from plimsoll.core.errors import BadArgument, PlimsollError
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer
    from plimsoll.controller.objects import BuildContext
    from plimsoll.controller.observed import Observed

MEASURED: Final = "<measured>"
NODE: Final = "node-of-this-gpu"
_UID: Final = "00000000-0000-0000-0000-000000000000"
_REFERENCE: Final = re.compile(r"\$\([A-Z0-9_a-z]+\)")
_THEN: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What would be created for one resource; objects in the order of their creation."""

    name: str
    mode: str | None = None
    why: str | None = None
    notes: tuple[str, ...] = ()
    objects: tuple[dict[str, Any], ...] = ()
    error: PlimsollError | None = None


class NotAccepted(PlimsollError):  # noqa: N818 - named as the condition
    """The operator would not accept the resource."""

    default_reason = "InvalidSpec"
    exit_code = 2


def refused(name: str, error: PlimsollError) -> Rendered:
    """A resource that nothing would be created for."""
    return Rendered(name, error=error)


def rendered(raw: Mapping[str, Any], chosen: argparse.Namespace, context: BuildContext) -> Rendered:
    """Plan it.

    Args:
        raw: the resource as it stands in the file.
        chosen: flags of ``render``.
        context: the sizer's image.

    Raises:
        PlimsollError: it would not be accepted, or there is no such number.
    """
    body = _as_stored(raw, chosen.namespace)
    if chosen.tokens is not None:
        _fix(body, chosen.tokens)
    observed = _observed(body, chosen.kubelet)
    first = plan(observed, context, _THEN)
    status = first.status or {}
    _check_accepted(status)
    server = observed.server
    assert server is not None
    objects, notes = (
        [action.obj for action in first.actions if isinstance(action, Create | Apply)],
        [],
    )
    effective = status.get("effective") or {}
    if chosen.model is not None and effective.get("mode") == "Stamped":
        body["status"] = {"capacity": _computed(server, chosen)}
        second = plan(_observed(body, chosen.kubelet), context, _THEN)
        objects += [action.obj for action in second.actions if isinstance(action, Apply)]
        found = body["status"]["capacity"]
        notes.append(
            f"{found['maxTotalTokenNum']} tokens on {found['gpu']['product']} ({found['confidence']})"
        )
    elif not any(obj["kind"] == "Deployment" for obj in objects) and not server.spec.rollout.paused:
        objects += [_placeholder(server, context), service(server)]
        notes.append(
            f"The number is not known before a GPU was measured: {MEASURED} stands for it. The GPU's node affinity "
            "and the guard's values come with it; give --gpu and --model to see them."
        )
    # The Deployment is what people look for; the operator writes the Service first.
    objects.sort(key=lambda obj: obj["kind"] == "Service")
    if server.spec.rollout.paused:
        notes.append(
            "Field spec.rollout.paused is true: no Deployment is created until it is false."
        )
    why = effective.get("modeReason")
    notes.append(f"Mode {effective.get('mode')}" + (f": {why}" if why else ""))
    return Rendered(server.name, effective.get("mode"), why, tuple(notes), tuple(objects))


def _as_stored(raw: Mapping[str, Any], namespace: str | None) -> dict[str, Any]:
    """The resource as the API server would store it, with a UID that is none."""
    body = deepcopy(dict(raw))
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise BadArgument("the InferenceServer has no metadata.name", field="metadata.name")
    body["metadata"] = {
        **metadata,
        "namespace": metadata.get("namespace") or namespace or "default",
        "uid": _UID,
        "generation": 1,
    }
    body.pop("status", None)
    return body


def _fix(body: dict[str, Any], tokens: int) -> None:
    spec = body.get("spec")
    if isinstance(spec, dict):
        sizing = spec.get("sizing")
        given = sizing if isinstance(sizing, dict) else {}
        spec["sizing"] = {**given, "mode": "Fixed", "maxTotalTokenNum": tokens}


def _observed(body: Mapping[str, Any], kubelet: tuple[int, int]) -> Observed:
    observed = observe_from(body)
    if observed.server is None:
        return observed
    return replace(observed, landscape=_landscape(observed.server, kubelet))


def _landscape(server: InferenceServer, kubelet: tuple[int, int]) -> Landscape:
    """One node that may take the pods: with the labels that they ask for, and GPUs enough."""
    accelerator = server.spec.accelerator
    labels = dict(server.spec.template.node_selector)
    if accelerator.products and accelerator.class_label_keys:
        labels[accelerator.class_label_keys[0]] = accelerator.products[0]
    devices = {accelerator.resource: accelerator.count}
    node = NodeView(NODE, labels, allocatable=devices, devices=devices, kubelet=kubelet)
    return Landscape((node,), {}, _THEN)


def _check_accepted(status: Mapping[str, Any]) -> None:
    accepted = next(c for c in status["conditions"] if c["type"] == "Accepted")
    if accepted["status"] != "True":
        raise NotAccepted(accepted["message"], reason=accepted["reason"])


def _computed(server: InferenceServer, chosen: argparse.Namespace) -> dict[str, Any]:
    """``status.capacity`` as a sizing pod on this GPU would have it."""
    from plimsoll.checkpoint import fit_checkpoint, read_checkpoint  # noqa: PLC0415 - only with --model

    request = sizing_request(server)
    device, _ = device_of(chosen, request)
    model = read_checkpoint(Path(chosen.model), server.spec.model.file, require_weights=False)
    answer = fit_checkpoint(model, device, request, weights=chosen.weights or None)
    report = answer.report(pod_uid=_UID, request_hash="0" * 40, model_digest=model.digest)
    keys, products = server.spec.accelerator.class_label_keys, server.spec.accelerator.products
    label = report.device_class.product.replace(" ", "-")  # as GPU feature discovery writes it
    if products and label not in products:
        raise BadArgument(
            f"the GPU is {label}, and spec.accelerator.products allows {', '.join(products)} only",
            field="--gpu",
            value=label,
        )
    node = {"metadata": {"name": NODE, "labels": {keys[0]: label} if keys else {}}}
    return capacities.measured(
        server, report, node=node, request_hash="0" * 40, at="2000-01-01T00:00:00Z"
    )


def _placeholder(server: InferenceServer, context: BuildContext) -> dict[str, Any]:
    """The Deployment with a word in place of each number that a measurement finds."""
    found = deployment(server, Stamp(unpinned=True), context)
    container = found["spec"]["template"]["spec"]["containers"][0]
    flags = flags_of(server)
    words = lookup(server.spec.engine.type).argv(flags.words)
    container["args"] += [_REFERENCE.sub(MEASURED, word) for word in words]
    env = [{"name": name, "value": value} for name, value in flags.literal_env.items()]
    env += [{"name": name, "value": MEASURED} for name in flags.env_names]
    container["env"] = [*container["env"], *env]
    return found
