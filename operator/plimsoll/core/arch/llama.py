"""Llama and the families that differ from it in biases, norms, a window or a gate only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.decoder import ALWAYS, FOUR_NORMS, LAYER, Style, read_decoder
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.arch.windows import (
    all_windowed,
    letters_or_repeating,
    repeating,
    where_positions_lack,
    with_switch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def _apertus(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Two numbers of its activation function."""
    every = tuple(range(spec.layers))
    yield TensorGroup(f"{LAYER}.mlp.act_fn.alpha_p", (1,), every)
    yield TensorGroup(f"{LAYER}.mlp.act_fn.alpha_n", (1,), every)


def _bitnet(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Norms before the output projections."""
    every = tuple(range(spec.layers))
    yield TensorGroup(f"{LAYER}.self_attn.attn_sub_norm.weight", (spec.hidden,), every)
    yield TensorGroup(f"{LAYER}.mlp.ffn_sub_norm.weight", (spec.intermediate,), every)


def _diffllama(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Four vectors that weigh its two attentions."""
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        yield TensorGroup(f"{LAYER}.self_attn.{name}", (spec.key_dim,), tuple(range(spec.layers)))


def _hyperclovax(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    if fields.flag("use_post_norm", default=False):
        for name in ("post_norm1", "post_norm2"):
            yield TensorGroup(f"{LAYER}.{name}.weight", (spec.hidden,), tuple(range(spec.layers)))


def backwards(fields: Fields, layers: int) -> tuple[str, ...]:
    """Every fourth layer full, counted backward from the last."""
    return repeating(4, full=layers - 1)(fields, layers)


_LLAMA: Final = Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
_APERTUS: Final = Style(
    qkv_bias="attention_bias", o_bias="attention_bias", gated=False, head_norms="head",
    extras=_apertus,
)  # fmt: skip
_ERNIE: Final = Style(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias")
_GLM4: Final = Style(qkv_bias="attention_bias", norms=FOUR_NORMS)
_HUNYUAN: Final = Style(qkv_bias="attention_bias", o_bias="attention_bias", head_norms="head")
_MISTRAL: Final = Style(rule=all_windowed)
_OLMO2: Final = Style(qkv_bias="attention_bias", o_bias="attention_bias", head_norms="heads")
_COHERE2: Final = Style(
    qkv_bias="attention_bias", o_bias="attention_bias", norms=("input_layernorm",),
    rule=repeating(4, key="sliding_window_pattern"),
)  # fmt: skip

STYLES: Final[Mapping[str, Style]] = {
    "llama": _LLAMA,
    "exaone": _LLAMA,
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "granite": _LLAMA,
    "granite_docling_text": _LLAMA,
    "granite4_vision_text": _LLAMA,
    "emu3_text_model": Style(mlp_bias="mlp_bias", qkv_bias="attention_bias"),
    "cwm": Style(mlp_bias="mlp_bias", rule=repeating(4, full=0)),
    "arcee": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", gated=False
    ),
    "helium": Style(qkv_bias="attention_bias", mlp_bias="mlp_bias"),
    "seed_oss": Style(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "smollm3": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias",
        rule=with_switch(where_positions_lack),
    ),
    "granite_swa": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", sinks=True,
        rule=repeating(4, full=0),
    ),
    "hyperclovax": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias",
        extras=_hyperclovax,
    ),
    "apertus": _APERTUS,
    "apertus1p5_text": _APERTUS,
    "bitnet": Style(qkv_bias="attention_bias", o_bias="attention_bias", extras=_bitnet),
    "diffllama": Style(qkv_bias="attention_bias", o_bias="attention_bias", extras=_diffllama),
    "ernie4_5": _ERNIE,
    "paddleocr_vl_text": _ERNIE,
    "cosmos3_edge_text": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", gated=False
    ),
    "glm": Style(qkv_bias="attention_bias"),
    "glm4": _GLM4,
    "glm4v_text": Style(qkv_bias=ALWAYS, norms=FOUR_NORMS),
    "glm_ocr_text": Style(norms=FOUR_NORMS),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_vl_text": _HUNYUAN,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "phi3": _MISTRAL,
    "olmo": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", norms=(), final_norm=False
    ),
    "olmo2": _OLMO2,
    "olmo3": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", head_norms="heads", rule=repeating(4)
    ),
    "exaone4": Style(head_norms="head", rule=letters_or_repeating),
    "nanochat": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", norms=(), final_norm=False, gated=False
    ),
    "cohere": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", norms=("input_layernorm",),
        head_norms="heads", head_norms_switch="use_qk_norm",
    ),
    "cohere2": _COHERE2,
    # Its class fills in full layers before it looks at the pattern.
    "cohere_compass_text": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", norms=("input_layernorm",)
    ),
    "gemma": Style(qkv_bias="attention_bias", o_bias="attention_bias"),
    "muse_glimmer_text": Style(
        qkv_bias="attention_bias", o_bias="attention_bias", norms=FOUR_NORMS, gate="elements",
        rule=backwards,
    ),
}  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families."""
    return read_decoder(fields, family, architecture, STYLES[family])
