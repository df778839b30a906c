"""T5 and its relatives: mT5, UMT5, LongT5, Switch Transformers, Pop2Piano, UDOP.

``num_layers`` are the encoder's; ``num_decoder_layers`` the decoder's, null means as many. Heads
are ``num_heads`` of ``d_kv``, whatever the width of the model. The head is tied whatever the file
says: ``tie_word_embeddings: false`` there only means that the output is not scaled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import linear
from plimsoll.core.arch.encdec import Stack, attention_of, or_default, spec_of
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.spec import Experts, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

#: Default of ``relative_attention_num_buckets`` in all of them.
_BUCKETS: Final = 32


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of the T5 family."""
    hidden = fields.first("d_model", "hidden_size", most=MAX_DIM)
    encoder_layers = fields.first("num_layers", "num_hidden_layers", most=MAX_LAYERS)
    layers = fields.optional("num_decoder_layers", MAX_LAYERS, quiet=True) or encoder_layers
    heads = fields.first("num_heads", "num_attention_heads", most=MAX_DIM)
    spec = spec_of(
        fields,
        (family, architecture),
        attention_of(layers, heads, fields.integer("d_kv", MAX_DIM)),
        hidden=hidden,
        ffn=fields.integer("d_ff", MAX_DIM),
        vocab=fields.integer("vocab_size", MAX_VOCAB),
        context=None,  # relative positions: no length is the longest
        tied=family != "pop2piano",
    )
    if family == "switch_transformers":
        spec = replace(spec, experts=_experts(fields, layers))
    tensors = [
        *_embeddings(fields, spec),
        *_side(fields, spec, "encoder", encoder_layers),
        *_side(fields, spec, "decoder", layers),
    ]
    return replace(spec, tensors=tuple(tensors))


def _embeddings(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield TensorGroup("shared.weight", (spec.vocab, spec.hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, spec.hidden))
    if spec.family == "pop2piano":
        rows = or_default(fields, "composer_vocab_size", MAX_VOCAB, 21)
        yield TensorGroup("mel_conditioner.embedding.weight", (rows, spec.hidden))
    if spec.family == "udop":
        yield from _page(fields, spec)


def _page(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """UDOP's patches and two-dimensional positions; the decoder carries patches it never uses."""
    channels = or_default(fields, "num_channels", MAX_DIM, 3)
    patch = or_default(fields, "patch_size", MAX_DIM, 16)
    for name in ("patch_embed", "decoder.embed_patches"):
        yield TensorGroup(f"{name}.proj.weight", (spec.hidden, channels, patch, patch))
        yield TensorGroup(f"{name}.proj.bias", (spec.hidden,))
    rows = or_default(fields, "max_2d_position_embeddings", MAX_CONTEXT, 1024)
    for axis in "xy":
        name = f"encoder.cell_2d_embedding.{axis}_position_embeddings.weight"
        yield TensorGroup(name, (rows, spec.hidden))
    buckets = or_default(fields, "relative_attention_num_buckets", MAX_DIM, _BUCKETS)
    for side in ("encoder", "decoder"):
        for axis in "01":
            name = f"{side}.relative_bias.biases.{axis}.relative_attention_bias.weight"
            yield TensorGroup(name, (buckets, spec.heads))


def _side(fields: Fields, spec: ModelSpec, side: str, layers: int) -> Iterator[TensorGroup]:
    stack = Stack(
        prefix=side,
        layers=layers,
        hidden=spec.hidden,
        ffn=spec.intermediate,
        inner=spec.heads * spec.key_dim,
        source=spec.hidden if side == "decoder" else 0,
        bias=False,
        mlp_bias=False,
        norm_bias=False,
        gated=_gated(fields, spec.family),
    )
    yield from stack.tensors(mlp=False)
    sparse = _sparse(fields, side, layers) if spec.family == "switch_transformers" else ()
    dense = tuple(index for index in range(layers) if index not in sparse)
    if dense:
        yield from stack.feed_forward(dense)
    if sparse:
        yield from _mixture(fields, stack, sparse)
    buckets = or_default(fields, "relative_attention_num_buckets", MAX_DIM, _BUCKETS)
    # All layers share the first one's positions; UMT5's have their own.
    own = tuple(range(layers)) if spec.family == "umt5" else (0,)
    name = f"{side}.layers.*.self_attn.relative_attention_bias.weight"
    yield TensorGroup(name, (buckets, spec.heads), own)
    if side == "encoder" and spec.family == "longt5":
        kind = fields.text("encoder_attention_type")
        if kind == "transient-global":
            name = "encoder.layers.*.self_attn.global_relative_attention_bias.weight"
            yield TensorGroup(name, (buckets, spec.heads), (0,))
            name = "encoder.layers.*.self_attn.global_input_layer_norm.weight"
            yield TensorGroup(name, (spec.hidden,), tuple(range(layers)))


def _gated(fields: Fields, family: str) -> bool:
    if family == "switch_transformers":
        return False
    return (fields.text("feed_forward_proj") or "relu").startswith("gated-")


def _sparse(fields: Fields, side: str, layers: int) -> tuple[int, ...]:
    """Layers with experts: as many as are asked for, evenly spread."""
    wanted = fields.optional(f"num_sparse_{side}_layers", MAX_LAYERS, least=0, quiet=True)
    step = layers // wanted if wanted else layers
    return tuple(index for index in range(layers) if step and (step == 1 or index % step == 1))


def _mixture(fields: Fields, stack: Stack, sparse: tuple[int, ...]) -> Iterator[TensorGroup]:
    count = fields.integer("num_experts", MAX_EXPERTS)
    prefix = f"{stack.prefix}.layers.*.mlp"
    bias = fields.flag("router_bias", default=False)
    yield from linear(f"{prefix}.gate", count, stack.hidden, sparse, bias=bias)
    yield TensorGroup(f"{prefix}.experts.up_proj", (count, stack.ffn, stack.hidden), sparse)
    yield TensorGroup(f"{prefix}.experts.down_proj", (count, stack.hidden, stack.ffn), sparse)


def _experts(fields: Fields, layers: int) -> Experts:
    return Experts(
        count=fields.integer("num_experts", MAX_EXPERTS),
        per_token=1,
        intermediate=fields.integer("d_ff", MAX_DIM),
        shared_intermediate=0,
        layers=frozenset(_sparse(fields, "decoder", layers)),
    )
