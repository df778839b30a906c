"""A full LIST now and then: puts the store right, runs every key, and finds a deaf watch.

The watch is the fast path and this is the safety net under it. A re-list inside kopf does not tell
what was deleted meanwhile, and a watch can fall silent without ending; neither may last longer than
one period.

With a list of namespaces, one that may not be read is set aside: it was deleted, and the Role in it
with it. The others must not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from plimsoll.controller.cluster import WATCHED, Cluster, Refused, Resource, Retry
from plimsoll.controller.store import Merge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from random import Random

    from plimsoll.controller.health import Health
    from plimsoll.controller.metrics import Metrics
    from plimsoll.controller.store import Key, Store
    from plimsoll.controller.workqueue import WorkQueue

logger = logging.getLogger(__name__)

GRACE_SECONDS = 30.0
SPREAD_PER_KEY = 0.02
A_PART = 100
_AGAIN_SECONDS = 10.0
_CLOSED_SECONDS = 30.0
_FORBIDDEN = 403
_JITTER = 0.1


class Resync:
    """Compares the store with full lists.

    Args:
        cluster: to list from.
        store: to put right.
        queue: gets every key, those that changed first.
        namespaces: to list; empty means all.
        health: counts how often in a row the watches were found deaf, and lists failed.
        metrics: counts resyncs.
        restart: starts the watches again.
        rng: spreads the keys, so that a fleet is not reconciled in one burst.
        sleep: seconds to wait; an argument for tests.
    """

    def __init__(  # noqa: PLR0913  # wiring: each argument is one neighbour
        self,
        cluster: Cluster,
        store: Store,
        queue: WorkQueue[Key],
        *,
        namespaces: Sequence[str],
        health: Health,
        metrics: Metrics,
        restart: Callable[[], None],
        rng: Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._scopes: Sequence[str | None] = tuple(namespaces) or (None,)
        self._closed: frozenset[str] = frozenset()
        self._health = health
        self._metrics = metrics
        self._restart = restart
        self._rng = rng
        self._sleep = sleep
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Run one soon: something may have been deleted unseen."""
        self._asked.set()

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Those to watch: all that were given and may be read; empty means the whole cluster."""
        return tuple(n for n in self._scopes if n is not None and n not in self._closed)

    async def prime(self) -> None:
        """Fill the store before the first pass.

        A pass over a half-filled store would see children as missing and report servers that run
        as not ready.

        Raises:
            Retry: the API server did not answer.
            Refused: no namespace may be listed: the RBAC rules of the install are incomplete.
        """
        await self._merge()
        for key in self._store.servers():
            self._queue.add(key)

    async def run(self, period: float, settle: float = 5.0) -> None:
        """Resync for ever.

        Args:
            period: seconds between two resyncs, spread by a tenth.
            settle: seconds to wait after `ask`, so that a burst of reasons costs one resync.
        """
        while True:
            # A namespace that is set aside may have come (back), or its Role may just be new.
            least = min(period, _CLOSED_SECONDS) if self._closed else period
            wait = least * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._asked.wait()
                    await self._sleep(settle)
            self._asked.clear()
            while not await self.once():
                await self._sleep(_AGAIN_SECONDS)

    async def once(self) -> bool:
        """One resync; False where the API server did not answer."""
        try:
            changed = await self._merge()
        except (Retry, Refused) as error:
            self._metrics.resyncs.inc(outcome="failed")
            self._health.lists_failed += 1
            logger.warning("resync: %s", error)
            return False
        self._health.lists_failed = 0
        keys = list(self._store.servers())
        for key in keys:
            spread = self._rng.uniform(0.0, SPREAD_PER_KEY * len(keys))
            self._queue.add(key, 0.0 if key in changed else spread)
        self._metrics.resyncs.inc(outcome="changed" if changed else "same")
        await self._listen()
        return True

    async def _merge(self) -> set[Key]:
        changed: set[Key] = set()
        closed: dict[str | None, Refused] = {}
        for namespace in self._scopes:
            try:
                for resource in WATCHED:
                    changed |= await self._merge_one(resource, namespace)
            except Refused as refused:
                if refused.status != _FORBIDDEN:
                    raise
                closed[namespace] = refused
        if len(closed) == len(self._scopes):
            raise next(iter(closed.values()))
        self._set_aside({n: r for n, r in closed.items() if n is not None})
        return changed

    async def _merge_one(self, resource: Resource, namespace: str | None) -> set[Key]:
        """One LIST in parts, as client-go's pager makes it."""
        merge, token = Merge(self._store, resource, namespace), ""
        while True:
            page = await self._cluster.page(
                resource, namespace=namespace, limit=A_PART, token=token
            )
            merge.take(page.items)
            if not (token := page.more):
                return merge.end(page.version)

    def _set_aside(self, closed: Mapping[str, Refused]) -> None:
        """Forget what may not be read as a whole: half of a namespace would mislead a pass."""
        for namespace, refused in closed.items():
            self._store.forget(namespace)
            if namespace not in self._closed:
                logger.warning("namespace %s is set aside: %s", namespace, refused.message)
        for namespace in self._closed - closed.keys():
            logger.info("namespace %s can be read again", namespace)
        if self._closed != closed.keys():
            self._closed = frozenset(closed)
            self._restart()

    async def _listen(self) -> None:
        """Where a list knew more than the watch, give the watch time to say so itself."""
        if not self._unconfirmed():
            self._health.deaf = 0
            return
        await self._sleep(GRACE_SECONDS)
        silent = self._unconfirmed()
        if not silent:
            self._health.deaf = 0
            return
        self._health.deaf += 1
        logger.error("the watches said nothing about %d changed objects; restarting them", silent)
        self._restart()

    def _unconfirmed(self) -> int:
        return sum(self._store.unconfirmed(resource.kind) for resource in WATCHED)
