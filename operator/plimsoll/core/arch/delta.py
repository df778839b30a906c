"""Hybrids with linear attention: gated delta rule (Qwen 3-Next, Qwen 3.5, OLMo) and KDA (Kimi Linear ...).

A linear layer keeps one matrix per head for each sequence and the last columns of a short convolution.
Sources: transformers' ``modeling_qwen3_next.py``, ``modeling_kimi_linear.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import attention, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.latent_parts import (
    ATTENTION,
    INDEXED,
    Indices,
    base,
    feed_forward,
    trunk,
)
from plimsoll.core.arch.mixtures import Mixture, read_mixture, stepped
from plimsoll.core.arch.qwen4 import qwen4
from plimsoll.core.arch.spec import CacheGroup, StateGroup, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

LINEAR: Final = frozenset({"linear_attention", "mamba", "kda"})
FULL: Final = frozenset({"full_attention", "attention"}) | INDEXED
_MIXTURE: Final = Mixture(
    where=stepped, width="moe_intermediate_size", shared="shared_expert_intermediate_size"
)


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of the gated delta families.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    spec = base(fields, family, architecture)
    fields.seen |= {"full_attention_interval", "mamba_ssm_dtype", "attn_output_gate"}
    olmo = family == "olmo_hybrid"
    states, full = kinds_of(fields, spec.layers, last_full=olmo)
    group = _state(fields, spec, len(states))
    caches = (CacheGroup(len(full), spec.kv_heads, spec.key_dim, spec.value_dim),) if full else ()
    spec = replace(spec, caches=caches, states=(group,) if states else ())
    if not olmo and family != "qwen3_5_text":
        spec = replace(spec, experts=read_mixture(fields, spec, _MIXTURE))
    value = group.recurrent and _value_dim(fields, spec)
    tensors = [*trunk(spec, norms=not olmo), *feed_forward(spec, shared_gate=True)]
    tensors += _attention(fields, spec, full) if full else ()
    tensors += delta_tensors(spec, group, states, value) if states else ()
    if olmo:
        tensors += _olmo_norms(spec, states, full)
    spec = replace(spec, tensors=tuple(tensors))
    return qwen4(fields, spec, full) if family == "qwen4_exp_text" else spec


def kinds_of(
    fields: Fields, layers: int, *, last_full: bool = False, interval: int = 4
) -> tuple[Indices, Indices]:
    """Linear and full layers: ``layer_types``, else full where (i + 1) % interval == 0.

    Raises:
        BadModel: A list of another length than the model has layers.
    """
    kinds = fields.choices("layer_types", layers, LINEAR | FULL)
    if kinds is None:
        kinds = fields.choices("layers_block_type", layers, LINEAR | FULL)
    if kinds is not None:
        states = tuple(index for index, kind in enumerate(kinds) if kind in LINEAR)
    else:
        step = interval
        if not last_full:
            step = fields.optional("full_attention_interval", MAX_LAYERS, quiet=True) or interval
        states = tuple(index for index in range(layers) if (index + 1) % step)
        if last_full and len(states) == layers:  # a short model still attends once
            states = states[:-1]
    return states, tuple(index for index in range(layers) if index not in set(states))


def _value_dim(fields: Fields, spec: ModelSpec) -> int:
    return fields.optional("linear_value_head_dim", MAX_DIM) or 2 * _key_dim(fields, spec)


def _key_dim(fields: Fields, spec: ModelSpec) -> int:
    heads = fields.optional("linear_num_key_heads", MAX_DIM) or spec.heads
    return fields.optional("linear_key_head_dim", MAX_DIM) or max(1, 3 * spec.hidden // 4 // heads)


def _state(fields: Fields, spec: ModelSpec, layers: int) -> StateGroup:
    """Convolution over q, k and v, one key by value matrix per value head."""
    key_heads = fields.optional("linear_num_key_heads", MAX_DIM) or spec.heads
    heads = fields.optional("linear_num_value_heads", MAX_DIM) or spec.heads
    key, value = _key_dim(fields, spec), _value_dim(fields, spec)
    return StateGroup(
        "delta",
        layers,
        conv_channels=2 * key_heads * key + heads * value,
        conv_kernel=fields.integer("linear_conv_kernel_dim", MAX_DIM),
        recurrent=heads * value * key,
        heads=heads,
        stated_dtype=fields.dtype_under("mamba_ssm_dtype"),
    )


def _attention(fields: Fields, spec: ModelSpec, full: Indices) -> Iterator[TensorGroup]:
    """Full layers: norms over a head and a gate; OLMo's norms are over all heads, without a gate."""
    bias = fields.flag("attention_bias", default=False)
    olmo = spec.family == "olmo_hybrid"
    yield from attention(
        ATTENTION,
        full,
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        bias=bias,
        out_bias=bias,
        head_norms=not olmo,
    )
    width = spec.heads * spec.key_dim
    if olmo:
        yield from norm(f"{ATTENTION}.q_norm", width, full)
        yield from norm(f"{ATTENTION}.k_norm", spec.kv_heads * spec.key_dim, full)
    else:
        yield from linear(f"{ATTENTION}.gate_proj", width, spec.hidden, full, bias=bias)


def delta_tensors(
    spec: ModelSpec, group: StateGroup, states: Indices, value: int
) -> Iterator[TensorGroup]:
    """Weights of the gated delta layers, whose heads have values of that width."""
    prefix, values = f"{LAYER}.linear_attn", group.heads * value
    yield from linear(f"{prefix}.in_proj_qkv", group.conv_channels, spec.hidden, states)
    yield from linear(f"{prefix}.in_proj_z", values, spec.hidden, states)
    for name in ("in_proj_a", "in_proj_b"):
        yield from linear(f"{prefix}.{name}", group.heads, spec.hidden, states)
    for name in ("A_log", "dt_bias"):
        yield TensorGroup(f"{prefix}.{name}", (group.heads,), states)
    shape = (group.conv_channels, 1, group.conv_kernel)
    yield TensorGroup(f"{prefix}.conv1d.weight", shape, states)
    yield from norm(f"{prefix}.norm", value, states)
    yield from linear(f"{prefix}.out_proj", spec.hidden, values, states)


def _olmo_norms(spec: ModelSpec, states: Indices, full: Indices) -> Iterator[TensorGroup]:
    """Linear layers have a norm before the attention, full ones behind the feed-forward part."""
    every = tuple(range(spec.layers))
    yield from norm(f"{LAYER}.post_attention_layernorm", spec.hidden, every)
    if states:
        yield from norm(f"{LAYER}.input_layernorm", spec.hidden, states)
    if full:
        yield from norm(f"{LAYER}.post_feedforward_layernorm", spec.hidden, full)
