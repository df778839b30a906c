"""Gathers what one pass plans on: the store's picture, and two kinds of live reads.

* A Deployment or Service that the store does not hold is read live: an apply with force would
  otherwise take over a foreign object, which our label selector never shows us.
* The node that a sizing pod ran on, for the label that the servers are pinned to. Nodes are not
  watched: their heartbeats would be most of the traffic.

Nothing is decided here; sorting by owner and parsing are `observed.observe_from`'s, which is pure.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plimsoll.controller.cluster import (
    DEPLOYMENTS,
    KIND,
    NODES,
    PODS,
    SERVICES,
    Cluster,
    Object,
    Refused,
    Resource,
)
from plimsoll.controller.observed import Observed, observe_from, wanted_node
from plimsoll.controller.store import Key, Store, trim

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)


async def observe(store: Store, cluster: Cluster, key: Key) -> Observed | None:
    """What is known about one server, or None where there is none.

    Raises:
        Retry: a live read was not answered.
        Refused: a live read was not allowed.
    """
    raw = store.get(KIND, *key)
    if raw is None:
        return None
    pods = tuple(store.children(PODS.kind, key))
    return observe_from(
        raw,
        deployment=await _named(store, cluster, DEPLOYMENTS, key),
        service=await _named(store, cluster, SERVICES, key),
        pods=pods,
        node=await _node(cluster, raw, pods),
    )


async def _named(store: Store, cluster: Cluster, resource: Resource, key: Key) -> Object | None:
    known = store.get(resource.kind, *key)
    if known is not None:
        return known
    live = await cluster.get(resource, *key)
    # Not put into the store: without our label no watch would ever correct it there.
    return None if live is None else trim(live)


async def _node(cluster: Cluster, raw: Object, pods: Sequence[Object]) -> Object | None:
    name = wanted_node(raw, pods)
    if name is None:
        return None
    try:
        live = await cluster.get(NODES, None, name)
    except Refused as refusal:
        # An install restricted to namespaces may lack the right; the planner then says that the
        # class cannot be pinned, instead of this server never being served at all.
        logger.warning("node %s is not readable: %s", name, refusal.message)
        return None
    return None if live is None else trim(live)
