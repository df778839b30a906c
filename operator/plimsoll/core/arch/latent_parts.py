"""Latent attention (MLA): its sizes, its weights, and the index of sparse attention beside it.

A token keeps one compressed row and one positional row for all heads. Formula: kv_lora_rank +
qk_rope_head_dim elements per layer, as transformers' ``modeling_deepseek_v3.py`` caches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import attention, experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

#: Words that Moonshot's and Bailing's files have for the usual ones.
_ALIASES = {"model_max_length": "max_position_embeddings"}

Indices = tuple[int, ...]
ATTENTION = f"{LAYER}.self_attn"
INDEXED = frozenset({"indexed_attention", "deepseek_sparse_attention", "qwen_sparse_attention"})

#: Fields that follow from others or say how the index is used, not how large it is.
NEUTRAL = frozenset({
    "block_size", "ep_size", "first_k_dense_replace", "index_local_blocks", "index_skip_topk_offset", "index_topk",
    "index_topk_freq", "index_topk_pattern", "kda_lower_bound", "kda_safe_gate", "number_of_conv_states",
    "num_expert_group", "indexer_rope_interleave", "indexer_types", "kv_source_layers",
    "layer_types", "mlp_layer_types", "moe_layer_freq", "no_rope_layer_interval", "no_rope_layers", "qk_head_dim",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of one latent attention.

    Attributes:
        heads: Query heads.
        rank: Elements of the compressed row.
        rope: Elements of the positional row.
        nope: Elements of a query head without position.
        value: Elements of a value head.
        query_rank: Width of the query's bottleneck; None when q is projected directly.
    """

    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int | None

    @property
    def query(self) -> int:
        """Elements of one query head."""
        return self.nope + self.rope


def read_latent(fields: Fields, spec: ModelSpec) -> Latent:
    """The sizes under their usual names.

    Raises:
        BadModel: A size is of the wrong type or out of range.
    """
    return Latent(
        heads=spec.heads,
        rank=fields.integer("kv_lora_rank", MAX_DIM),
        rope=fields.integer("qk_rope_head_dim", MAX_DIM, least=0),
        nope=fields.integer("qk_nope_head_dim", MAX_DIM),
        value=fields.optional("v_head_dim", MAX_DIM) or max(1, spec.hidden // spec.heads),
        query_rank=fields.optional("q_lora_rank", MAX_DIM, quiet=fields.states("kv_lora_rank")),
    )


def base(fields: Fields, family: str, architecture: str, *, grouped: bool = True) -> ModelSpec:
    """The sizes that any config has, and the context under the names of these families.

    Not ``grouped``: latent attention has a key for each query head, whatever the file says.
    """
    aliases = {alias: key for alias, key in _ALIASES.items() if fields.states(alias)}
    stated = {key: fields.values[alias] for alias, key in aliases.items() if not fields.states(key)}
    if not grouped:
        fields.optional("num_key_value_heads", MAX_DIM, quiet=True)
        stated["num_key_value_heads"] = None
    own = replace(fields, values={**fields.values, **stated})
    spec = read_plain(own, family, architecture)
    fields.seen |= NEUTRAL | aliases.keys()
    context = own.either("max_position_embeddings", most=MAX_CONTEXT)
    return replace(
        spec,
        context_length=context or spec.context_length,
        draft_layers=draft_layers(fields),
    )


def draft_layers(fields: Fields) -> int:
    """Layers for multi-token prediction in the files."""
    keys = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
    return fields.either(*keys, most=MAX_LAYERS, least=0) or 0


def with_latent(spec: ModelSpec, latent: Latent) -> ModelSpec:
    """The model whose main attention has these sizes, one key and value head for each query head."""
    return replace(
        spec,
        heads=latent.heads,
        kv_heads=latent.heads,
        key_dim=latent.query,
        value_dim=latent.value,
    )


def latent_attention(
    latent: Latent, hidden: int, indices: Indices, *, bias: bool = False, prefix: str = ATTENTION
) -> Iterator[TensorGroup]:
    """Projections and norms; ``bias`` is that of the down-projections and of o."""
    width = latent.heads * latent.query
    if latent.query_rank:
        yield from linear(f"{prefix}.q_a_proj", latent.query_rank, hidden, indices, bias=bias)
        yield from norm(f"{prefix}.q_a_layernorm", latent.query_rank, indices)
        yield from linear(f"{prefix}.q_b_proj", width, latent.query_rank, indices)
    else:
        yield from linear(f"{prefix}.q_proj", width, hidden, indices)
    rows = latent.rank + latent.rope
    yield from linear(f"{prefix}.kv_a_proj_with_mqa", rows, hidden, indices, bias=bias)
    yield from norm(f"{prefix}.kv_a_layernorm", latent.rank, indices)
    both = latent.heads * (latent.nope + latent.value)
    yield from linear(f"{prefix}.kv_b_proj", both, latent.rank, indices)
    values = latent.heads * latent.value
    yield from linear(f"{prefix}.o_proj", hidden, values, indices, bias=bias)


def plain_attention(
    spec: ModelSpec,
    indices: Indices,
    *,
    bias: bool = False,
    out_bias: bool = False,
    head_norms: bool = False,
) -> Iterator[TensorGroup]:
    """Softmax attention with the spec's heads, in some layers."""
    yield from attention(
        ATTENTION,
        indices,
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        bias=bias,
        out_bias=out_bias,
        head_norms=head_norms,
    )


def index_rule(fields: Fields, layers: int, *, freq: bool = True) -> Indices:
    """Layers with an index of their own; the others reuse the picks of one before them.

    Spellings: ``indexer_types``, ``index_topk_pattern`` (F and S), ``index_topk_freq`` with
    ``index_skip_topk_offset``; without ``freq`` every fourth from the second on (HY-V4).

    Raises:
        BadModel: A list of another length than the model has layers.
    """
    allowed = frozenset({"full", "shared"})
    kinds = fields.choices("indexer_types", layers, allowed)
    pattern = fields.get("index_topk_pattern")
    if kinds is None and isinstance(pattern, str):
        if len(pattern) != layers or set(pattern) - set("FS"):
            raise fields.wrong("index_topk_pattern", f"{layers} letters, F or S")
        kinds = tuple("full" if letter == "F" else "shared" for letter in pattern)
    elif kinds is None:
        kinds = fields.choices("index_topk_pattern", layers, allowed)
    if kinds is not None:
        return tuple(index for index, kind in enumerate(kinds) if kind == "full")
    if not freq:
        return tuple(i for i in range(layers) if i == 0 or (i - 1) % 4 == 0)
    fields.seen.update({"index_topk_freq", "index_skip_topk_offset"})
    step = fields.optional("index_topk_freq", MAX_LAYERS, least=0) or 1
    offset = fields.optional("index_skip_topk_offset", MAX_LAYERS, least=0)
    offset = 2 if offset is None else offset
    return tuple(i for i in range(layers) if max(i - offset + 1, 0) % step == 0)


def indexer(
    fields: Fields, width_in: int, hidden: int, indices: Indices, *, dtype: str | None = None
) -> Iterator[TensorGroup]:
    """Weights of the index of sparse attention; ``width_in`` is what its queries are made from."""
    prefix = f"{ATTENTION}.indexer"
    heads = fields.integer("index_n_heads", MAX_DIM)
    size = fields.integer("index_head_dim", MAX_DIM)
    yield from linear(f"{prefix}.wq_b", heads * size, width_in, indices)
    yield from linear(f"{prefix}.wk", size, hidden, indices)
    for name in ("weight", "bias"):
        yield TensorGroup(f"{prefix}.k_norm.{name}", (size,), indices, dtype)
    yield TensorGroup(f"{prefix}.weights_proj.weight", (heads, hidden), indices, dtype)


def feed_forward(spec: ModelSpec, *, shared_gate: bool = False) -> Iterator[TensorGroup]:
    """Dense layers and those with experts, in any family with DeepSeek's names."""
    mixture = spec.experts
    sparse = tuple(sorted(mixture.layers)) if mixture else ()
    dense = tuple(index for index in range(spec.layers) if index not in set(sparse))
    name = f"{LAYER}.mlp"
    if dense:
        yield from gated_mlp(name, dense, hidden=spec.hidden, width=spec.intermediate)
    if mixture and sparse:
        yield TensorGroup(f"{name}.gate.weight", (mixture.count, spec.hidden), sparse, "fp32")
        yield from experts(
            name, sparse, count=mixture.count, hidden=spec.hidden, width=mixture.intermediate
        )
        if mixture.shared_intermediate:
            width = mixture.shared_intermediate
            yield from gated_mlp(f"{name}.shared_experts", sparse, hidden=spec.hidden, width=width)
            if shared_gate:
                yield from linear(f"{name}.shared_expert_gate", 1, spec.hidden, sparse)


def trunk(spec: ModelSpec, *, norms: bool = True) -> Iterator[TensorGroup]:
    """Embedding, head, last norm and the two norms of every layer."""
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, spec.hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, spec.hidden))
    yield from norm("model.norm", spec.hidden)
    if norms:
        every = tuple(range(spec.layers))
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield from norm(f"{LAYER}.{name}", spec.hidden, every)


def hyper_connections(
    hidden: int, streams: int, indices: Indices, *, mixing: bool, head: bool = True
) -> Iterator[TensorGroup]:
    """Several residual streams and the small matrices that mix them; ``mixing``: streams by streams too."""
    rows = streams * (2 + streams if mixing else 2)
    for part in ("attn_hc", "ffn_hc"):
        name = f"{LAYER}.{part}"
        yield TensorGroup(f"{name}.fn", (rows, streams * hidden), indices, "fp32")
        yield TensorGroup(f"{name}.base", (rows,), indices, "fp32")
        yield TensorGroup(f"{name}.scale", (3 if mixing else 2,), indices, "fp32")
    if head:
        yield TensorGroup("model.hc_head.hc_fn", (streams, streams * hidden), None, "fp32")
        yield TensorGroup("model.hc_head.hc_base", (streams,), None, "fp32")
        yield TensorGroup("model.hc_head.hc_scale", (1,), None, "fp32")
