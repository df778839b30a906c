"""A device that several pods share, or a slice of one: the part of it that one server may use.

Neither time-slicing nor MPS keeps the memory of pods apart as seen by NVML: what is free now says nothing about
what a neighbour takes next. So a server on such a device is sized for a budget that its owner states, and
only with an engine that keeps to the numbers it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.errors import DoesNotFit, Unsupported
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.device import Device
    from plimsoll.core.request import SizingRequest

_FIELD: Final = "spec.accelerator.memoryBudget"
#: Engines that take a share of what they find free at start, however much that is.
_TAKES_A_SHARE: Final = frozenset({"TGI", "TensorRTLLM"})
#: Engines that do so for the states of recurrent layers alone.
_TAKES_A_SHARE_FOR_STATES: Final = frozenset({"SGLang"})


def within(device: Device, budget: int | None) -> Device:
    """The part of a device that a server may use; it holds whatever neighbours do within their own.

    The class keeps the whole device's total: it says which devices are alike, not what a server gets.

    Args:
        device: As measured.
        budget: Bytes; None: all of it.
    """
    if budget is None or budget >= device.total:
        return device
    return replace(device, total=budget, free=min(device.free, budget), whole_total=device.total)


def check_sharing(device: Device, budget: int | None, engine_type: str, spec: ModelSpec) -> None:
    """Refuse what cannot be sized beside neighbours.

    Args:
        device: As :func:`within` returned it.
        budget: Bytes, as the server's owner stated them.
        engine_type: Name in ``spec.engine.type``.
        spec: The model.

    Raises:
        DoesNotFit: SharedDeviceNeedsBudget: the device is shared and no budget is stated.
        Unsupported: UnsupportedSharing: the engine would take more than the budget.
    """
    if device.sharing is not None and budget is None:
        raise DoesNotFit(
            f"the GPU is shared ({device.sharing}), and how much of it other pods will take cannot be "
            f"measured; set {_FIELD} to this server's part of it",
            reason="SharedDeviceNeedsBudget",
            field=_FIELD,
        )
    share = engine_type in _TAKES_A_SHARE or (
        engine_type in _TAKES_A_SHARE_FOR_STATES and bool(spec.states)
    )
    if device.whole_total is not None and share:
        raise Unsupported(
            f"{engine_type} takes a share of all the memory that is free when it starts, for this model, so it "
            f"cannot keep to {_FIELD}; use VLLM, LightLLM or LlamaCpp, or a GPU of its own",
            reason="UnsupportedSharing",
            field=_FIELD,
            value=budget,
        )


def check_slices(device: Device, request: SizingRequest) -> None:
    """Refuse ranks that would have to talk across MIG slices.

    Raises:
        Unsupported: UnsupportedParallelism.
    """
    ranks = request.tensor * (request.pipeline or 1)
    if device.mig is not None and ranks > 1:
        raise Unsupported(
            f"{ranks} ranks on MIG slices ({device.mig}) cannot work together: slices have no peer access to each "
            "other; use one slice that is large enough, or whole GPUs",
            reason="UnsupportedParallelism",
            field="spec.parallelism.tensor",
            value=ranks,
        )
