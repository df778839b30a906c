"""Asks NVML for the memory of the devices this container was given.

The only importer of pynvml, and only inside :func:`read_driver`: ``--version`` and ``done`` stay cheap.
NVML opens no CUDA context, so measuring takes none of the memory that it measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.core.errors import DeviceUnavailable
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RETRY_SECONDS = 1.0

# Asking again cannot help with these: the library and its device nodes are put into a container when it is
# created, so only a new container sees another driver. Every other code (driver not loaded, GPU lost, not
# ready, unknown ...) is what a driver container that is just starting shows, and is worth the wait.
_PERMANENT = (
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_LIBRARY_NOT_FOUND",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device, or one MIG slice, as NVML shows it.

    Attributes:
        uuid: ``GPU-...`` or ``MIG-...``.
        product: the GPU's name, without the slice's profile.
        mig: the slice's profile, such as ``1g.10gb``; None for a whole GPU.
        total: physical bytes (NVML's total, which is more than CUDA's).
        reserved: bytes that driver and firmware hold.
        free: bytes that nobody has allocated.
    """

    uuid: str
    product: str
    mig: str | None
    total: int
    reserved: int
    free: int

    @property
    def usable(self) -> int:
        """T: the total in bytes as CUDA sees it, about ``v2.total - v2.reserved`` (an H100: 79.19 of 79.65 GiB)."""
        return self.total - self.reserved


@dataclass(frozen=True, slots=True)
class DriverReading:
    """The driver's version and the devices, in the order in which they were given."""

    driver: str
    devices: tuple[DeviceMemory, ...]


def read_driver(
    visible: str | None,
    expected: int,
    wait: float,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> DriverReading:
    """Measure the given devices, waiting while the driver comes up.

    Args:
        visible: ``NVIDIA_VISIBLE_DEVICES`` of this container. UUIDs in it are looked up one by one. Without
            UUIDs (CDI and volume mounts set none) all devices that the runtime let in are taken.
        expected: how many devices the pod asked for.
        wait: seconds to keep asking; 0 asks once.
        clock: monotonic seconds.
        sleep: waits so many seconds.

    Returns:
        Driver version and one reading per device.

    Raises:
        DeviceUnavailable: NVML failed for good or for ``wait`` seconds, or shows another number of devices
            than the pod was given. The message quotes NVML.
    """
    import pynvml  # noqa: PLC0415 - 25 ms and a shared library that only this function needs

    permanent = {getattr(pynvml, name) for name in _PERMANENT}
    start = clock()
    attempts = 0
    while True:
        attempts += 1
        try:
            return _attempt(pynvml, visible, expected)
        except pynvml.NVMLError as error:
            problem = f"NVML: {error} (code {error.value})"
            again = error.value not in permanent
        except _WrongCount as error:
            problem = str(error)
            again = (
                error.found < expected
            )  # devices may still be appearing; foreign ones never go away
        waited = clock() - start
        if not again or waited + RETRY_SECONDS > wait:
            tried = f"tried {attempts} times in {waited:.0f} s" if again else "not worth a retry"
            raise DeviceUnavailable(f"{problem}; {tried}; {_advice(again=again)}")
        sleep(RETRY_SECONDS)


class _WrongCount(Exception):  # noqa: N818 - internal signal between attempt and retry loop
    def __init__(self, found: int, expected: int) -> None:
        super().__init__(f"NVML shows {found} devices, the pod was given {expected}")
        self.found = found


def _advice(*, again: bool) -> str:
    if again:
        return "check the GPU driver and the device plugin on this node"
    return "check that the NVIDIA container runtime gives this container its driver and only its own devices"


def _attempt(pynvml: Any, visible: str | None, expected: int) -> DriverReading:  # noqa: ANN401 - untyped module
    pynvml.nvmlInit()
    try:
        devices = tuple(_read_device(pynvml, handle) for handle in _handles(pynvml, visible))
        if len(devices) != expected:
            raise _WrongCount(len(devices), expected)
        return DriverReading(driver=str(pynvml.nvmlSystemGetDriverVersion()), devices=devices)
    finally:
        pynvml.nvmlShutdown()


def given_uuids(visible: str | None) -> tuple[str, ...]:
    """UUIDs that ``NVIDIA_VISIBLE_DEVICES`` lists, as often as it does; none for all, void, indices or a path."""
    names = [
        name.strip().rpartition("=")[2] for name in (visible or "").split(",")
    ]  # CDI: nvidia.com/gpu=GPU-..
    return tuple(
        # A time-slicing device plugin names its replicas GPU-...::0; NVML knows the device alone.
        name.partition("::")[0]
        for name in names
        if name.startswith(("GPU-", "MIG-"))
    )


def names_replicas(visible: str | None) -> bool:
    """Whether ``NVIDIA_VISIBLE_DEVICES`` shows time-slicing: a replica's name, or one device given twice."""
    uuids = given_uuids(visible)
    return len(set(uuids)) < len(uuids) or (bool(uuids) and "::" in (visible or ""))


def _handles(pynvml: Any, visible: str | None) -> Iterator[Any]:  # noqa: ANN401 - untyped module
    uuids = dict.fromkeys(given_uuids(visible))
    for uuid in uuids:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        yield from [handle] if uuid.startswith("MIG-") else _whole_or_slices(pynvml, handle)
    if not uuids:
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield from _whole_or_slices(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))


def _whole_or_slices(pynvml: Any, gpu: Any) -> list[Any]:  # noqa: ANN401 - untyped module
    """The GPU itself or, in MIG mode, its slices in this container: a parent's memory is never a pod's."""
    if not pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu):  # "zero if MIG is not supported or enabled"
        return [gpu]
    slices = list(_slices(pynvml, gpu))
    if not slices:
        raise DeviceUnavailable(
            f"{pynvml.nvmlDeviceGetUUID(gpu)} is in MIG mode and this container was given none of its slices; "
            "check the device plugin's MIG strategy and spec.accelerator.resource"
        )
    return slices


def _slices(pynvml: Any, gpu: Any) -> Iterator[Any]:  # noqa: ANN401 - untyped module
    # Indices of slices have holes, and those of other containers are not found or not allowed: skip them.
    absent = {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except pynvml.NVMLError as error:
            if error.value not in absent:
                raise


def _read_device(pynvml: Any, handle: Any) -> DeviceMemory:  # noqa: ANN401 - untyped module
    # v1 counts what the driver holds as used and has no word for it, so T could not be told: v2 or nothing.
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    # A slice's name is its GPU's with the profile behind it: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
    product, _, profile = str(pynvml.nvmlDeviceGetName(handle)).partition(" MIG ")
    total, reserved, free = int(memory.total), int(memory.reserved), int(memory.free)
    if not 0 <= reserved < total or not 0 <= free <= total:
        raise DeviceUnavailable(
            f"NVML says total {total}, reserved {reserved}, free {free} bytes for {uuid}: "
            "not a possible state; check the driver",
        )
    return DeviceMemory(
        uuid=uuid,
        product=product,
        mig=(profile or "unknown") if uuid.startswith("MIG-") else None,
        total=total,
        reserved=reserved,
        free=min(free, total - reserved),
    )
