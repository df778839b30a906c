"""A fake NVML library for tests: writes its state file and compiles ``libnvidia-ml.so.1``.

The library reads the state on every call, so a test changes a running pod's GPU with one
:func:`write_state`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY_NAME = "libnvidia-ml.so.1"
DEFAULT_STATE = Path("/run/plimsoll-fake-nvml/devices.conf")  # where the library looks by default
STATE_VARIABLE = "PLIMSOLL_FAKE_NVML"
DEFAULT_DRIVER = "580.159.04"
MAX_DEVICES = 64  # MAX_DEVICES of nvml.c
MAX_TEXT = 95  # TEXT of nvml.c without the closing NUL
HELD = "held"  # the folder beside the state file with one file per device, on which servers lock what they hold
HOLD_SLOTS = 64  # as in nvml.c
HOLD_STRIDE = 1 << 44  # as in nvml.c
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """One device as the fake library shows it.

    Attributes:
        uuid: ``GPU-<uuid>``, or ``MIG-<uuid>`` for a slice.
        name: product name as NVML gives it.
        total: physical memory in bytes.
        reserved: bytes held by driver and firmware.
        used: bytes allocated by processes, without ``reserved``.
        parent: for a slice, the UUID of its GPU; empty otherwise.
        slot: for a slice, its index below its GPU; None: its place among the GPU's slices.
        aggregate: for a GPU with slices, whether its own memory may be read, all slices together.
    """

    uuid: str
    name: str
    total: int
    reserved: int = 0
    used: int = 0
    parent: str = ""
    slot: int | None = None
    aggregate: bool = False

    @property
    def free(self) -> int:
        """Bytes that NVML calls free."""
        return max(0, self.total - self.reserved - self.used)


@dataclass(frozen=True, slots=True)
class FakeState:
    """What a state file says; ``fail`` is the NVML code that every call answers with, or 0."""

    gpus: tuple[FakeGpu, ...]
    driver: str = DEFAULT_DRIVER
    fail: int = 0


def _check(gpu: FakeGpu) -> None:
    for field in ("uuid", "name", "parent"):
        text = getattr(gpu, field)
        forbidden = "\r\n[]=" if field == "name" else "\r\n[]=/"
        if len(text.encode()) > MAX_TEXT or set(text) & set(forbidden):
            raise ValueError(f"FakeGpu.{field}={text!r}: {MAX_TEXT} bytes without {forbidden!r}")
    if min(gpu.total, gpu.reserved, gpu.used) < 0:
        raise ValueError(f"{gpu}: memory sizes are bytes and never negative")


def write_state(
    path: Path, gpus: Sequence[FakeGpu], *, driver: str = DEFAULT_DRIVER, fail: int = 0
) -> None:
    """Write the state file by rename, so that a reader sees the old or the new state, never half.

    Args:
        path: the file; mount its FOLDER into containers: a bind-mounted file keeps the old inode.
        gpus: devices in NVML's index order.
        driver: driver version.
        fail: NVML code that init and every query return; 0 for a healthy driver.

    Raises:
        ValueError: a text or number that the file cannot hold, or more than 64 devices.
    """
    if len(gpus) > MAX_DEVICES:
        raise ValueError(f"{len(gpus)} devices: the fake holds at most {MAX_DEVICES}")
    lines = [f"driver={driver}", f"fail={fail}"]
    for gpu in gpus:
        _check(gpu)
        lines += [f"[{gpu.uuid}]", f"name={gpu.name}", f"total={gpu.total}"]
        lines += [f"reserved={gpu.reserved}", f"used={gpu.used}"]
        lines += [f"parent={gpu.parent}"] if gpu.parent else []
        lines += [f"slot={gpu.slot}"] if gpu.slot is not None else []
        lines += ["aggregate=1"] if gpu.aggregate else []
    (path.parent / HELD).mkdir(parents=True, exist_ok=True)
    for gpu in gpus:  # never replaced: the locks are on these very files
        (path.parent / HELD / gpu.uuid).touch(mode=0o644)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        os.fchmod(file.fileno(), 0o644)  # containers read it as any user
    Path(temporary).replace(path)


def read_state(path: Path) -> FakeState:
    """Read what :func:`write_state` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line that :func:`write_state` does not write.
    """
    top: dict[str, str] = {}
    sections: list[dict[str, str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            sections.append({"uuid": line.strip("[]")})
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"{path}: {line!r} is no key=value line")
        (sections[-1] if sections else top)[key] = value
    gpus = tuple(
        FakeGpu(
            uuid=section["uuid"],
            name=section["name"],
            total=int(section["total"]),
            reserved=int(section["reserved"]),
            used=int(section["used"]),
            parent=section.get("parent", ""),
            slot=int(section["slot"]) if "slot" in section else None,
            aggregate="aggregate" in section,
        )
        for section in sections
    )
    return FakeState(gpus=gpus, driver=top["driver"], fail=int(top["fail"]))


def held_bytes(path: Path, uuid: str) -> int:
    """Bytes that running servers hold of a device, beyond ``used``. A device that never was: 0.

    Args:
        path: the state file.
        uuid: the device.
    """
    try:
        descriptor = os.open(path.parent / HELD / uuid, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    # F_OFD_GETLK and struct flock, which Python 3.11 does not name.
    get_lock, layout = 36, "hhqqi4x"
    total = 0
    try:
        for slot in range(HOLD_SLOTS):
            ask = struct.pack(layout, fcntl.F_WRLCK, 0, slot * HOLD_STRIDE, HOLD_STRIDE, 0)
            kind, _, _, length, _ = struct.unpack(layout, fcntl.fcntl(descriptor, get_lock, ask))
            total += length if kind != fcntl.F_UNLCK else 0
    finally:
        os.close(descriptor)
    return total


def build_library(cache: Path) -> Path:
    """Compile the library, or return the one compiled from this very source before.

    Args:
        cache: folder for the result, made if needed. The library lies alone in a folder named by
            the hash of its source and flags, which can be mounted or put on ``LD_LIBRARY_PATH``.

    Returns:
        The path of ``libnvidia-ml.so.1``.

    Raises:
        subprocess.CalledProcessError: the compiler refused the source (see standard error).
        FileNotFoundError: no ``cc`` on this machine.
    """
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join(_FLAGS).encode()).hexdigest()[:16]
    library = cache / f"nvml-{key}" / LIBRARY_NAME
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:  # same file system: rename is atomic
        made = Path(folder) / LIBRARY_NAME
        link = [f"-Wl,-soname,{LIBRARY_NAME}", "-lpthread"]
        command = ["cc", *_FLAGS, "-o", str(made), str(SOURCE), *link]
        subprocess.run(command, check=True)
        made.chmod(0o755)
        made.replace(library)  # two builders at once: the later rename wins, with equal bytes
    return library
