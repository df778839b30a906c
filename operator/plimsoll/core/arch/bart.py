"""BART and everything that took its shape: mBART, Pegasus, Marian, M2M-100, NLLB-MoE, LED, FSMT ...

``num_hidden_layers`` and ``num_attention_heads`` in these files mirror the encoder; the cache hangs
on ``decoder_layers`` and ``decoder_attention_heads``.
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
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.spec import Experts, TensorGroup
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one of them differs.

    Attributes:
        positions: Rows that its table of positions has beyond the stated number; None: no table.
        embed_norm: A norm after the embedding.
        final_norm: A norm after each stack.
        bias: Whether attention has biases.
    """

    positions: int | None
    embed_norm: bool
    final_norm: bool
    bias: bool = True


_SHAPES: Final[Mapping[str, _Shape]] = {
    "bart": _Shape(2, embed_norm=True, final_norm=False),
    "mvp": _Shape(2, embed_norm=True, final_norm=False),
    "plbart": _Shape(2, embed_norm=True, final_norm=False),
    "mbart": _Shape(2, embed_norm=True, final_norm=True),
    "pegasus": _Shape(0, embed_norm=False, final_norm=True),
    "pegasus_x": _Shape(None, embed_norm=False, final_norm=True, bias=False),
    "bigbird_pegasus": _Shape(0, embed_norm=True, final_norm=False),
    "blenderbot": _Shape(0, embed_norm=False, final_norm=True),
    "blenderbot-small": _Shape(0, embed_norm=True, final_norm=False),
    "marian": _Shape(0, embed_norm=False, final_norm=False),
    "m2m_100": _Shape(None, embed_norm=False, final_norm=True),
    "nllb-moe": _Shape(None, embed_norm=False, final_norm=True),
    "fsmt": _Shape(2, embed_norm=False, final_norm=False),
    "led": _Shape(0, embed_norm=True, final_norm=False),
    "trocr": _Shape(2, embed_norm=True, final_norm=False),
    "pp_formulanet_text": _Shape(2, embed_norm=True, final_norm=True),
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read the config of BART or one of its relatives."""
    hidden = fields.first("d_model", "hidden_size", most=MAX_DIM)
    heads = fields.integer("decoder_attention_heads", MAX_DIM)
    attention = attention_of(
        fields.integer("decoder_layers", MAX_LAYERS),
        heads,
        head_size(fields, "decoder_attention_heads", hidden, heads),
    )
    positions = "max_decoder_position_embeddings" if family == "led" else "max_position_embeddings"
    fields.seen |= {
        "add_cross_attention",
        "is_decoder",
    }  # a decoder alone has it too, for its encoder
    # TrOCR is a decoder by itself; its encoder hangs in a wrapper.
    alone = family in {"trocr", "pp_formulanet_text"} or decoder_only(fields)
    spec = spec_of(
        fields,
        (family, architecture),
        attention,
        hidden=hidden,
        ffn=fields.integer("decoder_ffn_dim", MAX_DIM),
        vocab=fields.integer("tgt_vocab_size" if family == "fsmt" else "vocab_size", MAX_VOCAB),
        context=positions,
        # BigBird's decoder alone is the one that never ties.
        tied=fields.flag("tie_word_embeddings", default=True)
        and not (alone and family == "bigbird_pegasus"),
    )
    tensors = [*_embeddings(fields, spec, alone=alone), *_decoder(fields, spec)]
    if not alone:
        tensors += _encoder(fields, spec)
    if family == "nllb-moe":
        fields.seen |= {
            "num_sparse_encoder_layers",
            "num_sparse_decoder_layers",
        }  # the steps decide
        spec = replace(spec, experts=_experts(fields, spec))
    spec = replace(spec, tensors=tuple(tensors))
    return causal(spec) if alone else spec


def _embeddings(fields: Fields, spec: ModelSpec, *, alone: bool) -> Iterator[TensorGroup]:
    if spec.family == "fsmt":
        yield TensorGroup("model.decoder.embed_tokens.weight", (spec.vocab, spec.hidden))
        if not spec.tied:
            source = fields.integer("src_vocab_size", MAX_VOCAB)
            yield TensorGroup("model.encoder.embed_tokens.weight", (source, spec.hidden))
            yield TensorGroup("lm_head.weight", (spec.vocab, spec.hidden))
    elif (
        spec.family == "marian"
        and not alone
        and not fields.flag("share_encoder_decoder_embeddings", default=True)
    ):
        target = fields.optional("decoder_vocab_size", MAX_VOCAB, quiet=True) or spec.vocab
        yield TensorGroup("model.encoder.embed_tokens.weight", (spec.vocab, spec.hidden))
        yield TensorGroup("model.decoder.embed_tokens.weight", (target, spec.hidden))
        if not spec.tied:
            yield TensorGroup("lm_head.weight", (target, spec.hidden))
    else:
        yield from shared_embeddings(spec.vocab, spec.hidden, tied=spec.tied, encoder=not alone)


def _around(fields: Fields, spec: ModelSpec, side: str) -> Iterator[TensorGroup]:
    """Positions and the embedding's norm of one side."""
    shape = _SHAPES[spec.family]
    rows = spec.context_length
    if spec.family == "led" and side == "encoder":
        rows = fields.integer("max_encoder_position_embeddings", MAX_CONTEXT)
    learned = spec.family != "trocr" or fields.flag("use_learned_position_embeddings", default=True)
    if shape.positions is not None and rows is not None and learned:
        yield TensorGroup(
            f"model.{side}.embed_positions.weight", (rows + shape.positions, spec.hidden)
        )
    if shape.embed_norm and (
        spec.family != "trocr" or fields.flag("layernorm_embedding", default=True)
    ):
        yield from norm(f"model.{side}.layernorm_embedding", spec.hidden, bias=True)


def _bias(fields: Fields, family: str) -> bool:
    if family == "bigbird_pegasus":
        return fields.flag("use_bias", default=False)
    return _SHAPES[family].bias


def _decoder(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield from _around(fields, spec, "decoder")
    source = spec.hidden
    if spec.family == "trocr":
        source = or_default(fields, "cross_attention_hidden_size", MAX_DIM, source)
    stack = Stack(
        prefix="model.decoder",
        layers=spec.layers,
        hidden=spec.hidden,
        ffn=spec.intermediate,
        source=source,
        bias=_bias(fields, spec.family),
        norm=_SHAPES[spec.family].final_norm,
    )
    yield from _layers(fields, spec, stack)
    if spec.family == "mvp":
        for kind in ("self_attn_prompt", "cross_attn_prompt"):
            yield from _prompt(fields, f"model.decoder.{kind}", spec)


def _encoder(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield from _around(fields, spec, "encoder")
    layers = fields.first("encoder_layers", "num_hidden_layers", most=MAX_LAYERS)
    stack = Stack(
        prefix="model.encoder",
        layers=layers,
        hidden=spec.hidden,
        ffn=fields.integer("encoder_ffn_dim", MAX_DIM),
        bias=_bias(fields, spec.family),
        norms=3 if spec.family == "pegasus_x" else 2,
        norm=_SHAPES[spec.family].final_norm,
    )
    yield from _layers(fields, spec, stack)
    every = tuple(range(layers))
    if spec.family == "led":  # its few tokens that see everything have projections of their own
        for part in ("query_global", "key_global", "value_global"):
            name = f"model.encoder.layers.*.self_attn.{part}"
            yield from linear(name, spec.hidden, spec.hidden, every, bias=True)
    if spec.family == "pegasus_x":
        rows = or_default(fields, "num_global_tokens", MAX_CONTEXT, 32)
        yield TensorGroup("model.encoder.embed_global.weight", (rows, spec.hidden))


def _prompt(fields: Fields, name: str, spec: ModelSpec) -> Iterator[TensorGroup]:
    """MVP's learned prompts, an option; its class with a head gives them to the decoder only."""
    if not fields.flag("use_prompt", default=False):
        return
    middle = or_default(fields, "prompt_mid_dim", MAX_DIM, 800)
    rows = or_default(fields, "prompt_length", MAX_CONTEXT, 100)
    yield TensorGroup(f"{name}.prompt_embedding.weight", (rows, spec.hidden))
    yield from linear(f"{name}.prompt_trans.0", middle, spec.hidden, bias=True)
    yield from linear(f"{name}.prompt_trans.2", spec.layers * 2 * spec.hidden, middle, bias=True)


def _layers(fields: Fields, spec: ModelSpec, stack: Stack) -> Iterator[TensorGroup]:
    """A stack; NLLB-MoE has experts in every so-manieth layer."""
    if spec.family != "nllb-moe":
        yield from stack.tensors()
        return
    side = stack.prefix.rpartition(".")[2]
    sparse = _sparse(fields, f"{side}_sparse_step", stack.layers)
    yield from stack.tensors(mlp=False)
    dense = tuple(index for index in range(stack.layers) if index not in sparse)
    if dense:
        yield from stack.feed_forward(dense)
    if not sparse:
        return
    count = fields.integer("num_experts", MAX_EXPERTS)
    prefix = f"{stack.prefix}.layers.*.mlp"
    bias = fields.flag("router_bias", default=False)
    yield from linear(f"{prefix}.gate", count, stack.hidden, sparse, bias=bias)
    shapes = {
        "up_proj": (count, stack.ffn, stack.hidden),
        "up_proj_bias": (count, stack.ffn),
        "down_proj": (count, stack.hidden, stack.ffn),
        "down_proj_bias": (count, stack.hidden),
    }
    for name, shape in shapes.items():
        yield TensorGroup(f"{prefix}.experts.{name}", shape, sparse)


def _sparse(fields: Fields, key: str, layers: int) -> tuple[int, ...]:
    step = fields.optional(key, MAX_LAYERS, least=0, quiet=True) or 0
    return tuple(index for index in range(layers) if step and (index + 1) % step == 0)


def _experts(fields: Fields, spec: ModelSpec) -> Experts:
    return Experts(
        count=fields.integer("num_experts", MAX_EXPERTS),
        per_token=2,  # its routing is written for two
        intermediate=spec.intermediate,
        shared_intermediate=0,
        layers=frozenset(_sparse(fields, "decoder_sparse_step", spec.layers)),
    )
