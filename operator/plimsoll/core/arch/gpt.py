"""The families of GPT-2's time: layer norms and biases, learned positions, no gate.

Their weights are listed under Llama's names, see ``decoder``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.decoder import ALWAYS, LAYER, NORMS, Style, read_decoder
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.spec import CacheGroup, TensorGroup
from plimsoll.core.arch.windows import all_windowed, stated_window
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

    Extras = Callable[[Fields, ModelSpec], Iterator[TensorGroup]]

MAX_POSITIONS: Final = 1 << 24


def positions(*, more: int = 0) -> Extras:
    """A learned embedding of positions, with some rows more."""

    def extras(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
        rows = min(spec.context_length or 0, MAX_POSITIONS) + more
        yield TensorGroup("model.embed_positions.weight", (rows, spec.hidden))

    return extras


def _bloom(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield from norm("model.word_embeddings_layernorm", spec.hidden, bias=True)


def _head_bias(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield TensorGroup("lm_head.bias", (spec.vocab,))


def _japanese(_: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """One bias for the last layer's output projection."""
    yield TensorGroup(f"{LAYER}.self_attn.dense_bias", (spec.hidden,), (spec.layers - 1,))


def _xlm(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    yield from positions()(fields, spec)
    yield from norm("model.layer_norm_emb", spec.hidden, bias=True)
    languages = fields.optional("n_langs", MAX_VOCAB, quiet=True) or 1
    if languages > 1 and fields.flag("use_lang_emb", default=True):
        yield TensorGroup("model.lang_embeddings.weight", (languages, spec.hidden))


_GPT: Final = Style(qkv_bias=ALWAYS, o_bias=ALWAYS, mlp_bias=ALWAYS, norm_bias=ALWAYS, gated=False)
_GPT2: Final = replace(_GPT, extras=positions())
_GPTJ: Final = Style(
    mlp_bias=ALWAYS, norm_bias=ALWAYS, gated=False, norms=NORMS[:1], head_bias=ALWAYS
)
_BIASED: Final = replace(_GPT, qkv_bias="attention_bias", o_bias="attention_bias")

STYLES: Final[Mapping[str, Style]] = {
    "gpt-sw3": _GPT2,
    "gpt2": _GPT2,
    "openai-gpt": replace(_GPT2, final_norm=False),
    "imagegpt": replace(_GPT2, norm_bias=""),
    "ctrl": replace(_GPT, extras=_head_bias),
    "biogpt": replace(_GPT, extras=positions(more=2)),
    "xglm": _GPT,
    "xlm": replace(_GPT, final_norm=False, extras=_xlm, head_bias=ALWAYS),
    "bloom": replace(_GPT, extras=_bloom),
    "gpt_neox": _BIASED,
    "gpt_neox_japanese": Style(norm_bias=ALWAYS, gated=False, extras=_japanese),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "phi": replace(
        _GPT, norms=NORMS[:1], head_bias=ALWAYS, head_norms="head",
        head_norms_switch="qk_layernorm", head_norms_bias=True,
    ),
    "persimmon": replace(
        _GPT, head_norms="head", head_norms_switch="qk_layernorm", head_norms_bias=True
    ),
    "nemotron": replace(_BIASED, mlp_bias="mlp_bias"),
    "jais2": replace(_BIASED, mlp_bias="mlp_bias"),
    "starcoder2": replace(
        _GPT, qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", rule=all_windowed
    ),
}  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families."""
    if fields.values.get("n_embed") is not None:  # BLOOM and Falcon: it wins over hidden_size
        fields = replace(fields, values={**fields.values, "hidden_size": fields.get("n_embed")})
    reader = _READERS.get(family)
    if reader is not None:
        return reader(fields, family, architecture)
    if family == "openai-gpt":
        fields.notes.append(
            "the reference of this family keeps no cache; one of keys and values is assumed"
        )
    return read_decoder(fields, family, architecture, STYLES[family])


def _bigcode(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """StarCoder of the first generation: one KV head with ``multi_query``."""
    many = not fields.flag("multi_query", default=True)
    values = dict(fields.values)
    if not many:
        values["num_key_value_heads"] = 1
    return read_decoder(replace(fields, values=values), family, architecture, _GPT2)


def _neo(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """GPT-Neo: local and global layers, but the reference keeps every token for all of them."""
    fields.seen.update({"attention_types", "attention_layers"})  # they change a mask only
    style = replace(_GPT2, qkv_bias="")
    return read_decoder(fields, family, architecture, style)


def _opt(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """OPT: embeddings may be narrower than the residual stream; the last norm may be missing."""
    bias = "enable_bias"
    before = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    style = Style(
        qkv_bias=bias, o_bias=bias, mlp_bias=bias, norm_bias=ALWAYS, gated=False,
        final_norm=before and not removed, extras=positions(more=2),
    )  # fmt: skip
    spec = read_decoder(fields, family, architecture, style)
    groups = list(spec.tensors)
    if not fields.flag("layer_norm_elementwise_affine", default=True):
        groups = [group for group in groups if "norm" not in group.name]
    width = fields.optional("word_embed_proj_dim", MAX_DIM) or spec.hidden
    if width != spec.hidden:
        names = ("model.embed_tokens.weight", "lm_head.weight")
        groups = [
            replace(group, shape=(spec.vocab, width)) if group.name in names else group
            for group in groups
        ]
        groups += linear("model.project_in", spec.hidden, width)
        groups += linear("model.project_out", width, spec.hidden)
    return replace(spec, tensors=tuple(groups))


def _stablelm(fields: Fields, family: str, architecture: str) -> ModelSpec:
    parallel = fields.flag("use_parallel_residual", default=False)
    style = Style(
        qkv_bias="use_qkv_bias", norm_bias=ALWAYS, norms=NORMS[:1] if parallel else NORMS,
        head_norms="heads", head_norms_switch="qk_layernorm",
    )  # fmt: skip
    return read_decoder(fields, family, architecture, style)


def _falcon(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Falcon: the new architecture has KV heads in groups; the old one has one, or as many as heads.

    ``multi_query`` says nothing in the new architecture. transformers repeats the keys of its groups
    before it caches them, the engines do not.
    """
    values = dict(fields.values)
    old = family in {"RefinedWebModel", "RefinedWeb"}
    new = fields.flag("new_decoder_architecture", default=family == "RefinedWeb")
    kv_heads = fields.either("num_kv_heads", "n_head_kv", most=MAX_DIM)
    if not new:
        kv_heads = 1 if fields.flag("multi_query", default=True) else None
    values["num_key_value_heads"] = kv_heads
    norms: tuple[str, ...] = NORMS
    if fields.flag("parallel_attn", default=True):
        norms = NORMS[: fields.optional("num_ln_in_parallel_attn", 2, quiet=True) or 1 + new]
    bias = "bias"
    style = Style(
        qkv_bias=bias, o_bias=bias, mlp_bias=bias, norm_bias=ALWAYS, gated=False, norms=norms
    )
    name = "FalconForCausalLM" if old else architecture
    return read_decoder(replace(fields, values=values), "falcon", name, style)


def _mpt(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """MPT: no biases at all; ``attn_config`` may name KV heads, which transformers does not read."""
    ratio = fields.optional("expansion_ratio", 64, quiet=True) or 4
    hidden = fields.first("d_model", "hidden_size", most=MAX_DIM)
    nested = fields.child("attn_config")
    kv_heads = nested.optional("kv_n_heads", MAX_DIM)
    if kv_heads is None and nested.text("attn_type") == "multiquery_attention":
        kv_heads = 1
    values = {**fields.values, "num_key_value_heads": kv_heads, "intermediate_size": ratio * hidden}
    style = Style(gated=False)
    return read_decoder(replace(fields, values=values), family, architecture, style)


def _cpmant(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """CPM-Ant: prompts and segments have rows in the embeddings, the head has none for them."""
    spec = read_decoder(fields, family, architecture, Style())
    kinds = fields.optional("prompt_types", MAX_VOCAB, quiet=True) or 32
    length = fields.optional("prompt_length", MAX_VOCAB, quiet=True) or 32
    segments = fields.optional("segment_types", MAX_VOCAB, quiet=True) or 32
    buckets = fields.optional("position_bias_num_buckets", MAX_CONTEXT, quiet=True) or 512
    groups = [group for group in spec.tensors if not group.name.startswith("lm_head")]
    groups.append(TensorGroup("lm_head.weight", (spec.vocab, spec.hidden)))
    groups.append(TensorGroup("model.prompt_embeddings.weight", (kinds * length, spec.hidden)))
    groups.append(TensorGroup("model.segment_embedding.weight", (segments, spec.hidden)))
    rows = segments * segments + buckets
    groups.append(TensorGroup("model.relative_attention_bias", (rows, spec.heads)))
    return replace(spec, tied=False, tensors=tuple(groups))


def _modernbert(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """ModernBERT as a decoder: windows of half of ``local_attention``, full layers every third."""
    every = fields.optional("global_attn_every_n_layers", MAX_LAYERS, quiet=True) or 3

    def rule(fields: Fields, layers: int) -> tuple[str, ...]:
        if fields.has("layer_types"):
            return all_windowed(fields, layers)
        return tuple("sliding_attention" if i % every else "full_attention" for i in range(layers))

    def window(fields: Fields) -> int | None:
        # The window looks to both sides in the encoder; a decoder has half of it, which transformers
        # writes as sliding_window beside it.
        fields.seen.add("sliding_window")
        return (stated_window(fields, "local_attention") or 0) // 2 or None

    style = Style(
        qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias",
        norm_bias="norm_bias", head_bias="decoder_bias", rule=rule, window=window,
    )  # fmt: skip
    spec = read_decoder(fields, family, architecture, style)
    bias = fields.flag("norm_bias", default=False)
    groups = [group for group in spec.tensors if "input_layernorm" not in group.name]
    # The first layer takes the embedding's norm.
    later = tuple(range(1, spec.layers))
    if later:
        groups += norm(f"{LAYER}.input_layernorm", spec.hidden, later, bias=bias)
    groups += norm("model.embeddings.norm", spec.hidden, bias=bias)
    groups += norm("head.norm", spec.hidden, bias=bias)
    groups += linear("head.dense", spec.hidden, spec.hidden)
    return replace(spec, tensors=tuple(groups))


def _reformer(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Reformer: the reference keeps the residual stream of every layer and makes keys of it anew."""
    listed = fields.get("attn_layers")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_LAYERS:
        raise fields.wrong("attn_layers", "a list of kinds of attention")
    layers = len(listed)
    values = {
        **fields.values,
        "num_hidden_layers": layers,
        "head_dim": fields.integer("attention_head_size", MAX_DIM),
        "intermediate_size": fields.integer("feed_forward_size", MAX_DIM),
    }
    inner = replace(fields, values=values)
    spec = read_decoder(inner, family, architecture, replace(_GPT, qkv_bias="", o_bias=""))
    hashed = tuple(index for index, kind in enumerate(listed) if kind == "lsh")
    groups = []
    for group in spec.tensors:
        if ".q_proj" in group.name and hashed:  # queries are the keys there
            kept = tuple(index for index in range(layers) if index not in hashed)
            groups.append(replace(group, indices=kept))
        elif group.name not in {"model.norm.weight", "model.norm.bias", "lm_head.weight"}:
            groups.append(group)
    # Two streams run side by side, so the last norm and the head are twice as wide.
    groups += norm("model.norm", 2 * spec.hidden, bias=True)
    groups.append(TensorGroup("lm_head.weight", (spec.vocab, 2 * spec.hidden)))
    groups += [TensorGroup(f"lm_head.bias{number}", (spec.vocab,)) for number in (1, 2)]
    shape = fields.integers("axial_pos_shape", MAX_DIM)
    widths = fields.integers("axial_pos_embds_dim", MAX_DIM)
    for number, (rows, width) in enumerate(zip(shape, widths, strict=False)):
        groups.append(TensorGroup(f"model.position_embeddings.{number}", (rows, width)))
    caches = (CacheGroup(layers, 1, spec.hidden, 0),)
    fields.notes.append(
        "hashed attention keeps its residual stream in the reference, and no engine at hand serves it"
    )
    return replace(spec, caches=caches, tensors=tuple(groups))


_READERS: Final[Mapping[str, Callable[[Fields, str, str], ModelSpec]]] = {
    "gpt_bigcode": _bigcode,
    "gpt_neo": _neo,
    "opt": _opt,
    "stablelm": _stablelm,
    "falcon": _falcon,
    "RefinedWebModel": _falcon,
    "RefinedWeb": _falcon,
    "mpt": _mpt,
    "cpmant": _cpmant,
    "modernbert-decoder": _modernbert,
    "reformer": _reformer,
}
