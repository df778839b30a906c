"""The controller's own parts around a FakeCluster, with a clock that tests move."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller import plan
from plimsoll.controller.cluster import WATCHED, Object, Retry
from plimsoll.controller.metrics import Metrics
from plimsoll.controller.reconcile import Reconciler
from plimsoll.controller.recorder import Recorder
from plimsoll.controller.store import Store
from tests.unit.controller.builders import CONTEXT, NAMESPACE, NOW, body
from tests.unit.controller.fake_cluster import Crash, FakeCluster
from tests.unit.controller.kubernetes_sim import Kubernetes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from plimsoll.controller.observed import Observed

KEY = (NAMESPACE, "llama")
WATCHED_KINDS = {resource.kind for resource in WATCHED}


@dataclass
class Rig:
    """One operator process and its world.

    Attributes:
        cluster: the API server.
        gpus: of the world.
        deaf: events that the operator must not hear: a predicate on (type, object).
        senses: what passes look at beside the store.
    """

    cluster: FakeCluster = field(
        default_factory=lambda: FakeCluster(namespaces={NAMESPACE, "default"})
    )
    gpus: int = 4
    deaf: Callable[[str, Object], bool] = lambda _kind, _obj: False
    senses: Callable[[Observed], Awaitable[Observed]] | None = None

    def __post_init__(self) -> None:
        self.kubernetes = Kubernetes(self.cluster, gpus=self.gpus)
        self.now: datetime = NOW
        self.requeue: float | None = None
        self.deaths = 0
        self.retries = 0
        self.cluster.subscribe(self._hear)
        self.store = Store()
        self.booted = False

    def apply(self, **spec: Any) -> None:
        """The user applies the resource."""
        wanted = body(**spec)
        live = self.cluster.objects.get(("InferenceServer", *KEY))
        if live is not None:
            wanted = {**live, "spec": wanted["spec"]}
        else:
            del wanted["metadata"]["uid"]
        self.cluster.put(wanted)

    async def boot(self) -> None:
        """Start the operator: an empty memory, then a list."""
        self.store = Store()
        for resource in WATCHED:
            self.store.merge(resource, None, await self.cluster.list(resource))
        self.metrics = Metrics()
        self.reconcile = Reconciler(
            self.cluster,
            self.store,
            Recorder(self.cluster, "op-1", lambda: self.now, self.metrics),
            CONTEXT,
            plan,
            now=lambda: self.now,
            metrics=self.metrics,
            senses=self.senses,
        )
        self.booted = True

    async def operate(self) -> bool:
        """One pass; True when it wrote or must come again at once. A crash restarts the process."""
        if not self.booted:
            await self.boot()
        before = len(self.cluster.writes)
        try:
            self.requeue = await self.reconcile(KEY)
        except Retry:
            self.retries += 1
            return True
        except Crash:
            self.deaths += 1
            self.booted = False
            return True
        return self.requeue == 0.0 or len(self.cluster.writes) > before

    async def settle(self, turns: int = 600) -> None:
        """Until nobody has anything to do; the clock moves when all wait for it."""
        for _ in range(turns):
            if await self.operate() or self.kubernetes.turn():
                continue
            if self.requeue is None or self._waits():
                return
            self.now += timedelta(seconds=self.requeue)
        pytest.fail(f"no rest after {turns} turns: {self.cluster.writes[-6:]}")

    def status(self) -> dict[str, Any]:
        """The server's status as stored in the API."""
        found: dict[str, Any] = self.cluster.objects["InferenceServer", *KEY].get("status") or {}
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of one condition."""
        (found,) = (c for c in self.status()["conditions"] if c["type"] == kind)
        return found["status"], found["reason"]

    def created(self) -> list[str]:
        """The pods that were created, in order; a lost answer counts once."""
        return [w.name for w in self.cluster.writes if (w.verb, w.kind) == ("create", "Pod")]

    def end_state(self) -> dict[str, Any]:
        """Everything but identities, versions and times."""
        return {
            "status": _timeless(self.status()),
            "specs": {
                (kind, name): obj["spec"]
                for (kind, _, name), obj in sorted(self.cluster.objects.items())
                if kind in {"Deployment", "Service"}
            },
            "pods": sorted(
                str(sorted(pod["metadata"]["labels"].items()))
                for pod in self.cluster.of_kind("Pod")
            ),
        }

    def _hear(self, kind: str, obj: Object) -> None:
        if obj["kind"] not in WATCHED_KINDS or self.deaf(kind, obj):
            return
        if kind == "DELETED":
            self.store.remove(obj)
        else:
            self.store.put(obj, watched=True)

    def _waits(self) -> bool:
        return any(p["status"]["phase"] == "Pending" for p in self.cluster.of_kind("Pod"))


def _timeless(value: Any) -> Any:  # any JSON
    hidden = {"lastTransitionTime", "measuredAt", "podUID", "failedPodUID", "uid"}
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in hidden}
    if isinstance(value, list):
        return [_timeless(v) for v in value]
    return value
