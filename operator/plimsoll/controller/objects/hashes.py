"""Fingerprints of what was asked: canonical JSON, SHA-256, 40 hex characters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd import ENGINE, FIXED, STAMPED, sizing_request
from plimsoll.controller.crd.types import TORCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plimsoll.controller.crd.types import InferenceServer

HASH_LENGTH: Final = 40
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def digest(value: Any) -> str:  # noqa: ANN401 -- any JSON-like value or dataclass
    """The fingerprint of a JSON-like value, independent of the order of its keys.

    Nothing (None, an empty list or object) is left out, so that a field that a later version adds
    and nobody has set leaves old fingerprints as they were.
    """
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _plain(value: Any) -> Any:  # noqa: ANN401 -- as digest
    # By exact types first: every pass walks the whole spec, and most of it are scalars.
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict or isinstance(value, Mapping):
        return _object(value.items())
    if kind is tuple or kind is list or isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if is_dataclass(kind):
        return _object((name, getattr(value, name)) for name in _field_names(kind))
    return value


def _object(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    plain = ((str(key), _plain(item)) for key, item in items)
    return {key: item for key, item in plain if item not in (None, {}, [])}


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def request_of(server: InferenceServer) -> dict[str, Any]:
    """The inputs of the arithmetic, as JSON keys: the unset ones drop out of a digest."""
    found: dict[str, Any] = json.loads(sizing_request(server).to_json())
    return found


def sizing_key(server: InferenceServer) -> str:
    """The fingerprint of the question a result answers.

    The spec inputs of the arithmetic, the model as a source reference, and what decides which
    kind of GPU is asked: resource, count, products and the required node constraints. The last
    belong to it because a number is never answered by another GPU's: a server that moves from one
    node pool to another is measured again. The sizer's image is not part of it, so an upgrade of
    the operator measures nothing.
    """
    spec = server.spec
    affinity = spec.template.affinity or {}
    return digest(
        {
            # Auto and InPod ask the same question as Stamped, on another way; and the word was
            # in the key before there were others.
            "mode": spec.sizing.mode if spec.sizing.mode in {FIXED, ENGINE} else STAMPED,
            "request": request_of(server),
            "model": [spec.model.claim_name, spec.model.sub_path, spec.model.file],
            "probe": TORCH if spec.sizing.probe == TORCH else None,
            "resource": spec.accelerator.resource,
            "count": spec.accelerator.count,
            "products": sorted(spec.accelerator.products),
            "nodeSelector": spec.template.node_selector,
            "nodeAffinity": affinity.get("nodeAffinity"),
        }
    )
