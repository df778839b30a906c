"""What every Llama-like config.json says with the same words: the sizes of plain attention.

A family's reader starts from this and replaces what is its own: windows, experts, biases.
Sizes that a file leaves out are those of transformers' config class, see ``classes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import CacheGroup, ModelSpec

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields


#: Spellings by quantity; the one that a file states wins.
HIDDEN: Final = ("hidden_size", "n_embed", "n_embd", "d_model", "emb_dim")
HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS: Final = ("intermediate_size", "n_inner", "ffn_dim", "dim_ff", "dff", "ffn_hidden_size")
CONTEXTS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
HEAD_SIZES: Final = ("head_dim", "attention_head_dim", "kv_channels", "dim_head")


def read_plain(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Every layer full, no experts; ``tensors`` are left to the caller.

    Raises:
        BadModel: A size is of the wrong type or out of range.
    """
    hidden = fields.first(*HIDDEN, most=MAX_DIM)
    heads = fields.first(*HEADS, most=MAX_DIM)
    layers = fields.first(*LAYERS, most=MAX_LAYERS)
    kv_heads, head_dim = heads_of(fields, hidden=hidden, heads=heads, head_keys=HEAD_SIZES)
    return ModelSpec(
        family=family,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=_width(fields) or 4 * hidden,
        vocab=fields.integer("vocab_size", MAX_VOCAB),
        context_length=_context(fields),
        dtype=fields.dtype(),
        tied=fields.flag("tie_word_embeddings", default=False),
        caches=(CacheGroup(layers, kv_heads, head_dim, head_dim),),
        notes=tuple(fields.notes),
    )


def _width(fields: Fields) -> int | None:
    """Width of the dense feed-forward part; None when absent, or a list that the caller reads."""
    for key in WIDTHS:
        if fields.has(key) and not isinstance(fields.get(key), list):
            return fields.optional(key, MAX_DIM)
    return None


def _context(fields: Fields) -> int | None:
    for key in CONTEXTS:
        if fields.values.get(key) is not None:
            return fields.optional(key, MAX_CONTEXT)
    for key in CONTEXTS:
        if fields.has(key):
            return fields.optional(key, MAX_CONTEXT)
    return None
