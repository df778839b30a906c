"""Gemma 2 and 3: windowed and full layers in turns, four norms a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.decoder import FOUR_NORMS, Style, read_decoder
from plimsoll.core.arch.windows import repeating, stated_window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def bidirectional_window(fields: Fields) -> int | None:
    """The window; half of the stated one to each side where attention looks both ways.

    The switch is a flag (Gemma 3) or the word ``all`` (Gemma 4).
    """
    window = stated_window(fields)
    switch = fields.get("use_bidirectional_attention")
    if window and (switch is True or switch == "all"):
        return window // 2 + 1
    return window


_GEMMA2: Final = Style(
    qkv_bias="attention_bias", o_bias="attention_bias", norms=FOUR_NORMS, rule=repeating(2)
)

STYLES: Final[Mapping[str, Style]] = {
    "gemma2": _GEMMA2,
    "gemma3_text": Style(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        norms=FOUR_NORMS,
        head_norms="head",
        rule=repeating(6, key="sliding_window_pattern"),
        window=bidirectional_window,
    ),
    "vaultgemma": Style(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        norms=("input_layernorm", "pre_feedforward_layernorm"),
        rule=repeating(2),
    ),
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families."""
    return read_decoder(fields, family, architecture, STYLES[family])
