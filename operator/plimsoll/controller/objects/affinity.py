"""Required node affinity: the user's own terms AND the GPU class."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.controller.crd.types import Accelerator
    from plimsoll.controller.objects.context import Pin

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def class_requirements(accelerator: Accelerator, pin: Pin | None) -> list[dict[str, Any]]:
    """Node requirements of which one must hold; empty when any node will do.

    A pin replaces the list of products: the node it was read from satisfied them. Before there is
    a pin, clusters name the class by different labels, so each key is an alternative.
    """
    if pin is not None:
        return [{"key": pin.key, "operator": "In", "values": [pin.value]}]
    if not accelerator.products:
        return []
    return [
        {"key": key, "operator": "In", "values": list(accelerator.products)}
        for key in accelerator.class_label_keys
    ]


def with_node_requirements(
    affinity: Mapping[str, Any] | None, alternatives: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The user's affinity, narrowed to nodes that meet one of the alternatives.

    Node selector terms are ORed and the expressions inside one are ANDed, so every alternative is
    added to a copy of every term. A term without expressions matches no node at all; adding ours
    to it would turn "nowhere" into "here", so it stays as it is.
    """
    merged: dict[str, Any] = deepcopy(dict(affinity or {}))
    if not alternatives:
        return merged
    required = merged.setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    terms = required.get("nodeSelectorTerms") or []
    if not terms:
        required["nodeSelectorTerms"] = [{"matchExpressions": [dict(a)]} for a in alternatives]
        return merged
    required["nodeSelectorTerms"] = [
        narrowed for term in terms for narrowed in _narrow(term, alternatives)
    ]
    return merged


def _narrow(
    term: Mapping[str, Any], alternatives: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return [dict(term)]
    return [
        {
            **deepcopy(dict(term)),
            "matchExpressions": [*deepcopy(term.get("matchExpressions") or []), dict(alternative)],
        }
        for alternative in alternatives
    ]
