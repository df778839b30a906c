"""Short convolutions: LFM 2 and 3 between attention layers, ZAYA inside every attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.latent_parts import ATTENTION, Indices, base, plain_attention
from plimsoll.core.arch.mamba import state_trunk
from plimsoll.core.arch.spec import Experts, StateGroup, TensorGroup
from plimsoll.core.arch.windows import split, stated_window
from plimsoll.core.records import replace
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_KINDS: Final = frozenset({"conv", "short_conv", "full_attention", "sliding_attention"})
_CONV: Final = frozenset({"conv", "short_conv"})


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    if family == "zaya":
        return _zaya(fields, family, architecture)
    words = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
    stated = {ours: fields.values[word] for word, ours in words.items() if fields.states(word)}
    own = replace(fields, values={**fields.values, **stated})
    fields.seen |= {"full_attn_idxs", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "use_pos_enc",
                    "block_dim", "block_mlp_init_scale", "block_out_init_scale", "block_use_swiglu",
                    "block_use_xavier_init", "num_heads", *words}  # fmt: skip
    spec = base(own, family, architecture)
    kinds = _kinds(own, spec)
    states = tuple(index for index, kind in enumerate(kinds) if kind in _CONV)
    full = tuple(index for index in range(spec.layers) if index not in set(states))
    caches = split(
        [kinds[index] for index in full],
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=stated_window(own) if family == "lfm3" else None,
    )
    kernel = own.integer("conv_L_cache", MAX_DIM)
    group = StateGroup("conv", len(states), spec.hidden, kernel, heads=spec.hidden)
    width = _adjusted(own, spec.intermediate) if family == "lfm2" else spec.intermediate
    spec = replace(spec, caches=caches, states=(group,) if states else (), intermediate=width)
    if family == "lfm2_moe":
        spec = replace(spec, experts=_experts(own, spec))
    return replace(spec, tensors=tuple(_lfm(own, spec, states, full, kernel)))


def _kinds(fields: Fields, spec: ModelSpec) -> tuple[str, ...]:
    """``layer_types``; LFM 2: attention at ``full_attn_idxs``, everywhere without them."""
    kinds = fields.choices("layer_types", spec.layers, _KINDS)
    if kinds is not None:
        return kinds
    if spec.family == "lfm3":
        return tuple(
            "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i else "conv"  # noqa: PLR2004
            for i in range(spec.layers)
        )
    if not fields.has("full_attn_idxs"):
        if spec.family == "lfm2_moe":
            raise fields.wrong("layer_types", f"a list of {spec.layers} kinds")
        return ("full_attention",) * spec.layers
    listed = fields.integers("full_attn_idxs", MAX_LAYERS)
    return tuple("full_attention" if i in listed else "conv" for i in range(spec.layers))


def _adjusted(fields: Fields, width: int) -> int:
    """LFM 2 takes two thirds of the stated width, times a factor, rounded up."""
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = 2 * width // 3
    fields.seen.add("block_ffn_dim_multiplier")
    if (
        "block_ffn_dim_multiplier" in fields.values
        and fields.get("block_ffn_dim_multiplier") is None
    ):
        return max(1, width)
    factor = fields.number("block_ffn_dim_multiplier", 1024, default=1)
    step = fields.integer("block_multiple_of", MAX_DIM)
    return max(1, ceil_div(int(factor * width), step)) * step


def _experts(fields: Fields, spec: ModelSpec) -> Experts:
    dense = fields.integer("num_dense_layers", MAX_LAYERS, least=0)
    count = fields.integer("num_experts", MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=min(count, fields.integer("num_experts_per_tok", MAX_EXPERTS)),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM),
        shared_intermediate=0,
        layers=frozenset(range(dense, spec.layers)),
    )


def _lfm(
    fields: Fields, spec: ModelSpec, states: Indices, full: Indices, kernel: int
) -> Iterator[TensorGroup]:
    hidden, every = spec.hidden, tuple(range(spec.layers))
    third = spec.family == "lfm3"
    yield from state_trunk(spec)
    names = ["operator_norm", "ffn_norm"]
    if third and fields.flag("use_sandwich_norm", default=True):
        names += ["post_operator_norm", "post_ffn_norm"]
    for name in names:
        yield from norm(f"{LAYER}.{name}", hidden, every)
    if states:
        bias, prefix = fields.flag("conv_bias", default=False), f"{LAYER}.conv"
        yield TensorGroup(f"{prefix}.conv1d.weight", (hidden, 1, kernel), states)
        if bias:
            yield TensorGroup(f"{prefix}.conv1d.bias", (hidden,), states)
        yield from linear(f"{prefix}.in_proj", 3 * hidden, hidden, states, bias=bias)
        yield from linear(f"{prefix}.out_proj", hidden, hidden, states, bias=bias)
    if full:
        bias = third and fields.flag("attention_bias", default=False)
        yield from plain_attention(spec, full, bias=bias, out_bias=bias, head_norms=True)
        if third and fields.flag("use_attention_gate", default=True):
            yield from linear(f"{ATTENTION}.g_proj", spec.heads, hidden, full)
    mixture, name = spec.experts, f"{LAYER}.mlp"
    sparse = tuple(sorted(mixture.layers)) if mixture else ()
    dense = tuple(index for index in every if index not in set(sparse))
    if dense:
        yield from gated_mlp(name, dense, hidden=hidden, width=spec.intermediate)
    if mixture and sparse:
        yield from linear(f"{name}.gate", mixture.count, hidden, sparse)
        yield from experts(
            name, sparse, count=mixture.count, hidden=hidden, width=mixture.intermediate
        )


def _zaya(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Queries and keys pass two convolutions; half of the values is the previous token's."""
    spec = base(fields, family, architecture)
    kinds = fields.choices("layer_types", spec.layers, frozenset({"hybrid", "hybrid_sliding"}))
    kinds = kinds or ("hybrid",) * spec.layers
    window = fields.optional("sliding_window", MAX_CONTEXT, least=0, quiet=True) or None
    caches = split(
        ["sliding_attention" if kind == "hybrid_sliding" else "full_attention" for kind in kinds],
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=window,
    )
    channels = (spec.heads + spec.kv_heads) * spec.key_dim
    first = fields.integer("cca_time0", MAX_DIM)
    second = fields.integer("cca_time1", MAX_DIM)
    columns = first + second - 2
    half = max(1, spec.kv_heads * spec.key_dim // 2)
    group = StateGroup(
        "cca",
        spec.layers,
        conv_channels=channels,
        conv_kernel=columns + 1,
        recurrent=half,
        reference_columns=columns,
        recurrent_dtype="model",
    )
    count = fields.integer("num_experts", MAX_EXPERTS)
    mixture = Experts(
        count=count,
        per_token=min(count, fields.integer("num_experts_per_tok", MAX_EXPERTS)),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM),
        shared_intermediate=0,
        layers=frozenset(range(spec.layers)),
    )
    spec = replace(spec, caches=caches, states=(group,), experts=mixture)
    tensors = [*state_trunk(spec), *_zaya_attention(fields, spec, (first, second), half)]
    tensors += _zaya_rest(fields, spec, mixture)
    return replace(spec, tensors=tuple(tensors))


def _zaya_attention(
    fields: Fields, spec: ModelSpec, kernels: tuple[int, int], half: int
) -> Iterator[TensorGroup]:
    hidden, every, size = spec.hidden, tuple(range(spec.layers)), spec.key_dim
    bias, name = fields.flag("attention_bias", default=False), ATTENTION
    channels = (spec.heads + spec.kv_heads) * size
    yield from linear(f"{name}.q_proj", spec.heads * size, hidden, every, bias=bias)
    yield from linear(f"{name}.k_proj", spec.kv_heads * size, hidden, every, bias=bias)
    for part in ("v_proj_current", "v_proj_delayed"):
        yield from linear(f"{name}.{part}", half, hidden, every, bias=bias)
    yield from linear(f"{name}.o_proj", hidden, spec.heads * size, every, bias=bias)
    for part, shape in (
        ("conv_qk_depthwise", (channels, 1, kernels[0])),
        ("conv_qk_grouped", (channels, size, kernels[1])),
    ):
        yield TensorGroup(f"{name}.{part}.weight", shape, every)
        yield TensorGroup(f"{name}.{part}.bias", (channels,), every)
    yield TensorGroup(f"{name}.qk_norm.temp", (spec.kv_heads,), every)


def _zaya_rest(fields: Fields, spec: ModelSpec, mixture: Experts) -> Iterator[TensorGroup]:
    """Experts behind a router that is a small network, and scales of both residual streams."""
    hidden, every = spec.hidden, tuple(range(spec.layers))
    width, name = fields.integer("router_hidden_size", MAX_DIM), f"{LAYER}.mlp"
    yield from experts(name, every, count=mixture.count, hidden=hidden, width=mixture.intermediate)
    yield from linear(f"{name}.gate.down_proj", width, hidden, every, bias=True)
    yield from norm(f"{name}.gate.router_mlp.norm", width, every)
    for part in ("fc1", "fc2"):
        yield from linear(f"{name}.gate.router_mlp.{part}", width, width, every, bias=True)
    yield from linear(f"{name}.gate.router_mlp.out_proj", mixture.count + 1, width, every)
    if every[1:]:
        yield TensorGroup(f"{name}.gate.router_states_scale", (width,), every[1:])
    for part in ("input_layernorm", "post_attention_layernorm"):
        yield from norm(f"{LAYER}.{part}", hidden, every)
    for part in ("post_attention_residual_scale", "post_mlp_residual_scale"):
        for kind in (
            "hidden_states_scale",
            "hidden_states_bias",
            "residual_scale",
            "residual_bias",
        ):
            yield TensorGroup(f"{LAYER}.{part}.{kind}", (hidden,), every)
    for part in ("input_hidden_states_scale", "input_hidden_states_bias"):
        yield TensorGroup(f"model.{part}", (hidden,))
