"""What others added to the Deployment that we rendered, and the JSON patch that removes it.

Server-side apply cannot remove what it never said: a sidecar, ``hostNetwork``, a node selector or
``NVIDIA_VISIBLE_DEVICES`` that somebody adds survives every apply, with force too. So the live
object is compared in the other direction than in :mod:`.diff`: whatever the pod template holds,
that we did not render and the API server does not fill in by itself, is foreign. The world is
closed: a field that this version has never heard of is foreign as well.

What stays, because it is for people and changes nothing that a server computes with: labels and
annotations (``kubectl rollout restart`` writes one), ``spec.paused`` (``kubectl rollout pause`` is
a person's decision) and ``spec.revisionHistoryLimit``.

What the next apply puts right anyway is no addition: other values, and longer lists where the API
knows no items but only the list as a whole (args, command, tolerations, terms of an affinity).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.actions import Patch
from plimsoll.controller.objects.diff import first_difference
from plimsoll.controller.objects.names import inputs_hash_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Operation = dict[str, Any]
"""One operation of a JSON patch (RFC 6902)."""

_Path = tuple[str | int, ...]

_TEMPLATE: Final[_Path] = ("spec", "template")
_POD: Final[_Path] = (*_TEMPLATE, "spec")

# What API servers fill in where we say nothing: by kind of object, field and value (Kubernetes
# pkg/apis/core/v1/defaults.go; tests/contract/test_foreign_fields.py asks a real API server).
# Objects come out of the API as {} where they are structs, and not pointers, in its Go types.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "pod": {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
    },
    "container": {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "resources": {},
    },
    "probe": {
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    },
    "httpGet": {"path": "/", "scheme": "HTTP"},
    "grpc": {"service": ""},
    "ports": {"protocol": "TCP"},
    "fieldRef": {"apiVersion": "v1"},
    "resourceFieldRef": {"divisor": "0"},
    "fileKeyRef": {"optional": False},
    "configMap": {"defaultMode": 0o644},
    "secret": {"defaultMode": 0o644},
    "downwardAPI": {"defaultMode": 0o644},
    "projected": {"defaultMode": 0o644},
}

# The kind of object that a field holds, where it is not named as the field.
_KINDS: Final[Mapping[str, str]] = {
    "containers": "container",
    "initContainers": "container",
    "startupProbe": "probe",
    "readinessProbe": "probe",
    "livenessProbe": "probe",
}

# How the API server identifies the items of its list maps (x-kubernetes-list-map-keys). Apply
# leaves items of other managers in these, so they are what has to be looked for.
_IDENTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}

# Of the template's metadata. Its finalizers are copied to pods, and would keep their GPUs.
_PEOPLES: Final = frozenset({"labels", "annotations", "creationTimestamp"})
# Of the Deployment. It would count a ready server as missing for longer than the planner does.
_DELAY: Final = "minReadySeconds"

_MOST_NAMED: Final = 3
_LONGEST_NAME: Final = 120


@dataclass(frozen=True, slots=True)
class Addition:
    """One thing that is in the live Deployment and that we did not render.

    Attributes:
        path: keys and list indices from the top of the live object.
        name: for people, as ``spec.template.spec.containers[server].env[X]``; never a value.
    """

    path: _Path
    name: str


def cleaning(
    desired: Mapping[str, Any], live: Mapping[str, Any], kept: Collection[str] = ()
) -> Patch | None:
    """The patch that takes out of the live Deployment what others added, or None.

    It has to be the only write on the Deployment in its pass: it is for that one version.

    Args:
        desired: what the builder rendered.
        live: what the API server holds, with its defaults filled in.
        kept: names of additions to leave: they came back when they were removed.
    """
    additions = foreign_additions(desired, live, kept)
    if not additions:
        return None
    return Patch(
        wanted=dict(desired),
        live=dict(live),
        ops=removal(desired, live, additions),
        why=_why(desired["spec"]["template"], live["spec"]["template"], said(additions)),
    )


def _why(desired: Mapping[str, Any], live: Mapping[str, Any], names: str) -> str:
    """Who added it is known only beside the template that we rendered from the same inputs."""
    if inputs_hash_of(desired) == inputs_hash_of(live):
        return f"others added {names}"
    return f"{names} is not in the new template"


def foreign_additions(
    desired: Mapping[str, Any], live: Mapping[str, Any], kept: Collection[str] = ()
) -> tuple[Addition, ...]:
    """What others added to the live Deployment; empty when there is nothing.

    Items of one list come from the last to the first, so that removing them one after the other
    leaves the indices of the rest right.

    Args:
        desired: what the builder rendered.
        live: what the API server holds, with its defaults filled in.
        kept: names of additions to overlook: they came back when they were removed.
    """
    wanted, found = desired["spec"], live["spec"]
    template, have = wanted["template"], found["template"]
    metadata = {k: v for k, v in have["metadata"].items() if k not in _PEOPLES}
    parts = [
        *_object("pod", template["spec"], have["spec"], _POD, "spec.template.spec"),
        *_object("", {}, metadata, (*_TEMPLATE, "metadata"), "spec.template.metadata"),
    ]
    if found.get(_DELAY) and not wanted.get(_DELAY):
        parts.append(Addition(("spec", _DELAY), f"spec.{_DELAY}"))
    return tuple(part for part in parts if part.name not in kept)


def removal(
    desired: Mapping[str, Any], live: Mapping[str, Any], additions: Sequence[Addition]
) -> tuple[Operation, ...]:
    """The JSON patch that takes the additions away, for the very version of ``live``.

    Where the rest of the template is as we rendered it, each is removed by itself. Where it also
    differs, removing alone could leave what the API refuses (a volume with no source, a probe with
    no handler, a mount of a volume that is gone), and would start one rollout before the apply
    starts the next. Then the pod's spec, and our own labels and annotations with it, are written
    as they should be.

    Args:
        desired: what the builder rendered.
        live: the Deployment in which the additions were found.
        additions: what :func:`foreign_additions` found.
    """
    template, have = desired["spec"]["template"], live["spec"]["template"]
    if first_difference({"template": template}, {"template": have}) is None:
        return tuple({"op": "remove", "path": _pointer(found.path)} for found in additions)
    strategy = desired["spec"]["strategy"]
    turns = [] if strategy == live["spec"].get("strategy") else [strategy]
    outside = [found for found in additions if found.path[: len(_POD)] != _POD]
    return (
        *({"op": "remove", "path": _pointer(found.path)} for found in outside),
        *({"op": "add", "path": "/spec/strategy", "value": deepcopy(turn)} for turn in turns),
        *_metadata(template["metadata"], have["metadata"]),
        {"op": "replace", "path": _pointer(_POD), "value": deepcopy(template["spec"])},
    )


def said(additions: Sequence[Addition]) -> str:
    """The names of the additions as part of a sentence, at most three of them."""
    names = [
        name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
        for name in (found.name for found in additions[:_MOST_NAMED])
    ]
    more = len(additions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _object(
    kind: str, desired: Mapping[str, Any], live: Mapping[str, Any], path: _Path, name: str
) -> Iterator[Addition]:
    """The additions to one object of this kind (see `_DEFAULTS`)."""
    defaults = _DEFAULTS.get(kind, {})
    for key, value in live.items():
        wanted: Any = desired.get(key)
        here, called = (*path, key), _join(name, key)
        if value == wanted:
            continue
        if _is_nothing(wanted):
            if value != defaults.get(key):
                yield Addition(here, called + _items(key, value))
        elif isinstance(wanted, Mapping) and isinstance(value, Mapping):
            yield from _object(_KINDS.get(key, key), wanted, value, here, called)
        elif _is_list(wanted) and _is_list(value):
            yield from _list(key, wanted, value, here, called)


def _list(
    field: str, desired: Sequence[Any], live: Sequence[Any], path: _Path, name: str
) -> Iterator[Addition]:
    kind, keys = _KINDS.get(field, field), _IDENTITIES.get(field)
    if keys is None:
        if first_difference({field: desired}, {field: live}) is not None:
            return  # the next apply replaces the list as a whole
        for index, (want, have) in enumerate(zip(desired, live, strict=True)):
            if isinstance(want, Mapping):
                yield from _object(kind, want, have, (*path, index), f"{name}[{index}]")
        return
    ours = {_identity(kind, item, keys): item for item in desired}
    for index in reversed(range(len(live))):
        identity = _identity(kind, live[index], keys)
        here, called = (*path, index), f"{name}[{identity[0]}]"
        # Popped: of two variables of one name the kubelet takes the last.
        want = ours.pop(identity, None)
        if want is None:
            yield Addition(here, called)
        else:
            yield from _object(kind, want, live[index], here, called)


def _items(field: str, value: Any) -> str:  # noqa: ANN401 -- any JSON value
    """The items of a list of which we render none, as ``[X, Y]``; "" for anything else."""
    keys = _IDENTITIES.get(field)
    if keys is None or not _is_list(value):
        return ""
    return f"[{', '.join(str(item.get(keys[0])) for item in value)}]"


def _identity(kind: str, item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    defaults = _DEFAULTS.get(kind, {})
    return tuple(item.get(key, defaults.get(key)) for key in keys)


def _metadata(ours: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[Operation]:
    """Our labels and annotations of the template; those of others are left as they are."""
    for field in ("labels", "annotations"):
        path = (*_TEMPLATE, "metadata", field)
        if not live.get(field):
            yield {"op": "add", "path": _pointer(path), "value": dict(ours[field])}
            continue
        for key, value in ours[field].items():
            if live[field].get(key) != value:
                yield {"op": "add", "path": _pointer((*path, key)), "value": value}


def _pointer(path: _Path) -> str:
    """The path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _join(name: str, key: str) -> str:
    return f"{name}[{key}]" if "/" in key or "." in key else f"{name}.{key}"


def _is_list(value: Any) -> bool:  # noqa: ANN401 -- any JSON value
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_nothing(value: Any) -> bool:  # noqa: ANN401 -- any JSON value
    """None, and what the API server drops on its way in: empty texts, lists and objects."""
    return value is None or (isinstance(value, str | Sequence | Mapping) and len(value) == 0)
