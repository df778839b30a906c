"""Mixtral: experts in every layer, a window only where the config states one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_EXPERTS
from plimsoll.core.arch.plain import Defaults, read_plain
from plimsoll.core.arch.spec import Experts

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_DEFAULTS: Final = Defaults(4096, 32, 32, 14336, vocab=32000, context_length=131072)


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Mixtral config. Defaults are those of transformers' MixtralConfig."""
    spec = read_plain(fields, family, architecture, _DEFAULTS)
    window = fields.optional("sliding_window", MAX_CONTEXT, least=0)
    experts = Experts(
        count=fields.integer("num_local_experts", MAX_EXPERTS, default=8),
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS, default=2),
        intermediate=spec.intermediate,
        shared_intermediate=0,
        layers=frozenset(range(spec.layers)),
    )
    return replace(
        spec,
        window=window or None,
        windowed_layers=spec.layers if window else 0,
        experts=experts,
        notes=tuple(fields.notes),
    )
