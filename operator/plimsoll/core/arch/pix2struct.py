"""Pix2Struct: patches in, text out. Heads of ``d_kv`` as in T5, the longest encoder input in patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import linear
from plimsoll.core.arch.encdec import Stack, attention_of, nested, or_default, spec_of
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Pix2Struct config."""
    text = nested(fields, "text_config", "pix2struct_text_model")
    vision = nested(fields, "vision_config", "pix2struct_vision_model")
    hidden = text.integer("hidden_size", MAX_DIM)
    heads = text.integer("num_heads", MAX_DIM)
    head_dim = text.integer("d_kv", MAX_DIM)
    layers = text.integer("num_layers", MAX_LAYERS)
    spec = spec_of(
        text,
        (family, architecture),
        attention_of(layers, heads, head_dim),
        hidden=hidden,
        ffn=text.integer("d_ff", MAX_DIM),
        vocab=text.integer("vocab_size", MAX_VOCAB),
        context=None,
        tied=fields.flag("tie_word_embeddings", default=False),
    )
    decoder = Stack(
        prefix="decoder",
        layers=layers,
        hidden=hidden,
        ffn=spec.intermediate,
        inner=heads * head_dim,
        source=hidden,
    ).bare()
    buckets = or_default(text, "relative_attention_num_buckets", MAX_DIM, 32)
    name = "decoder.layers.*.self_attn.relative_attention_bias.weight"
    tensors = [
        TensorGroup("decoder.embed_tokens.weight", (spec.vocab, hidden)),
        *([] if spec.tied else [TensorGroup("lm_head.weight", (spec.vocab, hidden))]),
        *decoder.tensors(),
        TensorGroup(name, (buckets, heads), (0,)),
        *_patches(vision),
    ]
    return replace(
        spec,
        tensors=tuple(tensors),
        modalities=frozenset({"vision"}),
        dtype=spec.dtype or fields.dtype(),
    )


def _patches(vision: Fields) -> Iterator[TensorGroup]:
    """The encoder, with one learned position for each row and each column."""
    hidden = vision.integer("hidden_size", MAX_DIM)
    stack = Stack(
        prefix="vision_tower",
        layers=vision.integer("num_hidden_layers", MAX_LAYERS),
        hidden=hidden,
        ffn=vision.integer("d_ff", MAX_DIM),
        inner=vision.integer("num_attention_heads", MAX_DIM) * vision.integer("d_kv", MAX_DIM),
    )
    yield from stack.bare().tensors()
    patch = vision.integer("patch_embed_hidden_size", MAX_DIM)
    prefix = "vision_tower.embeddings"
    yield from linear(f"{prefix}.patch_projection", hidden, patch, bias=True)
    rows = vision.integer("seq_len", MAX_CONTEXT)
    for axis in ("row", "column"):
        yield TensorGroup(f"{prefix}.{axis}_embedder.weight", (rows, hidden))
