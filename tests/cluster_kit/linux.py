"""Thin wrappers over the system calls that Python 3.11's standard library lacks."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 0x1000, 0x4000, 0x80000, 0x100000
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(
    source: str, target: str | Path, fstype: str = "", flags: int = 0, data: str = ""
) -> None:
    """Mount ``source`` at ``target``, as the system call of this name. Raises OSError."""
    _check(
        _libc.mount(
            source.encode(),
            str(target).encode(),
            fstype.encode() or None,
            ctypes.c_ulong(flags),
            data.encode() or None,
        ),
        f"mount {source} at {target}",
    )


def unmount(target: str | Path) -> None:
    """Detach what is mounted at ``target`` (lazily: it goes when its last user does). Raises OSError."""
    _check(_libc.umount2(str(target).encode(), MNT_DETACH), f"umount {target}")


def enter_network_namespace(path: str | Path) -> None:
    """Move the calling thread into the network namespace at ``path``. Threads that it starts later follow."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(handle, CLONE_NEWNET), f"setns {path}")
    finally:
        os.close(handle)


@contextmanager
def inside_network(path: str | Path) -> Iterator[None]:
    """Run the block with the calling thread in the network namespace at ``path``, then return."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_network_namespace(path)
        try:
            yield
        finally:
            _check(_libc.setns(home, CLONE_NEWNET), "setns back")
    finally:
        os.close(home)


def mount_points() -> list[tuple[str, str]]:
    """Return (mount point, file system type) of this process's mount namespace, in order of mounting."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        found.append((point, right.split()[0]))
    return found
