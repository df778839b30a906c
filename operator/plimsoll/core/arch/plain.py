"""What every Llama-like config.json says with the same words: the sizes of plain attention.

A family's reader starts from this and replaces what is its own: windows, experts, biases.
Sizes that a file leaves out are those of transformers' config class, see ``classes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import CacheGroup, ModelSpec

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields


def read_plain(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Every layer full, no experts; ``tensors`` are left to the caller.

    Raises:
        BadModel: A size is of the wrong type or out of range.
    """
    hidden = fields.first("hidden_size", "n_embd", "n_embed", "d_model", most=MAX_DIM)
    heads = fields.first("num_attention_heads", "n_head", "n_heads", most=MAX_DIM)
    layers = fields.first("num_hidden_layers", "n_layer", "n_layers", most=MAX_LAYERS)
    kv_heads, head_dim = heads_of(fields, hidden=hidden, heads=heads)
    return ModelSpec(
        family=family,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=fields.optional("intermediate_size", MAX_DIM) or 4 * hidden,
        vocab=fields.integer("vocab_size", MAX_VOCAB),
        context_length=fields.optional("max_position_embeddings", MAX_CONTEXT),
        dtype=fields.dtype(),
        tied=fields.flag("tie_word_embeddings", default=False),
        caches=(CacheGroup(layers, kv_heads, head_dim, head_dim),),
        notes=tuple(fields.notes),
    )
