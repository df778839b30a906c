"""From a config.json, or GGUF's metadata, to a ModelSpec.

``registry`` says which module reads which model_type. A model_type without a row is tried by
structure: a config that names every size of plain attention is read, and marked as an estimate.
It is never read as "probably like Llama": hybrids, latent attention and windows change the cache by
factors of up to 70.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.core.arch import gguf
from plimsoll.core.arch.classes import type_of
from plimsoll.core.arch.fields import Fields
from plimsoll.core.arch.registry import FAMILIES, architecture_of, read_as
from plimsoll.core.arch.spec import (
    CacheGroup,
    Encoder,
    Experts,
    ModelSpec,
    StateGroup,
    TensorGroup,
)
from plimsoll.core.errors import BadModel, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FAMILIES", "CacheGroup", "Encoder", "Experts", "ModelSpec", "StateGroup", "TensorGroup", "read_spec",
]  # fmt: skip


def read_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a parsed config.json, or GGUF metadata (told by ``general.architecture``).

    Raises:
        BadModel: A field of the wrong type or out of range.
        Unsupported: A family that is not known and cannot be told by its structure.
    """
    if gguf.ARCHITECTURE_KEY in config:
        name = config[gguf.ARCHITECTURE_KEY]
        spec = gguf.read(Fields(config), name) if isinstance(name, str) else None
        if spec is None:
            raise _unsupported(gguf.ARCHITECTURE_KEY, name, gguf.ARCHITECTURES)
        return spec
    named = _class_name(config)
    model_type = config.get("model_type")
    if model_type is None and named is not None:
        # Without a model_type the class decides; some converters leave it out.
        model_type = type_of(named)
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise _unsupported("model_type", model_type or named, FAMILIES)
    spec = read_as(model_type, config)
    usual = architecture_of(model_type)
    if named is not None and named not in {usual, spec.architecture}:
        spec = spec.noting(
            f"architectures names {named[:64]}, which is read as {usual}, the usual class of {model_type}"
        )
    return spec


def _class_name(config: Mapping[str, Any]) -> str | None:
    """The first entry of ``architectures``; None when there is none."""
    classes = config.get("architectures")
    if classes is None or classes == []:
        return None
    if not isinstance(classes, list) or not isinstance(classes[0], str):
        raise BadModel(
            "architectures must be a list of class names", field="architectures", value=classes
        )
    return classes[0]


def _unsupported(field: str, value: object, supported: Mapping[str, object]) -> Unsupported:
    return Unsupported(
        f"{field} {value!r:.80} is not supported; supported are {len(supported)} kinds, among them "
        f"{', '.join(sorted(supported)[:8])}",
        field=field,
        value=value,
    )
