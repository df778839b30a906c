"""What is known so far: filled by the work, read by whoever reports, also when the work hangs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from plimsoll.core.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.core.report import CudaMemory, DeviceClass
    from plimsoll.sizer.nvml import DeviceMemory


@dataclass(slots=True)
class Progress:
    """The one mutable object of a run. Fields are replaced, never changed: a reader in another thread sees old or new.

    Attributes:
        clock: monotonic seconds.
        phase: what is being done now, as words for a message.
        seconds: duration of each finished phase.
        model_digest: once the headers are read.
        driver: once NVML has answered.
        devices: as measured.
        device_class: kind of the devices.
        cuda: what CUDA itself said, where it was asked.
        warnings: sentences of the arithmetic for people.
    """

    clock: Callable[[], float]
    phase: str = "starting"
    seconds: dict[str, float] = field(default_factory=dict)
    model_digest: str | None = None
    driver: str | None = None
    devices: tuple[DeviceMemory, ...] = ()
    device_class: DeviceClass | None = None
    cuda: CudaMemory | None = None
    warnings: tuple[str, ...] = ()

    @contextmanager
    def timed(self, name: str, words: str) -> Iterator[None]:
        """Time a phase, also one that fails.

        Args:
            name: key in ``seconds``.
            words: what is being done, for "the deadline passed while ...".
        """
        self.phase = words
        start = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = self.clock() - start
