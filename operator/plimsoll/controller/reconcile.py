"""One pass over one server: observe, plan, write, say when to come back.

The status is written before the actions that it goes with: its resourceVersion is the proof that the
plan rests on the newest server object, so nobody has to read it again first. A plan on a stale status
would create a sizing pod whose result is already stored, and one on a stale spec would roll out
yesterday's template.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from plimsoll.controller.act import Actor, NameTaken
from plimsoll.controller.actions import Apply, Create, Patch, Plan
from plimsoll.controller.cluster import KIND, SERVERS, Cluster, Conflict, Refused, Retry
from plimsoll.controller.metrics import turns
from plimsoll.controller.nodes import NodeReader
from plimsoll.controller.observe import CHILDREN, observe
from plimsoll.controller.status import pressing, same_status, with_foreign_conditions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from datetime import datetime

    from plimsoll.controller.actions import Refusal
    from plimsoll.controller.metrics import Metrics
    from plimsoll.controller.objects.context import BuildContext
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.recorder import Notes
    from plimsoll.controller.store import Key, Store
    from plimsoll.controller.workqueue import WorkQueue

logger = logging.getLogger(__name__)

WORKERS = 8
HOLD_SECONDS = 1.0
"""A status that only tells how far things are is written so long after the one before at the earliest."""
AFTER_WRITE = 0.1
"""Seconds from a pass that wrote to the next, where no event asks for one before."""
_STEERING = ("capacity", "sizing", "rollout", "effective", "classes")
_SWEEP = 1024  # keys to remember before those that nothing is held back for are forgotten


class Planner(Protocol):
    """The two pure functions of `plan`, as one argument."""

    def plan(self, observed: Observed, context: BuildContext, now: datetime) -> Plan:
        """What to do about what was observed."""
        ...

    def plan_refusal(
        self, observed: Observed, context: BuildContext, now: datetime, refusal: Refusal
    ) -> Plan:
        """What to say when the cluster refused an action."""
        ...


class Reconciler:
    """Brings one server at a time to what its spec asks; all state is in the cluster.

    What is remembered between passes only saves requests: without it, as after a restart, a pass asks
    once more and comes to the same end.
    """

    def __init__(  # noqa: PLR0913  # the edges of the world, each replaced in tests
        self,
        cluster: Cluster,
        store: Store,
        recorder: Notes,
        context: BuildContext,
        planner: Planner,
        *,
        now: Callable[[], datetime],
        metrics: Metrics,
        senses: Callable[[Observed], Awaitable[Observed]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._nodes = NodeReader(cluster, now)
        self._senses = senses
        self._recorder = recorder
        self._actor = Actor(cluster, store, recorder, metrics)
        self._context = context
        self._planner = planner
        self._now = now
        self._metrics = metrics
        self._taken: set[Key] = set()  # a child's name was somebody else's
        self._refused: set[Key] = set()  # the last action was
        self._written: dict[Key, datetime] = {}  # when the last status was

    async def __call__(self, key: Key) -> float | None:
        """Run one pass; returns the seconds after which to run the next, None for never.

        Raises:
            Retry: nothing is wrong with the server; back off and come again.
        """
        observed, plan = await self._decide(key)
        if observed is None:
            self._forget(key)
            return None  # children follow by their owner references
        wrote, told = False, observed.status
        if plan.status is not None and self._status_comes_first(key, observed, plan):
            wrote = await self._write_status(observed, plan.status)
            raw = self._store.get(KIND, *key)
            if raw is None:
                return None
            observed = replace(observed, raw=raw)
            plan = replace(plan, status=None)
        elif _needs_a_fresh_view(plan) and not _is_first(observed, plan):
            await self._confirm(observed.raw)
        acted, plan = await self._act(key, observed, plan)
        held = self._held_back(key, observed, plan)
        if plan.status is not None and held <= 0:
            wrote |= await self._write_status(observed, plan.status)
        if acted or held <= 0:
            await self._announce(key, observed, plan)
        # What we just changed is in the store already: look again instead of waiting for the watch to
        # tell us of our own write. A little later, as others now act on it; an event comes at once.
        if acted or (wrote and _steers(told, self._store.get(KIND, *key))):
            return AFTER_WRITE
        return min((t for t in (plan.requeue_after, held or None) if t is not None), default=None)

    async def _decide(self, key: Key) -> tuple[Observed | None, Plan]:
        """Look at the world and plan; before a GPU is taken, look who has the Deployment's name."""
        look = CHILDREN if key in self._taken else ()
        observed = await self._observe(key, look)
        if observed is None:
            return None, Plan()
        plan = self._planner.plan(observed, self._context, self._now())
        takes_gpu = any(isinstance(action, Create) for action in plan.actions)
        if takes_gpu and not look and observed.deployment is None:
            observed = await self._observe(key, CHILDREN[:1])
            if observed is None:
                return None, Plan()
            plan = self._planner.plan(observed, self._context, self._now())
        return observed, plan

    async def _observe(self, key: Key, look: Collection[str]) -> Observed | None:
        observed = await observe(self._store, self._cluster, self._nodes, key, look)
        if observed is None:
            return None
        if look == CHILDREN and not observed.conflicts:
            self._taken.discard(key)
        observed = replace(observed, kept=self._actor.kept(key))
        return observed if self._senses is None else await self._senses(observed)

    def _status_comes_first(self, key: Key, observed: Observed, plan: Plan) -> bool:
        """Whether the status is written before the actions.

        Not where the last action was refused: the status says so, and would otherwise change to and
        fro with every try. A new number is always stored before it is rolled out.
        """
        if plan.status is None or not _needs_a_fresh_view(plan) or _is_first(observed, plan):
            return False
        is_new = plan.status.get("capacity") != observed.status.get("capacity")
        return is_new or key not in self._refused

    async def _act(self, key: Key, observed: Observed, plan: Plan) -> tuple[bool, Plan]:
        """Perform the actions; whether one changed the cluster, and the plan that is left to tell."""
        try:
            acted = await self._actor.act(observed, plan.actions)
        except NameTaken:
            self._taken.add(key)
            raise
        except Refused as refusal:
            logger.info("%s/%s: refused: %s", *key, refusal.message)
            self._refused.add(key)
            return False, self._planner.plan_refusal(observed, self._context, self._now(), refusal)
        self._refused.discard(key)
        return acted, plan

    async def _announce(self, key: Key, observed: Observed, plan: Plan) -> None:
        for note in plan.events:
            if not note.retells:
                logger.info("%s/%s: %s: %s", *key, note.reason, note.message)
            await self._recorder.record(observed.raw, note)

    def _held_back(self, key: Key, observed: Observed, plan: Plan) -> float:
        """Seconds for which the status may wait for more to tell; 0: it is written now."""
        written = self._written.get(key)
        if plan.status is None or written is None or pressing(observed.status, plan.status):
            return 0.0
        return HOLD_SECONDS - (self._now() - written).total_seconds()

    async def _confirm(self, raw: Mapping[str, Any]) -> None:
        """Make sure that the plan rests on the newest server object, where no status is written first.

        Raises:
            Conflict: the store was behind; it is up to date now.
        """
        metadata = raw["metadata"]
        live = await self._cluster.get(SERVERS, metadata["namespace"], metadata["name"])
        if live is None:
            self._store.remove(raw)
            raise Conflict("the server was deleted while its pass began")
        if live["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            self._store.put(live)
            raise Conflict("the server changed while its pass began")

    async def _write_status(self, observed: Observed, status: dict[str, Any]) -> bool:
        """Write the whole status; True when the picture changed.

        Raises:
            Conflict: the plan rested on an old view; the store is up to date now.
        """
        raw = observed.raw
        self._metrics.status_writes.inc()
        try:
            live = await self._cluster.patch_status({**raw, "status": status})
        except Conflict:
            await self._confirm(raw)  # raises after refreshing the store
            raise
        if live is not None:
            # Now, and not where the picture changes: a watch may have told of this write already.
            happened = turns(observed.status, status, observed.sizing_pods, self._now())
            self._metrics.count(happened)
            self._note_write((raw["metadata"]["namespace"], raw["metadata"]["name"]))
        if live is not None and not same_status(status, live.get("status") or {}):
            # Apply cannot remove what somebody else wrote into the status, so it would be written
            # again on every pass, and stand there beside ours.
            whole = with_foreign_conditions(status, live.get("status") or {})
            live = await self._cluster.replace_status({**live, "status": whole})
        if live is None:
            self._store.remove(raw)
            return False
        return self._store.put(live)

    def _note_write(self, key: Key) -> None:
        now = self._now()
        if len(self._written) >= _SWEEP:
            self._written = {
                k: at
                for k, at in self._written.items()
                if (now - at).total_seconds() < HOLD_SECONDS
            }
        self._written[key] = now

    def _forget(self, key: Key) -> None:
        self._actor.forget(key)
        self._taken.discard(key)
        self._refused.discard(key)
        self._written.pop(key, None)


def _is_first(observed: Observed, plan: Plan) -> bool:
    """Whether children are made for a server of which nothing was ever said, by the number in its spec.

    There is no older view of it to be misled by, so what it waits for comes first.
    """
    return not observed.status and all(isinstance(action, Apply) for action in plan.actions)


def _steers(before: Mapping[str, Any], raw: Mapping[str, Any] | None) -> bool:
    """Whether the next pass decides by what was just written; what is only told steers nothing."""
    after = (raw or {}).get("status") or {}
    return any(before.get(key) != after.get(key) for key in _STEERING)


def _needs_a_fresh_view(plan: Plan) -> bool:
    """Whether a stale view could do harm: a deletion names a UID, and what was learned is its own."""
    return any(isinstance(action, Apply | Create | Patch) for action in plan.actions)


async def work(
    queue: WorkQueue[Key],
    reconcile: Callable[[Key], Awaitable[float | None]],
    metrics: Metrics,
    clock: Callable[[], float],
) -> None:
    """One worker: pass after pass until the queue is closed."""
    while (key := await queue.get()) is not None:
        started = clock()
        outcome = "ok"
        try:
            after = await reconcile(key)
        except Retry as retry:
            outcome = "retry"
            delay = queue.fail(key, retry.after)
            logger.info("%s/%s: again in %.1f s: %s", *key, delay, retry)
        except Refused as refused:
            outcome = "refused"
            delay = queue.fail(key)
            logger.warning("%s/%s: again in %.1f s: %s", *key, delay, refused)
        except Exception:
            # A defect met by one server must not stop the others; it is retried and counted.
            outcome = "error"
            delay = queue.fail(key)
            logger.exception("%s/%s: again in %.1f s", *key, delay)
        else:
            queue.forget(key)
            if after is not None:
                queue.add(key, after)
        finally:
            queue.done(key)
            metrics.reconciles.inc(outcome=outcome)
            metrics.seconds.observe(clock() - started, outcome=outcome)
        # A pass that finds nothing to do waits for nobody. After a restart that is so for thousands, and
        # the lease must be renewed and the watches heard in between.
        await asyncio.sleep(0)
