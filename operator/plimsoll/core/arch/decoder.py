"""Decoders that differ from Llama in a few points: a family is one ``Style``, a row of a table.

Weights are named as Llama names them whatever the family calls its own, because the sharding rules
go by these names; a projection that a checkpoint keeps fused is listed as its parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm, plain_mlp
from plimsoll.core.arch.mixtures import read_mixture
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.arch.windows import all_full, split, stated_window
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.mixtures import Mixture
    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.arch.windows import Rule

    Window = Callable[[Fields], int | None]
    Extras = Callable[[Fields, ModelSpec], Iterator[TensorGroup]]

LAYER = "model.layers.*"
NORMS = ("input_layernorm", "post_attention_layernorm")
FOUR_NORMS = (*NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Style:
    """How a family's layers differ from Llama's.

    A switch is "" (never), ``always``, or the field of the config that turns the part on.

    Attributes:
        qkv_bias: Switch of the biases of q, k and v.
        o_bias: Switch of the bias of o.
        mlp_bias: Switch of the biases of the feed-forward part.
        head_bias: Switch of the bias of the output head.
        norms: Norms of one layer over the residual stream.
        norm_bias: Switch of their biases.
        final_norm: There is a norm before the head.
        gated: The feed-forward part has a gate.
        head_norms: Norms of q and k: ``head`` (one head wide), ``heads`` (all heads), or none.
        head_norms_switch: Their switch.
        head_norms_bias: They have biases.
        gate: Gate on the attention's output: ``elements``, ``heads``, or none.
        sinks: One sink per query head.
        rule: Kind of each layer.
        window: The window in tokens.
        mixture: Where the experts are described.
        extras: Further tensors.
    """

    qkv_bias: str = ""
    o_bias: str = ""
    mlp_bias: str = ""
    head_bias: str = ""
    norms: tuple[str, ...] = NORMS
    norm_bias: str = ""
    final_norm: bool = True
    gated: bool = True
    head_norms: str = ""
    head_norms_switch: str = ALWAYS
    head_norms_bias: bool = False
    gate: str = ""
    sinks: bool = False
    rule: Rule = all_full
    window: Window = stated_window
    mixture: Mixture | None = None
    extras: Extras | None = None


def read_decoder(fields: Fields, family: str, architecture: str, style: Style) -> ModelSpec:
    """Read a config in that style.

    Raises:
        BadModel: A size is of the wrong type or out of range.
    """
    spec = read_plain(fields, family, architecture)
    caches = split(
        style.rule(fields, spec.layers),
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=style.window(fields),
    )
    spec = replace(spec, caches=caches)
    if style.mixture is not None:
        spec = replace(spec, experts=read_mixture(fields, spec, style.mixture))
    return replace(spec, tensors=tuple(tensors_of(fields, spec, style)))


def on(fields: Fields, switch: str) -> bool:
    """Whether a switch is on in this config."""
    return switch == ALWAYS or (bool(switch) and fields.flag(switch, default=False))


def tensors_of(fields: Fields, spec: ModelSpec, style: Style) -> Iterator[TensorGroup]:
    """All weights of the model."""
    yield from ends(fields, spec, style)
    every = tuple(range(spec.layers))
    bias = on(fields, style.norm_bias)
    for name in style.norms:
        yield from norm(f"{LAYER}.{name}", spec.hidden, every, bias=bias)
    yield from attention(fields, spec, style, every)
    mixture = spec.experts.layers if spec.experts else frozenset()
    dense = tuple(index for index in every if index not in mixture)
    if dense:
        build = gated_mlp if style.gated else plain_mlp
        mlp_bias = on(fields, style.mlp_bias)
        yield from build(
            f"{LAYER}.mlp", dense, hidden=spec.hidden, width=spec.intermediate, bias=mlp_bias
        )
    if mixture and style.mixture is not None:
        yield from mixture_tensors(fields, spec, style, tuple(sorted(mixture)))
    if style.extras is not None:
        yield from style.extras(fields, spec)


def ends(fields: Fields, spec: ModelSpec, style: Style) -> Iterator[TensorGroup]:
    """Embedding, last norm and head."""
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, spec.hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, spec.hidden))
    if on(fields, style.head_bias):
        yield TensorGroup("lm_head.bias", (spec.vocab,))
    if style.final_norm:
        yield from norm("model.norm", spec.hidden, bias=on(fields, style.norm_bias))


def attention(
    fields: Fields,
    spec: ModelSpec,
    style: Style,
    indices: tuple[int, ...],
) -> Iterator[TensorGroup]:
    """Projections, norms, gate and sinks of layers whose attention has the spec's sizes."""
    prefix, hidden, heads, kv_heads = f"{LAYER}.self_attn", spec.hidden, spec.heads, spec.kv_heads
    bias = on(fields, style.qkv_bias)
    yield from linear(f"{prefix}.q_proj", heads * spec.key_dim, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.k_proj", kv_heads * spec.key_dim, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.v_proj", kv_heads * spec.value_dim, hidden, indices, bias=bias)
    yield from linear(
        f"{prefix}.o_proj", hidden, heads * spec.value_dim, indices, bias=on(fields, style.o_bias)
    )
    if style.head_norms and on(fields, style.head_norms_switch):
        whole = style.head_norms == "heads"
        for name, count in (("q_norm", heads), ("k_norm", kv_heads)):
            width = spec.key_dim * (count if whole else 1)
            yield from norm(f"{prefix}.{name}", width, indices, bias=style.head_norms_bias)
    if style.gate:
        width = heads * (spec.value_dim if style.gate == "elements" else 1)
        yield from linear(f"{prefix}.gate_proj", width, hidden, indices)
    if style.sinks:
        yield TensorGroup(f"{prefix}.sinks", (heads,), indices)


def mixture_tensors(
    fields: Fields, spec: ModelSpec, style: Style, indices: tuple[int, ...]
) -> Iterator[TensorGroup]:
    """Router, routed experts and the shared part of the layers that have them."""
    found, mixture = spec.experts, style.mixture
    if found is None or mixture is None:
        return
    prefix, count, width = f"{LAYER}.mlp", found.count, found.intermediate
    yield from linear(f"{prefix}.gate", count, spec.hidden, indices, bias=mixture.router_bias)
    yield from experts(
        prefix, indices, count=count, hidden=spec.hidden, width=width, gated=style.gated
    )
    if mixture.bias:
        yield TensorGroup(f"{prefix}.experts.gate_up_proj_bias", (count, 2 * width), indices)
        yield TensorGroup(f"{prefix}.experts.down_proj_bias", (count, spec.hidden), indices)
    if found.shared_intermediate:
        yield from gated_mlp(
            f"{prefix}.shared_experts",
            indices,
            hidden=spec.hidden,
            width=found.shared_intermediate,
            bias=on(fields, style.mlp_bias),
        )
        if mixture.shared_gate:
            yield from linear(f"{prefix}.shared_expert_gate", 1, spec.hidden, indices)
