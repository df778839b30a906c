"""DBRX: sizes of attention and experts are nested, in ``attn_config`` and ``ffn_config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.decoder import Style, read_decoder
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS
from plimsoll.core.arch.mixtures import Mixture
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_STYLE = Style(mixture=Mixture())


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a DBRX config."""
    attention = fields.child("attn_config", {"kv_n_heads": 1})
    forward = fields.child(
        "ffn_config", {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}
    )
    values = {
        **fields.values,
        "num_key_value_heads": attention.integer("kv_n_heads", MAX_DIM),
        "intermediate_size": forward.integer("ffn_hidden_size", MAX_DIM),
        "num_experts": forward.integer("moe_num_experts", MAX_EXPERTS),
        "num_experts_per_tok": forward.integer("moe_top_k", MAX_EXPERTS),
    }
    return read_decoder(replace(fields, values=values), family, architecture, _STYLE)
