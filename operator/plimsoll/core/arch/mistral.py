"""Mistral: Llama with a window on every layer.

Absent is not null here: without ``sliding_window`` the window is 4096, with null there is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_CONTEXT
from plimsoll.core.arch.plain import Defaults, read_plain

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_ABSENT_WINDOW: Final = 4096
_LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})
_DEFAULTS: Final = Defaults(4096, 32, 32, 14336, vocab=32000, context_length=131072)


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Mistral config. Defaults are those of transformers' MistralConfig."""
    spec = read_plain(fields, family, architecture, _DEFAULTS)
    window = (
        fields.optional("sliding_window", MAX_CONTEXT, least=0)
        if "sliding_window" in fields.values
        else _ABSENT_WINDOW
    )
    kinds = fields.choices("layer_types", spec.layers, _LAYER_TYPES)
    windowed = spec.layers if kinds is None else kinds.count("sliding_attention")
    return replace(spec, window=window or None, windowed_layers=windowed if window else 0)
