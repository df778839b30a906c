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

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.controller.cluster import KIND, Listing, Object, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Key = tuple[str, str]
"""Namespace and name of an InferenceServer."""

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
    obj: Object
    by_list: int | None  # the version a LIST had to teach us; None once a watch has confirmed it


class Store:
    """The controller's picture of the watched kinds. Not thread-safe: one event loop owns it."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str, str], _Entry] = {}
        self._children: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
        self._dead: OrderedDict[str, int] = OrderedDict()  # uid: version of its deletion

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, obj: Mapping[str, Any], *, watched: bool = False) -> bool:
        """Take over an object unless a newer one is known; True when what planning reads changed.

        Args:
            obj: the object as the API returned it.
            watched: it came through a watch, which proves that the watch is not deaf.
        """
        metadata = obj["metadata"]
        where = _where(obj)
        known = self._objects.get(where)
        version = version_of(obj)
        # A label selector reports "deleted" for a child that only lost its label; it may return
        # under the same UID, but then with a newer version than that of its leaving.
        if 0 <= version <= self._dead.get(metadata.get("uid", ""), -1):
            return False
        if known is not None:
            if watched and known.by_list is not None and version >= known.by_list:
                known.by_list = None
            if 0 <= version <= version_of(known.obj):
                return False
            self._unlink(known.obj)
        by_list = None if watched or known is None else known.by_list
        trimmed = trim(obj)
        self._objects[where] = _Entry(trimmed, by_list)
        self._link(trimmed)
        return known is None or not _same_but_version(known.obj, trimmed)

    def remove(self, obj: Mapping[str, Any]) -> bool:
        """An object was deleted; another incarnation of the same name stays."""
        uid = obj["metadata"].get("uid", "")
        self._bury(uid, version_of(obj))
        known = self._objects.get(_where(obj))
        if known is None or known.obj["metadata"].get("uid") != uid:
            return False
        self._drop(_where(obj))
        return True

    def merge(self, resource: Resource, namespace: str | None, listing: Listing) -> set[Key]:
        """Put the store right by a consistent LIST; returns the keys whose picture changed.

        Objects written after the LIST was answered are kept, whatever it says.
        """
        changed: set[Key] = set()
        present = set()
        for item in listing.items:
            item.setdefault("apiVersion", resource.api_version)  # LIST omits both on items
            item.setdefault("kind", resource.kind)
            where = _where(item)
            present.add(where)
            before = self._objects.get(where)
            if self.put(item):
                changed |= _keys(item)
            after = self._objects.get(where)
            if after is not None and after is not before:
                after.by_list = version_of(item)
        horizon = int(listing.version) if listing.version.isdecimal() else -1
        for where, entry in list(self._objects.items()):
            same_scope = where[0] == resource.kind and namespace in {None, where[1]}
            if same_scope and where not in present and version_of(entry.obj) <= horizon:
                changed |= _keys(entry.obj)
                self._bury(entry.obj["metadata"].get("uid", ""), horizon)
                self._drop(where)
        return changed

    def forget(self, namespace: str) -> None:
        """Drop everything of a namespace, without calling it deleted: it may come back."""
        for where in [w for w in self._objects if w[1] == namespace]:
            self._drop(where)

    def unconfirmed(self, kind: str) -> int:
        """How many objects of a kind a LIST taught us that no watch has told of since."""
        return sum(
            1 for where, e in self._objects.items() if where[0] == kind and e.by_list is not None
        )

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        entry = self._objects.get((kind, namespace, name))
        return entry.obj if entry else None

    def children(self, kind: str, key: Key) -> Iterator[Object]:
        """The objects of a kind that belong to the server ``key``, by name."""
        namespace, owner = key
        for name in sorted(self._children.get((kind, namespace, owner), ())):
            yield self._objects[kind, namespace, name].obj

    def servers(self) -> Iterable[Key]:
        """Every server that is known, or whose children still are."""
        found = {(where[1], where[2]) for where in self._objects if where[0] == KIND}
        return found | {(namespace, owner) for _, namespace, owner in self._children}

    def objects(self, kind: str) -> Iterator[Object]:
        """Every object of a kind, by namespace and name; one that goes meanwhile is left out."""
        for where in sorted(where for where in self._objects if where[0] == kind):
            if (entry := self._objects.get(where)) is not None:
                yield entry.obj

    def _link(self, obj: Object) -> None:
        owner = owner_name(obj)
        if owner is not None and obj.get("kind") != KIND:
            kind, namespace, name = _where(obj)
            self._children[kind, namespace, owner].add(name)

    def _unlink(self, obj: Object) -> None:
        owner = owner_name(obj)
        if owner is not None and obj.get("kind") != KIND:
            kind, namespace, name = _where(obj)
            names = self._children[kind, namespace, owner]
            names.discard(name)
            if not names:
                del self._children[kind, namespace, owner]

    def _bury(self, uid: str, version: int) -> None:
        self._dead[uid] = version
        while len(self._dead) > _TOMBSTONES:
            self._dead.popitem(last=False)

    def _drop(self, where: tuple[str, str, str]) -> None:
        self._unlink(self._objects.pop(where).obj)


def _same_but_version(one: Object, other: Object) -> bool:
    keys = (one.keys() | other.keys()) - {"metadata"}
    if any(one.get(key) != other.get(key) for key in keys):
        return False
    before, after = one["metadata"], other["metadata"]
    return {**before, "resourceVersion": ""} == {**after, "resourceVersion": ""}


def _where(obj: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = obj["metadata"]
    return obj["kind"], metadata.get("namespace", ""), metadata["name"]


def _keys(obj: Mapping[str, Any]) -> set[Key]:
    key = key_of(obj)
    return set() if key is None else {key}
