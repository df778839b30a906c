"""GGUF metadata, which names the same quantities by other keys.

Mistral and Mixtral are written as ``llama`` there; Mixtral is told by its experts. llama.cpp gives
these architectures no window, so none is read.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.arch.fields import (
    MAX_CONTEXT,
    MAX_DIM,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_VOCAB,
    Fields,
)
from plimsoll.core.arch.spec import CacheGroup, Experts, ModelSpec

ARCHITECTURE_KEY: Final = "general.architecture"
#: Key under which a reader leaves the number of entries of an array that it did not keep.
LENGTH_SUFFIX: Final = "#length"

#: general.architecture -> (family, class name); the second pair where there are experts.
ARCHITECTURES: Final = {
    "llama": (("llama", "LlamaForCausalLM"), ("mixtral", "MixtralForCausalLM")),
    "qwen2": (("qwen2", "Qwen2ForCausalLM"), None),
    "qwen3": (("qwen3", "Qwen3ForCausalLM"), None),
    "qwen2moe": (None, ("qwen2_moe", "Qwen2MoeForCausalLM")),
    "qwen3moe": (None, ("qwen3_moe", "Qwen3MoeForCausalLM")),
}


def read(fields: Fields, name: str) -> ModelSpec | None:
    """Read GGUF metadata; None when the architecture is not in the table.

    Raises:
        BadModel: A value of the wrong type or out of range; the key is the field.
    """
    if name not in ARCHITECTURES:
        return None
    dense, mixture = ARCHITECTURES[name]
    count = fields.optional(f"{name}.expert_count", MAX_EXPERTS, least=0) or 0
    chosen = mixture if count else dense
    if chosen is None:
        raise fields.wrong(f"{name}.expert_count", "0 for a dense architecture, more for a mixture")
    family, architecture = chosen
    hidden = fields.integer(f"{name}.embedding_length", MAX_DIM)
    layers = fields.integer(f"{name}.block_count", MAX_LAYERS)
    heads = _same(fields, f"{name}.attention.head_count", layers)
    kv_key = f"{name}.attention.head_count_kv"
    kv_heads = _same(fields, kv_key, layers) if fields.has(kv_key) else heads
    if kv_heads > heads or heads % kv_heads:
        raise fields.wrong(kv_key, f"a divisor of the {heads} query heads")
    if hidden < heads:
        raise fields.wrong(f"{name}.embedding_length", f"at least the {heads} query heads")
    width = fields.optional(f"{name}.feed_forward_length", MAX_DIM) or hidden
    key_dim = fields.optional(f"{name}.attention.key_length", MAX_DIM) or hidden // heads
    value_dim = fields.optional(f"{name}.attention.value_length", MAX_DIM) or hidden // heads
    return ModelSpec(
        family=family,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        intermediate=width,
        vocab=_vocab(fields, name),
        context_length=fields.optional(f"{name}.context_length", MAX_CONTEXT),
        dtype=None,
        tied=False,
        caches=(CacheGroup(layers, kv_heads, key_dim, value_dim),),
        experts=_experts(fields, name, count, width, layers) if count else None,
        notes=tuple(fields.notes),
    )


def _same(fields: Fields, key: str, layers: int) -> int:
    """A number, or a list that repeats one number for every layer."""
    value = fields.values.get(key)
    if isinstance(value, list):
        if len(value) != layers or len(set(value)) != 1:
            raise fields.wrong(key, "the same number for every layer")
        return Fields({key: value[0]}).integer(key, MAX_DIM)
    return fields.integer(key, MAX_DIM)


def _vocab(fields: Fields, name: str) -> int:
    stated = fields.optional(f"{name}.vocab_size", MAX_VOCAB)
    if stated is not None:
        return stated
    return fields.integer("tokenizer.ggml.tokens" + LENGTH_SUFFIX, MAX_VOCAB, default=152064)


def _experts(fields: Fields, name: str, count: int, width: int, layers: int) -> Experts:
    return Experts(
        count=count,
        per_token=fields.integer(f"{name}.expert_used_count", MAX_EXPERTS, default=2),
        intermediate=fields.optional(f"{name}.expert_feed_forward_length", MAX_DIM) or width,
        shared_intermediate=fields.optional(f"{name}.expert_shared_feed_forward_length", MAX_DIM)
        or 0,
        layers=frozenset(range(layers)),
    )
