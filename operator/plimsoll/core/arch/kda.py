"""Hybrids of latent attention and KDA: Kimi Linear, Bailing (Ring and Ling), GLM-5-next.

KDA keeps a square matrix per head for each sequence and a convolution over q, k and v. Lists of
``linear_attn_config`` count layers from 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.delta import FULL, LINEAR
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.latent import mixture_of
from plimsoll.core.arch.latent_parts import (
    ATTENTION,
    Indices,
    base,
    feed_forward,
    hyper_connections,
    index_rule,
    indexer,
    latent_attention,
    read_latent,
    trunk,
    with_latent,
)
from plimsoll.core.arch.mixtures import read_mixture
from plimsoll.core.arch.spec import CacheGroup, StateGroup, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.latent_parts import Latent
    from plimsoll.core.arch.spec import ModelSpec

_DENSE: Final = {"kimi_linear": 1, "bailing_hybrid": 2, "glm5_next_text": 3}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    spec = base(fields, family, architecture, grouped=False)
    spec = replace(spec, experts=read_mixture(fields, spec, mixture_of(_DENSE[family])))
    if (
        family == "bailing_hybrid"
    ):  # transformers gives it a head of its own whatever the switch says
        spec = replace(spec, tied=False)
    states = _linear_layers(fields, spec)
    full = tuple(index for index in range(spec.layers) if index not in set(states))
    group = _state(fields, spec, len(states))
    latent = read_latent(fields, spec)
    own: Indices = ()
    if family == "glm5_next_text":
        own = tuple(index for index in index_rule(fields, spec.layers) if index in set(full))
    # Beside its key, a token of the pooled index keeps the pool's gate and whether it is valid.
    size = 2 * fields.integer("index_head_dim", MAX_DIM) + 1 if own else 0
    cache = CacheGroup(
        len(full), 1, latent.rank, latent.rope, latent=True, index_dim=size, index_layers=len(own)
    )
    spec = replace(
        with_latent(spec, latent),
        caches=(cache,) if full else (),
        states=(group,) if states else (),
    )
    tensors = [*trunk(spec), *feed_forward(spec)]
    tensors += _kda(spec, group, states) if states else ()
    tensors += _full(fields, spec, latent, full) if full else ()
    if family == "glm5_next_text":
        tensors += _glm(fields, spec, latent, own)
    return replace(spec, tensors=tuple(tensors))


def _linear_layers(fields: Fields, spec: ModelSpec) -> Indices:
    """Layers with a state: ``layer_types``, the lists of ``linear_attn_config``, else by family."""
    kinds = fields.choices("layer_types", spec.layers, LINEAR | FULL)
    if kinds is not None:
        return tuple(index for index, kind in enumerate(kinds) if kind in LINEAR)
    every = range(spec.layers)
    table = fields.child("linear_attn_config")
    if spec.family == "kimi_linear" and table.has("full_attn_layers") and table.has("kda_layers"):
        full = table.integers("full_attn_layers", MAX_LAYERS)
        listed = table.integers("kda_layers", MAX_LAYERS)
        if sorted((*full, *listed)) != [index + 1 for index in every]:
            raise table.wrong("kda_layers", "with full_attn_layers each layer once, from 1")
        return tuple(sorted(index - 1 for index in listed))
    if spec.family == "kimi_linear":
        return tuple(index for index in every if not index or index % 4)
    step = 4
    if spec.family == "bailing_hybrid":
        step = fields.integer("layer_group_size", MAX_LAYERS)
    return tuple(index for index in every if (index + 1) % step)


def _state(fields: Fields, spec: ModelSpec, layers: int) -> StateGroup:
    table = fields.child("linear_attn_config")
    if spec.family == "bailing_hybrid":
        # A stated linear_ field wins over those that it is usually made of.
        heads = fields.either("linear_num_heads", most=MAX_DIM) or spec.heads
        size = _bailing_head(fields)
        keys = ("linear_conv_kernel_dim", "short_conv_kernel_size")
        kernel = fields.first(*keys, most=MAX_DIM)
    else:
        heads = _either(fields, table, "num_heads", "linear_num_heads")
        size = _either(fields, table, "head_dim", "linear_head_dim")
        kernel = _either(fields, table, "short_conv_kernel_size", "linear_conv_kernel_dim")
    return StateGroup(
        "kda",
        layers,
        conv_channels=3 * heads * size,
        conv_kernel=kernel,
        recurrent=heads * size * size,
        heads=heads,
    )


def _bailing_head(fields: Fields) -> int:
    """Width of a linear head; a file that transformers wrote says the rotary width in ``head_dim``."""
    if fields.states("linear_head_dim"):
        return fields.integer("linear_head_dim", MAX_DIM)
    return fields.integer("head_dim", MAX_DIM)


def _either(fields: Fields, table: Fields, nested: str, flat: str) -> int:
    fields.seen.add(flat)
    return table.optional(nested, MAX_DIM) or fields.integer(flat, MAX_DIM)


def _kda(spec: ModelSpec, group: StateGroup, states: Indices) -> Iterator[TensorGroup]:
    hidden, heads = spec.hidden, group.heads
    width = group.conv_channels // 3
    size, bailing = width // heads, spec.family == "bailing_hybrid"
    for name in ("q_proj", "k_proj", "v_proj"):
        yield from linear(f"{LAYER}.linear_attn.{name}", width, hidden, states)
    prefix = f"{LAYER}.linear_attn"
    dtype = None if spec.family == "kimi_linear" else "fp32"
    shape = (group.conv_channels, 1, group.conv_kernel)
    yield TensorGroup(f"{prefix}.conv1d.weight", shape, states, dtype)
    yield TensorGroup(f"{prefix}.A_log", (heads,), states, dtype)
    yield TensorGroup(f"{prefix}.dt_bias", (width,), states, "fp32")
    for name in ("f", "g"):
        if bailing:
            yield from linear(f"{prefix}.{name}_proj", width, hidden, states)
        else:
            yield from linear(f"{prefix}.{name}_a_proj", size, hidden, states)
            yield from linear(f"{prefix}.{name}_b_proj", width, size, states)
    yield from linear(f"{prefix}.b_proj", heads, hidden, states)
    yield from norm(f"{prefix}.o_norm", size, states)
    yield from linear(f"{prefix}.o_proj", hidden, width, states)


def _full(fields: Fields, spec: ModelSpec, latent: Latent, full: Indices) -> Iterator[TensorGroup]:
    bias = fields.flag("attention_bias", default=False)
    yield from latent_attention(latent, spec.hidden, full, bias=bias)
    if spec.family == "bailing_hybrid":
        yield from linear(f"{ATTENTION}.g_proj", latent.heads, spec.hidden, full)


def _glm(fields: Fields, spec: ModelSpec, latent: Latent, own: Indices) -> Iterator[TensorGroup]:
    """An index over pooled keys, and several residual streams."""
    every = tuple(range(spec.layers))
    streams = fields.integer("hc_mult", MAX_LAYERS)
    yield from hyper_connections(spec.hidden, streams, every, mixing=True, head=False)
    if own:
        yield from indexer(fields, latent.query_rank or spec.hidden, spec.hidden, own)
        size = fields.integer("index_head_dim", MAX_DIM)
        pool = fields.integer("index_kpool", MAX_DIM)
        prefix = f"{ATTENTION}.indexer.index_kpool_compress"
        yield TensorGroup(f"{prefix}_ape", (pool, size), own)
        yield TensorGroup(f"{prefix}_gate", (size, spec.hidden), own)
