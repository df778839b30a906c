"""What the engines of one server's pods say about their KV cache.

An engine is asked through its pod's address, and where no endpoint tells, the head of its log is read:
it prints the number as it starts, and a log that was rotated has lost it, so what was read once is
kept for as long as the process lives. Everything is optional and bounded: a pod that does not answer,
a cluster that does not show logs, gives a reading that says so, and never an exception.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from plimsoll.controller.cluster import Cluster, Object, Refused, Retry
from plimsoll.controller.fetch import Unreachable
from plimsoll.controller.objects.names import SERVER
from plimsoll.core.drift import INFO, LOG, METRICS, PodReading
from plimsoll.core.engines.readback import ENDPOINTS, Endpoint, Reading, read_endpoint, read_log
from plimsoll.core.engines.readback_running import RUNNING, read_running

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

Fetch: TypeAlias = Callable[[str], Awaitable[bytes | None]]
"""`fetch.fetch`: the body of a URL, None where there is none; raises `Unreachable`."""

MAX_PODS: Final = 16
AT_ONCE: Final = 4
LOG_BYTES: Final = 256 << 10
READ_SECONDS: Final = 10.0
"""For one call, whatever the pods do: a pass of the operator waits for it."""

KEEP_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 20.0
RUNNING_SECONDS: Final = 5.0
FORGET_SECONDS: Final = 600.0


_Key: TypeAlias = tuple[str, int]  # the pod's UID and how often its engine was started again


@dataclass(slots=True)
class _Known:
    """What is remembered of one process. Times are the clock's; None: never."""

    seen: float
    good: float | None = None
    tried: float | None = None
    found: Reading = field(default_factory=Reading)
    source: str | None = None
    failure: str | None = None
    failures: int = 0
    running: int | None = None
    counted: float | None = None

    def due(self, now: float) -> bool:
        """Whether the engine is to be asked for its figures. The head of a log never changes."""
        if self.source == LOG or (self.good is not None and now - self.good < KEEP_SECONDS):
            return False
        pause = min(RETRY_SECONDS * 2.0 ** max(0, self.failures - 1), KEEP_SECONDS)
        return self.tried is None or now - self.tried >= pause

    def uncounted(self, now: float) -> bool:
        """Whether the engine is to be asked how many requests run."""
        return self.counted is None or now - self.counted >= RUNNING_SECONDS


@dataclass(frozen=True, slots=True)
class _Pod:
    """One pod to ask."""

    namespace: str
    name: str
    uid: str
    base: str
    known: _Known


class EngineReader:
    """Reads the engines' own figures; one object for all servers, on one event loop.

    Args:
        cluster: for the logs.
        fetch: for the endpoints.
        clock: monotonic seconds.
        local: pods may have addresses of this machine (tests).
    """

    def __init__(
        self, cluster: Cluster, fetch: Fetch, clock: Callable[[], float], *, local: bool = False
    ) -> None:
        self._cluster = cluster
        self._fetch = fetch
        self._clock = clock
        self._local = local
        self._known: dict[_Key, _Known] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def read(
        self, raw_pods: Sequence[Object], engine_type: str, port: int, *, running: bool = False
    ) -> tuple[PodReading, ...]:
        """One reading for each of the first pods that are ready, by name. Never raises.

        Args:
            raw_pods: server pods of one server; those that are not ready or leave are passed over.
            engine_type: name of the engine table.
            port: where the engine listens.
            running: also ask how many requests run; such a count is at most some seconds old.
        """
        now = self._clock()
        self._forget(now)
        pods = self._ready(raw_pods, port, now)
        # Who has waited longest comes first, so that pods that hang cannot starve the others.
        order = sorted(pods, key=lambda pod: -1.0 if pod.known.tried is None else pod.known.tried)
        wanted = [
            pod for pod in order if pod.known.due(now) or (running and pod.known.uncounted(now))
        ]
        await self._ask_all(wanted, engine_type, running=running)
        return tuple(_reading(pod, running=running) for pod in pods)

    def _forget(self, now: float) -> None:
        for key in [k for k, known in self._known.items() if now - known.seen > FORGET_SECONDS]:
            del self._known[key]

    def _ready(self, raw_pods: Sequence[Object], port: int, now: float) -> list[_Pod]:
        pods: list[_Pod] = []
        for raw in sorted(raw_pods, key=lambda pod: str(pod["metadata"]["name"])):
            base = _base(raw, port, local=self._local) if _is_ready(raw) else None
            if base is None or len(pods) == MAX_PODS:
                continue
            metadata = raw["metadata"]
            known = self._known.setdefault((metadata["uid"], _restarts(raw)), _Known(now))
            known.seen = now
            pods.append(_Pod(metadata["namespace"], metadata["name"], metadata["uid"], base, known))
        return pods

    async def _ask_all(self, pods: Sequence[_Pod], engine: str, *, running: bool) -> None:
        """Ask them, a few at a time; what is not done in time is left for the next call."""
        tasks = [asyncio.create_task(self._ask(pod, engine, running=running)) for pod in pods]
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, timeout=READ_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error("an engine could not be read", exc_info=outcome)

    async def _ask(self, pod: _Pod, engine: str, *, running: bool) -> None:
        async with self._places:
            known = pod.known
            if known.due(self._clock()):
                known.tried = self._clock()
                known.failures += 1  # until it has answered
                known.failure = f"it gave no answer in {READ_SECONDS:.0f} s"
                await self._figures(pod, engine)
            if running and known.uncounted(self._clock()):
                known.counted = self._clock()
                known.running = None  # an old count is not kept
                known.running = await self._count(pod, engine)

    async def _figures(self, pod: _Pod, engine: str) -> None:
        known = pod.known
        found, source, failure = await self._endpoints(pod, engine)
        if source is None and known.source is None:
            found, said = await self._log(pod, engine)
            source = LOG if said is None else None
            failure = "; ".join(part for part in (failure, said) if part)
        known.failure = failure
        if source is not None:
            known.found, known.source, known.good = found, source, self._clock()
            known.failures = 0

    async def _endpoints(self, pod: _Pod, engine: str) -> tuple[Reading, str | None, str | None]:
        """What the first endpoint that tells anything says, where from, or why nothing."""
        paths = []
        for endpoint in ENDPOINTS.get(engine, ()):
            if not endpoint.evidence:
                continue
            paths.append(endpoint.path)
            try:
                body = await self._fetch(pod.base + endpoint.path)
            except Unreachable as gone:
                return Reading(), None, f"{pod.base} does not answer ({gone})"
            found = _parse(engine, endpoint, body)
            if found.tokens is not None or found.blocks is not None:
                return found, METRICS if endpoint.kind == "metrics" else INFO, None
        return Reading(), None, f"{' and '.join(paths)} tell no size" if paths else None

    async def _log(self, pod: _Pod, engine: str) -> tuple[Reading, str | None]:
        """What the head of the log says, or why it says nothing."""
        try:
            text = await self._cluster.pod_log(
                pod.namespace, pod.name, SERVER, limit_bytes=LOG_BYTES
            )
        except Refused as refused:
            return Reading(), f"its log may not be read: {refused.message[:200]}"
        except Retry:
            return Reading(), "its log could not be read"
        found = read_log(engine, text or "")
        if found.tokens is None and found.blocks is None and found.pool_bytes is None:
            return found, "the head of its log holds no size of the KV cache"
        return found, None

    async def _count(self, pod: _Pod, engine: str) -> int | None:
        if engine not in RUNNING:
            return None
        try:
            body = await self._fetch(pod.base + RUNNING[engine][0])
        except Unreachable:
            return None
        return None if body is None else read_running(engine, body.decode(errors="replace"))


def _reading(pod: _Pod, *, running: bool) -> PodReading:
    known = pod.known
    failure = None if known.source else known.failure
    if known.tried is None:
        failure = "it was not asked yet: others took the time"
    count = known.running if running else None
    return PodReading(pod.name, pod.uid, known.found, known.source, count, failure)


def _parse(engine: str, endpoint: Endpoint, body: bytes | None) -> Reading:
    if body is None:
        return Reading()
    text = body.decode(errors="replace")
    if endpoint.kind == "metrics":
        return read_endpoint(engine, endpoint.path, text)
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return Reading()
    return read_endpoint(engine, endpoint.path, document if isinstance(document, dict) else {})


def _is_ready(raw: Object) -> bool:
    if "deletionTimestamp" in raw["metadata"]:
        return False
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _restarts(raw: Object) -> int:
    statuses = (raw.get("status") or {}).get("containerStatuses") or ()
    return next((int(s.get("restartCount", 0)) for s in statuses if s.get("name") == SERVER), 0)


def _base(raw: Object, port: int, *, local: bool) -> str | None:
    """The pod's URL without a path, or None where it has no address that a pod may have.

    Whoever can write a pod's status must not thereby choose whom the operator calls: its own
    machine, and the metadata service of clouds, are no pods.
    """
    try:
        address = ip_address((raw.get("status") or {}).get("podIP") or "")
    except ValueError:
        return None
    address = getattr(address, "ipv4_mapped", None) or address
    odd = address.is_link_local or address.is_multicast or address.is_unspecified
    if odd or (address.is_loopback and not local):
        return None
    host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    return f"http://{host}:{port}"
