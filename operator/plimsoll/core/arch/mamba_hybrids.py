"""Hybrids of attention and Mamba: Jamba, Bamba, Granite 4, Falcon-H1, Nemotron-H.

Which layers attend is spelled in five ways: a period with an offset, indices, names, letters, and
both at once in every layer (Falcon-H1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import attention, experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.latent_parts import base
from plimsoll.core.arch.mamba import state_trunk
from plimsoll.core.arch.mamba_parts import Indices, Mamba1, inner, mamba2_of, step_rank
from plimsoll.core.arch.spec import CacheGroup, Experts
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.mamba_parts import Mamba2
    from plimsoll.core.arch.spec import ModelSpec, TensorGroup

STATE: Final = frozenset({"linear_attention", "mamba", "mamba2"})
FULL: Final = frozenset({"full_attention", "attention"})
_NEUTRAL: Final = frozenset({
    "layer_types", "layers_block_type", "layers_num_experts", "mamba_chunk_size", "mamba_d_head", "mamba_expand",
    "mamba_inner_layernorms", "mamba_use_mlp", "mamba_norm_before_gate", "mamba_dt_min", "mamba_dt_max",
    "mamba_dt_limit", "mamba_dt_init_floor", "time_step_limit", "attn_rotary_emb",
})  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    fields.seen |= _NEUTRAL
    spec = base(fields, family, architecture)
    states, full = _kinds(fields, spec)
    mixer = _jamba_mixer(fields, spec) if family == "jamba" else _second(fields, spec)
    caches = (CacheGroup(len(full), spec.kv_heads, spec.key_dim, spec.value_dim),) if full else ()
    spec = replace(spec, caches=caches, states=(mixer.group(len(states)),) if states else ())
    spec = replace(spec, experts=_experts(fields, spec))
    every = tuple(range(spec.layers))
    tensors = list(state_trunk(spec))
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors += norm(f"{LAYER}.{name}", spec.hidden, every)
    bias = fields.flag("attention_bias", default=False)
    if full:
        tensors += attention(
            f"{LAYER}.self_attn",
            full,
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            key_dim=spec.key_dim,
            bias=bias,
            out_bias=bias,
        )
    if states:
        tensors += mixer.tensors(f"{LAYER}.mamba", states)
    tensors += _feed_forward(fields, spec)
    return replace(spec, tensors=tuple(tensors))


def _kinds(fields: Fields, spec: ModelSpec) -> tuple[Indices, Indices]:
    """Layers with a state, and layers that attend."""
    every = tuple(range(spec.layers))
    if spec.family == "falcon_h1":
        return every, every
    if spec.family == "jamba":
        period = fields.integer("attn_layer_period", MAX_LAYERS)
        offset = fields.integer("attn_layer_offset", MAX_LAYERS, least=0)
        full = tuple(index for index in every if index % period == offset)
    elif spec.family == "bamba":
        listed = fields.integers("attn_layer_indices", MAX_LAYERS)
        full = tuple(index for index in every if index in listed)
    else:
        key = "layer_types" if fields.has("layer_types") else "layers_block_type"
        kinds = fields.choices(key, spec.layers, STATE | FULL)
        full = tuple(i for i in every if kinds is not None and kinds[i] in FULL)
    return tuple(index for index in every if index not in set(full)), full


def _jamba_mixer(fields: Fields, spec: ModelSpec) -> Mamba1:
    return Mamba1(
        hidden=spec.hidden,
        width=inner(fields, "mamba_expand", spec.hidden),
        state=fields.integer("mamba_d_state", MAX_DIM),
        kernel=fields.integer("mamba_d_conv", MAX_DIM),
        rank=step_rank(fields, "mamba_dt_rank", spec.hidden),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", default=False),
        norms=True,
    )


def _second(fields: Fields, spec: ModelSpec) -> Mamba2:
    if spec.family != "falcon_h1":
        return mamba2_of(fields, spec.hidden)
    width = fields.optional("mamba_d_ssm", MAX_DIM, quiet=True)
    return replace(
        mamba2_of(fields, spec.hidden, width=width),
        gated_norm=fields.flag("mamba_rms_norm", default=False),
        out_bias=fields.flag("projectors_bias", default=False),
    )


def _experts(fields: Fields, spec: ModelSpec) -> Experts | None:
    if spec.family not in {"jamba", "granitemoehybrid"}:
        return None
    count = fields.first("num_experts", "num_local_experts", most=MAX_EXPERTS, least=0, default=0)
    shared = 0
    every = range(spec.layers)
    layers = frozenset(every)
    if spec.family == "granitemoehybrid":
        shared = fields.integer("shared_intermediate_size", MAX_DIM)
    else:
        period = fields.integer("expert_layer_period", MAX_LAYERS)
        offset = fields.integer("expert_layer_offset", MAX_LAYERS, least=0)
        layers = frozenset(index for index in every if index % period == offset)
    if count == 0 or (spec.family == "jamba" and count == 1):
        return None
    visited = fields.optional("num_experts_per_tok", MAX_EXPERTS, least=0) or 1
    return Experts(count, min(visited, count), spec.intermediate, shared, layers)


def _feed_forward(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Dense layers, experts, and Granite's shared part, which is there without experts too."""
    mixture, hidden, name = spec.experts, spec.hidden, f"{LAYER}.mlp"
    granite = spec.family == "granitemoehybrid"
    sparse = tuple(sorted(mixture.layers)) if mixture else ()
    dense = tuple(index for index in range(spec.layers) if index not in set(sparse))
    if dense and not granite:
        bias = fields.flag("mlp_bias", default=False)
        yield from gated_mlp(name, dense, hidden=hidden, width=spec.intermediate, bias=bias)
    if mixture and sparse:
        yield from linear(f"{name}.router", mixture.count, hidden, sparse)
        yield from experts(
            name, sparse, count=mixture.count, hidden=hidden, width=mixture.intermediate
        )
    if granite:
        width = fields.integer("shared_intermediate_size", MAX_DIM)
        every = tuple(range(spec.layers))
        yield from gated_mlp(f"{LAYER}.shared_mlp", every, hidden=hidden, width=width)
