"""An in-process API server, as far as the controller can tell.

It knows resourceVersions, generations, the status subresource, naive server-side apply, label
lists, owner garbage collection, UID preconditions, graceful pod deletion, refusals, JSON patches,
mutating admission (`admit`), and faults before or after any write.
tests/contract/test_fake_cluster.py runs the same scenarios against it and against a real API
server.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plimsoll.controller.cluster import (
    DEPLOYMENTS,
    FIELD_MANAGER,
    LEASES,
    NODES,
    SERVERS,
    STATUS_MANAGER,
    Conflict,
    Listing,
    Object,
    Page,
    Refused,
    Resource,
    Retry,
    resource_of,
)

T = TypeVar("T")
Objects = list[Object]  # the class has a method named list
Where = tuple[str, str, str]
Watcher = Callable[[str, Object], None]

HAS_GENERATION = frozenset({SERVERS.kind, DEPLOYMENTS.kind})
HAS_STATUS = frozenset({SERVERS.kind, DEPLOYMENTS.kind, "Pod", "Service"})
MERGE_KEYS = ("name", "type", "uid", "key", "containerPort", "port", "mountPath")


class Crash(BaseException):
    """The operator process died: nothing in it may catch this."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write as the server saw it."""

    verb: str
    kind: str
    namespace: str
    name: str


@dataclass(slots=True)
class Faults:
    """What goes wrong with writes, counted from 1.

    ``before`` is raised instead of the write, ``after`` once it has been done (the answer is
    lost). ``every`` repeats the fault at each multiple; otherwise it strikes at exactly ``at``.
    """

    at: int = 0
    every: bool = False
    before: BaseException | None = None
    after: BaseException | None = None

    def strikes(self, number: int) -> bool:
        """Whether this write is hit."""
        if self.at <= 0:
            return False
        return number % self.at == 0 if self.every else number == self.at


@dataclass
class FakeCluster:
    """Implements `plimsoll.controller.cluster.Cluster` over a dictionary."""

    faults: Faults = field(default_factory=Faults)
    refuse: Callable[[str, Object], Refused | None] = lambda _verb, _obj: None
    admit: Callable[[Object], Object] = lambda obj: obj
    namespaces: set[str] = field(default_factory=lambda: {"default", "plimsoll-system"})
    crd: bool = True
    graceful: bool = True
    down: bool = False
    writes: list[Write] = field(default_factory=list)
    reads: int = 0
    logs: dict[Where, str | Exception] = field(default_factory=dict)  # namespace, pod, container
    unlistable: set[str] = field(default_factory=set)
    """Kinds that the operator may not list."""

    def __post_init__(self) -> None:
        self.objects: dict[Where, Object] = {}
        self._applied: dict[tuple[Where, str], Object] = {}
        self._version = itertools.count(101)
        self._uid = itertools.count(1)
        self._last = 100
        self._watchers: list[Watcher] = []

    # -- the protocol ---------------------------------------------------------------------------

    async def served(self) -> bool:
        self._read()
        return self.crd

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        self._read()
        found = self.objects.get((resource.kind, namespace or "", name))
        return copy.deepcopy(found) if found is not None else None

    async def list(self, resource: Resource, namespace: str | None = None) -> Listing:
        self._read()
        return Listing(self._listed(resource, namespace), str(self._last))

    async def page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        fields: str = "",
        limit: int = 500,
        token: str = "",
    ) -> Page:
        self._read()
        if resource.kind in self.unlistable:
            message = f'{resource.plural} is forbidden: cannot list resource "{resource.plural}"'
            raise Refused(403, "Forbidden", message)
        start = int(token or 0)
        # Positions are tokens: nothing may change between two pages of one list.
        found = [obj for obj in self._listed(resource, namespace) if _selected(obj, fields)]
        end = start + limit
        return Page(found[start:end], str(end) if end < len(found) else "", str(self._last))

    async def apply(
        self, obj: Object, manager: str = FIELD_MANAGER, *, force: bool = True
    ) -> Object:
        return self._write("apply", obj, lambda: self._apply(obj, manager, force=force))

    async def create(self, obj: Object) -> Object:
        return self._write("create", obj, lambda: self._create(obj))

    async def replace(self, obj: Object) -> Object | None:
        return self._write("replace", obj, lambda: self._replace(obj))

    async def patch(self, obj: Object, ops: Sequence[Mapping[str, Any]]) -> Object | None:
        return self._write("patch", obj, lambda: self._json_patch(obj, ops))

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        obj = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"namespace": namespace, "name": name},
        }
        self._write("delete", obj, lambda: self._delete((resource.kind, namespace, name), uid))

    async def patch_status(self, obj: Object) -> Object | None:
        return self._write("status", obj, lambda: self._status(obj))

    async def replace_status(self, obj: Object) -> Object | None:
        return self._write("status", obj, lambda: self._replace_status(obj))

    async def pod_log(
        self,
        namespace: str,
        name: str,
        container: str,
        *,
        limit_bytes: int,
        tail_lines: int | None = None,
    ) -> str | None:
        self._read()
        text = self.logs.get((namespace, name, container))
        if isinstance(text, Exception):
            raise text
        if text is None or ("Pod", namespace, name) not in self.objects:
            return None
        if tail_lines is not None:
            text = "".join(text.splitlines(keepends=True)[-tail_lines:])
        return text.encode()[:limit_bytes].decode(errors="replace")

    async def create_event(self, obj: Object) -> bool:
        return self._write("event", obj, lambda: self._create_event(obj))

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        obj = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": name},
        }
        return self._write("event", obj, lambda: self._patch(obj, patch))

    # -- what people, kubelets and other controllers do -----------------------------------------

    def subscribe(self, watcher: Watcher) -> None:
        """Call ``watcher(type, object)`` for every change from now on."""
        self._watchers.append(watcher)

    def put(self, obj: Object) -> Object:
        """Create or overwrite as somebody else, status included; bumps what the API would bump."""
        where = _where(obj)
        old = self.objects.get(where)
        new = copy.deepcopy(obj)
        return self._store(where, old, new)

    def edit(
        self, kind: str, namespace: str, name: str, change: Callable[[Object], None]
    ) -> Object:
        """Change one object as somebody else."""
        obj = copy.deepcopy(self.objects[kind, namespace, name])
        change(obj)
        return self.put(obj)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Delete at once, with everything it owns."""
        self._remove((kind, namespace, name))

    def node(self, name: str, labels: Mapping[str, str]) -> Object:
        """Add a node."""
        metadata = {"name": name, "labels": dict(labels)}
        return self.put({"apiVersion": "v1", "kind": NODES.kind, "metadata": metadata})

    def of_kind(self, kind: str) -> Objects:
        """All objects of a kind."""
        return [obj for (k, _, _), obj in sorted(self.objects.items()) if k == kind]

    # -- inside ---------------------------------------------------------------------------------

    def _listed(self, resource: Resource, namespace: str | None) -> Objects:
        label, _, value = resource.selector.partition("=")
        items = [
            copy.deepcopy(obj)
            for (kind, where, _), obj in sorted(self.objects.items())
            if kind == resource.kind
            and namespace in {None, where}
            and (not label or (obj["metadata"].get("labels") or {}).get(label) == value)
        ]
        for item in items:
            item.pop("apiVersion")  # as the real API does inside a List
            item.pop("kind")
        return items

    def _read(self) -> None:
        self.reads += 1
        if self.down:
            raise Retry("the fake API server is down")

    def _write(self, verb: str, obj: Object, action: Callable[[], T]) -> T:
        self._check(obj)
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", "")
        self.writes.append(Write(verb, obj["kind"], namespace, metadata["name"]))
        number = len(self.writes)
        hit = self.faults.strikes(number)
        if hit and self.faults.before is not None:
            raise self.faults.before
        refusal = self.refuse(verb, obj)
        if refusal is not None:
            raise refusal
        result = action()
        if hit and self.faults.after is not None:
            raise self.faults.after
        return result

    def _check(self, obj: Object) -> None:
        if self.down:
            raise Retry("the fake API server is down")
        resource = resource_of(obj["apiVersion"], obj["kind"])
        namespace = obj["metadata"].get("namespace", "")
        if resource.namespaced and namespace not in self.namespaces:
            message = f'namespaces "{namespace}" not found'
            raise Refused(404, "NotFound", message)

    def _create(self, obj: Object) -> Object:
        where = _where(obj)
        if where in self.objects:
            return copy.deepcopy(self.objects[where])
        new = copy.deepcopy(obj)
        if obj["kind"] in HAS_STATUS:
            new.pop("status", None)
        self._applied[where, FIELD_MANAGER] = copy.deepcopy(new)
        return self._store(where, None, new)

    def _replace(self, obj: Object) -> Object | None:
        where = _where(obj)
        old = self.objects.get(where)
        if old is None and obj["kind"] == LEASES.kind:
            return self._create(obj)  # as the real API does for this kind
        if old is None:
            return None
        self._require(old, obj["metadata"])
        new = copy.deepcopy(obj)
        new["metadata"] = {**old["metadata"], **new["metadata"]}
        return self._store(where, old, new)

    def _json_patch(self, obj: Object, ops: Sequence[Mapping[str, Any]]) -> Object | None:
        where = _where(obj)
        old = self.objects.get(where)
        if old is None:
            return None
        self._require(old, obj["metadata"])
        try:
            new = patched(old, ops)
        except (LookupError, ValueError) as error:
            raise Refused(422, "Invalid", f"the patch does not apply: {error!r}") from error
        return self._store(where, old, self.admit(new))

    def _apply(self, obj: Object, manager: str, *, force: bool) -> Object:
        where = _where(obj)
        old = self.objects.get(where)
        if not force and old is not None and (where, manager) not in self._applied:
            # The real API compares field by field; every object of our kinds has one that is taken.
            raise Conflict(f"409 Conflict: Apply failed: conflicts with the owner of {where}")
        body = copy.deepcopy(obj)
        if obj["kind"] in HAS_STATUS:
            body.pop("status", None)
        if old is not None and "resourceVersion" in obj["metadata"]:
            self._require(old, obj["metadata"])
        uid = body["metadata"].pop("uid", None)
        if uid is not None and (old is None or old["metadata"]["uid"] != uid):
            raise Conflict(f"409 Conflict: there is no object with uid {uid}")
        new = copy.deepcopy(old) if old is not None else {}
        previous = self._applied.get((where, manager), {})
        _merge(new, _without_identity(previous), body)
        self._applied[where, manager] = body
        return self._store(where, old, self.admit(new))

    def _status(self, obj: Object) -> Object | None:
        where = _where(obj)
        old = self.objects.get(where)
        if old is None:
            return None
        self._require(old, obj["metadata"])
        new = copy.deepcopy(old)
        body = {"status": copy.deepcopy(obj["status"])}
        _merge(new, self._applied.get((where, STATUS_MANAGER), {}), body)
        self._applied[where, STATUS_MANAGER] = copy.deepcopy(body)
        return self._store(where, old, new)

    def _replace_status(self, obj: Object) -> Object | None:
        where = _where(obj)
        old = self.objects.get(where)
        if old is None:
            return None
        self._require(old, obj["metadata"])
        return self._store(where, old, {**copy.deepcopy(old), "status": obj["status"]})

    def _create_event(self, obj: Object) -> bool:
        if _where(obj) in self.objects:
            return False
        self._create(obj)
        return True

    def _patch(self, obj: Object, patch: Mapping[str, Any]) -> Object:
        where = _where(obj)
        old = self.objects.get(where)
        if old is None:
            raise Refused(404, "NotFound", f"{where} not found")
        return self._store(where, old, {**copy.deepcopy(old), **patch})

    def _delete(self, where: Where, uid: str) -> None:
        old = self.objects.get(where)
        if old is None or old["metadata"]["uid"] != uid:
            return
        assigned = where[0] == "Pod" and "nodeName" in (old.get("spec") or {})
        finished = (old.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        if self.graceful and assigned and not finished:
            if "deletionTimestamp" not in old["metadata"]:
                new = copy.deepcopy(old)
                new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self._store(where, old, new)
            return
        self._remove(where)

    def _require(self, old: Object, metadata: Mapping[str, Any]) -> None:
        # The real API compares the version only, which is as unique as the UID.
        wanted, live = metadata.get("resourceVersion"), old["metadata"]["resourceVersion"]
        if wanted is not None and wanted != live:
            raise Conflict(f"409 Conflict: the object is at version {live}, not {wanted}")

    def _store(self, where: Where, old: Object | None, new: Object) -> Object:
        metadata = new["metadata"]
        if old is not None and _same(old, new):
            return copy.deepcopy(old)
        metadata["uid"] = old["metadata"]["uid"] if old else f"uid-{next(self._uid):04d}"
        if old is None:
            metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if where[0] in HAS_GENERATION:
            before = old["metadata"].get("generation", 0) if old else 0
            changed = old is None or old.get("spec") != new.get("spec")
            metadata["generation"] = before + int(changed)
        self._last = next(self._version)
        metadata["resourceVersion"] = str(self._last)
        self.objects[where] = new
        self._tell("MODIFIED" if old else "ADDED", new)
        return copy.deepcopy(new)

    def _remove(self, where: Where) -> None:
        old = self.objects.pop(where, None)
        if old is None:
            return
        for key in [k for k in self._applied if k[0] == where]:
            del self._applied[key]
        self._last = next(self._version)
        gone = copy.deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(self._last)
        self._tell("DELETED", gone)
        for child, obj in list(self.objects.items()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if any(o["uid"] == old["metadata"]["uid"] for o in owners):
                self._remove(child)

    def _tell(self, kind: str, obj: Object) -> None:
        for watcher in list(self._watchers):
            watcher(kind, copy.deepcopy(obj))


def patched(obj: Object, ops: Sequence[Mapping[str, Any]]) -> Object:
    """A copy of the object after a JSON patch of `add`, `remove` and `replace`.

    Raises:
        LookupError: what an operation removes or replaces is not there.
    """
    new = copy.deepcopy(obj)
    for op in ops:
        *way, last = (
            part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]
        )
        parent: Any = new
        for part in way:
            parent = parent[int(part) if isinstance(parent, list) else part]
        key: Any = int(last) if isinstance(parent, list) else last
        if op["op"] != "add":
            del parent[key]
        if op["op"] != "remove":
            value = copy.deepcopy(op["value"])
            parent.insert(key, value) if isinstance(parent, list) else parent.update({key: value})
    return new


def _where(obj: Mapping[str, Any]) -> Where:
    metadata = obj["metadata"]
    return obj["kind"], metadata.get("namespace", ""), metadata["name"]


def _selected(obj: Object, fields: str) -> bool:
    """Whether a field selector of ``path=value`` and ``path!=value`` terms holds."""
    for term in filter(None, fields.split(",")):
        path, unequal, value = term.partition("!=")
        if not unequal:
            path, _, value = term.partition("=")
        found: Any = obj
        for name in path.split("."):
            found = (found or {}).get(name)
        if ((found or "") == value) == bool(unequal):
            return False
    return True


def _same(old: Object, new: Object) -> bool:
    return _bare(old) == _bare(new)


def _bare(obj: Object) -> Object:
    metadata = {
        k: v for k, v in obj["metadata"].items() if k not in {"resourceVersion", "generation"}
    }
    return {**obj, "metadata": metadata}


def _without_identity(obj: Object) -> Object:
    return {k: v for k, v in obj.items() if k not in {"apiVersion", "kind"}}


def _merge(live: Object, previous: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Naive server-side apply: set what is wanted, drop what the manager no longer wants."""
    for key, old in previous.items():
        if key in wanted or key not in live:
            continue
        if isinstance(old, dict) and isinstance(live[key], dict):
            _merge(live[key], old, {})
            if not live[key]:
                del live[key]
        elif _is_map(old) and _is_map(live[key]):
            live[key] = _merge_list(live[key], old, [])
            if not live[key]:
                del live[key]
        else:
            del live[key]
    for key, new in wanted.items():
        old = previous.get(key)
        if isinstance(new, dict):
            inner = live.get(key)
            live[key] = inner if isinstance(inner, dict) else {}
            _merge(live[key], old if isinstance(old, dict) else {}, new)
        elif _is_map(new) and _is_map(live.get(key)):
            owned = old if isinstance(old, list) and _is_map(old) else []
            live[key] = _merge_list(live[key], owned, new)
        else:
            live[key] = copy.deepcopy(new)


def _is_map(value: object) -> bool:
    """Whether a list is keyed, as containers and conditions are, and not replaced as a whole."""
    return isinstance(value, list) and bool(value) and all(_key(i) is not None for i in value)


def _key(item: object) -> str | None:
    if not isinstance(item, dict):
        return None
    return next((f"{k}={item[k]}" for k in MERGE_KEYS if k in item), None)


def _merge_list(live: list[Any], previous: list[Any], wanted: list[Any]) -> list[Any]:
    owned = {_key(item): item for item in previous}
    asked = {_key(item): item for item in wanted}
    result = []
    for item in live:
        key = _key(item)
        if key in asked:
            merged = copy.deepcopy(item)
            _merge(merged, owned.get(key, {}), asked.pop(key))
            result.append(merged)
        elif key not in owned:
            result.append(item)
    return result + [copy.deepcopy(item) for item in asked.values()]
