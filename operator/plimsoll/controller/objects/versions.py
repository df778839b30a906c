"""Render versions: an operator's upgrade changes no running server.

A pod template carries the version of the rules that it was rendered by. A newer operator knows the
older rules too, and goes on rendering by them for as long as the inputs are what they were; the
next change of the inputs, which replaces the pods anyway, takes the latest. So every difference
between two versions is a condition on ``version`` in the builders, and what a version renders, or
hashes, never changes again (``tests/data/templates`` holds a golden template of each).

| version | since | what it brought |
|---|---|---|
| 1 | before 0.1.0 | (no annotation) tokens, sequences, context and prefill; a guard that reports only |
| 2 | 0.1.0 | all numbers of an engine, also in its environment; a guard that refuses; InPod |
| 3 | 0.1.0 | several products and no pin only: preferred terms in the order of the products |

Where a version brings nothing, :func:`newest` is the one before: a template that would be the same
but for its version is no update, and is not worth a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd.types import TORCH, WITH_OPERATOR
from plimsoll.controller.objects.affinity import class_preferences, class_requirements
from plimsoll.controller.objects.context import Stamp
from plimsoll.controller.objects.hashes import digest, request_of
from plimsoll.controller.objects.names import RENDER_VERSION, inputs_hash_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.crd.types import InferenceServer

FIRST: Final = 1
ORDERED: Final = 3
LATEST: Final = ORDERED


def version_of(template: Mapping[str, Any]) -> int | None:
    """The render version of a pod template or pod; None where it tells none that we know."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(RENDER_VERSION, str(FIRST))
    return int(text) if text.isdecimal() and FIRST <= int(text) <= LATEST else None


def newest(server: InferenceServer, stamp: Stamp) -> int:
    """The version that a template is rendered by where nothing speaks for an older one."""
    ordered = class_preferences(server.spec.accelerator, stamp.pin)
    return LATEST if ordered else min(LATEST, ORDERED - 1)


def inputs_hash(server: InferenceServer, stamp: Stamp, version: int | None = None) -> str:
    """The fingerprint of what the resource and the stamped numbers put into the pod template.

    It must not change when only the operator does: a new field of the resource must be absent or
    empty when not set (see :func:`.hashes.digest`), or an upgrade would restart every server.

    Args:
        server: the resource.
        stamp: the numbers.
        version: the rules; None: the newest.
    """
    spec = server.spec
    version = version or newest(server, stamp)
    return digest(
        {
            "request": request_of(server),
            "model": spec.model,
            "engine": spec.engine,
            # Only what the template shows: a pin stands in place of products and label keys, and
            # the progress deadline is the Deployment's. Editing those must restart nothing.
            "accelerator": [spec.accelerator.resource, spec.accelerator.count],
            "classes": class_requirements(spec.accelerator, stamp.pin),
            "drainSeconds": spec.rollout.drain_seconds,
            "probe": _probe(server),
            "probes": spec.probes,
            "template": spec.template,
            "stamp": stamp if version > FIRST else _first(stamp),
            # Absent in version 1, which knew of no other.
            "version": version if version > FIRST else None,
        }
    )


def version_to_render(
    server: InferenceServer, stamp: Stamp, live: Mapping[str, Any] | None
) -> tuple[int, str]:
    """The version to render by, and the inputs hash under it.

    Args:
        server: its update policy says whether a newer version may restart the servers.
        stamp: what is to be written.
        live: the Deployment that exists.
    """
    template = (live or {}).get("spec", {}).get("template", {})
    version = version_of(template)
    if version is not None and server.spec.rollout.update_policy != WITH_OPERATOR:
        fingerprint = inputs_hash(server, stamp, version)
        if inputs_hash_of(template) == fingerprint:
            return version, fingerprint
    version = newest(server, stamp)
    return version, inputs_hash(server, stamp, version)


def _probe(server: InferenceServer) -> str | None:
    """Only the probe that changes the pod; NVML is what everybody had before there was a choice."""
    return TORCH if server.spec.sizing.probe == TORCH else None


def _first(stamp: Stamp) -> Stamp:
    """The part of a stamp that version 1 rendered, and so hashed."""
    return Stamp(
        max_total_token_num=stamp.max_total_token_num,
        max_sequences=stamp.max_sequences,
        context_length=stamp.context_length,
        prefill_tokens=stamp.prefill_tokens,
        weight_bytes=stamp.weight_bytes,
        model_file=stamp.model_file,
        pin=stamp.pin,
    )
