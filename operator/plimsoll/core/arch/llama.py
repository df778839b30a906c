"""Llama and its many look-alikes: every layer full, biases only where the config says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import ModelSpec

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Llama config. Defaults are those of transformers' LlamaConfig."""
    hidden = fields.integer("hidden_size", MAX_DIM, default=4096)
    heads = fields.integer("num_attention_heads", MAX_DIM, default=32)
    kv_heads, head_dim = heads_of(fields, hidden=hidden, heads=heads, head_dim=None)
    bias = fields.flag("attention_bias", default=False)
    return ModelSpec(
        family=family,
        architecture=architecture,
        layers=fields.integer("num_hidden_layers", MAX_LAYERS, default=32),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=fields.integer("intermediate_size", MAX_DIM, default=11008),
        vocab=fields.integer("vocab_size", MAX_VOCAB, default=32000),
        context_length=fields.integer("max_position_embeddings", MAX_CONTEXT, default=2048),
        dtype=fields.dtype(),
        tied=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        notes=tuple(fields.notes),
    )
