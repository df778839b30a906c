"""Progress lines with the time since the command began, so that a long step is never a silent one."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO


class Progress:
    """Callable that prints ``[ 12.3 s] text``; safe to call from several threads."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._clock = clock
        self._start = clock()
        self._lock = threading.Lock()

    def elapsed(self) -> float:
        """Return the seconds since this object was made."""
        return self._clock() - self._start

    def __call__(self, text: str) -> None:
        """Print one line."""
        with self._lock:
            print(f"[{self.elapsed():6.1f} s] {text}", file=self._out or sys.stderr, flush=True)


@contextmanager
def reminders(log: Callable[[str], None], text: str, every: float = 10.0) -> Iterator[None]:
    """Say ``text`` and how long it has taken every ``every`` seconds until the block ends."""
    begin, done = time.monotonic(), threading.Event()

    def remind() -> None:
        while not done.wait(every):
            log(f"{text} ... {time.monotonic() - begin:.0f} s")

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
