"""The same levers with the whole arithmetic: where the model's files are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.checkpoint import fit_checkpoint, read_checkpoint
from plimsoll.cli.levers import EXACT
from plimsoll.controller.crd import sizing_request
from plimsoll.core.catalogue import find_gpu
from plimsoll.core.device import Device
from plimsoll.core.errors import PlimsollError
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.checkpoint import Checkpoint
    from plimsoll.cli.levers import Lever
    from plimsoll.controller.crd.types import InferenceServer


def exact(
    levers: Iterable[Lever], server: InferenceServer, capacity: Mapping[str, Any], path: str
) -> tuple[list[Lever], tuple[str, ...]]:
    """The levers with their numbers computed anew, and notes.

    Args:
        levers: as the status alone tells them.
        server: the resource.
        capacity: its ``status.capacity``.
        path: the model's folder or file on this machine.

    Raises:
        PlimsollError: the files cannot be read.
    """
    model = read_checkpoint(Path(path), server.spec.model.file, require_weights=False)
    device = device_of(capacity)
    notes = []
    now = _tokens(model, server, device, {})
    before = capacity.get("predictedTokens")
    if now != before:
        notes.append(
            f"The files at {path} give {now} tokens on this GPU and not the {before} that were measured, "
            "so they are other files, or what was learned is not counted."
        )
    found = [_with(lever, model, server, device) for lever in levers]
    least = capacity["maxTotalTokenNum"]
    found = [lever for lever in found if lever.tokens is None or lever.tokens > least]
    return sorted(found, key=lambda lever: -(lever.tokens or 0)), tuple(notes)


def device_of(capacity: Mapping[str, Any]) -> Device:
    """The device that was measured."""
    gpu, terms = capacity["gpu"], capacity["breakdown"]
    return Device(
        product=gpu.get("product", ""),
        total=terms["deviceTotal"],
        nvml_total=gpu.get("totalBytes", terms["deviceTotal"]),
        free=terms["deviceFree"],
        free_after_init=None,
        mig=gpu.get("mig"),
        sharing=gpu.get("sharing"),
        count=gpu.get("count", 1),
    )


def _with(lever: Lever, model: Checkpoint, server: InferenceServer, device: Device) -> Lever:
    if lever.gpu is not None:
        gpu = find_gpu(lever.gpu)
        device = Device(gpu.product, gpu.total, gpu.nvml_total, gpu.total, count=device.count)
    elif not lever.request:
        return lever
    count = lever.request.get("tensor", device.count)
    try:
        tokens = _tokens(model, server, replace(device, count=count), lever.request)
    except PlimsollError as error:
        return replace(lever, tokens=None, basis=EXACT, why=f"not possible: {error.message}")
    return replace(lever, tokens=tokens, basis=EXACT)


def _tokens(
    model: Checkpoint, server: InferenceServer, device: Device, change: Mapping[str, Any]
) -> int | None:
    request = replace(sizing_request(server), **change)
    return fit_checkpoint(model, device, request).tokens
