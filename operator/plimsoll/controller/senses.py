"""What a pass may look at beside the store: nodes, engines, events. Bounded, optional, late.

Each sense is asked only where the answer can change what is done or said: a server that serves
needs no list of nodes, one that does not serve has no engine to ask, a former template is wanted
only where the present one was given up, the events of a pod only while no node takes it, and what
was learned only as a result is read or a lesson is due. None of them ever fails a pass: without an
answer the planner decides as if nothing were known, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from plimsoll.controller.cluster import CONFIG_MAPS, REPLICA_SETS, Cluster, Object, Refused, Retry
from plimsoll.controller.objects.labels import controller_uid
from plimsoll.controller.objects.learned_map import LEARNED_MAP
from plimsoll.controller.objects.workload import server_port
from plimsoll.controller.status import DEGRADED, READY, ROLLED_OUT, TRUE, previous
from plimsoll.controller.steps import hints, inpod_sizing, learned, podstate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.controller.observed import Observed
    from plimsoll.controller.placement import Landscape
    from plimsoll.core.drift import PodReading

logger = logging.getLogger(__name__)

FRESH: Final = 2.0

# For the map of learned reserves: a pass does not wait long for what it can do without.
LEARNED_SECONDS: Final = 5.0


class Nodes(Protocol):
    """`landscape.LandscapeReader`."""

    async def look(self, within: float | None = None) -> Landscape | None:
        """The nodes and what is free on them; None where they may not be read."""


class Engines(Protocol):
    """`readings.EngineReader`."""

    async def read(
        self, raw_pods: Sequence[Object], engine_type: str, port: int
    ) -> tuple[PodReading, ...]:
        """What the engines of the ready pods report."""


class Events(Protocol):
    """`pod_events.PodEvents`."""

    async def look(self, namespace: str, uid: str) -> tuple[Object, ...]:
        """The Events about one pod."""


class Senses:
    """The readers of one operator.

    Args:
        cluster: for ReplicaSets and the map of learned reserves.
        nodes: for the landscape.
        engines: for the read-back.
        events: for what autoscalers say of pods without a node; None: it is not asked.
        learn: whether reserves are learned, and what was learned is used.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Nodes,
        engines: Engines,
        events: Events | None = None,
        *,
        learn: bool = True,
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._engines = engines
        self._events = events
        self._learn = learn

    async def __call__(self, observed: Observed) -> Observed:
        """The world with what is worth looking at; never raises for what a cluster answers."""
        server = observed.server
        if server is None or observed.deleting:
            return observed
        if wants_nodes(observed):
            observed = replace(observed, landscape=await self._nodes.look(within(observed)))
        if observed.deployment is not None and observed.server_pods:
            port = server_port(server)
            engine = server.spec.engine.type
            readings = await self._engines.read(observed.server_pods, engine, port)
            observed = replace(observed, readings=readings)
        if wants_replica_sets(observed):
            observed = replace(observed, replica_sets=await self._replica_sets(observed))
        if self._events is not None and (waiting := hints.waiting_pods(observed)):
            uids = [podstate.uid(pod) for pod in waiting]
            told = await asyncio.gather(*(self._events.look(server.namespace, u) for u in uids))
            observed = replace(observed, hints=dict(zip(uids, told, strict=True)))
        if self._learn and learned.is_wanted(observed):
            observed = replace(observed, learned=await self._learned(server.namespace))
        return observed

    async def _learned(self, namespace: str) -> Mapping[str, str] | None:
        """The entries of the namespace's map; none where there is no map."""
        try:
            async with asyncio.timeout(LEARNED_SECONDS):
                live = await self._cluster.get(CONFIG_MAPS, namespace, LEARNED_MAP)
        except (Retry, Refused, TimeoutError) as error:
            why = str(error) or "no answer in time"
            logger.warning("ConfigMap %s/%s is not readable: %s", namespace, LEARNED_MAP, why)
            return None
        return dict((live or {}).get("data") or {})

    async def _replica_sets(self, observed: Observed) -> tuple[Object, ...]:
        """Those of our Deployment, with their templates."""
        assert observed.deployment is not None
        metadata = observed.deployment["metadata"]
        try:
            listing = await self._cluster.list(REPLICA_SETS, metadata["namespace"])
        except (Retry, Refused) as error:
            logger.warning("%s: its ReplicaSets are not readable: %s", observed.name, error)
            return ()
        uid = metadata.get("uid")
        return tuple(item for item in listing.items if controller_uid(item) == uid)


def wants_nodes(observed: Observed) -> bool:
    """Whether free GPUs or kubelets' versions can matter: while the resource is not as asked for.

    Or while a kubelet that is too old is said to be there: whether it still is.
    """
    if previous(observed.status, DEGRADED).get("reason") == inpod_sizing.KUBELET_TOO_OLD:
        return True
    ready = previous(observed.status, READY)
    answered = ready.get("observedGeneration") == observed.generation
    return not (answered and ready.get("status") == TRUE)


def within(observed: Observed) -> float | None:
    """How old the picture of the nodes may be, in seconds; None: as old as the reader keeps it.

    A rollout that begins is decided by what is free now; while it goes on, little changes by it,
    and so while a pod waits for a node: that it got one is the watch's to tell.
    """
    if hints.waiting_pods(observed):
        return None
    return None if previous(observed.status, ROLLED_OUT).get("reason") == "Progressing" else FRESH


def wants_replica_sets(observed: Observed) -> bool:
    """Whether a template was given up, so that the one before it may have to come back."""
    halted = (observed.status.get("rollout") or {}).get("halted")
    return bool(halted) and observed.deployment is not None
