"""Where everything the kit builds, unpacks or runs is kept: one folder, safe to delete when no cluster runs."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Log = Callable[[str], None]


def cache_root() -> Path:
    """Return ``${PLIMSOLL_CACHE:-~/.cache/plimsoll}`` as an absolute path, without creating it."""
    given = os.environ.get("PLIMSOLL_CACHE")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "plimsoll"


def clusters_folder() -> Path:
    """Return the folder below which each running cluster keeps its state, one folder by its name."""
    return cache_root() / "clusters"


@contextmanager
def build_lock(path: Path, log: Log) -> Iterator[None]:
    """Hold ``path``'s lock, waiting for another builder and saying so.

    The lock file stays: removing it would let a third builder lock a name that the second no longer sees.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            log(f"another process (pid {handle.read().strip() or '?'}) builds {path.stem}: waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
