"""Kubernetes Events on transitions: deduplicated, best effort, never a reason for a pass to fail.

The planner says what changed; this module makes one Event per server, reason and message, and
counts repeats in it, so that a server that flaps costs one object and not thousands.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Protocol

from plimsoll.controller.cluster import EVENTS, Cluster, Refused, Retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from plimsoll.controller.metrics import Metrics

logger = logging.getLogger(__name__)

COMPONENT = "plimsoll-operator"
MOST_WAITING = 4096
_LOOKS, _LOOK_SECONDS = 20, 0.25
_REMEMBERED = 4096
_MESSAGE_LIMIT = 1024  # of the API, in characters


class Note(Protocol):
    """What the planner hands over."""

    @property
    def type(self) -> str:
        """Normal or Warning."""
        ...

    @property
    def reason(self) -> str:
        """A CamelCase word."""
        ...

    @property
    def message(self) -> str:
        """A sentence."""
        ...


class Notes(Protocol):
    """Who takes notes: `Recorder` or `Background`."""

    async def record(self, server: Mapping[str, Any], note: Note) -> None:
        """Take one note about a server; never fails."""
        ...


class Recorder:
    """Posts Events about InferenceServers.

    Args:
        cluster: where to post.
        instance: the pod that reports.
        now: wall time in UTC.
        metrics: counts what was posted and what was not.
    """

    def __init__(
        self, cluster: Cluster, instance: str, now: Callable[[], datetime], metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._instance = instance
        self._now = now
        self._metrics = metrics
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def record(self, server: Mapping[str, Any], note: Note) -> None:
        """Post one note about a server; failures are logged and forgotten."""
        name = _event_name(server, note)
        try:
            await self._post(server, note, name)
            self._metrics.events.inc(outcome="posted")
        except (Retry, Refused) as error:
            self._counts.pop(name, None)  # it may have expired: create it anew next time
            self._metrics.events.inc(outcome="lost")
            logger.warning("event %s not posted: %s", note.reason, error)

    async def _post(self, server: Mapping[str, Any], note: Note, name: str) -> None:
        count = self._counts.get(name, 0)
        if count == 0 and await self._cluster.create_event(self._event(server, note, name)):
            self._remember(name, 1)
            return
        patch: dict[str, Any] = {"lastTimestamp": self._stamp()}
        if count:
            patch["count"] = count + 1
        # Where a previous life of this process made the Event, its count is known only from the
        # answer; one occurrence stays uncounted, which is cheaper than the right to read events.
        live = await self._cluster.patch_event(server["metadata"]["namespace"], name, patch)
        self._remember(name, int(live.get("count") or 1))

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        while len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    def _stamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _event(self, server: Mapping[str, Any], note: Note, name: str) -> dict[str, Any]:
        metadata = server["metadata"]
        stamp = self._stamp()
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": server["apiVersion"],
                "kind": server["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "type": note.type,
            "reason": note.reason,
            "message": note.message[:_MESSAGE_LIMIT],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


class Background:
    """Hands notes to a recorder from a task of its own, so that no pass waits for an Event.

    In a burst the servers go first: an Event costs the API server a third of what a child does. They are
    posted one after the other, each after some seconds at the latest, and the oldest are lost where more
    wait than are worth the memory.

    Args:
        recorder: posts them.
        metrics: counts the lost.
        crowded: whether servers wait for their pass.
        sleep: seconds to wait; an argument for tests.
    """

    def __init__(
        self,
        recorder: Recorder,
        metrics: Metrics,
        crowded: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._crowded = crowded
        self._sleep = sleep
        self._waiting: deque[tuple[dict[str, Any], Note]] = deque()
        self._wake = asyncio.Event()

    async def record(self, server: Mapping[str, Any], note: Note) -> None:
        """Take one note about a server."""
        about = {key: server[key] for key in ("apiVersion", "kind", "metadata")}
        self._waiting.append((about, note))
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self._metrics.events.inc(outcome="lost")
        self._wake.set()

    async def run(self) -> None:
        """Post for ever."""
        while True:
            while self._waiting:
                await self._let_servers_pass()
                await self._recorder.record(*self._waiting.popleft())
            self._wake.clear()
            await self._wake.wait()

    async def _let_servers_pass(self) -> None:
        for _ in range(_LOOKS):
            if not self._crowded():
                return
            await self._sleep(_LOOK_SECONDS)


def _event_name(server: Mapping[str, Any], note: Note) -> str:
    """One name per (incarnation, type, reason, message): a repeat finds its predecessor."""
    text = "\0".join((server["metadata"]["uid"], note.type, note.reason, note.message))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{server['metadata']['name']}.{digest}"
