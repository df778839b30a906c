"""Zamba 1 and 2: Mamba in every layer, and in some a shared block of attention over twice the width.

Every such layer keeps a cache of its own; the weights are shared by them (Zamba 2: by
``num_mem_blocks`` in turn, each layer with adapters).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.latent_parts import base
from plimsoll.core.arch.mamba import state_trunk
from plimsoll.core.arch.mamba_parts import Indices, Mamba1, Mamba2, inner, step_rank
from plimsoll.core.arch.spec import CacheGroup, ModelSpec
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import TensorGroup

_KINDS: Final = frozenset({"mamba", "linear_attention", "hybrid", "m", "g"})
_HYBRID: Final = frozenset({"hybrid", "g"})
_NEUTRAL: Final = frozenset({
    "attention_hidden_size", "attn_layer_offset", "attn_layer_period", "chunk_size", "hybrid_layer_ids", "kv_channels",
    "layer_types", "layers_block_type", "mamba_headdim", "mamba_dt_rank", "num_query_groups", "use_mem_rope",
    "use_mem_eff_path", "lora_rank", "hidden_mamba_act", "use_shared_mlp_adapter", "adapter_rank",
})  # fmt: skip
#: Zamba 2's layers with attention in transformers' class.
_SECOND: Final = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Zamba config.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    fields.seen |= _NEUTRAL
    second = family == "zamba2"
    spec = base(fields, family, architecture)
    # The attention sees the stream and the embedding beside it.
    wide = 2 * spec.hidden
    stated = fields.optional("attention_head_dim", MAX_DIM, least=0, quiet=True)
    size = stated or max(1, wide // spec.heads)
    spec = replace(spec, key_dim=size, value_dim=size)
    hybrid = _hybrid(fields, spec)
    mixer = _mixer2(fields, spec) if second else _mixer1(fields, spec)
    cache = CacheGroup(len(hybrid), spec.kv_heads, size, size)
    spec = replace(spec, caches=(cache,) if hybrid else (), states=(mixer.group(spec.layers),))
    every = tuple(range(spec.layers))
    tensors = [*state_trunk(spec), *norm(f"{LAYER}.input_layernorm", spec.hidden, every)]
    tensors += mixer.tensors(f"{LAYER}.mamba", every)
    if hybrid:
        tensors += linear(f"{LAYER}.linear", spec.hidden, spec.hidden, hybrid)
        tensors += _shared(fields, spec, hybrid, wide)
    return replace(spec, tensors=tuple(tensors))


def _hybrid(fields: Fields, spec: ModelSpec) -> Indices:
    """Layers with the shared block: names, indices, or a period (Zamba 1)."""
    every = range(spec.layers)
    for key in ("layers_block_type", "layer_types"):
        kinds = fields.choices(key, spec.layers, _KINDS)
        if kinds is not None:
            return tuple(index for index in every if kinds[index] in _HYBRID)
    listed = fields.integers("hybrid_layer_ids", MAX_LAYERS)
    if listed:
        return tuple(index for index in every if index in listed)
    if spec.family == "zamba2":
        return tuple(index for index in every if index in _SECOND)
    period = fields.integer("attn_layer_period", MAX_LAYERS)
    offset = fields.integer("attn_layer_offset", MAX_LAYERS, least=0)
    # The first three layers stand before the period: two of Mamba, one with attention.
    return tuple(i for i in every if i == 2 or (i > 2 and (i - 3) % period == offset))  # noqa: PLR2004


def _mixer1(fields: Fields, spec: ModelSpec) -> Mamba1:
    return Mamba1(
        hidden=spec.hidden,
        width=inner(fields, "mamba_expand", spec.hidden),
        state=fields.integer("mamba_d_state", MAX_DIM),
        kernel=fields.integer("mamba_d_conv", MAX_DIM),
        rank=step_rank(fields, "mamba_dt_rank", spec.hidden),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", default=False),
        heads=fields.integer("n_mamba_heads", MAX_DIM),
    )


def _mixer2(fields: Fields, spec: ModelSpec) -> Mamba2:
    width = inner(fields, "mamba_expand", spec.hidden)
    heads = fields.integer("n_mamba_heads", MAX_DIM)
    bias = fields.flag("add_bias_linear", default=False)
    return Mamba2(
        hidden=spec.hidden,
        width=width,
        heads=heads,
        size=max(1, width // heads),
        groups=fields.integer("mamba_ngroups", MAX_DIM),
        state=fields.integer("mamba_d_state", MAX_DIM),
        kernel=fields.integer("mamba_d_conv", MAX_DIM),
        bias=bias,
        out_bias=bias,
    )


def _shared(fields: Fields, spec: ModelSpec, hybrid: Indices, wide: int) -> Iterator[TensorGroup]:
    """The shared blocks' weights stand at the first layers that use them."""
    second = spec.family == "zamba2"
    blocks = fields.integer("num_mem_blocks", MAX_LAYERS) if second else 1
    at, prefix = hybrid[:blocks], f"{LAYER}.shared_transformer"
    rows, bias = spec.heads * spec.key_dim, second and fields.flag("add_bias_linear", default=False)
    yield from linear(f"{prefix}.self_attn.q_proj", rows, wide, at)
    for name in ("k_proj", "v_proj"):
        yield from linear(f"{prefix}.self_attn.{name}", spec.kv_heads * spec.key_dim, wide, at)
    yield from linear(f"{prefix}.self_attn.o_proj", spec.hidden, rows, at)
    width = spec.intermediate
    yield from gated_mlp(
        f"{prefix}.feed_forward", at, hidden=spec.hidden, width=width, bias=bool(bias)
    )
    yield from norm(f"{prefix}.input_layernorm", wide, at)
    yield from norm(f"{prefix}.pre_ff_layernorm", spec.hidden, at)
    if second:
        yield from _adapters(fields, spec, hybrid, wide)


def _adapters(fields: Fields, spec: ModelSpec, hybrid: Indices, wide: int) -> Iterator[TensorGroup]:
    """Low-rank adapters of each layer that uses a shared block."""
    rank = fields.integer("adapter_rank", MAX_DIM)
    prefix = f"{LAYER}.shared_transformer"
    pairs = [("feed_forward.gate_up", spec.hidden, 2 * spec.intermediate)]
    if fields.flag("use_shared_attention_adapter", default=False):
        pairs += [(f"self_attn.linear_{name}", wide, wide) for name in ("q", "k", "v")]
    for name, width_in, width_out in pairs:
        yield from linear(f"{prefix}.{name}_adapter_a", rank, width_in, hybrid)
        yield from linear(f"{prefix}.{name}_adapter_b", width_out, rank, hybrid)
