"""Speech in, text out, with a Llama-like decoder: Moonshine, Canary, Cohere ASR.

The cross-attention cache is counted per position of the encoder's output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.encdec import Stack, attention_of, nested, or_default, spec_of
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS, MAX_VOCAB, heads_of
from plimsoll.core.arch.spec import ModelSpec, TensorGroup
from plimsoll.core.arch.whisper import convolution
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields

#: The conformer's sizes where a config has no ``encoder_config`` at all.
_ENCODERS: Final[Mapping[str, Mapping[str, int]]] = {
    "canary": {"num_hidden_layers": 32, "num_mel_bins": 128},
    "cohere_asr": {
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 48, "num_mel_bins": 128,
    },
}  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these."""
    sizes = nested(fields, "decoder_config", "canary_decoder") if family == "canary" else fields
    hidden = sizes.integer("hidden_size", MAX_DIM)
    if family == "moonshine":
        layers = fields.integer("decoder_num_hidden_layers", MAX_LAYERS)
        heads, kv_heads, head_dim = _moonshine_heads(fields, "decoder", hidden)
    else:
        layers = sizes.integer("num_hidden_layers", MAX_LAYERS)
        heads = sizes.integer("num_attention_heads", MAX_DIM)
        kv_heads, head_dim = heads_of(sizes, hidden=hidden, heads=heads)
    spec = spec_of(
        fields,
        (family, architecture),
        attention_of(layers, heads, head_dim, kv_heads),
        hidden=hidden,
        ffn=sizes.integer("intermediate_size", MAX_DIM),
        vocab=sizes.integer("vocab_size", MAX_VOCAB),
        tied=fields.flag("tie_word_embeddings", default=True),
    )
    context = sizes.optional("max_position_embeddings", MAX_DIM, quiet=True)
    spec = replace(spec, context_length=context, modalities=frozenset({"audio"}))
    return replace(spec, tensors=tuple(_BUILDERS[family](fields, sizes, spec)))


def _moonshine_heads(fields: Fields, side: str, hidden: int) -> tuple[int, int, int]:
    heads = fields.integer(f"{side}_num_attention_heads", MAX_DIM)
    kv_heads = fields.optional(f"{side}_num_key_value_heads", MAX_DIM, quiet=True) or heads
    if heads % kv_heads:
        raise fields.wrong(f"{side}_num_key_value_heads", f"a divisor of the {heads} query heads")
    if hidden < heads:
        raise fields.wrong("hidden_size", f"at least {side}_num_attention_heads, {heads}")
    return heads, kv_heads, hidden // heads


def _decoder(
    fields: Fields, sizes: Fields, spec: ModelSpec, *, gated: bool
) -> Iterator[TensorGroup]:
    """The decoder; Moonshine's is gated, has RMS norms and no bias at the output projection."""
    yield TensorGroup("model.decoder.embed_tokens.weight", (spec.vocab, spec.hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, spec.hidden))
    yield from Stack(
        prefix="model.decoder",
        layers=spec.layers,
        hidden=spec.hidden,
        ffn=spec.intermediate,
        inner=spec.heads * spec.key_dim,
        kv_inner=spec.kv_heads * spec.key_dim,
        source=spec.hidden,
        bias=sizes.flag("attention_bias", default=False),
        out_bias=not gated,
        gated=gated,
        norm_bias=not gated,
    ).tensors()
    if spec.family in {"cohere_asr", "moonshine_streaming"} and spec.context_length:
        rows = spec.context_length
        width = spec.hidden if spec.family == "cohere_asr" else _encoder_width(fields)
        yield TensorGroup("model.decoder.pos_emb.weight", (rows, width))


def _encoder_width(fields: Fields) -> int:
    return nested(fields, "encoder_config", "moonshine_streaming_encoder").integer(
        "hidden_size", MAX_DIM
    )


def _moonshine(fields: Fields, sizes: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Moonshine: three convolutions over raw audio, then layers without biases in their norms."""
    yield from _decoder(fields, sizes, spec, gated=True)
    hidden = spec.hidden
    heads, kv_heads, size = _moonshine_heads(fields, "encoder", hidden)
    yield from Stack(
        prefix="model.encoder",
        layers=fields.integer("encoder_num_hidden_layers", MAX_LAYERS),
        hidden=hidden,
        ffn=spec.intermediate,
        inner=heads * size,
        kv_inner=kv_heads * size,
        bias=fields.flag("attention_bias", default=False),
        out_bias=False,
        norm_bias=False,
    ).tensors()
    yield from convolution("model.encoder.conv1", (hidden, 1, 127), bias=False)
    yield from convolution("model.encoder.conv2", (2 * hidden, hidden, 7))
    yield from convolution("model.encoder.conv3", (hidden, 2 * hidden, 3))
    yield from norm("model.encoder.groupnorm", hidden, bias=True)


def _streaming(fields: Fields, sizes: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Streaming Moonshine: frames of raw audio, compressed and convolved twice."""
    yield from _decoder(fields, sizes, spec, gated=True)
    side = nested(fields, "encoder_config", "moonshine_streaming_encoder")
    hidden = side.integer("hidden_size", MAX_DIM)
    heads = side.integer("num_attention_heads", MAX_DIM)
    kv_heads, size = heads_of(side, hidden=hidden, heads=heads)
    yield from Stack(
        prefix="model.encoder",
        layers=side.integer("num_hidden_layers", MAX_LAYERS),
        hidden=hidden,
        ffn=side.integer("intermediate_size", MAX_DIM),
        inner=heads * size,
        kv_inner=kv_heads * size,
        bias=side.flag("attention_bias", default=False),
        out_bias=False,
        norm_bias=False,
    ).tensors()
    rate = or_default(side, "sample_rate", MAX_DIM, 16000)
    frame = round(rate * side.number("frame_ms", 1e6, default=5.0) / 1000)
    yield from linear("model.encoder.embedder.linear", hidden, frame)
    yield TensorGroup("model.encoder.embedder.comp.log_k", (1,))
    yield from convolution("model.encoder.embedder.conv1", (2 * hidden, hidden, 5))
    yield from convolution("model.encoder.embedder.conv2", (hidden, 2 * hidden, 5))
    if hidden != spec.hidden:
        yield from linear("model.decoder.proj", spec.hidden, hidden)


def _conformers(fields: Fields, sizes: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Canary and Cohere ASR: a fast conformer and a plain decoder."""
    yield from _decoder(fields, sizes, spec, gated=False)
    yield from norm("model.decoder.embedding_layernorm", spec.hidden, bias=True)
    yield TensorGroup("proj_out.bias", (spec.vocab,))
    side = nested(fields, "encoder_config", "parakeet_encoder")
    if not side.values:
        side = replace(side, values=_ENCODERS[spec.family])
    hidden = side.integer("hidden_size", MAX_DIM)
    yield from conformer(side, "model.encoder")
    if spec.family == "cohere_asr" and hidden != spec.hidden:
        yield from linear("model.decoder.proj", spec.hidden, hidden, bias=True)


def conformer(side: Fields, prefix: str) -> Iterator[TensorGroup]:
    """NVIDIA's fast conformer (``parakeet_encoder``): subsampling by two-dimensional convolutions."""
    hidden = side.integer("hidden_size", MAX_DIM)
    layers = side.integer("num_hidden_layers", MAX_LAYERS)
    ffn = side.integer("intermediate_size", MAX_DIM)
    bias = side.flag("attention_bias", default=True)
    every = tuple(range(layers))
    yield from Stack(
        prefix=prefix,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        bias=bias,
        mlp_bias=bias,
        norms=5,
        norm=False,
    ).tensors()
    layer = f"{prefix}.layers.*"
    yield from linear(f"{layer}.feed_forward2.up_proj", ffn, hidden, every, bias=bias)
    yield from linear(f"{layer}.feed_forward2.down_proj", hidden, ffn, every, bias=bias)
    yield from linear(f"{layer}.self_attn.relative_k_proj", hidden, hidden, every)
    for name in ("bias_u", "bias_v"):
        yield TensorGroup(f"{layer}.self_attn.{name}", (hidden,), every)
    convolved = side.flag("convolution_bias", default=True)
    kernel = or_default(side, "conv_kernel_size", MAX_DIM, 9)
    yield from linear(f"{layer}.conv.pointwise_conv1", 2 * hidden, hidden, every, bias=convolved)
    yield from linear(f"{layer}.conv.depthwise_conv", hidden, kernel, every, bias=convolved)
    yield from linear(f"{layer}.conv.pointwise_conv2", hidden, hidden, every, bias=convolved)
    yield from norm(f"{layer}.conv.norm", hidden, every, bias=True)
    bins = or_default(side, "num_mel_bins", MAX_DIM, 80)
    yield from _subsampling(side, prefix, hidden, bins)


def _subsampling(side: Fields, prefix: str, hidden: int, bins: int) -> Iterator[TensorGroup]:
    factor = or_default(side, "subsampling_factor", MAX_DIM, 8)
    channels = or_default(side, "subsampling_conv_channels", MAX_DIM, 256)
    kernel = or_default(side, "subsampling_conv_kernel_size", MAX_DIM, 3)
    name = f"{prefix}.subsampling"
    yield from convolution(f"{name}.0", (channels, 1, kernel, kernel))
    for index in range(1, factor.bit_length() - 1):
        yield from convolution(f"{name}.{index}.depthwise", (channels, 1, kernel, kernel))
        yield from convolution(f"{name}.{index}.pointwise", (channels, channels, 1, 1))
    yield from linear(f"{name}.linear", hidden, channels * (bins // factor), bias=True)


#: family -> what builds its tensors.
_BUILDERS: Final = {
    "canary": _conformers,
    "cohere_asr": _conformers,
    "moonshine": _moonshine,
    "moonshine_streaming": _streaming,
}
