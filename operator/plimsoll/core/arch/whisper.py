"""Speech in, text out, with BART's kind of decoder: Whisper, Speech2Text, SpeechT5, SeamlessM4T.

Whisper's encoder always makes ``max_source_positions`` positions, so its cross-attention cache is a
fixed part of each sequence. The others' length follows the audio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.encdec import (
    Stack,
    attention_of,
    causal,
    decoder_only,
    head_size,
    or_default,
    shared_embeddings,
    spec_of,
)
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.spec import Encoder, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

#: family -> the field that limits the decoder's length.
_LENGTHS: Final[Mapping[str, str]] = {
    "whisper": "max_target_positions",
    "speech_to_text": "max_target_positions",
    "speecht5": "max_text_positions",
    "seamless_m4t": "max_position_embeddings",
    "seamless_m4t_v2": "max_position_embeddings",
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of a speech model of this kind."""
    hidden = fields.first("d_model", "hidden_size", most=MAX_DIM)
    heads = fields.integer("decoder_attention_heads", MAX_DIM)
    layers = fields.integer("decoder_layers", MAX_LAYERS)
    attention = attention_of(
        layers, heads, head_size(fields, "decoder_attention_heads", hidden, heads)
    )
    spec = spec_of(
        fields,
        (family, architecture),
        attention,
        hidden=hidden,
        ffn=fields.integer("decoder_ffn_dim", MAX_DIM),
        vocab=fields.integer("vocab_size", MAX_VOCAB),
        context=_LENGTHS[family],
        tied=fields.flag("tie_word_embeddings", default=True),
    )
    fields.seen |= {"guided_attention_loss_num_heads", "num_feat_extract_layers"}
    spec = replace(spec, encoder=_cross(fields, spec))
    alone = family == "whisper" and decoder_only(fields)
    tensors = [*_decoder(spec)]
    if not alone:
        tensors += _encoder(fields, spec)
    # SeamlessM4T's encoder reads text too, so it shares the table.
    text = family.startswith("seamless")
    tensors += shared_embeddings(spec.vocab, hidden, tied=spec.tied, encoder=text)
    spec = replace(spec, tensors=tuple(tensors))
    if not text:
        spec = replace(spec, modalities=frozenset({"audio"}))
    return causal(spec) if alone else spec


def _cross(fields: Fields, spec: ModelSpec) -> Encoder:
    elements = 2 * spec.layers * spec.hidden
    if spec.family == "whisper":
        return Encoder(elements, fields.integer("max_source_positions", MAX_CONTEXT))
    if spec.family == "speech_to_text":
        # Counted per input frame: each of the convolutions in front halves the length.
        return Encoder(elements >> min(_convolutions(fields), 16))
    return Encoder(elements)


def _convolutions(fields: Fields) -> int:
    return or_default(fields, "num_conv_layers", MAX_LAYERS, 2)


def _decoder(spec: ModelSpec) -> Iterator[TensorGroup]:
    whisper = spec.family == "whisper"
    if whisper and spec.context_length is not None:
        shape = (spec.context_length, spec.hidden)
        yield TensorGroup("model.decoder.embed_positions.weight", shape)
    yield from Stack(
        prefix="model.decoder",
        layers=spec.layers,
        hidden=spec.hidden,
        ffn=spec.intermediate,
        source=spec.hidden,
        key_bias=not whisper,
        norm=spec.family != "speecht5",
    ).tensors()


def _encoder(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield from Stack(
        prefix="model.encoder",
        layers=fields.first("encoder_layers", "num_hidden_layers", most=MAX_LAYERS),
        hidden=spec.hidden,
        ffn=fields.integer("encoder_ffn_dim", MAX_DIM),
        key_bias=spec.family != "whisper",
    ).tensors()
    if spec.family == "whisper":
        bins = or_default(fields, "num_mel_bins", MAX_DIM, 80)
        yield from convolution("model.encoder.conv1", (spec.hidden, bins, 3))
        yield from convolution("model.encoder.conv2", (spec.hidden, spec.hidden, 3))
        rows = fields.integer("max_source_positions", MAX_CONTEXT)
        yield TensorGroup("model.encoder.embed_positions.weight", (rows, spec.hidden))
    if spec.family == "speech_to_text":
        yield from _subsampling(fields, spec)
    if spec.family == "speecht5":
        yield from _waveform(fields, spec)


def convolution(name: str, shape: tuple[int, ...], *, bias: bool = True) -> Iterator[TensorGroup]:
    """A convolution's kernel and bias."""
    yield TensorGroup(f"{name}.weight", shape)
    if bias:
        yield TensorGroup(f"{name}.bias", shape[:1])


def _subsampling(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Speech2Text's convolutions; a gate halves what each of them makes."""
    kernels = fields.integers("conv_kernel_sizes", MAX_DIM)
    count = min(_convolutions(fields), len(kernels))
    middle = or_default(fields, "conv_channels", MAX_DIM, 1024)
    read = or_default(fields, "input_feat_per_channel", MAX_DIM, 80)
    read *= or_default(fields, "input_channels", MAX_DIM, 1)
    for index, kernel in enumerate(kernels[:count]):
        made = middle if index < count - 1 else 2 * spec.hidden
        yield from convolution(f"model.encoder.conv.{index}", (made, read, kernel))
        read = made // 2


def _waveform(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """SpeechT5's convolutions over raw audio, as wav2vec 2 has them, and its relative positions."""
    rows = 2 * or_default(fields, "encoder_max_relative_position", MAX_CONTEXT, 160)
    heads = fields.integer("encoder_attention_heads", MAX_DIM)
    width = head_size(fields, "encoder_attention_heads", spec.hidden, heads)
    yield TensorGroup("model.encoder.embed_positions.pe_k.weight", (rows, width))
    yield from waveform(fields, "model.encoder.prenet", spec.hidden)


def waveform(fields: Fields, prefix: str, hidden: int) -> Iterator[TensorGroup]:
    """The front end of wav2vec 2: convolutions, a projection, convolved positions."""
    widths = fields.integers("conv_dim", MAX_DIM) or (512,) * 7
    kernels = fields.integers("conv_kernel", MAX_DIM) or (10, 3, 3, 3, 3, 2, 2)
    bias = fields.flag("conv_bias", default=False)
    every = fields.text("feat_extract_norm") == "layer"
    read = 1
    for index, (width, kernel) in enumerate(zip(widths, kernels, strict=False)):
        name = f"{prefix}.feature_encoder.conv.{index}"
        yield from convolution(name, (width, read, kernel), bias=bias)
        if every or index == 0:
            yield from norm(f"{name}.layer_norm", width, bias=True)
        read = width
    yield from norm(f"{prefix}.feature_projection.layer_norm", read, bias=True)
    yield from linear(f"{prefix}.feature_projection.projection", hidden, read, bias=True)
    kernel = or_default(fields, "num_conv_pos_embeddings", MAX_DIM, 128)
    groups = or_default(fields, "num_conv_pos_embedding_groups", MAX_DIM, 16)
    yield from convolution(f"{prefix}.pos_conv_embed", (hidden, hidden // groups, kernel))
    yield TensorGroup(f"{prefix}.pos_conv_embed.scale", (kernel,))
    if fields.number("mask_time_prob", 1, default=0.05) or fields.number(
        "mask_feature_prob", 1, default=0
    ):
        yield TensorGroup(f"{prefix}.masked_spec_embed", (hidden,))
