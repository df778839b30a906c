"""Our own store of trimmed watch objects, by kind, namespace and name.

kopf delivers events and keeps nothing for us (its indices start in quadratic time). Three facts
about such a feed shape this module:

* Our own writes return the live object before the watch tells of it, so ``put`` is also called
  with those, and an older version never replaces a newer one (resourceVersions are compared as
  integers, which the API promises since Kubernetes 1.35 and etcd has always given).
* A re-list after a lost watch tells nothing about what was deleted meanwhile. ``merge`` therefore
  drops what a consistent LIST no longer holds.
* A deletion may overtake the answer of our own write; the UIDs of deleted objects are remembered
  for a while so that such an answer cannot raise the dead.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, Any

from plimsoll.controller.cluster import KIND, Listing, Object, Resource

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

Key = tuple[str, str]
"""Namespace and name of an InferenceServer."""
Where = tuple[str, str, str]
"""Kind, namespace and name of an object."""

SERVER_LABEL = "plimsoll.dev/server"
SIZING_LABEL = "plimsoll.dev/sizing-for"
OUR_CONTAINERS = frozenset({"sizer", "server", "done"})

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_METADATA = (
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "ownerReferences",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)
_TOMBSTONES = 4096
RECENT = 512
"""Objects that are kept as they are: those of some hundred servers in the middle of something."""


def trim(obj: Mapping[str, Any]) -> Object:
    """The part of an object that planning reads; never shares mutable parts with the input's top.

    Managed fields and the last-applied annotation are as long as the object itself. The
    environment of containers that others injected is dropped: it may hold what we must not keep.
    """
    metadata = {k: obj["metadata"][k] for k in _METADATA if k in obj["metadata"]}
    annotations = metadata.get("annotations")
    if annotations and _LAST_APPLIED in annotations:
        metadata["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    trimmed = {k: v for k, v in obj.items() if k in {"apiVersion", "kind", "spec", "status"}}
    trimmed["metadata"] = metadata
    if obj.get("kind") == "Pod" and "spec" in trimmed:
        trimmed["spec"] = _trim_pod(trimmed["spec"])
    if obj.get("kind") == "Deployment" and trimmed.get("status"):
        trimmed["status"] = _trim_rollout(trimmed["status"])
    return trimmed


def _trim_pod(spec: Mapping[str, Any]) -> Object:
    kept = dict(spec)
    for field in ("containers", "initContainers"):
        if field in kept:
            kept[field] = [
                c
                if c.get("name") in OUR_CONTAINERS
                else {k: v for k, v in c.items() if k not in {"env", "envFrom"}}
                for c in kept[field]
            ]
    return kept


def _trim_rollout(status: Mapping[str, Any]) -> Object:
    """What `steps.progress` reads of a Deployment's status; the pods are counted one by one.

    The Deployment controller writes counts and times several times a rollout, which change nothing.
    """
    kept = {k: status[k] for k in ("observedGeneration", "updatedReplicas") if k in status}
    troubles = [
        {k: condition[k] for k in ("type", "status", "reason", "message") if k in condition}
        for condition in status.get("conditions") or ()
        if condition.get("type") == "ReplicaFailure"
        or condition.get("reason") == "ProgressDeadlineExceeded"
    ]
    return {**kept, "conditions": troubles} if troubles else kept


def version_of(obj: Mapping[str, Any]) -> int:
    """The resourceVersion as an integer; -1 where it is absent or opaque (then the last one wins)."""
    text = obj["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else -1


def owner_name(obj: Mapping[str, Any]) -> str | None:
    """The name of the InferenceServer that a child belongs to, by label, else by controller."""
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    for label in (SERVER_LABEL, SIZING_LABEL):
        if label in labels:
            return str(labels[label])
    owner = controller_of(obj)
    return owner["name"] if owner is not None and owner.get("kind") == KIND else None


def controller_of(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference that says ``controller: true``."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            owner: Mapping[str, Any] = reference
            return owner
    return None


def key_of(obj: Mapping[str, Any]) -> Key | None:
    """The key of the server that an event about ``obj`` concerns, None for strangers."""
    namespace = obj["metadata"].get("namespace", "")
    name = obj["metadata"]["name"] if obj.get("kind") == KIND else owner_name(obj)
    return (namespace, name) if name else None


@dataclass(slots=True)
class _Entry:
    """What is known of an object without looking into it.

    Attributes:
        version: its resourceVersion.
        uid: its UID.
        owner: the server that it belongs to; None for a server, and for strangers.
        by_list: the version that a LIST had to teach us; None once a watch has confirmed it.
        packed: the object; None while it is among the recent ones only.
    """

    version: int
    uid: str
    owner: str | None
    by_list: int | None
    packed: bytes | None = None


class Store:
    """The controller's picture of the watched kinds. Not thread-safe: one event loop owns it.

    A server and its children are some sixty kilobytes of Python objects, and mostly nobody looks at
    them. So only the most recent are kept as they are; the others are compressed JSON.

    Args:
        recent: how many objects are kept as they are.
    """

    def __init__(self, recent: int = RECENT) -> None:
        self._entries: dict[Where, _Entry] = {}
        self._children: defaultdict[Where, set[str]] = defaultdict(set)
        self._dead: OrderedDict[str, int] = OrderedDict()  # uid: version of its deletion
        self._recent: OrderedDict[Where, Object] = OrderedDict()
        self._most_recent = recent

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, obj: Mapping[str, Any], *, watched: bool = False) -> bool:
        """Take over an object unless a newer one is known; True when what planning reads changed.

        Args:
            obj: the object as the API returned it.
            watched: it came through a watch, which proves that the watch is not deaf.
        """
        where = _where(obj)
        known = self._entries.get(where)
        version, uid = version_of(obj), obj["metadata"].get("uid", "")
        # A label selector reports "deleted" for a child that only lost its label; it may return
        # under the same UID, but then with a newer version than that of its leaving.
        if 0 <= version <= self._dead.get(uid, -1):
            return False
        if known is not None:
            if watched and known.by_list is not None and version >= known.by_list:
                known.by_list = None
            if 0 <= version <= known.version:
                return False
        trimmed = trim(obj)
        before = None if known is None else self._look(where, known)
        self._unlink(where, known)
        owner = None if trimmed.get("kind") == KIND else owner_name(trimmed)
        by_list = None if watched or known is None else known.by_list
        self._entries[where] = _Entry(version, uid, owner, by_list)
        self._link(where, owner)
        self._keep(where, trimmed)
        return before is None or not _same_but_version(before, trimmed)

    def remove(self, obj: Mapping[str, Any]) -> bool:
        """An object was deleted; another incarnation of the same name stays."""
        uid = obj["metadata"].get("uid", "")
        self._bury(uid, version_of(obj))
        where = _where(obj)
        known = self._entries.get(where)
        if known is None or known.uid != uid:
            return False
        self._drop(where)
        return True

    def merge(self, resource: Resource, namespace: str | None, listing: Listing) -> set[Key]:
        """Put the store right by a consistent LIST; returns the keys whose picture changed."""
        merge = Merge(self, resource, namespace)
        merge.take(listing.items)
        return merge.end(listing.version)

    def learn(self, item: Mapping[str, Any]) -> bool:
        """Put what a LIST holds; until a watch tells of it too, it is `unconfirmed`."""
        where = _where(item)
        before = self._entries.get(where)
        news = self.put(item)
        after = self._entries.get(where)
        if after is not None and after is not before:
            after.by_list = after.version
        return news

    def drop_absent(
        self, kind: str, namespace: str | None, present: Container[Where], horizon: int
    ) -> set[Key]:
        """Drop what a LIST of version ``horizon`` did not hold; returns whose picture changed."""
        changed: set[Key] = set()
        for where, entry in list(self._entries.items()):
            same_scope = where[0] == kind and namespace in {None, where[1]}
            if same_scope and where not in present and entry.version <= horizon:
                changed |= _key_at(where, entry)
                self._bury(entry.uid, horizon)
                self._drop(where)
        return changed

    def forget(self, namespace: str) -> None:
        """Drop everything of a namespace, without calling it deleted: it may come back."""
        for where in [w for w in self._entries if w[1] == namespace]:
            self._drop(where)

    def unconfirmed(self, kind: str) -> int:
        """How many objects of a kind a LIST taught us that no watch has told of since."""
        return sum(
            1 for where, e in self._entries.items() if where[0] == kind and e.by_list is not None
        )

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        where = (kind, namespace, name)
        entry = self._entries.get(where)
        if entry is None:
            return None
        obj = self._look(where, entry)
        self._keep(where, obj)
        return obj

    def children(self, kind: str, key: Key) -> Iterator[Object]:
        """The objects of a kind that belong to the server ``key``, by name."""
        namespace, owner = key
        for name in sorted(self._children.get((kind, namespace, owner), ())):
            if (found := self.get(kind, namespace, name)) is not None:
                yield found

    def servers(self) -> Iterable[Key]:
        """Every server that is known, or whose children still are."""
        found = {(where[1], where[2]) for where in self._entries if where[0] == KIND}
        return found | {(namespace, owner) for _, namespace, owner in self._children}

    def objects(self, kind: str) -> Iterator[Object]:
        """Every object of a kind, by namespace and name; one that goes meanwhile is left out."""
        for where in sorted(where for where in self._entries if where[0] == kind):
            if (entry := self._entries.get(where)) is not None:
                yield self._look(where, entry)

    def _look(self, where: Where, entry: _Entry) -> Object:
        recent = self._recent.get(where)
        if recent is not None:
            return recent
        assert entry.packed is not None
        return _unpacked(entry.packed)

    def _keep(self, where: Where, obj: Object) -> None:
        """Count it among the recent ones, and pack the one that has been so for longest."""
        self._recent[where] = obj
        self._recent.move_to_end(where)
        if len(self._recent) > self._most_recent:
            old, obj = self._recent.popitem(last=False)
            entry = self._entries[old]
            if entry.packed is None:
                entry.packed = _packed(obj)

    def _link(self, where: Where, owner: str | None) -> None:
        if owner is not None:
            kind, namespace, name = where
            self._children[kind, namespace, owner].add(name)

    def _unlink(self, where: Where, entry: _Entry | None) -> None:
        if entry is not None and entry.owner is not None:
            kind, namespace, name = where
            names = self._children[kind, namespace, entry.owner]
            names.discard(name)
            if not names:
                del self._children[kind, namespace, entry.owner]

    def _bury(self, uid: str, version: int) -> None:
        self._dead[uid] = version
        while len(self._dead) > _TOMBSTONES:
            self._dead.popitem(last=False)

    def _drop(self, where: Where) -> None:
        self._recent.pop(where, None)
        self._unlink(where, self._entries.pop(where))


class Merge:
    """A consistent LIST, part by part: of thousands of objects only one part is in memory at a time.

    Objects written after the LIST was answered are kept, whatever it says.
    """

    def __init__(self, store: Store, resource: Resource, namespace: str | None) -> None:
        self._store = store
        self._resource = resource
        self._namespace = namespace
        self._present: set[Where] = set()
        self._changed: set[Key] = set()

    def take(self, items: Iterable[Object]) -> None:
        """The next part."""
        for item in items:
            item.setdefault("apiVersion", self._resource.api_version)  # LIST omits both on items
            item.setdefault("kind", self._resource.kind)
            self._present.add(_where(item))
            if self._store.learn(item):
                self._changed |= _keys(item)

    def end(self, version: str) -> set[Key]:
        """What was not in any part is gone; returns the keys whose picture changed.

        Args:
            version: of the collection.
        """
        horizon = int(version) if version.isdecimal() else -1
        kind = self._resource.kind
        gone = self._store.drop_absent(kind, self._namespace, self._present, horizon)
        return self._changed | gone


def _packed(obj: Object) -> bytes:
    return zlib.compress(json.dumps(obj, separators=(",", ":")).encode(), 1)


def _unpacked(packed: bytes) -> Object:
    found: Object = json.loads(zlib.decompress(packed))
    return found


def _same_but_version(one: Object, other: Object) -> bool:
    keys = (one.keys() | other.keys()) - {"metadata"}
    if any(one.get(key) != other.get(key) for key in keys):
        return False
    before, after = one["metadata"], other["metadata"]
    return {**before, "resourceVersion": ""} == {**after, "resourceVersion": ""}


def _where(obj: Mapping[str, Any]) -> Where:
    metadata = obj["metadata"]
    # Thousands of places have few kinds and namespaces: one text each.
    return intern(obj["kind"]), intern(metadata.get("namespace", "")), metadata["name"]


def _key_at(where: Where, entry: _Entry) -> set[Key]:
    kind, namespace, name = where
    owner = name if kind == KIND else entry.owner
    return {(namespace, owner)} if owner is not None else set()


def _keys(obj: Mapping[str, Any]) -> set[Key]:
    key = key_of(obj)
    return set() if key is None else {key}
