"""Reads the picture of the cluster that `placement` judges by: one for all workers, some seconds old.

Two lists of the whole cluster, in pages, are dear; so they are made only when somebody asks, by one
worker while the others wait, and at most every few seconds whatever comes of them. Of every object
only what the picture needs outlives its page.

The picture is optional. An install that may not list nodes or all pods has none, and its callers
must then do what is safe without one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from plimsoll.controller.cluster import ALL_PODS, NODES, Cluster, Page, Refused, Resource, Retry
from plimsoll.controller.placement import Landscape, assemble, holding_of, node_view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

logger = logging.getLogger(__name__)

TTL_SECONDS: Final = 10.0
STALE_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 300.0
READ_SECONDS: Final = 30.0

# A Node of a GPU cluster is some 20 KiB of JSON (labels, images), a Pod some 8 KiB.
NODES_A_PAGE: Final = 100
PODS_A_PAGE: Final = 500
# Kubernetes is built for 5,000 nodes and 150,000 pods; a token that never ends is no list.
MOST_PAGES: Final = 1000

BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The pods that hold something of a node, as a field selector."""


class LandscapeReader:
    """The newest picture, read when it is asked for.

    Args:
        cluster: what is read.
        clock: monotonic seconds.
        now: wall time with a zone, written into the picture.
        ttl: seconds for which a picture is given out again, and the least time between two reads.
        read_seconds: the longest that one read may take.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        ttl: float = TTL_SECONDS,
        *,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._now = now
        self._ttl = ttl
        self._read_seconds = read_seconds
        self._lock = asyncio.Lock()
        self._seen: Landscape | None = None
        self._seen_at = 0.0
        self._next = float("-inf")
        self._refused = False
        self._well = False

    async def look(self, within: float | None = None) -> Landscape | None:
        """The picture, at most ``ttl`` seconds old, or older where the API server does not answer.

        Args:
            within: seconds that it may be old, where that is less: something is decided by it now.

        Returns:
            None where there is none of the last 60 seconds: the operator may not list, or the API
            server has not answered for that long. No outcome of a read is raised.
        """
        async with self._lock:
            if self._clock() >= self._next or self._is_old(within):
                await self._refresh()
            fresh = self._clock() - self._seen_at <= STALE_SECONDS
            return self._seen if fresh else None

    def _is_old(self, within: float | None) -> bool:
        """Whether a picture that is good enough for others is too old for this one."""
        if within is None or not self._well:  # an API server in trouble is left in peace
            return False
        return self._clock() - self._seen_at > within

    async def _refresh(self) -> None:
        started, pause = self._clock(), self._ttl
        self._well = False
        try:
            async with asyncio.timeout(self._read_seconds):
                self._seen, self._seen_at = await self._read(), started
            self._refused, self._well = False, True
        except Refused as refusal:
            self._seen, pause = None, REFUSED_SECONDS
            if not self._refused:
                logger.warning(
                    "the cluster's nodes and pods cannot be listed (%s); free accelerators stay "
                    "unknown: grant list on nodes and pods cluster-wide to let rollouts use them",
                    refusal.message,
                )
            self._refused = True
        except (Retry, TimeoutError) as error:
            pause = max(pause, getattr(error, "after", 0.0))
            logger.info(
                "the cluster's nodes and pods were not read: %s", str(error) or "no answer in time"
            )
        self._next = self._clock() + pause

    async def _read(self) -> Landscape:
        at = self._now()
        nodes = [
            node_view(node)
            async for page in self._pages(NODES, "", NODES_A_PAGE)
            for node in page.items
        ]
        # After the nodes: a pod on a node that has come since does not count, but none is missed.
        holdings = [
            holding
            async for page in self._pages(ALL_PODS, BOUND, PODS_A_PAGE)
            for pod in page.items
            if (holding := holding_of(pod)) is not None
        ]
        return assemble(nodes, holdings, at)

    async def _pages(self, resource: Resource, fields: str, limit: int) -> AsyncIterator[Page]:
        token = ""
        for _ in range(MOST_PAGES):
            page = await self._cluster.page(resource, fields=fields, limit=limit, token=token)
            yield page
            if not (token := page.more):
                return
        raise Retry(f"the list of {resource.plural} does not end after {MOST_PAGES} pages")
