"""Gemma 3n and 4: full layers with other heads than windowed ones, and layers that share caches.

The last ``num_kv_shared_layers`` keep no cache: they read what an earlier layer of their kind wrote,
and have no projections of keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import FOUR_NORMS, LAYER, Style, attention, ends, on
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB, Fields
from plimsoll.core.arch.gemma import bidirectional_window
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import CacheGroup, Experts, TensorGroup
from plimsoll.core.arch.windows import FULL, repeating
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.spec import ModelSpec

    Indices = tuple[int, ...]

_STYLE = Style(
    qkv_bias="attention_bias", o_bias="attention_bias", norms=FOUR_NORMS, head_norms="head"
)


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read the text config of a Gemma 3n or 4."""
    spec = read_plain(fields, family, architecture)
    old = family == "gemma3n_text"
    kinds = list(repeating(5 if old else 6)(fields, spec.layers))
    if not old:
        kinds[-1] = "full_attention"  # its class insists
    # Full layers of Gemma 3n are like its windowed ones.
    kv_heads, head_dim = (spec.kv_heads, spec.key_dim) if old else _full_heads(fields, spec, kinds)
    shared = fields.optional("num_kv_shared_layers", MAX_LAYERS, least=0, quiet=True) or 0
    own = max(0, spec.layers - shared)
    full = sum(kind in FULL for kind in kinds[:own])
    caches = []
    if full:
        caches.append(CacheGroup(full, kv_heads, head_dim, head_dim))
    if own - full:
        window = bidirectional_window(fields)
        caches.append(CacheGroup(own - full, spec.kv_heads, spec.key_dim, spec.value_dim, window))
    if not caches:
        raise fields.wrong("num_kv_shared_layers", f"less than the {spec.layers} layers")
    spec = replace(spec, caches=tuple(caches))
    if old:
        return replace(spec, tensors=tuple(_tensors_3n(fields, spec, own)))
    if fields.flag("enable_moe_block", default=False):
        spec = replace(spec, experts=_experts(fields, spec.layers))
    groups = [
        *_attention_4(fields, spec, kinds, own, kv_heads, head_dim),
        *_rest_4(fields, spec, own),
    ]
    return replace(spec, tensors=tuple(groups))


def _full_heads(fields: Fields, spec: ModelSpec, kinds: list[str]) -> tuple[int, int]:
    """KV heads and head size of the full layers."""
    kv_heads = spec.kv_heads
    if fields.flag("attention_k_eq_v", default=True):
        kv_heads = (
            fields.optional("num_global_key_value_heads", MAX_DIM, quiet=True) or spec.kv_heads
        )
    head_dim = fields.optional("global_head_dim", MAX_DIM, quiet=True) or 512
    # What transformers writes instead: exceptions by the layer's index, here of the first full one.
    exceptions = fields.child("per_layer_config")
    for index, kind in enumerate(kinds):
        key = next((key for key in (f"{index:02}", f"{index}") if exceptions.has(key)), None)
        if kind in FULL and key is not None:
            layer = exceptions.child(key)
            kv_heads = layer.optional("num_key_value_heads", MAX_DIM) or kv_heads
            return kv_heads, layer.optional("head_dim", MAX_DIM) or spec.key_dim
    return kv_heads, head_dim


def _experts(fields: Fields, layers: int) -> Experts:
    count = fields.integer("num_experts", MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=min(count, fields.integer("top_k_experts", MAX_EXPERTS)),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM),
        shared_intermediate=0,
        layers=frozenset(range(layers)),
    )


def _per_layer_inputs(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """An embedding of its own for every layer."""
    width = fields.optional("hidden_size_per_layer_input", MAX_DIM, least=0, quiet=True) or 0
    if not width:
        return
    every = tuple(range(spec.layers))
    vocab = fields.integer("vocab_size_per_layer_input", MAX_VOCAB, default=spec.vocab)
    yield TensorGroup("model.embed_tokens_per_layer.weight", (vocab, spec.layers * width))
    yield from linear("model.per_layer_model_projection", spec.layers * width, spec.hidden)
    yield from norm("model.per_layer_projection_norm", width)
    yield from linear(f"{LAYER}.per_layer_input_gate", width, spec.hidden, every)
    yield from linear(f"{LAYER}.per_layer_projection", spec.hidden, width, every)
    yield from norm(f"{LAYER}.post_per_layer_input_norm", spec.hidden, every)


def _attention(
    fields: Fields, spec: ModelSpec, own: Indices, reused: Indices
) -> Iterator[TensorGroup]:
    """Attention of layers with these heads; those that reuse a cache have neither keys nor values."""
    if own:
        yield from attention(fields, spec, _STYLE, own)
    if reused:
        for group in attention(fields, spec, _STYLE, reused):
            if not any(part in group.name for part in ("k_proj", "v_proj", "k_norm")):
                yield group


def _attention_4(
    fields: Fields, spec: ModelSpec, kinds: list[str], own: int, kv_heads: int, head_dim: int
) -> Iterator[TensorGroup]:
    every = range(spec.layers)
    windowed = tuple(i for i in every if kinds[i] not in FULL)
    full = tuple(i for i in every if kinds[i] in FULL)
    other = replace(spec, kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim)
    for sizes, indices in ((spec, windowed), (other, full)):
        mine = tuple(i for i in indices if i < own)
        groups = _attention(fields, sizes, mine, tuple(i for i in indices if i >= own))
        # Full layers may use their keys as values; both are cached all the same.
        equal = sizes is other and fields.flag("attention_k_eq_v", default=False)
        for group in groups:
            if not (equal and "v_proj" in group.name):
                yield group


def _rest_4(fields: Fields, spec: ModelSpec, own: int) -> Iterator[TensorGroup]:
    every = tuple(range(spec.layers))
    yield from ends(fields, spec, _STYLE)
    for name in FOUR_NORMS:
        yield from norm(f"{LAYER}.{name}", spec.hidden, every)
    double = on(fields, "use_double_wide_mlp")
    for indices, width in (
        (every[:own], spec.intermediate),
        (every[own:], spec.intermediate * (2 if double else 1)),
    ):
        if indices:
            yield from gated_mlp(f"{LAYER}.mlp", indices, hidden=spec.hidden, width=width)
    yield from _per_layer_inputs(fields, spec)
    mixture = spec.experts
    if mixture is not None:
        yield from linear(f"{LAYER}.router.proj", mixture.count, spec.hidden, every)
        yield TensorGroup(f"{LAYER}.router.scale", (spec.hidden,), every)
        yield TensorGroup(f"{LAYER}.router.per_expert_scale", (mixture.count,), every)
        yield from experts(
            LAYER, every, count=mixture.count, hidden=spec.hidden, width=mixture.intermediate
        )
        for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                     "pre_feedforward_layernorm_2"):  # fmt: skip
            yield from norm(f"{LAYER}.{name}", spec.hidden, every)


def _tensors_3n(fields: Fields, spec: ModelSpec, own: int) -> Iterator[TensorGroup]:
    every, hidden = tuple(range(spec.layers)), spec.hidden
    yield from ends(fields, spec, _STYLE)
    for name in FOUR_NORMS:
        yield from norm(f"{LAYER}.{name}", hidden, every)
    yield from _attention(fields, spec, every[:own], every[own:])
    for index, width in enumerate(_widths(fields, spec)):
        yield from gated_mlp(f"{LAYER}.mlp", (index,), hidden=hidden, width=width)
    yield from _per_layer_inputs(fields, spec)
    inputs = fields.optional("altup_num_inputs", MAX_LAYERS, quiet=True) or 4
    rank = fields.optional("laurel_rank", MAX_DIM, quiet=True) or 64
    prefix = f"{LAYER}.altup"
    yield TensorGroup(f"{prefix}.correct_output_scale", (hidden,), every)
    yield from linear(f"{prefix}.correction_coefs", inputs, inputs, every)
    yield from linear(f"{prefix}.prediction_coefs", inputs * inputs, inputs, every)
    yield from linear(f"{prefix}.modality_router", inputs, hidden, every)
    yield from norm(f"{prefix}.router_norm", hidden, every)
    yield from linear(f"{LAYER}.laurel.linear_left", rank, hidden, every)
    yield from linear(f"{LAYER}.laurel.linear_right", hidden, rank, every)
    yield from norm(f"{LAYER}.laurel.post_laurel_norm", hidden, every)
    others = tuple(range(inputs - 1))
    if others:
        yield from linear("model.altup_projections.*", hidden, hidden, others)
        yield from linear("model.altup_unembed_projections.*", hidden, hidden, others)


def _widths(fields: Fields, spec: ModelSpec) -> tuple[int, ...]:
    """Width of the feed-forward part, one number for all layers or one for each."""
    if not isinstance(fields.get("intermediate_size"), list):
        return (spec.intermediate,) * spec.layers
    widths = fields.integers("intermediate_size", MAX_DIM)
    if len(widths) != spec.layers:
        raise fields.wrong("intermediate_size", f"a number, or a list of {spec.layers}")
    return widths
