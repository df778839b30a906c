"""Wrappers of an encoder and a decoder that are models by themselves.

``encoder-decoder``, ``vision-encoder-decoder`` (TrOCR, Donut, Nougat), ``speech-encoder-decoder``;
Florence 2 (BART behind an image encoder) and PP-FormulaNet. The decoder is read as what it is, and
every one of its layers gets cross attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch import encdec_towers as towers
from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.encdec import nested, or_default
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, Fields
from plimsoll.core.arch.registry import FAMILIES, read_as
from plimsoll.core.arch.spec import Encoder, ModelSpec, TensorGroup
from plimsoll.core.errors import Unsupported
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Wrapper -> types of encoder and decoder when the file does not say.
_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "encoder-decoder": ("bert", "bert"),
    "vision-encoder-decoder": ("vit", "bert"),
    "speech-encoder-decoder": ("wav2vec2", "bert"),
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config with ``encoder`` and ``decoder``.

    Raises:
        Unsupported: The decoder is of a type that nobody reads.
    """
    if family == "florence2":
        return _florence(fields, architecture)
    if family == "pp_formulanet":
        return _formula(fields, architecture)
    encoder, decoder = fields.child("encoder"), fields.child("decoder")
    kind = encoder.text("model_type") or _PARTS[family][0]
    written = decoder.text("model_type") or _PARTS[family][1]
    values = {**decoder.values, "is_decoder": True, "add_cross_attention": True}
    spec = _decoder(fields, values, written, "decoder.")
    cross = sum(group.layers * group.row for group in spec.caches)
    if written == "gpt2":
        spec = replace(spec, tensors=(*spec.tensors, *_crossed(spec)))
    made = towers.width(encoder, kind)
    prefix = {"encoder-decoder": "encoder", "vision-encoder-decoder": "vision_tower"}.get(
        family, "audio_tower"
    )
    tensors = list(spec.tensors)
    if kind in towers.SUPPORTED:
        tensors += towers.tensors(encoder, kind, prefix)
    else:
        fields.notes.append(
            f"encoder.model_type {kind[:64]} is not known; its weights are not counted"
        )
    if made != spec.hidden and not decoder.has("cross_attention_hidden_size"):
        tensors += linear("enc_to_dec_proj", spec.hidden, made, bias=True)
    modality = {"vision_tower": {"vision"}, "audio_tower": {"audio"}}.get(prefix, set())
    return replace(
        spec,
        architecture=architecture,
        encoder=Encoder(cross),
        tensors=tuple(tensors),
        modalities=frozenset(modality),
        dtype=spec.dtype or fields.dtype(),
    )


def _decoder(fields: Fields, values: Mapping[str, Any], written: str, path: str) -> ModelSpec:
    if written not in FAMILIES or written in _PARTS:
        raise Unsupported(
            f"{path}model_type {written!r:.80} is not supported as a decoder",
            field=f"{path}model_type",
            value=written,
        )
    # Whatever the part was saved from, here it is a decoder alone.
    values = {**values, "architectures": None, "is_encoder_decoder": False}
    return read_as(written, values, notes=fields.notes, path=path)


def _crossed(spec: ModelSpec) -> Iterator[TensorGroup]:
    """Cross attention of a decoder whose own reader knows it without."""
    every = tuple(range(spec.layers))
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        name = f"model.layers.*.cross_attn.{part}"
        yield from linear(name, spec.hidden, spec.hidden, every, bias=True)
    yield from norm("model.layers.*.ln_cross_attn", spec.hidden, every, bias=True)


def _florence(fields: Fields, architecture: str) -> ModelSpec:
    """BART as it is, encoder included; image features are part of the encoder's input."""
    values = fields.child("text_config").values
    tied = fields.flag("tie_word_embeddings", default=True)
    text = {
        **values,
        "architectures": None,
        "is_encoder_decoder": True,
        "tie_word_embeddings": tied,
    }
    spec = read_as("bart", text, notes=fields.notes, path="text_config.")
    vision = nested(fields, "vision_config", "florence_vision")
    made = towers.davit_widths(vision)[-1]
    out = or_default(vision, "projection_dim", MAX_DIM, 1024)
    # The files published with code of their own spell positions differently; 50 in all of them.
    rows = or_default(vision, "max_position_embeddings", MAX_CONTEXT, 50)
    tower = "multi_modal_projector.image_position_embed"
    tensors = [
        *spec.tensors,
        *towers.davit(vision, "vision_tower"),
        *linear("multi_modal_projector.image_projection", out, made),
        *norm("multi_modal_projector.image_proj_norm", out, bias=True),
        TensorGroup(f"{tower}.row_embeddings.weight", (rows, made // 2)),
        TensorGroup(f"{tower}.column_embeddings.weight", (rows, made - made // 2)),
    ]
    return replace(
        spec,
        architecture=architecture,
        tensors=tuple(tensors),
        modalities=frozenset({"vision"}),
        dtype=spec.dtype or fields.dtype(),
    )


def _formula(fields: Fields, architecture: str) -> ModelSpec:
    """PP-FormulaNet: mBART's decoder reads the features of a Segment-Anything encoder."""
    values = fields.child("text_config").values
    spec = _decoder(fields, values, "pp_formulanet_text", "text_config.")
    vision = nested(fields, "vision_config", "pp_formulanet_vision")
    tensors = [*spec.tensors, *towers.sam(vision, "vision_tower"), *_formula_projector(vision)]
    return replace(
        spec,
        architecture=architecture,
        encoder=Encoder(sum(group.layers * group.row for group in spec.caches)),
        tensors=tuple(tensors),
        modalities=frozenset({"vision"}),
        dtype=spec.dtype or fields.dtype(),
    )


def _formula_projector(vision: Fields) -> Iterator[TensorGroup]:
    read = or_default(vision, "post_conv_in_channels", MAX_DIM, 256)
    middle = or_default(vision, "post_conv_mid_channels", MAX_DIM, 512)
    made = or_default(vision, "post_conv_out_channels", MAX_DIM, 1024)
    hidden = or_default(vision, "decoder_hidden_size", MAX_DIM, 512)
    name = "multi_modal_projector"
    yield TensorGroup(f"{name}.conv1.weight", (middle, read, 3, 3))
    yield TensorGroup(f"{name}.conv2.weight", (made, middle, 3, 3))
    yield from linear(f"{name}.linear_1", made, made, bias=True)
    yield from linear(f"{name}.linear_2", hidden, made, bias=True)
