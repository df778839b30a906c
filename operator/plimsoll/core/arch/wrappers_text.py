"""Text models that exist only inside a model that sees or hears.

Some of them have a nested config of their own; the flat ones keep their sizes beside the tower's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.decoder import Style, read_decoder
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.mixtures import SHARED_COUNTS, Mixture, after
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import CacheGroup, Encoder
from plimsoll.core.arch.towers import Scope, tensors
from plimsoll.core.arch.windows import all_windowed, stated_window
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec, TensorGroup

_BIASED: Final = Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")


def _all_kept(_: Fields, layers: int) -> tuple[str, ...]:
    """Windowed layers that also look at all of the image keep every token."""
    return ("full_attention",) * layers


_OCR: Final = replace(
    _BIASED,
    rule=_all_kept,
    mixture=Mixture(
        where=after(1, "first_k_dense_replace"),
        width="moe_intermediate_size",
        shared_count=SHARED_COUNTS,
    ),
)


def _further(layout: str) -> Callable[[Fields, ModelSpec], Iterator[TensorGroup]]:
    """Further tensors, in the notation of ``towers``; ``t`` is the width, ``s`` that of a head."""

    def extras(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
        named = {
            "t": spec.hidden,
            "s": spec.key_dim,
            "n": spec.layers,
            "q": spec.heads * spec.key_dim,
            "k": spec.kv_heads * spec.key_dim,
        }
        yield from tensors(
            layout, Scope(fields, {}, {**named, "wide": spec.intermediate}), "model."
        )

    return extras


_EVOLLA: Final = """
every = n / aligner_num_add_layers
!every every = 1
count = n / every
@count =layers.*.adapter.gate_{attention,ffw} 1
@count layers.*.adapter.{query,key_protein,value_protein} t t +b
@count layers.*.adapter.out_proj t t +b?aligner_enable_bias
@count layers.*.adapter.attention_norm t
@count layers.*.adapter.ff.norm t +b
@count layers.*.adapter.ff.fc1 t*aligner_ffn_mult t
@count layers.*.adapter.ff.fc2 t t*aligner_ffn_mult
"""
_IDEFICS: Final = """
count = n / cross_layer_interval
?additional_vocab_size embed_tokens.additional_embedding additional_vocab_size t
?additional_vocab_size lm_head.additional_fc additional_vocab_size t
@count =gated_cross_attn_layers.*.alpha_{cross_attn,dense} 1
@count gated_cross_attn_layers.*.cross_attn.{q,o}_proj t t
@count gated_cross_attn_layers.*.cross_attn.{k,v}_proj t vision_width
@count gated_cross_attn_layers.*.mlp.{gate,up}_proj wide t
@count gated_cross_attn_layers.*.mlp.down_proj t wide
@count gated_cross_attn_layers.*.{input,post_attention}_layernorm t
?qk_layer_norms @count gated_cross_attn_layers.*.cross_attn.{q,k}_layer_norm s
"""

_STYLES: Final[Mapping[str, Style]] = {
    "molmo2_text": Style(
        qkv_bias="attention_bias",
        head_norms="head",
        extras=_further("embed_tokens.new additional_vocab_size t"),
    ),
    "unlimited_ocr_text": _OCR,
    "deepseek_ocr2_text": _OCR,
    "voxtral_realtime_text": Style(
        rule=all_windowed,
        extras=_further(
            "@n layers.*.ada_rms_norm.linear1 32 t\n@n layers.*.ada_rms_norm.linear2 t 32"
        ),
    ),
    "chameleon": replace(
        _BIASED,
        extras=_further(
            "@n =layers.*.self_attn.q_norm.{weight,bias} q/s s\n"
            "@n =layers.*.self_attn.k_norm.{weight,bias} k/s s"
        ),
    ),
    "evolla": replace(_BIASED, extras=_further(_EVOLLA)),
    "phi4_multimodal": Style(rule=all_windowed),
}  # fmt: skip

#: Their classes set the size of a head to hidden / heads, whatever the file says.
_EVEN: Final = frozenset({"deepseek_ocr2_text", "unlimited_ocr_text"})

#: Flat configs: the text model's fields stand beside the tower's.
FLAT: Final = frozenset({
    "chameleon", "evolla", "git", "idefics", "kyutai_speech_to_text", "phi4_multimodal",
})  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read the text model of one of these families.

    Raises:
        BadModel: A field of the wrong type or out of range.
    """
    if family in _EVEN:
        values = {key: value for key, value in fields.values.items() if key != "head_dim"}
        fields.seen.add("head_dim")
        fields = replace(fields, values=values)
    if family in _STYLES:
        return read_decoder(fields, family, architecture, _STYLES[family])
    return _OWN[family](fields, family, architecture)


def _renamed(fields: Fields, names: Mapping[str, str]) -> Fields:
    """The same config with the usual words for its sizes; ``names`` leads from them to its own."""
    values, defaults = dict(fields.values), dict(fields.defaults)
    for usual, own in names.items():
        for table in (values, defaults):
            if own in table:
                table[usual] = table[own]
    fields.seen.update(names.values())
    return replace(fields, values=values, defaults=defaults)


def _mllama(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Some layers attend to the image instead of the text, and cache its keys and values."""
    spec = read_plain(fields, family, architecture)
    stated = fields.has("cross_attention_layers")
    every = range(spec.layers)
    cross = frozenset(
        fields.integers("cross_attention_layers", MAX_LAYERS) if stated else every[3::5]
    ) & frozenset(every)
    spec = replace(
        spec,
        caches=(CacheGroup(spec.layers - len(cross), spec.kv_heads, spec.key_dim, spec.value_dim),),
        encoder=Encoder(2 * len(cross) * spec.kv_heads * spec.key_dim),
    )
    named = {
        "t": spec.hidden, "V": spec.vocab, "L": spec.layers, "cross": len(cross), "s": spec.key_dim,
        "q": spec.heads * spec.key_dim, "k": spec.kv_heads * spec.key_dim, "w": spec.intermediate,
    }  # fmt: skip
    layout = """
    embed_tokens V+8 t
    @L-cross layers.*.self_attn.{q,o}_proj q t
    @L-cross layers.*.self_attn.{k,v}_proj k t
    @cross layers.*.cross_attn.{q,o}_proj q t
    @cross layers.*.cross_attn.{k,v}_proj k t
    @cross layers.*.cross_attn.{q,k}_norm s
    @cross =layers.*.cross_attn_{attn,mlp}_gate 1
    @L layers.*.mlp.{gate,up}_proj w t
    @L layers.*.mlp.down_proj t w
    @L layers.*.{input,post_attention}_layernorm t
    norm t
    """
    return _with(spec, fields, layout, named, head=True)


def _kosmos(fields: Fields, family: str, architecture: str) -> ModelSpec:
    own = {
        "hidden_size": "embed_dim", "num_attention_heads": "attention_heads", "num_hidden_layers": "layers",
        "intermediate_size": "ffn_dim",
    }  # fmt: skip
    spec = read_plain(_renamed(fields, own), family, architecture)
    second = family == "kosmos_2_5_text_model"
    named = {
        "t": spec.hidden, "V": spec.vocab, "L": spec.layers, "w": spec.intermediate, "second": int(second),
    }  # fmt: skip
    layout = """
    embed_tokens V t
    ?second segment_emb 2 t
    @L layers.*.self_attn.{q,k,v,o}_proj t t +b
    !second @L layers.*.self_attn.inner_attn_ln t +b
    @L layers.*.{self_attn,final}_layer_norm t +b
    @L layers.*.ffn.fc1 w t +b
    @L layers.*.ffn.fc2 t w +b
    @L layers.*.ffn.ffn_layernorm w +b
    layer_norm t +b
    """
    return _with(spec, fields, layout, named, head=True)


def _moshi(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """A window on every layer; the feed-forward part keeps its two inputs in one matrix."""
    fields = _renamed(fields, {"intermediate_size": "ffn_dim"})
    spec = read_plain(fields, family, architecture)
    window = stated_window(fields)
    spec = replace(
        spec,
        caches=tuple(replace(group, window=window) for group in spec.caches),
        tied=False,
    )
    hears = family == "kyutai_speech_to_text"
    rows = 1
    if hears:
        books = fields.integer("num_codebooks", MAX_DIM)
        rows += books * fields.integer("codebook_vocab_size", MAX_DIM)
    named = {
        "t": spec.hidden, "V": spec.vocab, "L": spec.layers, "w": spec.intermediate, "rows": rows,
        "q": spec.heads * spec.key_dim, "k": spec.kv_heads * spec.key_dim,
    }  # fmt: skip
    layout = """
    embed_tokens V+rows t
    @L layers.*.self_attn.{q,o}_proj q t
    @L layers.*.self_attn.{k,v}_proj k t
    @L layers.*.mlp.fc1 w t
    @L layers.*.mlp.fc2 t w/2
    @L layers.*.{input,post_attention}_layernorm t
    norm t
    """
    return _with(spec, fields, layout, named, head=True)


def _idefics(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Gated layers between the others look at the image; they keep nothing of it."""
    vision = fields.child("vision_config")
    width = vision.optional("embed_dim", MAX_DIM) or 768
    inner = replace(fields, values={**fields.values, "vision_width": width})
    fields.seen.add("vision_config")
    return read_decoder(inner, family, architecture, Style(extras=_further(_IDEFICS)))


def _bert(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """BERT's layers as a decoder (GIT), with cross-attention to the image in BLIP's."""
    spec = read_plain(fields, family, architecture)
    crosses = family == "blip_text_model"
    if crosses:
        spec = replace(spec, encoder=Encoder(2 * spec.layers * spec.hidden))
    spec = replace(spec, tied=spec.tied if crosses else False)
    named = {
        "t": spec.hidden, "V": spec.vocab, "L": spec.layers, "w": spec.intermediate,
        "P": fields.integer("max_position_embeddings", MAX_DIM),
        "C": spec.layers if crosses else 0,
    }  # fmt: skip
    layout = """
    embed_tokens V t
    position_embeddings P t
    LayerNorm t +b
    @L layers.*.attention.{q,k,v,o}_proj t t +b
    @L layers.*.attention.LayerNorm t +b
    @C layers.*.crossattention.{q,o}_proj t t +b
    @C layers.*.crossattention.{k,v}_proj t encoder_hidden_size +b
    @C layers.*.crossattention.LayerNorm t +b
    @L layers.*.up_proj w t +b
    @L layers.*.down_proj t w +b
    @L layers.*.output.LayerNorm t +b
    =lm_head.bias V
    ?C transform t t +b
    ?C transform.LayerNorm t +b
    """
    return _with(spec, fields, layout, named, head=True)


def _with(
    spec: ModelSpec, fields: Fields, layout: str, named: Mapping[str, float], *, head: bool
) -> ModelSpec:
    groups = [*tensors(layout, Scope(fields, {}, dict(named)), "model.")]
    if head and not spec.tied:
        groups += tensors("lm_head V t", Scope(fields, {}, dict(named)))
    return replace(spec, tensors=tuple(groups))


_OWN: Final[Mapping[str, Callable[[Fields, str, str], ModelSpec]]] = {
    "mllama_text_model": _mllama,
    "kosmos_2_text_model": _kosmos,
    "kosmos_2_5_text_model": _kosmos,
    "moshi": _moshi,
    "kyutai_speech_to_text": _moshi,
    "idefics": _idefics,
    "git": _bert,
    "blip_text_model": _bert,
}
