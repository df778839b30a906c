"""Families with experts in most layers, otherwise like Llama."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.decoder import ALWAYS, FOUR_NORMS, LAYER, Style, read_decoder
from plimsoll.core.arch.fields import MAX_LAYERS
from plimsoll.core.arch.mixtures import SHARED_COUNTS, Mixture, after, everywhere, listed, stepped
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.arch.windows import all_windowed, from_layer, letters_or_repeating, repeating
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_DRAFT: Final = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")
_BIASED: Final = Style(qkv_bias="attention_bias", o_bias="attention_bias")
_FIRST_DENSE: Final = after(0, "first_k_dense_replace")
_ROUTED: Final = Mixture(
    where=_FIRST_DENSE, width="moe_intermediate_size", shared_count=SHARED_COUNTS
)
_GRANITE: Final = replace(_BIASED, mixture=Mixture(shared="shared_intermediate_size"))
_GLM4_MOE: Final = Style(
    qkv_bias="attention_bias", head_norms="head", head_norms_switch="use_qk_norm", mixture=_ROUTED
)


def correction(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """One number per expert that corrects the router's choice, where it is a parameter."""
    mixture = spec.experts
    if mixture is not None and mixture.layers:
        indices = tuple(sorted(mixture.layers))
        yield TensorGroup(f"{LAYER}.mlp.gate.e_score_correction_bias", (mixture.count,), indices)


def _ernie_layers(fields: Fields, layers: int) -> frozenset[int]:
    """Every ``moe_layer_interval``-th layer between a first and a last one, both included."""
    found = listed(fields, layers)
    if found is not None:
        return found
    first = fields.optional("moe_layer_start_index", MAX_LAYERS, least=0, quiet=True) or 0
    last = fields.get("moe_layer_end_index")
    if last is None or last == -1:
        last = layers - 1
    elif not isinstance(last, int) or isinstance(last, bool) or last < -1:
        raise fields.wrong("moe_layer_end_index", "the index of a layer, or -1")
    step = fields.optional("moe_layer_interval", MAX_LAYERS, quiet=True) or 1
    return frozenset(i for i in range(layers) if (i + 1) % step == 0 and first <= i <= last)


def _ernie(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield from correction(fields, spec)
    if fields.flag("use_bias", default=False):
        yield TensorGroup("lm_head.bias", (spec.vocab,))


def _flint_layers(fields: Fields, layers: int) -> frozenset[int]:
    return stepped(fields, layers, dense=(0, 1))


def _beam(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield TensorGroup(f"{LAYER}.self_attn.gate_bias", (spec.heads,), tuple(range(spec.layers)))


def _phimoe(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    if fields.flag("lm_head_bias", default=False):
        yield TensorGroup("lm_head.bias", (spec.vocab,))


STYLES: Final[Mapping[str, Style]] = {
    "mixtral": Style(rule=all_windowed, mixture=Mixture()),
    "minimax_m2": Style(head_norms="heads", mixture=Mixture()),
    "phimoe": replace(
        _BIASED, norm_bias=ALWAYS, rule=all_windowed, mixture=Mixture(), extras=_phimoe
    ),
    "olmoe": replace(_BIASED, head_norms="heads", mixture=Mixture()),
    "flex_olmo": replace(_BIASED, head_norms="heads", mixture=Mixture()),
    "granitemoe": _GRANITE,
    "granitemoeshared": _GRANITE,
    "granitemoe_swa": replace(_GRANITE, sinks=True, rule=repeating(4, full=0)),
    "aria_text": replace(_BIASED, mlp_bias="mlp_bias", mixture=Mixture(shared_count=("moe_num_shared_experts",))),
    "gpt_oss": replace(
        _BIASED, sinks=True, rule=repeating(2), mixture=Mixture(router_bias=True, bias=True)
    ),
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe_text": replace(_GLM4_MOE, head_norms=""),
    "sarvam_moe": _GLM4_MOE,
    "solar_open": Style(
        qkv_bias="attention_bias",
        mixture=replace(_ROUTED, where=everywhere),
    ),
    "dots1": replace(_BIASED, head_norms="head", rule=from_layer, mixture=_ROUTED),
    "exaone_moe": Style(head_norms="head", rule=letters_or_repeating, mixture=_ROUTED),
    "hy_v3": replace(
        _BIASED, mlp_bias="mlp_bias", head_norms="head",
        mixture=replace(_ROUTED, where=after(1, "first_k_dense_replace")),
    ),
    "kolibri1": Style(
        head_norms="head", norms=FOUR_NORMS, rule=repeating(5),
        mixture=Mixture(width="moe_intermediate_size", shared="shared_expert_intermediate_size"),
    ),
    "mellum": replace(
        _BIASED, head_norms="head", mixture=Mixture(where=after(0), width="moe_intermediate_size")
    ),
    "flint": replace(
        _BIASED, head_norms="head", sinks=True, rule=repeating(4, full=1, first=2, last=True),
        mixture=Mixture(
            where=_flint_layers, width="moe_intermediate_size",
            shared="shared_expert_intermediate_size",
        ),
    ),
    "beam": replace(
        _BIASED, head_norms="head", norms=FOUR_NORMS, gate="elements", extras=_beam,
        rule=repeating(6, last=True),
        mixture=Mixture(where=after(3), width="moe_intermediate_size"),
    ),
    "afmoe": replace(
        _BIASED, head_norms="head", norms=FOUR_NORMS, gate="elements", extras=correction,
        rule=repeating(4, key="global_attn_every_n_layers"),
        mixture=replace(_ROUTED, where=after(0, "num_dense_layers")),
    ),
    "ernie4_5_moe": Style(
        qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", extras=_ernie,
        mixture=replace(_ROUTED, where=_ernie_layers),
    ),
}  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families."""
    kinds = fields.integers("attn_type_list", 1) if family == "minimax_m2" else ()
    if not all(kinds):
        raise fields.wrong(
            "attn_type_list", "1 for every layer; others are read as minimax_text_01"
        )
    spec = read_decoder(fields, family, architecture, STYLES[family])
    fields.seen.add("mtp_transformer_layers")
    draft = fields.either(*_DRAFT, most=MAX_LAYERS, least=0)
    return replace(spec, draft_layers=draft or 0)
