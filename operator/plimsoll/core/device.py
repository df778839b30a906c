"""The device that a question is about."""

from __future__ import annotations

from plimsoll.core.records import dataclass
from plimsoll.core.report import DeviceClass


@dataclass(frozen=True, slots=True)
class Device:
    """The device of one rank, or the smallest of several. Bytes.

    Attributes:
        product: Name as NVML gives it.
        total: Memory as CUDA sees it (T).
        nvml_total: Memory as NVML reports it, the driver's share included.
        free: Free before any process starts (F0).
        free_after_init: Free after context, NCCL and cuBLAS (F1); None: derived from F0.
        driver: Driver version.
        uuids: Devices, in the order of the ranks.
        mig: MIG profile, if any.
        sharing: How the device is shared, if it is.
        count: Devices in the pod.
        whole_total: Memory of the whole device as CUDA sees it, where ``total`` is a part of it.
    """

    product: str
    total: int
    nvml_total: int
    free: int
    free_after_init: int | None = None
    driver: str = ""
    uuids: tuple[str, ...] = ()
    mig: str | None = None
    sharing: str | None = None
    count: int = 1
    whole_total: int | None = None

    def device_class(self) -> DeviceClass:
        """What a number measured here may be used for."""
        return DeviceClass(self.product, self.nvml_total, self.mig, self.sharing, self.count)
