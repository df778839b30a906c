"""Performs a plan's actions on the children, and keeps the store in step with the answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from plimsoll.controller.actions import Apply, Create, Delete, EventNote, Patch, Remember
from plimsoll.controller.cluster import Cluster, Conflict, Object, Refused, Retry, resource_of
from plimsoll.controller.objects.foreign import foreign_additions, said
from plimsoll.controller.store import Key, Store, controller_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.actions import Action
    from plimsoll.controller.metrics import Metrics
    from plimsoll.controller.observed import Observed
    from plimsoll.controller.recorder import Notes

logger = logging.getLogger(__name__)

_GARBAGE_SECONDS = 2.0
_REMEMBER_SECONDS = 5.0
_CONFLICT = 409


class NameTaken(Conflict):
    """The first write of a child met an object of its name that the store knows nothing of."""


class Actor:
    """The writing half of a pass.

    Args:
        cluster: what is written to.
        store: gets the answers.
        recorder: tells of what came back when it was removed.
        metrics: counts actions.
    """

    def __init__(self, cluster: Cluster, store: Store, recorder: Notes, metrics: Metrics) -> None:
        self._cluster = cluster
        self._store = store
        self._recorder = recorder
        self._metrics = metrics
        # What came back when it was removed, by server. Lost with the process, and then asked
        # again by one patch, which changes nothing where admission is what adds it.
        self._kept: dict[Key, frozenset[str]] = {}
        # UIDs that were asked to go, for as long as plans ask for it: no watch has told of it yet.
        self._leaving: dict[Key, frozenset[str]] = {}

    def kept(self, key: Key) -> frozenset[str]:
        """Names of what others added to the Deployment and what came back when it was removed."""
        return self._kept.get(key, frozenset())

    def forget(self, key: Key) -> None:
        """The server is gone."""
        self._kept.pop(key, None)
        self._leaving.pop(key, None)

    async def act(self, observed: Observed, actions: tuple[Action, ...]) -> bool:
        """Perform the actions in the planner's order; True when one changed the cluster.

        Raises:
            Retry: no answer, or the view was old; NameTaken where that is so for a child's name.
            Refused: the API server said no.
        """
        raw = observed.raw
        changed = False
        self._still_leaving(_key(raw), actions)
        for action in actions:
            logger.info("%s/%s: %s", *_key(raw), _words(action))
            match action:
                case Apply(obj=obj):
                    changed |= self._store.put(await self._apply(observed, obj))
                    self._metrics.actions.inc(verb="apply", kind=obj["kind"])
                case Create(obj=obj):
                    changed |= self._store.put(_ours(raw, await self._cluster.create(obj)))
                    self._metrics.actions.inc(verb="create", kind=obj["kind"])
                case Delete():
                    await self._delete(_key(raw), action)
                case Patch():
                    changed |= await self._patch(raw, action)
                    self._metrics.actions.inc(verb="patch", kind=action.live["kind"])
                case Remember():
                    await self._remember(raw, action)
        return changed

    def _still_leaving(self, key: Key, actions: tuple[Action, ...]) -> None:
        if asked := self._leaving.pop(key, None):
            planned = {action.uid for action in actions if isinstance(action, Delete)}
            if still := asked & planned:
                self._leaving[key] = still

    async def _delete(self, key: Key, action: Delete) -> None:
        asked = self._leaving.get(key, frozenset())
        if action.uid in asked:
            return
        resource = resource_of(action.api_version, action.kind)
        await self._cluster.delete(resource, action.namespace, action.name, action.uid)
        self._metrics.actions.inc(verb="delete", kind=action.kind)
        self._leaving[key] = asked | {action.uid}

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

    async def _apply(self, observed: Observed, obj: Object) -> Object:
        """Take the fields over where the child is known to be ours; else only where nobody has them.

        With the UID of the one that the plan looked at, so that what a stranger made under the name
        after ours was deleted is answered by "conflict". A child that was not there is applied
        without force: the API server then refuses where somebody else holds the name, so that nobody
        has to ask beforehand. (Every Deployment and Service has a selector, which is one field.)

        Raises:
            NameTaken: somebody else's object has the name.
        """
        known = {"Deployment": observed.deployment, "Service": observed.service}.get(obj["kind"])
        if known is not None:
            metadata = {**obj["metadata"], "uid": known["metadata"]["uid"]}
            return await self._cluster.apply({**obj, "metadata": metadata})
        try:
            return await self._cluster.apply(obj, force=False)
        except Conflict as conflict:
            raise NameTaken(str(conflict)) from conflict


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
