"""ProphetNet: an encoder-decoder whose decoder predicts several next tokens.

The further streams are computed anew for each token; only the main one is cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.encdec import (
    Stack,
    attention_of,
    causal,
    decoder_only,
    head_size,
    or_default,
    spec_of,
)
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a ProphetNet config."""
    hidden = fields.integer("hidden_size", MAX_DIM)
    heads = fields.integer("num_decoder_attention_heads", MAX_DIM)
    layers = fields.integer("num_decoder_layers", MAX_LAYERS)
    alone = decoder_only(fields)
    spec = spec_of(
        fields,
        (family, architecture),
        attention_of(
            layers, heads, head_size(fields, "num_decoder_attention_heads", hidden, heads)
        ),
        hidden=hidden,
        ffn=fields.integer("decoder_ffn_dim", MAX_DIM),
        vocab=fields.integer("vocab_size", MAX_VOCAB),
        tied=fields.flag("tie_word_embeddings", default=True),
        encoder=fields.flag("add_cross_attention", default=True),
    )
    decoder = Stack(
        prefix="model.decoder",
        layers=layers,
        hidden=hidden,
        ffn=spec.intermediate,
        source=hidden if spec.encoder else 0,
        norm=False,
    )
    tensors = [*decoder.tensors(), *_embeddings(spec, alone=alone)]
    buckets = or_default(fields, "num_buckets", MAX_DIM, 32)
    every = tuple(range(layers))
    tensors += linear(
        "model.decoder.layers.*.self_attn.relative_pos_embeddings",
        buckets * heads,
        hidden,
        every,
        bias=True,
    )
    ngram = or_default(fields, "ngram", MAX_DIM, 2)
    tensors.append(TensorGroup("model.decoder.ngram_embeddings.weight", (ngram, hidden)))
    if not alone:
        tensors += Stack(
            prefix="model.encoder",
            layers=fields.integer("num_encoder_layers", MAX_LAYERS),
            hidden=hidden,
            ffn=fields.integer("encoder_ffn_dim", MAX_DIM),
            norm=False,
        ).tensors()
    spec = replace(spec, tensors=tuple(tensors))
    return causal(spec) if alone else spec


def _embeddings(spec: ModelSpec, *, alone: bool) -> list[TensorGroup]:
    tables = ["model.word_embeddings"] if spec.tied else ["model.word_embeddings", "lm_head"]
    if not spec.tied:
        tables += ["model.decoder.word_embeddings"] if alone else [
            "model.encoder.word_embeddings", "model.decoder.word_embeddings",
        ]  # fmt: skip
    groups = [TensorGroup(f"{name}.weight", (spec.vocab, spec.hidden)) for name in tables]
    for side in ("decoder",) if alone else ("encoder", "decoder"):
        if spec.context_length is not None:
            shape = (spec.context_length, spec.hidden)
            groups.append(TensorGroup(f"model.{side}.position_embeddings.weight", shape))
        groups += norm(f"model.{side}.embeddings_layer_norm", spec.hidden, bias=True)
    return groups
