"""Qwen 2 and 3, dense and with experts: four families whose configs differ in defaults only.

``sliding_window`` is ignored unless ``use_sliding_window``; then only layers from
``max_window_layers`` on are windowed (the family with experts of Qwen 3 has no such field: all are).
An explicit ``layer_types`` wins over both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import llama_like
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import Experts
from plimsoll.core.arch.windows import layer_types, split, stated_window

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Qwen 2 or 3 config."""
    spec = read_plain(fields, family, architecture)
    caches = split(
        _kinds(fields, spec.layers),
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=stated_window(fields),
    )
    mixture = _experts(fields, spec.layers, family) if family.endswith("_moe") else None
    spec = replace(spec, caches=caches, experts=mixture)
    third = family.startswith("qwen3")
    bias = third and fields.flag("attention_bias", default=False)
    qkv_bias = bias or (not third and fields.flag("qkv_bias", default=True))
    return replace(
        spec, tensors=llama_like(spec, qkv_bias=qkv_bias, o_bias=bias, head_norms=third)
    )


def _kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    """The kind of each layer."""
    stated = layer_types(fields, layers)
    if not fields.flag("use_sliding_window", default=False):
        return ("full_attention",) * layers
    if stated is not None:
        return stated
    # The family with experts of Qwen 3 has no such field: all its layers are windowed.
    full = fields.optional("max_window_layers", MAX_LAYERS, least=0, quiet=True) or 0
    full = min(full, layers)
    return ("full_attention",) * full + ("sliding_attention",) * (layers - full)


def _experts(fields: Fields, layers: int, family: str) -> Experts:
    # Newer files say num_local_experts, older ones num_experts.
    count = fields.first("num_experts", "num_local_experts", most=MAX_EXPERTS, least=0)
    step = fields.optional("decoder_sparse_step", MAX_LAYERS, quiet=True) or 1
    dense = fields.integers("mlp_only_layers", MAX_LAYERS)
    shared = 0  # some files of the third generation carry the second's field, unused
    if family == "qwen2_moe":
        shared = fields.optional("shared_expert_intermediate_size", MAX_DIM) or 0
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM),
        shared_intermediate=shared,
        layers=frozenset(
            i for i in range(layers) if count and i not in dense and (i + 1) % step == 0
        ),
    )
