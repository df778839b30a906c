"""Mixtral: experts in every layer, a window only where the config states one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.fields import (
    MAX_CONTEXT,
    MAX_DIM,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_VOCAB,
    heads_of,
)
from plimsoll.core.arch.spec import Experts, ModelSpec

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Mixtral config. Defaults are those of transformers' MixtralConfig."""
    hidden = fields.integer("hidden_size", MAX_DIM, default=4096)
    heads = fields.integer("num_attention_heads", MAX_DIM, default=32)
    layers = fields.integer("num_hidden_layers", MAX_LAYERS, default=32)
    kv_heads, head_dim = heads_of(fields, hidden=hidden, heads=heads, head_dim=None)
    intermediate = fields.integer("intermediate_size", MAX_DIM, default=14336)
    window = fields.optional("sliding_window", MAX_CONTEXT, least=0)
    experts = Experts(
        count=fields.integer("num_local_experts", MAX_EXPERTS, default=8),
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS, default=2),
        intermediate=intermediate,
        shared_intermediate=0,
        layers=frozenset(range(layers)),
    )
    return ModelSpec(
        family=family,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=intermediate,
        vocab=fields.integer("vocab_size", MAX_VOCAB, default=32000),
        context_length=fields.integer("max_position_embeddings", MAX_CONTEXT, default=131072),
        dtype=fields.dtype(),
        tied=fields.flag("tie_word_embeddings", default=False),
        window=window or None,
        windowed_layers=layers if window else 0,
        experts=experts,
        notes=tuple(fields.notes),
    )
