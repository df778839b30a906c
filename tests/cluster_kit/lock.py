"""One command at a time for each cluster name, and how many test sessions use it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .cache import clusters_folder
from .errors import BusyError


def lock_path(cluster: str) -> Path:
    """Return the lock file of a cluster's name: it holds the pid and command of whoever changes that cluster."""
    return clusters_folder() / f"{cluster}.lock"


@contextmanager
def name_lock(cluster: str, command: str, *, wait: bool = False) -> Iterator[None]:
    """Hold a cluster's name for ``up`` or ``down``; the kernel lets go of it when the holder dies.

    Args:
        cluster: name.
        command: ``up`` or ``down``, shown to others.
        wait: for the other command's end, instead of raising.

    Raises:
        BusyError: another process holds it.
    """
    path = lock_path(cluster)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _locked(path, cluster, wait=wait)
    try:
        handle.truncate(0)
        handle.write(f"{os.getpid()} {command}")
        handle.flush()
        yield
    finally:
        # Unlinked while held, so that whoever waits for this inode finds another at the path and tries again.
        path.unlink(missing_ok=True)
        handle.close()


def _locked(path: Path, cluster: str, *, wait: bool) -> IO[str]:
    while True:
        handle = path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            handle.seek(0)
            pid, _, command = handle.read().partition(" ")
            handle.close()
            raise BusyError(
                f"cluster {cluster}: `{command or 'up'}` is running as pid {pid or '?'}; wait for it, or stop it "
                f"with `kill -INT {pid or 'PID'}` (it cleans up)",
                int(pid) if pid.isdecimal() else None,
            ) from None
        if _still_there(handle, path):
            return handle
        handle.close()


def _still_there(handle: IO[str], path: Path) -> bool:
    try:
        return os.fstat(handle.fileno()).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


class Users:
    """Counts the test sessions that share a cluster: the last one to leave takes it down."""

    def __init__(self, cluster: str) -> None:
        folder = clusters_folder() / ".users"
        folder.mkdir(parents=True, exist_ok=True)
        self._handle = (folder / cluster).open("a+")
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    @contextmanager
    def leave(self) -> Iterator[bool]:
        """Stop using it; yields whether no other session does, and holds new ones off until the block ends."""
        try:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True
        finally:
            self._handle.close()
