"""Node affinity: the user's own terms AND the GPU class, and which of several classes first."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.controller.crd.types import Accelerator
    from plimsoll.controller.objects.context import Pin

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
# The most that a preferred term may weigh; the least is 1.
_HEAVIEST: Final = 100


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


def class_preferences(accelerator: Accelerator, pin: Pin | None) -> list[dict[str, Any]]:
    """Preferred terms that put the products in the order of their list; empty where none is first.

    The last product has no term: it is what is left. The scheduler adds up the terms that a node
    meets, so a term under one label key leaves out nodes that an earlier key has judged: a node
    with two of the labels would count twice.
    """
    products, keys = accelerator.products, accelerator.class_label_keys
    if pin is not None or len(products) < 2:  # noqa: PLR2004 -- one alone is first
        return []
    judged = [{"key": key, "operator": "NotIn", "values": list(products)} for key in keys]
    return [
        {
            "weight": weight,
            "preference": {
                "matchExpressions": [
                    {"key": key, "operator": "In", "values": [product]},
                    *deepcopy(judged[:earlier]),
                ]
            },
        }
        for product, weight in zip(products, falling_weights(len(products)), strict=False)
        for earlier, key in enumerate(keys)
    ]


def falling_weights(count: int) -> list[int]:
    """Weights of all but the last of so many choices, from 100 down, strictly falling.

    Each is the same share of the one before, because the scheduler measures by the best node that
    there is: when the first kind is used up, the second is as far ahead of the third as the first
    was of it.
    """
    weights: list[int] = []
    for place in range(1, count):
        exact = _HEAVIEST ** (place / (count - 1))
        weights.append(max(round(exact), weights[-1] + 1 if weights else 1))
    return weights[::-1]


def with_node_preferences(
    affinity: Mapping[str, Any], preferences: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The affinity with more preferred terms behind the user's own."""
    merged: dict[str, Any] = deepcopy(dict(affinity))
    if preferences:
        node = merged.setdefault("nodeAffinity", {})
        node[_PREFERRED] = [*(node.get(_PREFERRED) or []), *(dict(p) for p in preferences)]
    return merged


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
