"""What every Llama-like config.json says with the same words: the sizes of plain attention.

A family's reader starts from this and replaces what is its own: windows, experts, biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import ModelSpec

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values of a transformers config class for sizes that a config.json leaves out."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocab: int
    context_length: int
    head_dim: int | None = None


def read_plain(fields: Fields, family: str, architecture: str, defaults: Defaults) -> ModelSpec:
    """Every layer full, no experts, no biases.

    ``notes`` is what was noted so far: a reader that asks for more fields takes it again.

    Raises:
        BadModel: A size is of the wrong type or out of range.
    """
    hidden = fields.integer("hidden_size", MAX_DIM, default=defaults.hidden)
    heads = fields.integer("num_attention_heads", MAX_DIM, default=defaults.heads)
    layers = fields.integer("num_hidden_layers", MAX_LAYERS, default=defaults.layers)
    kv_heads, head_dim = heads_of(fields, hidden=hidden, heads=heads, head_dim=defaults.head_dim)
    return ModelSpec(
        family=family,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=fields.integer("intermediate_size", MAX_DIM, default=defaults.intermediate),
        vocab=fields.integer("vocab_size", MAX_VOCAB, default=defaults.vocab),
        context_length=fields.integer(
            "max_position_embeddings", MAX_CONTEXT, default=defaults.context_length
        ),
        dtype=fields.dtype(),
        tied=fields.flag("tie_word_embeddings", default=False),
        notes=tuple(fields.notes),
    )
