"""Lara Mini: gated delta layers, windowed and full attention in a pattern of five, experts everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import norm
from plimsoll.core.arch.decoder import LAYER, NORMS, Style, attention, ends, mixture_tensors
from plimsoll.core.arch.delta import delta_tensors
from plimsoll.core.arch.fields import MAX_DIM
from plimsoll.core.arch.mixtures import Mixture, read_mixture
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import StateGroup
from plimsoll.core.arch.windows import FULL, WINDOWED, split, stated_window
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

    Indices = tuple[int, ...]

_LINEAR: Final = "linear_attention"
_PERIOD: Final = (
    _LINEAR, "sliding_attention", _LINEAR, "full_attention", "sliding_attention",
)  # fmt: skip
_STYLE: Final = Style(
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    head_norms="head",
    mixture=Mixture(width="moe_intermediate_size", shared="shared_expert_intermediate_size"),
)


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Lara Mini config."""
    spec = read_plain(fields, family, architecture)
    kinds = fields.choices("layer_types", spec.layers, FULL | WINDOWED | {_LINEAR})
    if kinds is None:
        kinds = tuple(_PERIOD[index % len(_PERIOD)] for index in range(spec.layers))
    states = tuple(index for index, kind in enumerate(kinds) if kind == _LINEAR)
    caches = split(
        [kind for kind in kinds if kind != _LINEAR],
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=stated_window(fields),
    )
    key_heads = fields.integer("linear_num_key_heads", MAX_DIM)
    heads = fields.integer("linear_num_value_heads", MAX_DIM)
    keys = key_heads * fields.integer("linear_key_head_dim", MAX_DIM)
    width = fields.integer("linear_value_head_dim", MAX_DIM)
    kernel = fields.integer("linear_conv_kernel_dim", MAX_DIM)
    group = StateGroup(
        kind="delta",
        layers=len(states),
        conv_channels=2 * keys + heads * width,
        conv_kernel=kernel,
        recurrent=heads * width * (keys // key_heads),
        heads=heads,
    )
    spec = replace(spec, caches=caches, states=(group,) if states else ())
    if _STYLE.mixture is not None:
        spec = replace(spec, experts=read_mixture(fields, spec, _STYLE.mixture))
    every = tuple(range(spec.layers))
    groups = [*ends(fields, spec, _STYLE), *mixture_tensors(fields, spec, _STYLE, every)]
    for name in NORMS:
        groups += norm(f"{LAYER}.{name}", spec.hidden, every)
    attending = tuple(index for index in every if index not in set(states))
    groups += attention(fields, spec, _STYLE, attending) if attending else ()
    groups += delta_tensors(spec, group, states, width) if states else ()
    return replace(spec, tensors=tuple(groups))
