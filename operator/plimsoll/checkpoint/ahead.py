"""Headers of many files, read a few files ahead of the one that is being looked at.

On a network file system opening and reading a file is half a dozen round trips; one after the other, 200 files take
600 ms at half a millisecond each. A few threads wait for them side by side. Results and errors come in the order
of the files, whatever came first, and no more than ``_AHEAD`` headers of at most ``FIRST`` bytes are held.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from plimsoll.checkpoint import safetensors

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from plimsoll.checkpoint.files import Folder

#: Longer headers are read when it is their turn, so that hostile ones are not held side by side.
FIRST: Final = 1 << 18
_THREADS: Final = 8
_AHEAD: Final = 16


class Header(NamedTuple):
    """A header's bytes, the bytes of data behind it, and its SHA-256."""

    text: bytes
    data: int
    digest: str


class _Job:
    """One file: read by a thread, waited for by the reader."""

    __slots__ = ("done", "error", "header", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = threading.Event()
        self.header: Header | None = None
        self.error: Exception | None = None

    def load(self, folder: Folder, reason: str, most: int) -> None:
        """Read the header; one of more than ``most`` bytes is left for later."""
        from hashlib import sha256  # noqa: PLC0415 - loads OpenSSL, and a config alone needs none

        try:
            with folder.open(self.name, reason) as (file, size):
                length = safetensors.header_length(file, size, self.name)
                if length > most:
                    return
                text = safetensors.read_text(file, length, self.name)
            digest = sha256(text).hexdigest()
            self.header = Header(text, safetensors.data_bytes(text, size), digest)
        except Exception as error:  # noqa: BLE001 - raised again by the reader, at its turn
            self.error = error

    def result(self, folder: Folder, reason: str) -> Header:
        """What was read, or is now.

        Raises:
            BadModel: What a thread met.
        """
        if self.header is None and self.error is None:
            self.load(folder, reason, safetensors.MAX_HEADER)
        if self.error is not None:
            raise self.error
        if self.header is None:
            raise AssertionError("no header is longer than the longest that is read")
        return self.header


def headers(folder: Folder, names: Sequence[str], reason: str) -> Generator[Header]:
    """The headers of these files, in this order.

    Args:
        folder: The model's.
        names: Files below it.
        reason: Of a refusal.

    Raises:
        BadModel: As ``Folder.open`` and ``safetensors.read_bytes``, at the turn of the file that is wrong.
    """
    jobs = [_Job(name) for name in names]
    queue = deque(jobs if len(jobs) > 1 else ())  # one file is read by the reader itself
    places = threading.Semaphore(_AHEAD)

    for _ in range(min(_THREADS, len(queue))):
        # Daemons: one that hangs in a system call must not keep the process from ending.
        given = (queue, places, folder, reason)
        threading.Thread(target=_work, args=given, name="header", daemon=True).start()
    try:
        for job in jobs:
            if len(jobs) > 1:
                job.done.wait()
            yield job.result(folder, reason)
            job.header = None
            places.release()
    finally:
        queue.clear()
        for _ in range(_THREADS):
            places.release()


def _work(queue: deque[_Job], places: threading.Semaphore, folder: Folder, reason: str) -> None:
    """One thread: a header after the other, as far ahead as there are places."""
    while True:
        places.acquire()
        try:
            job = queue.popleft()
        except IndexError:
            return
        job.load(folder, reason, FIRST)
        job.done.set()
