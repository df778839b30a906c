"""Mistral: Llama with a window on every layer.

Absent is not null here: without ``sliding_window`` the window is 4096, with null there is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import llama_like
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.windows import layer_types, split, stated_window

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Mistral config."""
    spec = read_plain(fields, family, architecture)
    kinds = layer_types(fields, spec.layers) or ("sliding_attention",) * spec.layers
    caches = split(
        kinds,
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=stated_window(fields),
    )
    return replace(spec, caches=caches, tensors=llama_like(spec))
