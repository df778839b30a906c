"""Reads one node at a time, live: nodes are not watched, since their heartbeats would be most of the traffic.

The right to read nodes is optional, and a pass over any server wants one; so a refusal is remembered for a while
instead of being asked for with every pass.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from plimsoll.controller.cluster import NODES, Cluster, Object, Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

logger = logging.getLogger(__name__)

REFUSED_FOR: Final = timedelta(minutes=5)
# Passes over one server follow each other within seconds, and servers of one pool meet the same nodes.
FRESH_FOR: Final = timedelta(seconds=2)
_MOST: Final = 256


class NodeReader:
    """The nodes that the operator may read.

    Args:
        cluster: what is read.
        now: wall time with a zone.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._refused_at: datetime | None = None
        self._read: OrderedDict[str, tuple[datetime, Object]] = OrderedDict()

    @property
    def refused(self) -> bool:
        """Whether the last read was not allowed."""
        return self._refused_at is not None

    async def read(self, name: str) -> Object | None:
        """The node, or None where there is none or it may not be read. Raises Retry when there was no answer."""
        now = self._now()
        if self._refused_at is not None and now - self._refused_at < REFUSED_FOR:
            return None
        at, known = self._read.get(name, (None, None))
        if at is not None and now - at < FRESH_FOR:
            return known
        try:
            live = await self._cluster.get(NODES, None, name)
        except Refused as refusal:
            if self._refused_at is None:
                logger.warning(
                    "node %s cannot be read (%s); numbers are pinned to the node's name instead of the kind of its "
                    "GPU: grant get on nodes to change that",
                    name,
                    refusal.message,
                )
            self._refused_at = now
            return None
        self._refused_at = None
        self._keep(name, now, live)
        return live

    def _keep(self, name: str, now: datetime, live: Object | None) -> None:
        """Remember what is there, without its status, which is most of it; what is gone is asked for again."""
        self._read.pop(name, None)
        if live is not None:
            self._read[name] = (now, {key: live[key] for key in live if key != "status"})
        if len(self._read) > _MOST:
            self._read.popitem(last=False)
