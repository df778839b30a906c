"""Fingerprints of what was asked: canonical JSON, SHA-256, 40 hex characters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd import ENGINE, FIXED, STAMPED, sizing_request
from plimsoll.controller.crd.types import TORCH

if TYPE_CHECKING:
    from plimsoll.controller.crd.types import InferenceServer

HASH_LENGTH: Final = 40


def digest(value: Any) -> str:  # noqa: ANN401 -- any JSON-like value or dataclass
    """The fingerprint of a JSON-like value, independent of the order of its keys.

    Nothing (None, an empty list or object) is left out, so that a field that a later version adds
    and nobody has set leaves old fingerprints as they were.
    """
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _plain(value: Any) -> Any:  # noqa: ANN401 -- as digest
    if is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, Mapping):
        plain = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item not in (None, {}, [])}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


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
