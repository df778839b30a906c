"""Text in, audio codes out: Dia and MusicGen. A token is one step of all codebooks at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.core.arch.encdec import Attention, Stack, attention_of, head_size, nested, spec_of
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import Encoder, TensorGroup

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of Dia or MusicGen."""
    spec = _dia(fields, architecture) if family == "dia" else _music(fields, family, architecture)
    return replace(spec, modalities=frozenset({"audio"}), dtype=spec.dtype or fields.dtype())


def _dia(fields: Fields, architecture: str) -> ModelSpec:
    side = nested(fields, "decoder_config", "dia_decoder")
    hidden = side.integer("hidden_size", MAX_DIM)
    heads = side.integer("num_attention_heads", MAX_DIM)
    kv_heads, head_dim = heads_of(side, hidden=hidden, heads=heads)
    attention = Attention(
        layers=side.integer("num_hidden_layers", MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        cross_kv_heads=side.integer("cross_num_key_value_heads", MAX_DIM),
        cross_head_dim=side.integer("cross_head_dim", MAX_DIM),
    )
    codes = side.integer("vocab_size", MAX_VOCAB) * side.integer("num_channels", MAX_DIM)
    spec = spec_of(
        side,
        ("dia", architecture),
        attention,
        hidden=hidden,
        ffn=side.integer("intermediate_size", MAX_DIM),
        vocab=codes,
        tied=False,
    )
    reader = nested(fields, "encoder_config", "dia_encoder")
    wide = reader.integer("hidden_size", MAX_DIM)
    asked = reader.integer("num_attention_heads", MAX_DIM)
    told, size = heads_of(reader, hidden=wide, heads=asked)
    decoder = Stack(
        prefix="model.decoder",
        layers=attention.layers,
        hidden=hidden,
        ffn=spec.intermediate,
        inner=heads * head_dim,
        kv_inner=kv_heads * head_dim,
        cross_kv_inner=attention.cross_kv_heads * attention.cross_head_dim,
        source=side.integer("cross_hidden_size", MAX_DIM),
    ).bare()
    encoder = Stack(
        prefix="model.encoder",
        layers=reader.integer("num_hidden_layers", MAX_LAYERS),
        hidden=wide,
        ffn=reader.integer("intermediate_size", MAX_DIM),
        inner=asked * size,
        kv_inner=told * size,
    ).bare()
    rows = reader.integer("vocab_size", MAX_VOCAB)
    tensors = (
        TensorGroup("model.encoder.embedding.weight", (rows, wide)),
        TensorGroup("model.decoder.embed_tokens.weight", (codes, hidden)),
        TensorGroup("lm_head.weight", (codes, hidden)),
        *encoder.tensors(),
        *decoder.tensors(),
    )
    return replace(spec, tensors=tensors)


def _music(fields: Fields, family: str, architecture: str) -> ModelSpec:
    side = nested(fields, "decoder", f"{family}_decoder")
    hidden = side.integer("hidden_size", MAX_DIM)
    heads = side.integer("num_attention_heads", MAX_DIM)
    layers = side.integer("num_hidden_layers", MAX_LAYERS)
    # The melody model puts the text before the codes instead of attending to it.
    crossed = family == "musicgen"
    spec = spec_of(
        side,
        (family, architecture.replace("ForCausalLM", "ForConditionalGeneration")),
        attention_of(layers, heads, head_size(side, "num_attention_heads", hidden, heads)),
        hidden=hidden,
        ffn=side.integer("ffn_dim", MAX_DIM),
        vocab=side.integer("vocab_size", MAX_VOCAB),
        context=None,
        tied=False,
        encoder=crossed,
    )
    decoder = Stack(
        prefix="decoder",
        layers=layers,
        hidden=hidden,
        ffn=spec.intermediate,
        source=hidden if crossed else 0,
        bias=False,
        mlp_bias=False,
    )
    books = tuple(range(side.integer("num_codebooks", MAX_LAYERS)))
    tensors = [
        *decoder.tensors(),
        TensorGroup("decoder.embed_codes.*.weight", (spec.vocab + 1, hidden), books),
        TensorGroup("decoder.lm_heads.*.weight", (spec.vocab, hidden), books),
    ]
    if crossed:
        spec = replace(spec, encoder=Encoder(2 * layers * hidden))
    fields.notes.append(
        "weights of the text encoder and the audio codec are not computed from the config"
    )
    return replace(spec, tensors=tuple(tensors))
