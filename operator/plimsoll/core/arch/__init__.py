"""From a config.json, or GGUF's metadata, to a ModelSpec: one row per family.

A model whose row is missing is refused by name. It is never read as "probably like Llama": hybrids,
latent attention and windows change the cache by factors of up to 70.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch import gguf, llama, mistral, mixtral, qwen
from plimsoll.core.arch.fields import Fields
from plimsoll.core.arch.spec import Experts, ModelSpec
from plimsoll.core.errors import BadModel, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FAMILIES", "Experts", "Family", "ModelSpec", "read_spec"]


@dataclass(frozen=True, slots=True)
class Family:
    """One row: how to read it, and the class name that its files carry in ``architectures``."""

    read: Callable[[Fields, str, str], ModelSpec]
    architecture: str


#: model_type -> row. A new family is one module and one row.
FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(llama.read, "LlamaForCausalLM"),
    "mistral": Family(mistral.read, "MistralForCausalLM"),
    "mixtral": Family(mixtral.read, "MixtralForCausalLM"),
    "qwen2": Family(qwen.read, "Qwen2ForCausalLM"),
    "qwen2_moe": Family(qwen.read, "Qwen2MoeForCausalLM"),
    "qwen3": Family(qwen.read, "Qwen3ForCausalLM"),
    "qwen3_moe": Family(qwen.read, "Qwen3MoeForCausalLM"),
}


def read_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Read a parsed config.json, or GGUF metadata (told by ``general.architecture``).

    Raises:
        BadModel: A field of the wrong type or out of range.
        Unsupported: A family or class without a row here.
    """
    if gguf.ARCHITECTURE_KEY in config:
        name = config[gguf.ARCHITECTURE_KEY]
        spec = gguf.read(Fields(config), name) if isinstance(name, str) else None
        if spec is None:
            raise _unsupported(gguf.ARCHITECTURE_KEY, name, gguf.ARCHITECTURES)
        return spec
    named = _class_name(config)
    model_type = config.get("model_type")
    if model_type is None:
        # Without a model_type the class decides; some converters leave it out.
        by_class = {row.architecture: name for name, row in FAMILIES.items()}
        if named not in by_class:
            raise _unsupported("model_type", named, FAMILIES)
        model_type = by_class[named]
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise _unsupported("model_type", model_type, FAMILIES)
    family = FAMILIES[model_type]
    if named is not None and named != family.architecture:
        raise Unsupported(
            f"architectures names {named[:64]!r}; of {model_type}, {family.architecture} is supported",
            field="architectures",
            value=named,
        )
    return family.read(Fields(config), model_type, family.architecture)


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
        f"{field} {value!r:.80} is not supported; supported are {', '.join(sorted(supported))}",
        field=field,
        value=value,
    )
