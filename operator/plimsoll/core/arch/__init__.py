"""From a config.json, or GGUF's metadata, to a ModelSpec.

``registry`` says which module reads which model_type. A model_type without a row is tried by
structure: a config that names every size of plain attention is read, and marked as an estimate.
It is never read as "probably like Llama": hybrids, latent attention and windows change the cache by
factors of up to 70.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.classes import MISTYPED, type_of
from plimsoll.core.arch.fields import Fields
from plimsoll.core.arch.gguf_names import ARCHITECTURE_KEY, ARCHITECTURES
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
from plimsoll.core.quantization import quantization_of
from plimsoll.core.records import replace

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
    if ARCHITECTURE_KEY in config:
        from plimsoll.core.arch import gguf  # noqa: PLC0415 - most models are not GGUF

        name = config[ARCHITECTURE_KEY]
        if not isinstance(name, str) or not name:
            raise _unsupported(ARCHITECTURE_KEY, name, ARCHITECTURES)
        return gguf.read(Fields(config), name)
    named = _class_name(config)
    model_type = config.get("model_type")
    if model_type is None and named is not None:
        # Without a model_type the class decides; some converters leave it out.
        model_type = type_of(named)
    if named is not None:
        model_type = MISTYPED.get(named, model_type)
    if not isinstance(model_type, str):
        raise _unsupported("model_type", model_type or named, FAMILIES)
    known = model_type in FAMILIES
    spec = read_as(model_type, config) if known else _unknown(model_type, config)
    spec = replace(spec, quantization=quantization_of(config))
    if not known:
        return spec
    usual = architecture_of(model_type)
    if named is not None and named.lower() not in {usual.lower(), spec.architecture.lower()}:
        spec = spec.noting(
            f"architectures names {named[:64]}, which is read as {usual}, the usual class of {model_type}"
        )
    return spec


#: Where wrappers of unknown type keep their text model, in this order.
_NESTED: Final = (
    ("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"),
    ("decoder",),
)  # fmt: skip


def _unknown(model_type: str, config: Mapping[str, Any]) -> ModelSpec:
    """A type without a row: its nested text model if that is known, else what the structure says."""
    from plimsoll.core.arch.structure import read_structure  # noqa: PLC0415 - most types have a row

    for keys in _NESTED:
        inner: Any = config
        for key in keys:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or not inner:
            continue
        path = "".join(f"{key}." for key in keys)
        kind = inner.get("model_type")
        if not isinstance(kind, str) or kind not in FAMILIES:
            return read_structure(kind if isinstance(kind, str) else model_type, inner, path)
        return read_as(kind, inner, path=path).noting(
            f"model_type {model_type[:64]} is not known; only its text model, {path[:-1]} of the type "
            f"{kind}, is counted"
        )
    return read_structure(model_type, config)


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
    known = [
        name for name in ("deepseek_v3", "gemma3", "llama", "mistral", "qwen3") if name in supported
    ]
    return Unsupported(
        f"{field} {value!r:.80} is not supported; supported are {len(supported)} kinds, among them "
        f"{', '.join(known)}",
        field=field,
        value=value,
    )
