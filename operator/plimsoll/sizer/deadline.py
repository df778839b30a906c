"""Gives up in time, whatever hangs.

A mount that hangs blocks the main thread inside a system call, where neither a signal handler nor an
exception reaches it. A second thread still runs (Python releases its lock around system calls and around
NVML), can still write the message, and can end the process. A thread in uninterruptible sleep outlives even
that until its I/O returns; then the kubelet still has the message, and the pod's own deadline applies.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Deadline:
    """Calls ``on_expiry`` once, ``seconds`` after :meth:`start`, unless :meth:`claim` came first.

    Whoever claims first, the work or the clock, alone writes the result: half a message from each would
    be worse than either.

    Args:
        seconds: time allowed.
        on_expiry: reports and ends the process; runs in the watching thread.
    """

    def __init__(self, seconds: float, on_expiry: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_expiry = on_expiry
        self._lock = threading.Lock()  # taken once, never released
        self._finished = threading.Event()

    def start(self) -> None:
        """Begin to count."""
        # A daemon: the interpreter must not wait for it at exit.
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    def claim(self) -> bool:
        """Take the right to report. False: it is taken, and the process is about to end."""
        taken = self._lock.acquire(blocking=False)
        self._finished.set()
        return taken

    def _watch(self) -> None:
        if not self._finished.wait(self._seconds) and self._lock.acquire(blocking=False):
            self._on_expiry()
