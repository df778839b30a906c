"""Qwen 2 and 3, dense and with experts: four families whose configs differ in defaults only.

``sliding_window`` is ignored unless ``use_sliding_window``; then only layers from
``max_window_layers`` on are windowed (the family with experts of Qwen 3 has no such field: all are).
An explicit ``layer_types`` wins over both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.plain import Defaults, read_plain
from plimsoll.core.arch.spec import Experts

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})
_WINDOW_START: Final = 28  # default of max_window_layers


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Values of transformers' config classes for fields that a config.json leaves out."""

    sizes: Defaults
    qkv_bias: bool = False
    qk_norm: bool = False
    window: int = 4096
    window_start: int | None = _WINDOW_START
    experts: int | None = None
    expert_width: int = 0
    per_token: int = 0
    shared_width: int = 0


def _sizes(
    hidden: int, layers: int, heads: int, intermediate: int, head_dim: int | None = None
) -> Defaults:
    return Defaults(hidden, layers, heads, intermediate, 151936, 32768, head_dim)


_DEFAULTS: Final = {
    "qwen2": _Defaults(_sizes(4096, 32, 32, 22016), qkv_bias=True),
    "qwen3": _Defaults(_sizes(4096, 32, 32, 22016, head_dim=128), qk_norm=True),
    "qwen2_moe": _Defaults(
        _sizes(2048, 24, 16, 5632), qkv_bias=True,
        experts=60, expert_width=1408, per_token=4, shared_width=5632,
    ),
    "qwen3_moe": _Defaults(
        _sizes(2048, 24, 32, 6144), qk_norm=True, window_start=None,
        experts=128, expert_width=768, per_token=8,
    ),
}  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Qwen 2 or 3 config."""
    base = _DEFAULTS[family]
    spec = read_plain(fields, family, architecture, base.sizes)
    window, windowed = _windows(fields, base, spec.layers)
    bias = fields.flag("attention_bias", default=False) and not base.qkv_bias
    return replace(
        spec,
        window=window,
        windowed_layers=windowed,
        qkv_bias=bias or (base.qkv_bias and fields.flag("qkv_bias", default=True)),
        o_bias=bias,
        qk_norm=base.qk_norm,
        experts=_experts(fields, base, spec.layers),
        notes=tuple(fields.notes),
    )


def _windows(fields: Fields, base: _Defaults, layers: int) -> tuple[int | None, int]:
    """Window in tokens and the number of layers that have it."""
    in_use = fields.flag("use_sliding_window", default=False)
    kinds = fields.choices("layer_types", layers, _LAYER_TYPES)
    stated = fields.optional("sliding_window", MAX_CONTEXT, least=0)
    window = stated if "sliding_window" in fields.values else base.window
    if not in_use or not window:
        return None, 0
    if kinds is not None:
        windowed = kinds.count("sliding_attention")
    elif base.window_start is None:
        windowed = layers
    else:
        start = fields.optional("max_window_layers", MAX_LAYERS, least=0)
        windowed = max(0, layers - (base.window_start if start is None else start))
    return (window, windowed) if windowed else (None, 0)


def _experts(fields: Fields, base: _Defaults, layers: int) -> Experts | None:
    if base.experts is None:
        return None
    # Newer files say num_local_experts, older ones num_experts.
    spelled = "num_local_experts" if fields.has("num_local_experts") else "num_experts"
    step = fields.optional("decoder_sparse_step", MAX_LAYERS) or 1
    dense = fields.integers("mlp_only_layers", MAX_LAYERS)
    count = fields.integer(spelled, MAX_EXPERTS, default=base.experts, least=0)
    shared = 0
    if base.shared_width:
        shared = fields.integer(
            "shared_expert_intermediate_size", MAX_DIM, default=base.shared_width
        )
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS, default=base.per_token),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM, default=base.expert_width),
        shared_intermediate=shared,
        layers=frozenset(
            i for i in range(layers) if count and i not in dense and (i + 1) % step == 0
        ),
    )
