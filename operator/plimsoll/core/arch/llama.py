"""Llama and its many look-alikes: every layer full, biases only where the config says so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import llama_like
from plimsoll.core.arch.plain import read_plain

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Llama config."""
    spec = read_plain(fields, family, architecture)
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    return replace(spec, tensors=llama_like(spec, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias))
