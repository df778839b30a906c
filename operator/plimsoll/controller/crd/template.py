"""Reads ``spec.template``: the closed list of pod fields that a user may set.

It is closed on purpose. Whoever may create an ``InferenceServer`` must not thereby become able to
run privileged pods, mount the host or borrow a service account, so a field is admitted one by one
and everything else is refused by name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd.fields import (
    LABEL_KEY,
    LABEL_VALUE,
    SUBDOMAIN,
    Fields,
    invalid,
    quantity,
)
from plimsoll.controller.crd.types import GROUP, Template

if TYPE_CHECKING:
    from collections.abc import Mapping

RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
DEFAULT_SHARED_MEMORY: Final = "2Gi"
MAX_KEY: Final = 317  # a prefix of 253, a slash and a name of 63 characters
MAX_ID: Final = 2**31 - 1

_TEMPLATE: Final = frozenset({
    "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "schedulerName",
    "runtimeClassName", "priorityClassName", "imagePullSecrets", "labels", "annotations",
    "sharedMemory", "securityContext", "resources",
})  # fmt: skip
_TOLERATION: Final = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})
_SPREAD: Final = frozenset({
    "maxSkew", "topologyKey", "whenUnsatisfiable", "labelSelector", "matchLabelKeys",
    "minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy",
})  # fmt: skip
_AFFINITY: Final = frozenset({"nodeAffinity", "podAffinity", "podAntiAffinity"})
_SECURITY: Final = frozenset({"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"})


def parse_template(template: Fields) -> Template:
    """The pod fields a user gave.

    Scheduling terms keep their Kubernetes spelling and are checked down to their first level only:
    the API server checks the rest when the pod is made, and none of it grants anything.

    Raises:
        InvalidSpec: a field outside the list, or a value out of bounds.
    """
    template = Fields.of(template.path, template.values, _TEMPLATE)
    affinity = template.child("affinity", _AFFINITY).values
    return Template(
        node_selector=template.text_map("nodeSelector", 32, 63, _label_key),
        tolerations=_objects(template, "tolerations", 32, _TOLERATION),
        affinity=dict(affinity) if affinity else None,
        topology_spread_constraints=_objects(template, "topologySpreadConstraints", 8, _SPREAD),
        scheduler_name=_name(template, "schedulerName"),
        runtime_class_name=_name(template, "runtimeClassName"),
        priority_class_name=_name(template, "priorityClassName"),
        image_pull_secrets=tuple(
            secret.text("name", 253, SUBDOMAIN, need="the name of a Secret")
            for secret in template.items("imagePullSecrets", 16, {"name"})
        ),
        labels=user_metadata(template, "labels"),
        annotations=user_metadata(template, "annotations"),
        shared_memory_size=_shared_memory(template.child("sharedMemory", {"sizeLimit"})),
        security_context=_security_context(template.child("securityContext", _SECURITY)),
        resources=_resources(template.child("resources", {"requests", "limits"})),
    )


def user_metadata(parent: Fields, field: str) -> dict[str, str]:
    """The user's labels or annotations of one child object.

    Raises:
        InvalidSpec: a key that Plimsoll sets itself (it would silently win), or a bad key or value.
    """
    if field == "annotations":
        return parent.text_map(field, 32, 4096, _free_key)
    labels = parent.text_map(field, 32, 63, _free_key)
    for key, value in labels.items():
        if re.fullmatch(LABEL_VALUE, value) is None:
            raise invalid(f"{parent.at(field)}[{key}]", value, "a label value")
    return labels


def _free_key(path: str, key: str) -> None:
    _label_key(path, key)
    if key.startswith(f"{GROUP}/") or key == MANAGED_BY:
        raise invalid(f"{path}[{key}]", key, f"no {GROUP}/ key and not {MANAGED_BY}")


def _label_key(path: str, key: str) -> None:
    if len(key) > MAX_KEY or re.fullmatch(LABEL_KEY, key) is None:
        raise invalid(f"{path}[{key}]", key, "a label key")


def _name(template: Fields, field: str) -> str | None:
    return template.text(field, 253, SUBDOMAIN, need="the name of an object", default=None)


def _objects(
    template: Fields, field: str, most: int, known: frozenset[str]
) -> tuple[Mapping[str, Any], ...]:
    return tuple(dict(item.values) for item in template.items(field, most, known))


def _shared_memory(shared: Fields) -> str:
    value = shared.get("sizeLimit", DEFAULT_SHARED_MEMORY)
    quantity(shared.at("sizeLimit"), value, least=1)
    return str(value)


def _security_context(context: Fields) -> dict[str, Any]:
    """Numbers only; with a user the pod passes Pod Security ``restricted``, so root is not one."""
    found: dict[str, Any] = {
        "runAsUser": context.integer("runAsUser", 1, MAX_ID),
        "runAsGroup": context.integer("runAsGroup", 0, MAX_ID),
        "fsGroup": context.integer("fsGroup", 0, MAX_ID),
        "supplementalGroups": list(context.integers("supplementalGroups", 32, 0, MAX_ID)) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _resources(resources: Fields) -> dict[str, dict[str, str]]:
    """Requests and limits as Quantities; a request above its limit would be refused later."""
    found: dict[str, dict[str, str]] = {}
    amounts: dict[str, dict[str, int]] = {"requests": {}, "limits": {}}
    for kind in ("requests", "limits"):
        given = resources.child(kind)
        for name, value in given.values.items():
            path = f"{given.path}[{name}]"
            if name not in RESOURCES:
                raise invalid(
                    path, name, f"one of {', '.join(RESOURCES)}; GPUs come from spec.accelerator"
                )
            parts = 1000 if name == "cpu" else 1
            amounts[kind][name] = quantity(path, value, least=0, parts=parts)
            found.setdefault(kind, {})[name] = str(value)
    for name, amount in amounts["requests"].items():
        if amount > amounts["limits"].get(name, amount):
            value, most = found["requests"][name], found["limits"][name]
            raise invalid(f"{resources.path}.requests[{name}]", value, f"at most {most}")
    return found
