"""Families whose code is in the checkpoint: ChatGLM, Qwen of the first generation, Baichuan ...

Their configs name plain attention in words of their own. A row says what the class in the
checkpoint assumes, how its words translate, and how its layers differ from Llama's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.blocks import gated_mlp, norm
from plimsoll.core.arch.decoder import ALWAYS, FOUR_NORMS, LAYER, Style, read_decoder
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.mixtures import Mixture, after
from plimsoll.core.arch.registry import read_as
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.records import dataclass, field, replace
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

    Derive = Callable[[Fields], Mapping[str, Any]]


#: Fields with telling names that change no size here: numerics, kernels, sparsity over a full cache.
_NEUTRAL: Final = frozenset({
    "apply_query_key_layer_scaling", "apply_residual_connection_post_layernorm",
    "blocksparse_block_size", "blocksparse_homo_head_pattern", "blocksparse_num_local_blocks",
    "blocksparse_triton_kernel_block_size", "blocksparse_vert_stride", "bskcn_1", "bskcn_2", "bskcn_3",
    "bskcn_4", "bskcn_tv", "dense_attention_every_n_layers", "moe_expert_parallel_size", "sparse_config",
    "use_cache_kernel", "use_cache_quantization", "use_dynamic_ntk",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One family.

    Attributes:
        style: How its layers differ from Llama's.
        assumed: What its class assumes for a key that is absent; the vocabulary as published.
        words: Our word -> the family's.
        derive: Values that follow from others.
    """

    style: Style = field(default_factory=Style)
    assumed: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    derive: Derive | None = None


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families.

    Raises:
        BadModel: A size is of the wrong type or out of range, under the family's own word.
    """
    if family in _ALIASES:
        fields.seen |= set(fields.values)  # the other reader sees to them
        return read_as(_ALIASES[family], fields.values, notes=fields.notes, path=fields.path)
    row = _ROWS[family]
    own = replace(fields, defaults={**row.assumed, **fields.defaults})
    values = dict(own.values)
    for word, theirs in row.words.items():
        if own.values.get(theirs) is not None:
            values[word] = own.integer(theirs, MAX_CONTEXT)
    if row.derive is not None:
        values |= row.derive(own)
    style = row.style
    if family == "chatglm" and own.states("inner_hidden_size"):
        style = _FIRST_GLM
    spec = read_decoder(replace(own, values=values), family, architecture, style)
    for key in ("vision_config", "visual"):
        if own.has(key):
            fields.notes.append(f"weights of {key} are not computed from the config")
    own.seen |= _NEUTRAL
    draft = own.optional("num_nextn_predict_layers", MAX_LAYERS, least=0, quiet=True) or 0
    return replace(spec, draft_layers=draft)


def _chatglm(fields: Fields) -> Mapping[str, Any]:
    """Groups count only with their switch; the first generation has no such words."""
    if not fields.flag("multi_query_attention", default=False):
        return {"num_key_value_heads": None}
    return {"num_key_value_heads": fields.integer("multi_query_group_num", MAX_DIM)}


def _half(*keys: str) -> Derive:
    """The config counts gate and up together."""

    def derive(fields: Fields) -> Mapping[str, Any]:
        return {"intermediate_size": max(1, fields.first(*keys, most=MAX_DIM) // 2)}

    return derive


def _plamo(fields: Fields) -> Mapping[str, Any]:
    """So many query heads share one head of keys."""
    heads = fields.integer("num_attention_heads", MAX_DIM)
    return {"num_key_value_heads": ceil_div(heads, fields.integer("n_shared_head", MAX_DIM))}


def _codeshell(fields: Fields) -> Mapping[str, Any]:
    if not fields.flag("grouped_query_attention", default=True):
        return {"num_key_value_heads": None}
    return {"num_key_value_heads": fields.integer("num_query_groups", MAX_DIM)}


def _olmo(fields: Fields) -> Mapping[str, Any]:
    """OLMo as first published: ``mlp_hidden_size`` is gate and up together."""
    width = fields.optional("mlp_hidden_size", MAX_DIM, quiet=True)
    if width is None:
        ratio = fields.optional("mlp_ratio", MAX_DIM, quiet=True) or 4
        width = ratio * fields.integer("d_model", MAX_DIM)
    kv_heads = fields.optional("n_kv_heads", MAX_DIM, quiet=True)
    if kv_heads is None and fields.flag("multi_query_attention", default=False):
        kv_heads = 1
    vocab = fields.either("embedding_size", "vocab_size", most=MAX_CONTEXT) or 50304
    return {
        "intermediate_size": max(1, width // 2),
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "tie_word_embeddings": fields.flag("weight_tying", default=True),
    }


def _step(fields: Fields, layers: int) -> frozenset[int]:
    """DeepSeekMoE: dense layers first, then every so-manieth has experts."""
    first = fields.optional("first_k_dense_replace", MAX_LAYERS, least=0, quiet=True) or 0
    step = fields.optional("moe_layer_freq", MAX_LAYERS, quiet=True) or 1
    return frozenset(i for i in range(first, layers) if i % step == 0)


def _arctic_layers(fields: Fields, layers: int) -> frozenset[int]:
    step = fields.optional("moe_layer_frequency", MAX_LAYERS, quiet=True) or 1
    return frozenset(i for i in range(layers) if (i + 1) % step == 0)


def _arctic(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """A dense part as wide as the model beside the experts."""
    if spec.experts is None or not spec.experts.layers:
        return
    every = tuple(sorted(spec.experts.layers))
    prefix = f"{LAYER}.residual_mlp"
    yield from gated_mlp(prefix, every, hidden=spec.hidden, width=spec.hidden)
    yield from norm(f"{LAYER}.residual_layernorm", spec.hidden, every)


def _unlimited(fields: Fields) -> None:
    """Grok 2 writes -1 for no window."""
    fields.seen.add("sliding_window_size")


def _telechat(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """The down-projection alone has a bias."""
    yield TensorGroup(f"{LAYER}.mlp.down_proj.bias", (spec.hidden,), tuple(range(spec.layers)))


def _grok(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """Grok 2 has a dense part beside the experts."""
    if fields.flag("residual_moe", default=False):
        every = tuple(range(spec.layers))
        yield from gated_mlp(f"{LAYER}.mlp", every, hidden=spec.hidden, width=spec.intermediate)


BAILING: Final = Style(
    qkv_bias="use_qkv_bias",
    o_bias="use_bias",
    mlp_bias="use_bias",
    head_norms="head",
    head_norms_switch="use_qk_norm",
    mixture=Mixture(
        where=after(0, "first_k_dense_replace"),
        width="moe_intermediate_size",
        shared_count=("num_shared_experts",),
    ),
)
_BIASED: Final = Style(qkv_bias="bias", o_bias="bias")
_FIRST_GLM: Final = Style(
    qkv_bias=ALWAYS, o_bias=ALWAYS, mlp_bias=ALWAYS, norm_bias=ALWAYS, gated=False
)
_GPT: Final = replace(_FIRST_GLM)

#: Types that say with the same words what a known type says.
_ALIASES: Final[Mapping[str, str]] = {
    "Dream": "qwen2",
    "sdar": "qwen3",
    "sdar_moe": "qwen3_moe",
    "telechat3": "llama",
}

_ROWS: Final[Mapping[str, _Row]] = {
    "Yi": _Row(assumed={"vocab_size": 64000}),
    "aquila": _Row(assumed={"vocab_size": 143973}),
    "arctic": _Row(
        style=Style(mixture=Mixture(where=_arctic_layers), extras=_arctic),
        assumed={"vocab_size": 32000, "num_local_experts": 8},
    ),
    "baichuan": _Row(
        assumed={"vocab_size": 125696}, words={"max_position_embeddings": "model_max_length"}
    ),
    "bailing_moe": _Row(style=BAILING, assumed={"vocab_size": 126464}),
    "bailing_moe_v2": _Row(style=BAILING, assumed={"vocab_size": 157184, "use_qk_norm": True}),
    "btlm": _Row(
        style=replace(_GPT, gated=True), assumed={"vocab_size": 50257, "tie_word_embeddings": True}
    ),
    "chatglm": _Row(
        style=Style(qkv_bias="add_qkv_bias", o_bias="add_bias_linear", mlp_bias="add_bias_linear"),
        assumed={"vocab_size": 65024},
        words={
            "vocab_size": "padded_vocab_size",
            "intermediate_size": "ffn_hidden_size",
            "max_position_embeddings": "seq_length",
        },
        derive=_chatglm,
    ),
    "codeshell": _Row(
        style=_GPT, assumed={"vocab_size": 70144, "num_query_groups": 1}, derive=_codeshell
    ),
    "deepseek": _Row(
        style=Style(
            mixture=Mixture(
                where=_step, width="moe_intermediate_size", shared_count=("n_shared_experts",)
            )
        ),
        assumed={"vocab_size": 102400},
    ),
    "grok-1": _Row(
        style=Style(
            norms=FOUR_NORMS,
            window=_unlimited,
            mixture=Mixture(width="moe_intermediate_size"),
            extras=_grok,
        ),
        assumed={"vocab_size": 131072, "num_local_experts": 8, "tie_word_embeddings": True},
    ),
    "hf_olmo": _Row(style=Style(norms=(), final_norm=False), derive=_olmo),
    "internlm": _Row(style=_BIASED, assumed={"vocab_size": 103168, "bias": True}),
    "internlm2": _Row(style=_BIASED, assumed={"vocab_size": 92544, "bias": True}),
    "jais": _Row(
        style=replace(_GPT, gated=True),
        assumed={"vocab_size": 84992, "tie_word_embeddings": True},
    ),
    "llada2_moe": _Row(style=BAILING, assumed={"vocab_size": 157184, "use_qk_norm": True}),
    "mimo": _Row(style=Style(qkv_bias=ALWAYS), assumed={"vocab_size": 151680}),
    "minicpm": _Row(
        style=Style(mixture=Mixture()), assumed={"vocab_size": 122753, "tie_word_embeddings": True}
    ),
    "orion": _Row(style=Style(norm_bias=ALWAYS), assumed={"vocab_size": 84608}),
    "PanguEmbedded": _Row(style=_BIASED, assumed={"vocab_size": 153376, "bias": True}),
    "PanguProMoE": _Row(
        style=Style(
            qkv_bias=ALWAYS,
            o_bias=ALWAYS,
            mixture=Mixture(
                width="moe_intermediate_size", shared="shared_expert_intermediate_size"
            ),
        ),
        assumed={"vocab_size": 153376},
    ),
    "phi-msft": _Row(
        style=replace(_GPT, norms=("input_layernorm",), head_bias=ALWAYS),
        assumed={"vocab_size": 51200},
        words={"num_key_value_heads": "n_head_kv"},
    ),
    "phi3small": _Row(
        style=replace(_GPT, gated=True),
        assumed={"vocab_size": 100352, "tie_word_embeddings": True},
        words={"intermediate_size": "ff_intermediate_size"},
    ),
    "plamo": _Row(
        style=Style(norms=("input_layernorm",)),
        assumed={"vocab_size": 50432, "n_shared_head": 8},
        derive=_plamo,
    ),
    "qwen": _Row(
        style=Style(qkv_bias=ALWAYS),
        assumed={"vocab_size": 151936, "intermediate_size": 22016},
        words={"max_position_embeddings": "seq_length"},
        derive=_half("intermediate_size"),
    ),
    "skywork": _Row(assumed={"vocab_size": 65519}),
    "solar": _Row(assumed={"vocab_size": 32128}),
    "stablelm_epoch": _Row(
        style=Style(qkv_bias="use_qkv_bias", norm_bias=ALWAYS), assumed={"vocab_size": 100352}
    ),
    "step1": _Row(
        style=Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias"),
        assumed={"vocab_size": 65536},
        words={"num_key_value_heads": "num_attention_groups"},
    ),
    "TeleFLM": _Row(assumed={"vocab_size": 80000}),
    "telechat": _Row(
        style=Style(o_bias=ALWAYS, extras=_telechat),
        assumed={"vocab_size": 160256},
        words={"intermediate_size": "ffn_hidden_size"},
    ),
    "xverse": _Row(assumed={"vocab_size": 100608}),
    "zhinao": _Row(style=Style(qkv_bias=ALWAYS), assumed={"vocab_size": 158464}),
}
