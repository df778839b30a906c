"""The work itself: model headers and device memory in, report out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll import checkpoint
from plimsoll.core.budget import Device
from plimsoll.core.errors import Unsupported
from plimsoll.core.records import replace
from plimsoll.core.sharing import check_sharing, check_slices, within
from plimsoll.sizer.guard import READ_SECONDS
from plimsoll.sizer.nvml import DriverReading, given_uuids, read_driver
from plimsoll.sizer.settings import TOKENS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.checkpoint import Checkpoint
    from plimsoll.core.answer import Fit
    from plimsoll.core.report import CudaMemory, Report
    from plimsoll.sizer.progress import Progress
    from plimsoll.sizer.settings import Outputs, Settings

# What the driver itself may hold of a device that nobody uses; a dying CUDA context holds hundreds of MiB.
IDLE_BYTES: Final = 64 << 20


def answer(
    outputs: Outputs,
    settings: Settings,
    progress: Progress,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> tuple[Report, dict[str, str]]:
    """Read, measure, compute.

    Args:
        outputs: nonce and hash for the report.
        settings: the question.
        progress: is told what was found, also when a later step fails.
        clock: monotonic seconds.
        sleep: waits so many seconds.

    Returns:
        The report of a model that fits, and the lines of the env file.

    Raises:
        PlimsollError: with the reason and exit code of the step that refused.
    """
    model = read_model(settings, progress)
    check_model(model, settings, progress)
    look = measure if settings.inpod is None else measure_settled
    result = look(model, settings, progress, clock=clock, sleep=sleep)
    report = report_of(result, outputs, model, progress)
    return report, env_values(result, report.max_total_token_num, settings)


def report_of(result: Fit, outputs: Outputs, model: Checkpoint, progress: Progress) -> Report:
    """The result as the termination message carries it.

    Raises:
        PlimsollError: As ``Fit.report``.
    """
    report = result.report(
        pod_uid=outputs.pod_uid, request_hash=outputs.request_hash, model_digest=model.digest
    )
    return replace(report, cuda=progress.cuda)


def env_values(result: Fit, tokens: int, settings: Settings) -> dict[str, str]:
    """What the env file holds: the number, and in the server's own pod the values of its arguments.

    Raises:
        Unsupported: InPodFlagsMismatch: the template expects other arguments than this model needs. The kubelet
            would start the server with empty ones.
    """
    values = {TOKENS_KEY: str(tokens)}
    if settings.inpod is not None and result.engine is not None:
        from plimsoll.core.engines.inpod import (  # noqa: PLC0415 - in the server's own pod alone
            check_template,
            inpod_arguments,
        )

        found = inpod_arguments(result.engine, result.pinned(), result.request)
        check_template(
            result.engine,
            found,
            result.request,
            flags=settings.inpod.flags,
            env_names=settings.inpod.env_names,
        )
        values |= found.values
    return values


def read_model(settings: Settings, progress: Progress) -> Checkpoint:
    """Read the model's headers."""
    with progress.timed("model", f"reading the model at {settings.model_path}"):
        model = checkpoint.read_checkpoint(settings.model_path, settings.request.model_file)
        progress.model_digest = model.digest
    return model


def check_model(model: Checkpoint, settings: Settings, progress: Progress) -> None:
    """Refuse what is wrong with model, engine or arguments now, not after a minute of waiting for a driver."""
    with progress.timed("check", f"checking the model at {settings.model_path}"):
        checkpoint.fit_checkpoint(model, None, settings.request)


def measure(
    model: Checkpoint,
    settings: Settings,
    progress: Progress,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Fit:
    """Ask the devices and compute; the answer may be that it does not fit."""
    _check_count(settings)
    with progress.timed("nvml", "asking NVML for the memory of the devices"):
        reading = read_driver(
            settings.visible_devices,
            settings.device_count,
            settings.nvml_wait,
            clock=clock,
            sleep=sleep,
        )
        device = replace(smallest(reading), sharing=settings.sharing)
        progress.driver, progress.devices = reading.driver, reading.devices
        progress.device_class = device.device_class()
        check_slices(device, settings.request)
    # Once: a device's total does not change between readings.
    if settings.probe == "Torch" and progress.cuda is None:
        from plimsoll.sizer.probe import ask_torch  # noqa: PLC0415 - few ask torch

        with progress.timed("torch", "asking torch for the memory of the devices"):
            progress.cuda = ask_torch(settings.device_count)
    with progress.timed("compute", "computing the budget"):
        budget = settings.request.memory_budget
        device = replace(smallest(reading, progress.cuda), sharing=settings.sharing)
        device = within(device, budget)
        result = checkpoint.fit_checkpoint(model, device, settings.request)
        progress.warnings = result.warnings
        check_sharing(device, budget, settings.request.engine_type, result.spec)
        return result


def _check_count(settings: Settings) -> None:
    given = len({*given_uuids(settings.visible_devices)})
    if 0 < given < settings.device_count and settings.sharing is not None:
        raise Unsupported(
            f"the pod asked for {settings.device_count} GPUs and was given {given}, shared with itself "
            f"({settings.sharing}); more replicas of one GPU are no more memory: set spec.accelerator.count to {given}",
            reason="UnsupportedSharing",
            field="spec.accelerator.count",
            value=settings.device_count,
        )


def measure_settled(
    model: Checkpoint,
    settings: Settings,
    progress: Progress,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Fit:
    """Measure; where memory is in use, until two readings in a row agree or ``settings.settle`` is over.

    The server's own predecessor may have been killed a moment ago, in this pod (RestartAllContainers) or on
    this device, and the driver needs a second to release its memory.
    """
    start = clock()
    before: int | None = None
    while True:
        result = measure(model, settings, progress, clock=clock, sleep=sleep)
        # Of the fullest device, and within the server's budget: neighbours beyond it may go on moving.
        free = result.device.free if result.device is not None else None
        idle = all(device.usable - device.free < IDLE_BYTES for device in progress.devices)
        if idle or free == before or clock() - start + READ_SECONDS > settings.settle:
            return result
        before = free
        sleep(READ_SECONDS)


def smallest(reading: DriverReading, cuda: CudaMemory | None = None) -> Device:
    """The device to size for: each term the least of all, for ranks are alike and the fullest decides.

    Total and free may come from two devices; that errs to the safe side. Devices of several products
    are one class of their own, never taken for either product.

    Args:
        reading: What NVML says.
        cuda: What CUDA says; its total is exact. Free memory is NVML's: CUDA's is less a context of its own.
    """
    devices = reading.devices
    products = sorted({device.product for device in devices})
    profiles = sorted({device.mig or "none" for device in devices})
    total = min(device.usable if cuda is None else device.total for device in devices)
    total = total if cuda is None else min(total, cuda.total_bytes)
    return Device(
        product=" + ".join(products),
        total=total,
        nvml_total=min(device.total for device in devices),
        free=min(total, *(device.free for device in devices)),
        driver=reading.driver,
        uuids=tuple(device.uuid for device in devices),
        mig=None if profiles == ["none"] else " + ".join(profiles),
        count=len(devices),
    )
