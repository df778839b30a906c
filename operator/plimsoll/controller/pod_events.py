"""Reads the Events about one pod: rarely, briefly, and never as a reason for a pass to fail.

The API server has no index of events by pod: each of these lists makes it read all events of the
namespace. So what was read is kept for some seconds, and only so many are read in that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from plimsoll.controller.cluster import EVENTS, Cluster, Object, Refused, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

TTL_SECONDS: Final = 3.0
READ_SECONDS: Final = 5.0
REFUSED_SECONDS: Final = 300.0
FORGET_SECONDS: Final = 120.0
MOST_EVENTS: Final = 50
MOST_READS: Final = 20
BUSY_SECONDS: Final = 10.0
"""In so many seconds there are `MOST_READS`, of all pods together."""


class PodEvents:
    """The newest events of pods that wait for a node.

    Args:
        cluster: what is read.
        clock: monotonic seconds.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[Object, ...]]] = {}
        self._reads: deque[float] = deque(maxlen=MOST_READS)
        self._silent_until = float("-inf")

    async def look(self, namespace: str, uid: str) -> tuple[Object, ...]:
        """The events about the pod, at most `TTL_SECONDS` old or as old as they have to be.

        Args:
            namespace: of the pod.
            uid: of the pod.

        Returns:
            Nothing where they may not be listed, or were not in time. No outcome is raised.
        """
        now = self._clock()
        read_at, events = self._known.get(uid, (float("-inf"), ()))
        if now - read_at < TTL_SECONDS or now < self._silent_until or self._is_busy(now):
            return events
        self._reads.append(now)
        self._forget(now)
        events = await self._read(namespace, uid, events)
        self._known[uid] = (now, events)
        return events

    def _is_busy(self, now: float) -> bool:
        return len(self._reads) == MOST_READS and now - self._reads[0] < BUSY_SECONDS

    def _forget(self, now: float) -> None:
        old = [uid for uid, (at, _) in self._known.items() if now - at >= FORGET_SECONDS]
        for uid in old:
            del self._known[uid]

    async def _read(
        self, namespace: str, uid: str, before: tuple[Object, ...]
    ) -> tuple[Object, ...]:
        try:
            async with asyncio.timeout(READ_SECONDS):
                page = await self._cluster.page(
                    EVENTS,
                    namespace=namespace,
                    fields=f"involvedObject.uid={uid}",
                    limit=MOST_EVENTS,
                )
        except Refused as refusal:
            self._silent_until = self._clock() + REFUSED_SECONDS
            logger.warning(
                "events cannot be listed (%s); what a node autoscaler says of pods stays unknown: "
                "grant list on events",
                refusal.message,
            )
            return ()
        except (Retry, TimeoutError) as error:
            logger.info("the events of pod %s were not read: %s", uid, str(error) or "no answer")
            return before
        return tuple(page.items)
