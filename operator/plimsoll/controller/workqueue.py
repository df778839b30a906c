"""A keyed work queue: one pass per key at a time, none lost, repeats merged.

A key whose passes follow each other without end (two states that each call for the other, a tenant
who edits ten times a second) is slowed down, so that no server can spin: see `BURST`.

The shape is client-go's work queue with its delaying and rate-limiting layers folded in. It knows
nothing of Kubernetes; clock and randomness are arguments. Nothing in it must survive a restart:
at start every known key is added once, and every pass finds its work by looking at the world.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from random import Random

K = TypeVar("K", bound=Hashable)

BASE_SECONDS = 0.5
CAP_SECONDS = 30.0
JITTER = 0.2

# Passes that one key may have in quick succession, and how many a second it earns back. A life from
# "applied" to "ready" takes about 25; further requests merge into the pass that is waited for.
BURST = 60
EARNED_PER_SECOND = 1.0
_SHORTEST = 0.05
_SWEEP = 1024  # keys to remember before those that have earned all back are forgotten


class _Line(Generic[K]):
    """Waiting keys: those of a group in the order of their arrival, and the groups by turns."""

    def __init__(self, group: Callable[[K], Hashable]) -> None:
        self._group = group
        self._since: dict[K, float] = {}
        self._groups: dict[Hashable, deque[K]] = {}  # insertion order is whose turn it is

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, key: K) -> bool:
        return key in self._since

    def add(self, key: K, since: float) -> None:
        """Put a key that does not wait yet at the end of its group."""
        self._since[key] = since
        self._groups.setdefault(self._group(key), deque()).append(key)

    def take(self) -> tuple[K, float] | None:
        """The next key and since when it waits; the next but one is another group's, if one waits."""
        for group, keys in self._groups.items():
            key = keys.popleft()
            del self._groups[group]
            if keys:
                self._groups[group] = keys
            return key, self._since.pop(key)
        return None

    def oldest(self) -> float | None:
        """Since when the key that has waited for longest does."""
        return min(self._since.values(), default=None)


class WorkQueue(Generic[K]):
    """Dirty keys in line, busy keys, and keys that are due later.

    Args:
        clock: monotonic seconds.
        rng: spreads the back-off of keys that fail together.
        group: whose a key is; groups take turns, so that a thousand keys of one hold up no other.
        waited: is told by each key that is taken for how many seconds it was due.
        base: seconds before the first retry.
        cap: the longest back-off in seconds, before jitter.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rng: Random,
        group: Callable[[K], Hashable] = lambda _key: None,
        waited: Callable[[float], None] = lambda _seconds: None,
        base: float = BASE_SECONDS,
        cap: float = CAP_SECONDS,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._waited = waited
        self._base = base
        self._cap = cap
        self._ready: _Line[K] = _Line(group)
        self._busy: dict[K, float] = {}
        self._again: dict[K, float] = {}  # added while busy: one more pass when done; since when
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._failures: dict[K, int] = {}
        self._spent: dict[K, tuple[float, float]] = {}  # passes spent, as of when
        self._next_sweep = _SWEEP
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Keys that wait for a worker now; delayed ones do not count."""
        self._promote()
        return len(self._ready) + len(self._again)

    def add(self, key: K, delay: float = 0.0) -> None:
        """Ask for a pass over ``key`` after ``delay`` seconds; the earliest request wins."""
        if delay <= 0:
            self._make_ready(key)
            return
        due = self._clock() + delay
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._sequence += 1  # breaks ties, so that keys need not be comparable
            heapq.heappush(self._heap, (due, self._sequence, key))
            self._wake.set()

    def pop(self) -> K | None:
        """Take the next key that is due and not busy, or None.

        The pass that begins now will say itself when it wants to be called again, so an older
        appointment of this key is dropped.
        """
        self._promote()
        taken = self._ready.take()
        if taken is None:
            return None
        key, since = taken
        self._due.pop(key, None)
        self._busy[key] = self._clock()
        self._waited(self._clock() - since)
        self._spend(key)
        return key

    async def get(self) -> K | None:
        """Wait for the next key; None once the queue is closed."""
        while not self._closed:
            if (key := self.pop()) is not None:
                return key
            self._wake.clear()
            due = self.next_due()
            wait = None if due is None else max(0.0, due - self._clock())
            # asyncio.timeout starts no task, unlike wait_for: nothing for others to cancel.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
        return None

    def close(self) -> None:
        """Hand out no more keys; passes that run may end."""
        self._closed = True
        self._wake.set()

    async def drained(self) -> None:
        """Wait until no pass runs."""
        while self._busy:
            self._ended.clear()
            await self._ended.wait()

    def done(self, key: K) -> None:
        """The pass over ``key`` has ended, well or not."""
        self._busy.pop(key, None)
        self._ended.set()
        if key in self._again:
            self._make_ready(key, self._again.pop(key))

    def fail(self, key: K, at_least: float = 0.0) -> float:
        """Schedule a retry with exponential back-off and return its delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # The exponent is bounded so that a key that fails for a month cannot overflow a float.
        delay = min(self._cap, self._base * 2.0 ** min(failures, 32))
        delay = max(at_least, delay * self._rng.uniform(1.0 - JITTER, 1.0 + JITTER))
        self.add(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The last pass succeeded: the next failure starts at the base delay again."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How many passes over ``key`` failed in a row."""
        return self._failures.get(key, 0)

    def next_due(self) -> float | None:
        """When the next delayed key is due, on the queue's clock."""
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) == due:
                return due
            heapq.heappop(self._heap)  # superseded by an earlier appointment or a pass
        return None

    def oldest_busy_seconds(self) -> float:
        """Age of the longest running pass, 0 when idle: a stuck pass shows here."""
        return self._clock() - min(self._busy.values()) if self._busy else 0.0

    def oldest_ready_seconds(self) -> float:
        """How long the first waiting key has waited for a worker."""
        oldest = self._ready.oldest()
        return 0.0 if oldest is None else self._clock() - oldest

    def _make_ready(self, key: K, since: float | None = None) -> None:
        since = self._clock() if since is None else since
        if key in self._busy:
            self._again.setdefault(key, since)
            return
        if key in self._ready:
            return
        excess = self._spent_now(key) + 1 - BURST
        if excess > 0:
            # Never so short that rounding makes it due at once.
            self.add(key, max(_SHORTEST, excess / EARNED_PER_SECOND))
            return
        self._ready.add(key, since)
        self._wake.set()

    def _spent_now(self, key: K) -> float:
        spent, since = self._spent.get(key, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - since) * EARNED_PER_SECOND)

    def _spend(self, key: K) -> None:
        self._spent[key] = (self._spent_now(key) + 1, self._clock())
        if len(self._spent) > self._next_sweep:
            self._spent = {k: v for k, v in self._spent.items() if self._spent_now(k) > 0}
            self._next_sweep = 2 * len(self._spent) + _SWEEP

    def _promote(self) -> None:
        now = self._clock()
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._make_ready(key)
