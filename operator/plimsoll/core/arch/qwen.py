"""Qwen 2 and 3, dense and with experts, and the text parts of their wrappers.

``sliding_window`` is ignored unless ``use_sliding_window``; then only layers from
``max_window_layers`` on are windowed, in Qwen 2's family with experts every second layer before it,
and in Qwen 3's, which has no such field, all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.decoder import ALWAYS, Style, read_decoder
from plimsoll.core.arch.fields import MAX_LAYERS
from plimsoll.core.arch.mixtures import Mixture, stepped
from plimsoll.core.arch.windows import (
    all_full,
    all_windowed,
    from_layer,
    layer_types,
    with_switch,
)
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def _second_before(fields: Fields, layers: int) -> tuple[str, ...]:
    stated = layer_types(fields, layers)
    if stated is not None:
        return stated
    border = fields.optional("max_window_layers", MAX_LAYERS, least=0, quiet=True) or 0
    return tuple(
        "sliding_attention" if (index + 1) % 2 and index < border else "full_attention"
        for index in range(layers)
    )


_QWEN2: Final = Style(qkv_bias=ALWAYS, rule=with_switch(from_layer))
_QWEN3: Final = Style(
    qkv_bias="attention_bias", o_bias="attention_bias", head_norms="head",
    rule=with_switch(from_layer),
)  # fmt: skip
_EXPERTS3: Final = Mixture(where=stepped, width="moe_intermediate_size")
_QWEN3_MOE: Final = replace(_QWEN3, rule=with_switch(all_windowed), mixture=_EXPERTS3)

STYLES: Final[Mapping[str, Style]] = {
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "qwen2_moe": Style(
        qkv_bias="qkv_bias",
        rule=with_switch(_second_before),
        mixture=Mixture(
            where=stepped,
            width="moe_intermediate_size",
            shared="shared_expert_intermediate_size",
            shared_gate=True,
        ),
    ),
    "qwen3": _QWEN3,
    "qwen3_vl_text": replace(_QWEN3, rule=all_full),
    # Some files of this family carry Qwen 2's width of a shared expert, which it does not have.
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": replace(_QWEN3_MOE, rule=all_full),
    "qwen3_omni_moe_text": replace(_QWEN3_MOE, rule=all_full),
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Qwen 2 or 3 config."""
    return read_decoder(fields, family, architecture, STYLES[family])
