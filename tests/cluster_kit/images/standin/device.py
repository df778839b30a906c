"""The fake device as a CUDA program sees it: how much is free, and a way to take memory until this process ends.

The state file and the locks are those of ``tests/cluster_kit/nvml/nvml.c``: a server holds memory by a shared lock as
long as its memory on ``held/<uuid>`` beside the state file. The kernel drops a lock with its holder, however that ends,
and the folder may be mounted read-only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GIB = 1 << 30
DEFAULT_STATE = "/run/plimsoll-fake-nvml/devices.conf"
SLOTS = 64  # HOLD_SLOTS of nvml.c
STRIDE = 1 << 44  # HOLD_STRIDE of nvml.c
_GET_LOCK, _SET_LOCK = 36, 37  # F_OFD_GETLK and F_OFD_SETLK: Python 3.11 does not name them
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid


class DeviceError(RuntimeError):
    """No usable device, in CUDA's words."""


class OutOfMemoryError(RuntimeError):
    """An allocation that does not fit; its text is torch's."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the state file says of one device, in bytes."""

    total: int
    reserved: int
    used: int


class Device:
    """One device and what this process holds of it.

    Args:
        state: the state file.
        uuid: of the device.
        index: of the device in this container.
    """

    def __init__(self, state: Path, uuid: str, index: int) -> None:
        self.uuid = uuid
        self.index = index
        self.held = 0
        self._state = state
        self._slot = -1
        try:
            self._lock = os.open(state.parent / "held" / uuid, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"CUDA error: no memory file of device {uuid}: {error}") from None

    @property
    def total(self) -> int:
        """CUDA's total: without what driver and firmware reserve."""
        sizes = self._sizes()
        return sizes.total - sizes.reserved

    @property
    def free(self) -> int:
        """What ``cudaMemGetInfo`` calls free; less than nothing is nothing."""
        return max(0, self._free())

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes until this process ends.

        Raises:
            OutOfMemoryError: they are not free; nothing was taken.
        """
        with self._exclusive():
            if size > self._free():
                raise OutOfMemoryError(self._refusal(size))
            self._put(self.held + size)

    def _put(self, size: int) -> None:
        if self._slot < 0:
            self._slot = self._free_slot()
        if size:
            lock = struct.pack(_FLOCK, fcntl.F_RDLCK, 0, self._slot * STRIDE, size, 0)
            fcntl.fcntl(self._lock, _SET_LOCK, lock)
        self.held = size

    def _free_slot(self) -> int:
        taken = {slot for slot, _ in self._holders()}
        return next(slot for slot in range(SLOTS) if slot not in taken)

    def _holders(self) -> Iterator[tuple[int, int]]:
        """Slots and bytes of the other processes: a lock never conflicts with one of the same open file."""
        for slot in range(SLOTS):
            ask = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, slot * STRIDE, STRIDE, 0)
            kind, _, _, size, _ = struct.unpack(_FLOCK, fcntl.fcntl(self._lock, _GET_LOCK, ask))
            if kind != fcntl.F_UNLCK:
                yield slot, size

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Two servers that start at once never both get the last bytes."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _free(self) -> int:
        sizes = self._sizes()
        others = sum(size for _, size in self._holders())
        return sizes.total - sizes.reserved - sizes.used - others - self.held

    def _sizes(self) -> Sizes:
        try:
            return read_sizes(self._state)[1][self.uuid]
        except (OSError, KeyError):
            raise DeviceError("CUDA error: unknown error") from None

    def _refusal(self, size: int) -> str:
        free, total = self.free / GIB, self.total / GIB
        return (
            f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU {self.index} has a total capacity of "
            f"{total:.2f} GiB of which {free:.2f} GiB is free. Process {os.getpid()} has {self.held / GIB:.2f} GiB "
            f"memory in use. Of the allocated memory {self.held / GIB:.2f} GiB is allocated by PyTorch, and 0 bytes is "
            "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
            "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


class Devices:
    """The devices of one server, all used alike. Every rank takes the same, and the scarcest one decides."""

    def __init__(self, devices: list[Device]) -> None:
        self._devices = devices

    @property
    def total(self) -> int:
        """CUDA's total of the first device, in bytes."""
        return self._devices[0].total

    @property
    def free(self) -> int:
        """The least free memory of all, in bytes."""
        return min(device.free for device in self._devices)

    @property
    def held(self) -> int:
        """What this process holds of each, in bytes."""
        return self._devices[0].held

    def out_of_memory(self) -> str:
        """The text of an allocation that is a GiB too large."""
        return f"CUDA out of memory. Tried to allocate {self.free / GIB + 1:.2f} GiB."

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes of each. Raises OutOfMemoryError."""
        for device in self._devices:
            device.take(size)


def read_sizes(state: Path) -> tuple[int, dict[str, Sizes]]:
    """Return the driver's failure code and the devices of a state file, in its order. Raises OSError."""
    fail = 0
    sections: dict[str, dict[str, str]] = {}
    values: dict[str, str] = {}
    for line in state.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            values = sections[line.strip("[]")] = {}
            continue
        key, _, value = line.partition("=")
        values[key] = value
        if key == "fail" and not sections:
            fail = int(value)
    numbers = ("total", "reserved", "used")
    return fail, {
        uuid: Sizes(*(int(section.get(name, 0)) for name in numbers))
        for uuid, section in sections.items()
    }


def open_devices(environ: Mapping[str, str], ranks: int) -> Devices:
    """The first ``ranks`` devices that this container was given.

    Raises:
        DeviceError: no driver, a driver that fails, or fewer devices than ranks.
    """
    state = Path(environ.get("PLIMSOLL_FAKE_NVML") or DEFAULT_STATE)
    try:
        fail, sizes = read_sizes(state)
    except OSError:
        raise DeviceError(
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver "
            "from http://www.nvidia.com/Download/index.aspx"
        ) from None
    if fail:
        raise DeviceError(f"CUDA driver initialization failed (NVML code {fail}).")
    listed = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    given = list(sizes) if listed == "all" else listed.split(",")
    shown = [uuid for uuid in given if uuid in sizes]
    if not shown:
        raise DeviceError("No CUDA GPUs are available")
    if len(shown) < ranks:
        raise DeviceError(
            f"CUDA error: invalid device ordinal (rank {len(shown)} of {ranks}, {len(shown)} devices visible)"
        )
    return Devices([Device(state, uuid, index) for index, uuid in enumerate(shown[:ranks])])
