"""One pass over one server: observe, plan, act, write the status once, say when to come back."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from plimsoll.controller.actions import Apply, Create, Delete, EventNote, Patch, Remember
from plimsoll.controller.cluster import (
    SERVERS,
    Cluster,
    Conflict,
    Object,
    Refused,
    Retry,
    resource_of,
)
from plimsoll.controller.metrics import turns
from plimsoll.controller.nodes import NodeReader
from plimsoll.controller.objects.foreign import foreign_additions, said
from plimsoll.controller.observe import observe
from plimsoll.controller.status import same_status, with_foreign_conditions
from plimsoll.controller.store import Key, Store, controller_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from plimsoll.controller.actions import Action, Plan, Refusal
    from plimsoll.controller.metrics import Metrics
    from plimsoll.controller.objects.context import BuildContext
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.recorder import Recorder
    from plimsoll.controller.workqueue import WorkQueue

logger = logging.getLogger(__name__)

WORKERS = 8
_GARBAGE_SECONDS = 2.0
_REMEMBER_SECONDS = 5.0
_CONFLICT = 409


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
    """Brings one server at a time to what its spec asks; all state is in the cluster."""

    def __init__(  # noqa: PLR0913  # the edges of the world, each replaced in tests
        self,
        cluster: Cluster,
        store: Store,
        recorder: Recorder,
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
        self._context = context
        self._planner = planner
        self._now = now
        self._metrics = metrics
        # What came back when it was removed, by server. Lost with the process, and then asked
        # again by one patch, which changes nothing where admission is what adds it.
        self._kept: dict[Key, frozenset[str]] = {}

    async def __call__(self, key: Key) -> float | None:
        """Run one pass; returns the seconds after which to run the next, None for never.

        Raises:
            Retry: nothing is wrong with the server; back off and come again.
        """
        observed = await observe(self._store, self._cluster, self._nodes, key)
        if observed is None:
            self._kept.pop(key, None)
            return None  # children follow by their owner references
        observed = replace(observed, kept=self._kept.get(key, frozenset()))
        if self._senses is not None:
            observed = await self._senses(observed)
        plan = self._planner.plan(observed, self._context, self._now())
        try:
            acted = await self._act(observed.raw, plan.actions)
        except Refused as refusal:
            logger.info("%s/%s: refused: %s", *key, refusal.message)
            acted = False
            plan = self._planner.plan_refusal(observed, self._context, self._now(), refusal)
        wrote = await self._write_status(observed, plan.status)
        for note in plan.events:
            if not note.retells:
                logger.info("%s/%s: %s: %s", *key, note.reason, note.message)
            await self._recorder.record(observed.raw, note)
        # What we just changed is in the store already: look again at once instead of waiting for
        # the watch to tell us of our own write.
        return 0.0 if acted or wrote else plan.requeue_after

    async def _act(self, raw: Mapping[str, Any], actions: tuple[Action, ...]) -> bool:
        """Perform the actions in the planner's order; True when one changed the cluster."""
        if actions:
            await self._confirm(raw)
        changed = False
        for action in actions:
            logger.info("%s/%s: %s", *_key(raw), _words(action))
            match action:
                case Apply(obj=obj):
                    changed |= self._store.put(await self._cluster.apply(self._meant(obj)))
                    self._metrics.actions.inc(verb="apply", kind=obj["kind"])
                case Create(obj=obj):
                    changed |= self._store.put(_ours(raw, await self._cluster.create(obj)))
                    self._metrics.actions.inc(verb="create", kind=obj["kind"])
                case Delete():
                    resource = resource_of(action.api_version, action.kind)
                    await self._cluster.delete(resource, action.namespace, action.name, action.uid)
                    self._metrics.actions.inc(verb="delete", kind=action.kind)
                case Patch():
                    changed |= await self._patch(raw, action)
                    self._metrics.actions.inc(verb="patch", kind=action.live["kind"])
                case Remember():
                    await self._remember(raw, action)
        return changed

    async def _remember(self, raw: Mapping[str, Any], lesson: Remember) -> None:
        """Write down what was learned, if that is possible within some seconds."""
        try:
            async with asyncio.timeout(_REMEMBER_SECONDS):
                await self._cluster.apply(lesson.obj, lesson.manager)
        except (Refused, Retry, TimeoutError) as error:
            why = str(error) or "no answer in time"
            logger.warning("%s/%s: %s: not written: %s", *_key(raw), _words(lesson), why)
        else:
            self._metrics.actions.inc(verb="apply", kind=lesson.obj["kind"])

    async def _patch(self, raw: Mapping[str, Any], patch: Patch) -> bool:
        """Take out what others added; True when the next pass will see something else.

        What is there again in the very answer was added on the way in: by an admission webhook, or
        by the API server itself, of a version whose defaults we do not know. Removing it again and
        again would restart servers for ever or stop every rollout, so it is left, and said.

        Raises:
            Conflict: the store was behind; it is up to date now.
        """
        try:
            live = await self._cluster.patch(patch.live, patch.ops)
        except Conflict:
            await self._refresh(patch.live)
            raise
        if live is None:
            self._store.remove(patch.live)
            raise Conflict("the object to be patched is gone")
        left = foreign_additions(patch.wanted, live)
        self._kept[_key(raw)] = frozenset(found.name for found in left)
        if left:
            text = (
                f"{live['kind']} {live['metadata']['name']}: {said(left)}: came back when removed, "
                "so it stays; exempt the object from the admission webhook or policy that adds it."
            )
            logger.warning("%s/%s: %s", *_key(raw), text)
            await self._recorder.record(raw, EventNote("Warning", "ForeignFieldsStay", text))
        return self._store.put(live) or bool(left)

    async def _refresh(self, known: Object) -> None:
        """Bring one child in the store up to date."""
        resource = resource_of(known["apiVersion"], known["kind"])
        metadata = known["metadata"]
        live = await self._cluster.get(resource, metadata["namespace"], metadata["name"])
        if live is None:
            self._store.remove(known)
        else:
            self._store.put(live)

    def _meant(self, obj: Object) -> Object:
        """The object with the UID of the one that the plan looked at.

        An apply with force would otherwise take over what a stranger made under the name after
        ours was deleted; with the UID the API server answers "conflict".
        """
        metadata = obj["metadata"]
        known = self._store.get(obj["kind"], metadata["namespace"], metadata["name"])
        if known is None:
            return obj
        return {**obj, "metadata": {**metadata, "uid": known["metadata"]["uid"]}}

    async def _confirm(self, raw: Mapping[str, Any]) -> None:
        """Make sure that the plan rests on the newest server object.

        A plan on a stale status would create a sizing pod whose result is already stored, and one
        on a stale spec would roll out yesterday's template. The check is one read per writing pass.

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

    async def _write_status(self, observed: Observed, status: dict[str, Any] | None) -> bool:
        """Write the whole status, None where it is as it was; True when the picture changed."""
        if status is None:
            return False
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
        if live is not None and not same_status(status, live.get("status") or {}):
            # Apply cannot remove what somebody else wrote into the status, so it would be written
            # again on every pass, and stand there beside ours.
            whole = with_foreign_conditions(status, live.get("status") or {})
            live = await self._cluster.replace_status({**live, "status": whole})
        if live is None:
            self._store.remove(raw)
            return False
        return self._store.put(live)


def _key(raw: Mapping[str, Any]) -> Key:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]


def _words(action: Action) -> str:
    match action:
        case Delete():
            return f"delete {action.kind} {action.name}"
        case Patch(live=live, why=why):
            return f"patch {live['kind']} {live['metadata']['name']} because {why}"
        case _:
            verb = type(action).__name__.lower()
            said = action.why if isinstance(action, Apply | Remember) else ""
            why = f" because {said}" if said else ""
            return f"{verb} {action.obj['kind']} {action.obj['metadata']['name']}{why}"


def _ours(raw: Mapping[str, Any], live: Object) -> Object:
    """The created object, unless the name was taken.

    Raises:
        Retry: a server of this name was deleted moments ago and the garbage collector has not
            come to its child yet.
        Refused: the object that is there is somebody else's.
    """
    owner = controller_of(live) or {}
    if owner.get("uid") == raw["metadata"]["uid"]:
        return live
    what = f"{live['kind']} {live['metadata']['name']}"
    if (owner.get("kind"), owner.get("name")) == (raw["kind"], raw["metadata"]["name"]):
        raise Retry(f"{what} of a deleted predecessor is still there", _GARBAGE_SECONDS)
    sentence = f"{what} exists and is not this InferenceServer's; delete it, or rename the server"
    raise Refused(_CONFLICT, "Conflict", sentence)


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
