"""Mixtral: experts in every layer, a window only where the config states one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import llama_like
from plimsoll.core.arch.fields import MAX_EXPERTS
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import CacheGroup, Experts
from plimsoll.core.arch.windows import stated_window

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Mixtral config."""
    spec = read_plain(fields, family, architecture)
    window = stated_window(fields)
    mixture = Experts(
        count=fields.integer("num_local_experts", MAX_EXPERTS),
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS),
        intermediate=spec.intermediate,
        shared_intermediate=0,
        layers=frozenset(range(spec.layers)),
    )
    spec = replace(
        spec,
        caches=(CacheGroup(spec.layers, spec.kv_heads, spec.key_dim, spec.value_dim, window),),
        experts=mixture,
    )
    return replace(spec, tensors=llama_like(spec))
