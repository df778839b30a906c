"""What would fit instead: the smallest GPU of the catalogue, and the smallest number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.checkpoint import fit_checkpoint
from plimsoll.core.catalogue import CATALOGUE
from plimsoll.core.device import Device
from plimsoll.core.errors import PlimsollError
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.checkpoint import Checkpoint
    from plimsoll.core.answer import Fit
    from plimsoll.core.request import SizingRequest

_TENSOR_SIZES: Final = (1, 2, 4, 8, 16)


def what_would_fit(
    checkpoint: Checkpoint, answer: Fit, *, weights: Sequence[int] | None
) -> tuple[str, ...]:
    """Sentences for a model that did not fit; empty when nothing in the catalogue helps.

    Stated weights are of one rank at the asked tensor size, so they are no help for other sizes.
    """
    request, device = answer.request, answer.device
    if device is None:
        return ()
    found = []
    for gpu in CATALOGUE:
        other = Device(gpu.product, gpu.total, gpu.nvml_total, gpu.total, count=device.count)
        if gpu.total > device.total and _fits(checkpoint, request, other, weights):
            found.append(
                f"fits on {_times(device.count, gpu.name)}, the smallest GPU that holds it"
            )
            break
    if weights is None:
        for tensor in _TENSOR_SIZES:
            more = replace(device, count=tensor * (request.pipeline or 1), free_after_init=None)
            if tensor > request.tensor and _fits(
                checkpoint, replace(request, tensor=tensor), more, None
            ):
                found.append(f"fits on {tensor} GPUs like this one (--tensor {tensor})")
                break
    return tuple(found)


def _fits(
    checkpoint: Checkpoint, request: SizingRequest, device: Device, weights: Sequence[int] | None
) -> bool:
    try:
        return fit_checkpoint(checkpoint, device, request, weights=weights).error is None
    except PlimsollError:  # for example heads that this number of ranks cannot share
        return False


def _times(count: int, name: str) -> str:
    return name if count == 1 else f"{count} x {name}"
