"""Gathers what one pass plans on: the store's picture, and two kinds of live reads.

* A Deployment or Service that the store does not hold is read live where a stranger may have its
  name, which our label selector never shows us: when asked to look, and while the status says so.
* The node that a sizing pod ran on, for the label that the servers are pinned to (`nodes`).

Nothing is decided here; sorting by owner and parsing are `observed.observe_from`'s, which is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.controller.cluster import (
    DEPLOYMENTS,
    KIND,
    PODS,
    SERVICES,
    Cluster,
    Object,
    Resource,
)
from plimsoll.controller.observed import Observed, observe_from, wanted_node
from plimsoll.controller.status import ACCEPTED, previous
from plimsoll.controller.store import Key, Store, trim

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from plimsoll.controller.nodes import NodeReader

CHILDREN: Final = (DEPLOYMENTS.kind, SERVICES.kind)


async def observe(
    store: Store, cluster: Cluster, nodes: NodeReader, key: Key, look: Collection[str] = ()
) -> Observed | None:
    """What is known about one server, or None where there is none.

    Args:
        store: the picture that the watches keep.
        cluster: for live reads.
        nodes: for the node that was measured.
        key: which server.
        look: kinds of children that the store may not know, so that the API server is asked for them.

    Raises:
        Retry: a live read was not answered.
        Refused: a live read was not allowed.
    """
    raw = store.get(KIND, *key)
    if raw is None:
        return None
    pods = tuple(store.children(PODS.kind, key))
    node = await _node(nodes, raw, pods)
    if previous(raw.get("status") or {}, ACCEPTED).get("reason") == "Conflict":
        look = CHILDREN
    return observe_from(
        raw,
        deployment=await _named(store, cluster, DEPLOYMENTS, key, look),
        service=await _named(store, cluster, SERVICES, key, look),
        pods=pods,
        node=node,
        nodes_refused=nodes.refused,
    )


async def _named(
    store: Store, cluster: Cluster, resource: Resource, key: Key, look: Collection[str]
) -> Object | None:
    known = store.get(resource.kind, *key)
    if known is not None or resource.kind not in look:
        return known
    live = await cluster.get(resource, *key)
    # Not put into the store: without our label no watch would ever correct it there.
    return None if live is None else trim(live)


async def _node(nodes: NodeReader, raw: Object, pods: Sequence[Object]) -> Object | None:
    name = wanted_node(raw, pods)
    live = await nodes.read(name) if name is not None else None
    return None if live is None else trim(live)
