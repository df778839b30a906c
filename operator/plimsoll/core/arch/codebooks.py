"""Text in, audio codes out: Dia and MusicGen. A token is one step of all codebooks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import linear
from plimsoll.core.arch.encdec import (
    Attention,
    Stack,
    attention_of,
    head_size,
    nested,
    or_default,
    spec_of,
)
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.registry import read_as
from plimsoll.core.arch.spec import Encoder, TensorGroup
from plimsoll.core.arch.whisper import convolution
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    tensors = (
        TensorGroup("model.decoder.embed_tokens.weight", (codes, hidden)),
        TensorGroup("lm_head.weight", (codes, hidden)),
        *_reader(nested(fields, "encoder_config", "dia_encoder")),
        *decoder.tensors(),
    )
    return replace(spec, tensors=tensors)


def _reader(side: Fields) -> Iterator[TensorGroup]:
    """Dia's encoder of text."""
    hidden = side.integer("hidden_size", MAX_DIM)
    heads = side.integer("num_attention_heads", MAX_DIM)
    kv_heads, size = heads_of(side, hidden=hidden, heads=heads)
    rows = side.integer("vocab_size", MAX_VOCAB)
    yield TensorGroup("model.encoder.embedding.weight", (rows, hidden))
    stack = Stack(
        prefix="model.encoder",
        layers=side.integer("num_hidden_layers", MAX_LAYERS),
        hidden=hidden,
        ffn=side.integer("intermediate_size", MAX_DIM),
        inner=heads * size,
        kv_inner=kv_heads * size,
    )
    yield from stack.bare().tensors()


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
    tensors += _companions(fields, family, hidden)
    return replace(spec, tensors=tuple(tensors))


def _companions(fields: Fields, family: str, hidden: int) -> Iterator[TensorGroup]:
    """The text encoder, the audio codec, and what fits their widths to the decoder's."""
    values = {**fields.child("text_encoder").values, "architectures": None}
    kind = values.get("model_type", "t5")
    if kind == "t5":
        text = read_as("t5", values, notes=fields.notes, path="text_encoder.")
        for group in text.tensors:
            if group.name.startswith(("shared.", "encoder.")):
                yield replace(group, name=f"text_encoder.{group.name}")
        if text.hidden != hidden:
            yield from linear("enc_to_dec_proj", hidden, text.hidden, bias=True)
    else:
        fields.notes.append("weights of the text encoder are not computed from the config")
    if family == "musicgen_melody":
        chroma = or_default(fields, "num_chroma", MAX_DIM, 12)
        yield from linear("audio_enc_to_dec_proj", hidden, chroma, bias=True)
    yield from encodec(nested(fields, "audio_encoder", "encodec"), "audio_encoder")


def encodec(fields: Fields, prefix: str) -> Iterator[TensorGroup]:
    """EnCodec: convolutions down to codes and up again; codebooks are no parameters."""
    width = or_default(fields, "num_filters", MAX_DIM, 32)
    made = or_default(fields, "hidden_size", MAX_DIM, 128)
    channels = or_default(fields, "audio_channels", MAX_DIM, 1)
    first = or_default(fields, "kernel_size", MAX_DIM, 7)
    last = or_default(fields, "last_kernel_size", MAX_DIM, 7)
    ratios = (fields.integers("upsampling_ratios", MAX_DIM) or (8, 5, 4, 2))[:16]
    yield from _normed(f"{prefix}.encoder.first", width, channels, first)
    for index, ratio in enumerate(reversed(ratios)):
        yield from _residual(fields, f"{prefix}.encoder.{index}", width)
        yield from _normed(f"{prefix}.encoder.{index}.down", 2 * width, width, 2 * ratio)
        width *= 2
    yield from _normed(f"{prefix}.encoder.last", made, width, last)
    yield from _normed(f"{prefix}.decoder.first", width, made, first)
    for side in ("encoder", "decoder"):
        for layer in range(or_default(fields, "num_lstm_layers", MAX_LAYERS, 2)):
            name = f"{prefix}.{side}.lstm.{layer}"
            yield from linear(f"{name}.input", 4 * width, width, bias=True)
            yield from linear(f"{name}.hidden", 4 * width, width, bias=True)
    for index, ratio in enumerate(ratios):
        name = f"{prefix}.decoder.{index}.up"
        yield TensorGroup(f"{name}.scale", (width,))
        yield TensorGroup(f"{name}.weight", (width, width // 2, 2 * ratio))
        width //= 2
        yield TensorGroup(f"{name}.bias", (width,))
        yield from _residual(fields, f"{prefix}.decoder.{index}", width)
    yield from _normed(f"{prefix}.decoder.last", channels, width, last)


def _normed(name: str, out: int, read: int, kernel: int) -> Iterator[TensorGroup]:
    """A convolution whose kernel is kept as direction and length."""
    yield from convolution(name, (out, read, kernel))
    yield TensorGroup(f"{name}.scale", (out,))


def _residual(fields: Fields, prefix: str, width: int) -> Iterator[TensorGroup]:
    kernel = or_default(fields, "residual_kernel_size", MAX_DIM, 3)
    inner = max(1, width // or_default(fields, "compress", MAX_DIM, 2))
    for index in range(or_default(fields, "num_residual_layers", MAX_LAYERS, 1)):
        yield from _normed(f"{prefix}.block.{index}.0", inner, width, kernel)
        yield from _normed(f"{prefix}.block.{index}.1", width, inner, 1)
        if fields.flag("use_conv_shortcut", default=True):
            yield from _normed(f"{prefix}.block.{index}.shortcut", width, width, 1)
