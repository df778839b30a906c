"""The operator's life: probe, lead, prime, work, stop. Wiring only; every edge is an argument."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.controller.cluster import API_VERSION, KIND, Cluster, Object, Refused, Retry
from plimsoll.controller.health import (
    FILLING,
    LEADING,
    STANDBY,
    STOPPING,
    Health,
    HealthServer,
)
from plimsoll.controller.lease import Lease, LeaseTimes
from plimsoll.controller.metrics import Metrics, measure_lag
from plimsoll.controller.reconcile import WORKERS, Planner, Reconciler, work
from plimsoll.controller.recorder import Background, Recorder
from plimsoll.controller.resync import Resync
from plimsoll.controller.store import Key, Store, key_of, trim
from plimsoll.controller.watch import Watches
from plimsoll.controller.workqueue import WorkQueue

if TYPE_CHECKING:
    from datetime import datetime
    from random import Random

    from plimsoll.controller.objects.context import BuildContext
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.settings import Settings

logger = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_LOST_LEASE = 1
EXIT_NO_CRD = 3
EXIT_FAILED = 4

LEASE_NAME = "plimsoll-operator"

Deliver = Callable[[str | None, Object], None]
WatchRun = Callable[[Sequence[str], Deliver], Coroutine[Any, Any, None]]

_CRD_SECONDS = 20.0
_PROBE_SECONDS = 2.0
_DRAIN_SECONDS = 5.0
_FIRST_LIST_SECONDS = 30.0
_SLICE_SECONDS = 0.01
"""Events are taken for so long before passes go on."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The world, as far as the operator touches it.

    Attributes:
        cluster: the API server.
        watch: runs the watches of some namespaces (of none: of the whole cluster) until cancelled,
            calling deliver for each object.
        planner: the pure part.
        context: what the object builders need.
        clock: monotonic seconds.
        now: wall time in UTC.
        rng: jitter and the identity in the lease.
        senses: what passes look at beside the store.
        metrics: what the process counts.
        times: of the lease.
    """

    cluster: Cluster
    watch: WatchRun
    planner: Planner
    context: BuildContext
    clock: Callable[[], float]
    now: Callable[[], datetime]
    rng: Random
    senses: Callable[[Observed], Awaitable[Observed]] | None = None
    metrics: Metrics = field(default_factory=Metrics)
    times: LeaseTimes = field(default_factory=LeaseTimes)


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings, edges: Edges) -> None:
        self._settings = settings
        self._edges = edges
        self.health = Health()
        self.metrics = edges.metrics
        self.store = Store()
        self.queue: WorkQueue[Key] = WorkQueue(
            clock=edges.clock,
            rng=edges.rng,
            group=lambda key: key[0],  # namespaces take turns
            waited=self.metrics.queue_wait.observe,
        )
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._delivered: deque[tuple[str | None, Object]] = deque()
        self._watch_began = 0.0
        self._server = HealthServer(self.health, self.metrics)
        self._lease = Lease(
            edges.cluster,
            settings.namespace,
            LEASE_NAME,
            f"{settings.pod_name}_{edges.rng.getrandbits(40):010x}",
            clock=edges.clock,
            now=edges.now,
            times=edges.times,
        )
        self._watches = Watches(
            lambda: edges.watch(self._resync.namespaces, self._deliver),
            started=self._watch_started,
            clock=edges.clock,
            rng=edges.rng,
        )
        self._resync = Resync(
            edges.cluster,
            self.store,
            self.queue,
            namespaces=settings.namespaces,
            health=self.health,
            metrics=self.metrics,
            restart=self._watches.restart,
            rng=edges.rng,
        )
        self._connect_health()
        self._connect_metrics()

    async def run(self, stop: asyncio.Event) -> int:
        """Live until ``stop`` or until leadership is lost; returns the exit code."""
        self._loop = asyncio.get_running_loop()
        settings = self._settings
        self.port = await self._server.start(settings.health_host, settings.health_port)
        life = asyncio.create_task(self._live(), name="life")
        stopper = asyncio.create_task(stop.wait(), name="stopper")
        lag = asyncio.create_task(
            measure_lag(self.metrics.loop_lag.observe, self._edges.clock), name="lag"
        )
        try:
            await asyncio.wait({life, stopper}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                return life.result()
            logger.info("stopping")
            return EXIT_STOPPED
        finally:
            self.health.phase = STOPPING
            # Passes that run may end: each is safe to cut, but cutting costs a repeat.
            self.queue.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    await self.queue.drained()
            await _cancel(life, stopper, lag)
            await self._watches.stop()
            await self._lease.release()
            await self._server.close()

    async def _live(self) -> int:
        if not await self._probe():
            return EXIT_NO_CRD
        self.health.phase = STANDBY
        await self._lease.acquire()
        holder = asyncio.create_task(self._lease.hold(), name="lease")
        worker = asyncio.create_task(self._lead(), name="lead")
        try:
            await asyncio.wait({holder, worker}, return_when=asyncio.FIRST_COMPLETED)
            if holder.done():
                logger.error("%s; ending the process", holder.result())
                return EXIT_LOST_LEASE
            worker.result()  # raises what ended it
            return EXIT_FAILED
        finally:
            await _cancel(holder, worker)

    async def _probe(self) -> bool:
        """Wait for the API server; False where it answers without our CRD for a while."""
        clock = self._edges.clock
        began: float | None = None
        while True:
            try:
                if await self._edges.cluster.served():
                    return True
                began = clock() if began is None else began
                if clock() - began > _CRD_SECONDS:
                    logger.error(
                        "the API server does not serve %s: apply the CustomResourceDefinition "
                        "first (manifests/install.yaml holds it)",
                        API_VERSION,
                    )
                    return False
            except (Retry, Refused) as error:
                logger.warning("the API server is not ready: %s", error)
            await asyncio.sleep(_PROBE_SECONDS)

    async def _lead(self) -> None:
        self.health.phase = FILLING
        while True:
            try:
                await self._resync.prime()
                break
            except (Retry, Refused) as error:
                logger.warning("the first list failed: %s", error)
                await asyncio.sleep(_PROBE_SECONDS)
        logger.info("leading; %d objects known", len(self.store))
        edges = self._edges
        recorder = Recorder(edges.cluster, self._settings.pod_name, edges.now, self.metrics)
        events = Background(recorder, self.metrics, lambda: len(self.queue) > WORKERS)
        reconciler = Reconciler(
            edges.cluster,
            self.store,
            events,
            edges.context,
            edges.planner,
            now=edges.now,
            metrics=self.metrics,
            senses=edges.senses,
        )
        self._watches.start()
        self.health.phase = LEADING
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(
                    work(self.queue, reconciler, self.metrics, edges.clock), name=f"worker-{number}"
                )
            group.create_task(events.run(), name="events")
            group.create_task(self._resync.run(self._settings.resync_seconds), name="resync")

    def _watch_started(self, starts: int) -> None:
        """In the watch thread."""
        self._watch_began = self._edges.clock()
        if starts:
            self._call(self._watch_restarted)

    def _watch_restarted(self) -> None:
        self.metrics.watch_restarts.inc()
        self._resync.ask()  # what was deleted while nobody watched

    def _deliver(self, kind: str | None, obj: Object) -> None:
        """In the watch thread: hand an object to the loop that owns the store.

        The loop is woken for the first of those that it has not taken yet: waking it is a system call,
        which hands the interpreter over to the other thread and back. What nobody reads of an object
        does not wait with it.
        """
        self._delivered.append((kind, trim(obj)))
        if len(self._delivered) == 1:
            self._call(self._take_all)

    def _take_all(self) -> None:
        # What comes meanwhile is taken too, or has found nothing before it and wakes the loop again.
        end = self._edges.clock() + _SLICE_SECONDS
        while self._edges.clock() < end:
            if not self._delivered:
                return
            try:
                self._take(*self._delivered[0])
            except Exception:
                logger.exception("an event was lost; the next resync repairs it")
            finally:
                self._delivered.popleft()
        self._call(self._take_all)  # passes go on in between

    def _call(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(function, *args)

    def _take(self, kind: str | None, obj: Object) -> None:
        self.metrics.watch_events.inc(kind=obj["kind"])
        store = self.store
        news = store.remove(obj) if kind == "DELETED" else store.put(obj, watched=True)
        if kind is None and self._edges.clock() - self._watch_began > _FIRST_LIST_SECONDS:
            self._resync.ask()  # kopf listed again: deletions in the gap were not told
        key = key_of(obj)
        # The echo of our own write, and what no step reads of an object, are nothing to plan on.
        if news and key is not None:
            self.queue.add(key)

    def _connect_health(self) -> None:
        health = self.health
        health.oldest_busy = self.queue.oldest_busy_seconds
        health.lease_silence = self._lease.silent_seconds
        health.watching = self._watches.alive
        health.short_watches = self._watches.short_runs

    def _connect_metrics(self) -> None:
        metrics = self.metrics
        metrics.leader.show(lambda: self._lease.held)
        metrics.ready.show(lambda: not self.health.ready_problems())
        metrics.queue_depth.show(lambda: len(self.queue))
        metrics.queue_age.show(self.queue.oldest_ready_seconds)
        metrics.oldest_pass.show(self.queue.oldest_busy_seconds)
        metrics.store_objects.show(lambda: len(self.store))
        given = len(self._settings.namespaces)
        metrics.namespaces_set_aside.show(lambda: given - len(self._resync.namespaces))
        metrics.watch_deaf.show(lambda: self.health.deaf)
        metrics.read_servers(lambda: self.store.objects(KIND), self._edges.now)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
