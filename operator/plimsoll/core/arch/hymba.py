"""Hymba: attention and Mamba side by side in every layer, caches shared between neighbours.

``kv_reuse_group`` lists which layers use one cache; ``global_attn_idx`` the layers without a window.
Its learned first tokens (``num_memory_tokens``) lie in every cache beside the request's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import CacheGroup, StateGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Hymba config; its weights are left to the checkpoint's headers.

    Raises:
        BadModel: A list names a layer that the model does not have.
    """
    fields = replace(fields, defaults={"vocab_size": 32001, **fields.defaults})
    spec = read_plain(fields, family, architecture)
    window = fields.either("attn_window_size", "sliding_window", most=MAX_CONTEXT)
    everywhere = set(fields.integers("global_attn_idx", MAX_LAYERS))
    owners = _owners(fields, spec.layers)
    full = sum(index in everywhere or not window for index in owners)
    sizes = (spec.kv_heads, spec.key_dim, spec.value_dim)
    caches = [CacheGroup(full, *sizes)] if full else []
    if len(owners) > full:
        caches.append(CacheGroup(len(owners) - full, *sizes, window=window))
    inner = (fields.optional("mamba_expand", MAX_DIM, quiet=True) or 2) * spec.hidden
    state = StateGroup(
        "mamba",
        spec.layers,
        conv_channels=inner,
        conv_kernel=fields.optional("mamba_d_conv", MAX_DIM, quiet=True) or 4,
        recurrent=inner * (fields.optional("mamba_d_state", MAX_DIM, quiet=True) or 16),
        heads=inner,
    )
    # Ranks of its projections and kernels, and the words that the lists above already say.
    fields.seen |= {
        "attn_implementation_new", "conv_dim", "kv_reuse_every_i_layer", "mamba_dt_rank",
        "mamba_inner_layernorms", "mamba_proj_bias", "num_mamba", "layer_type", "attn_hidden_size",
    }  # fmt: skip
    _memory(fields)
    fields.notes.append("weights of hymba are not computed from the config")
    return replace(spec, caches=tuple(caches), states=(state,))


def _memory(fields: Fields) -> None:
    """The learned first tokens take places in the cache of each sequence."""
    tokens = fields.optional("num_memory_tokens", MAX_CONTEXT, least=0, quiet=True)
    if tokens:
        fields.notes.append(
            f"{tokens} memory tokens lie in the cache of each sequence, not counted"
        )


def _owners(fields: Fields, layers: int) -> list[int]:
    """The layers that hold a cache: the first of each group, and all that are in none."""
    groups = fields.get("kv_reuse_group")
    if groups is None:
        return list(range(layers))
    if not isinstance(groups, list) or len(groups) > layers:
        raise fields.wrong("kv_reuse_group", "a list of lists of layers")
    followers: set[int] = set()
    for group in groups:
        if not isinstance(group, list) or not all(
            type(i) is int and 0 <= i < layers for i in group
        ):
            raise fields.wrong("kv_reuse_group", f"a list of lists of layers, 0 to {layers - 1}")
        followers |= set(group[1:])
    return [index for index in range(layers) if index not in followers]
