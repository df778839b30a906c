"""Keeps the watches running: a thread with an event loop of its own, started again when it ends.

kopf ends on several watch faults (an in-stream error other than 410, 404 or 410 on the request, an
API server away for a minute) and at its end cancels every task of its loop. In a thread of its own
neither reaches the workers, the lease or the health server, and a minute without an API server
costs a re-list instead of a crash-loop with the kubelet's back-off of minutes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

logger = logging.getLogger(__name__)

Run = Callable[[], Coroutine[Any, Any, None]]
"""Watches until cancelled; raises or returns early on a fault."""

HEALTHY_SECONDS = 60.0
CAP_SECONDS = 30.0
STOP_SECONDS = 10.0


class Watches:
    """Supervises ``run``.

    Args:
        run: the coroutine function to keep running.
        started: called in the thread before each start with the number of starts before it.
        clock: monotonic seconds.
        rng: spreads restarts.
        base: seconds before the first restart.
    """

    def __init__(
        self,
        run: Run,
        *,
        started: Callable[[int], None],
        clock: Callable[[], float],
        rng: Random,
        base: float = 1.0,
    ) -> None:
        self._run = run
        self._started = started
        self._clock = clock
        self._rng = rng
        self._base = base
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._begun, self._short = clock(), 0
        self._thread = threading.Thread(target=self._main, name="watches", daemon=True)

    def start(self) -> None:
        """Begin watching."""
        self._thread.start()

    def restart(self) -> None:
        """End the present watches; new ones follow after the back-off."""
        with self._lock:
            if self._cancel is not None:
                self._cancel()

    async def stop(self) -> None:
        """End for good; gives up on a thread that does not end (it dies with the process)."""
        self._stop.set()
        self.restart()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)

    def alive(self) -> bool:
        """Whether the supervising thread runs."""
        return self._thread.is_alive()

    def short_runs(self) -> int:
        """How many runs in a row ended soon; 0 once the present one has lasted for a while."""
        return 0 if self._clock() - self._begun > HEALTHY_SECONDS else self._short

    def _main(self) -> None:
        starts = 0
        while not self._stop.is_set():
            self._begun = self._clock()
            self._started(starts)
            starts += 1
            try:
                asyncio.run(self._cancellable())
            except asyncio.CancelledError:
                logger.info("the watches were told to end")
            except Exception as error:  # noqa: BLE001  # whatever ended the watches, they must run
                logger.warning("the watches ended: %s: %s", type(error).__name__, error)
            self._short = 0 if self._clock() - self._begun > HEALTHY_SECONDS else self._short + 1
            delay = min(CAP_SECONDS, self._base * 2.0 ** min(max(self._short - 1, 0), 10))
            self._stop.wait(delay * self._rng.uniform(0.5, 1.0))

    async def _cancellable(self) -> None:
        """Run, and let other threads cancel it.

        Cancelling, and not kopf's stop flag: a thread that waits for such a flag holds up both
        kopf's own end (by five seconds) and that of the loop (for ever) when kopf ends by a fault.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with self._lock:
            self._cancel = functools.partial(loop.call_soon_threadsafe, task.cancel)
        try:
            if not self._stop.is_set():  # stop() may have come before there was a task to cancel
                await self._run()
        finally:
            with self._lock:
                self._cancel = None
