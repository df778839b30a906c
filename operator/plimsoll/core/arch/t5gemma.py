"""T5Gemma and T5Gemma 2: Gemma's layers as encoder and decoder.

The decoder's own cache has Gemma's windows; cross attention sees the whole encoder. The second
generation merges both attentions into one, over the same two caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch import encdec_towers as towers
from plimsoll.core.arch.encdec import Stack, attention_of, nested, or_default, spec_of
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.arch.windows import every_nth_full, layer_types, split, stated_window
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a T5Gemma config of either generation."""
    second = family == "t5gemma2"
    side = nested(fields, "decoder", "t5gemma2_decoder" if second else "t5_gemma_module")
    hidden = side.integer("hidden_size", MAX_DIM)
    layers = side.integer("num_hidden_layers", MAX_LAYERS)
    heads = side.integer("num_attention_heads", MAX_DIM)
    kv_heads, head_dim = heads_of(side, hidden=hidden, heads=heads)
    attention = attention_of(layers, heads, head_dim, kv_heads)
    vocab = side.integer("vocab_size", MAX_VOCAB)
    fields.seen.add("vocab_size")  # repeated outside; the class looks at the decoder's
    spec = spec_of(
        side,
        (family, architecture),
        attention,
        hidden=hidden,
        ffn=side.integer("intermediate_size", MAX_DIM),
        vocab=vocab,
        tied=fields.flag("tie_word_embeddings", default=True),
    )
    interval = or_default(side, "sliding_window_pattern", MAX_LAYERS, 6) if second else 2
    caches = split(
        layer_types(side, layers) or every_nth_full(layers, interval),
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        window=stated_window(side),
    )
    spec = replace(spec, caches=caches, dtype=spec.dtype or fields.dtype())
    build = _second if second else _first
    spec = replace(spec, tensors=tuple(build(fields, side, spec)))
    return replace(spec, modalities=frozenset({"vision"})) if second else spec


def _stack(side: Fields, prefix: str, *, second: bool, source: int = 0) -> Stack:
    hidden = side.integer("hidden_size", MAX_DIM)
    heads = side.integer("num_attention_heads", MAX_DIM)
    kv_heads, head_dim = heads_of(side, hidden=hidden, heads=heads)
    return Stack(
        prefix=prefix,
        layers=side.integer("num_hidden_layers", MAX_LAYERS),
        hidden=hidden,
        ffn=side.integer("intermediate_size", MAX_DIM),
        inner=heads * head_dim,
        kv_inner=kv_heads * head_dim,
        source=source,
        bias=side.flag("attention_bias", default=False),
        mlp_bias=False,
        norm_bias=False,
        gated=True,
        norms=6 if source else 4,
        head_norms=head_dim if second else 0,
    )


def _first(fields: Fields, side: Fields, spec: ModelSpec) -> list[TensorGroup]:
    encoder = nested(fields, "encoder", "t5_gemma_module")
    wide = encoder.integer("hidden_size", MAX_DIM)
    source = or_default(side, "cross_attention_hidden_size", MAX_DIM, wide)
    tables = {"model.encoder.embed_tokens": wide, "model.decoder.embed_tokens": spec.hidden}
    if not spec.tied:
        tables["lm_head"] = spec.hidden
    return [
        *(TensorGroup(f"{name}.weight", (spec.vocab, width)) for name, width in tables.items()),
        *_stack(encoder, "model.encoder", second=False).tensors(),
        *_stack(side, "model.decoder", second=False, source=source).tensors(),
    ]


def _second(fields: Fields, side: Fields, spec: ModelSpec) -> list[TensorGroup]:
    encoder = fields.child("encoder")
    text = nested(encoder, "text_config", "t5gemma2_text")
    vision = encoder.child("vision_config")
    wide = text.integer("hidden_size", MAX_DIM)
    seen = towers.base(vision, "hidden_size")
    tables = (
        ["model.embed_tokens"]
        if spec.tied
        else ["model.embed_tokens", "model.decoder.embed_tokens", "lm_head"]
    )
    return [
        *(TensorGroup(f"{name}.weight", (spec.vocab, wide)) for name in tables),
        TensorGroup("model.embed_tokens.eoi_embedding", (wide,)),
        *_stack(text, "model.encoder", second=True).tensors(),
        *_stack(side, "model.decoder", second=True).tensors(),
        *towers.siglip(vision, "vision_tower"),
        TensorGroup("multi_modal_projector.mm_input_projection_weight", (seen, wide)),
        TensorGroup("multi_modal_projector.mm_soft_emb_norm.weight", (seen,)),
    ]
