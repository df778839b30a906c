"""Mistral: Llama with a window on every layer.

Absent is not null here: without ``sliding_window`` the window is 4096, with null there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import ModelSpec

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields

_ABSENT_WINDOW: Final = 4096
_LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Mistral config. Defaults are those of transformers' MistralConfig."""
    hidden = fields.integer("hidden_size", MAX_DIM, default=4096)
    heads = fields.integer("num_attention_heads", MAX_DIM, default=32)
    layers = fields.integer("num_hidden_layers", MAX_LAYERS, default=32)
    kv_heads, head_dim = heads_of(fields, hidden=hidden, heads=heads, head_dim=None)
    window = (
        fields.optional("sliding_window", MAX_CONTEXT, least=0)
        if "sliding_window" in fields.values
        else _ABSENT_WINDOW
    )
    kinds = fields.choices("layer_types", layers, _LAYER_TYPES)
    windowed = layers if kinds is None else kinds.count("sliding_attention")
    return ModelSpec(
        family=family,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=fields.integer("intermediate_size", MAX_DIM, default=14336),
        vocab=fields.integer("vocab_size", MAX_VOCAB, default=32000),
        context_length=fields.integer("max_position_embeddings", MAX_CONTEXT, default=131072),
        dtype=fields.dtype(),
        tied=fields.flag("tie_word_embeddings", default=False),
        window=window or None,
        windowed_layers=windowed if window else 0,
        notes=tuple(fields.notes),
    )
