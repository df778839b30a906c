"""Llama and its many look-alikes: every layer full, biases only where the config says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.plain import Defaults, read_plain

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_DEFAULTS: Final = Defaults(4096, 32, 32, 11008, vocab=32000, context_length=2048)


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Llama config. Defaults are those of transformers' LlamaConfig."""
    spec = read_plain(fields, family, architecture, _DEFAULTS)
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    return replace(spec, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
