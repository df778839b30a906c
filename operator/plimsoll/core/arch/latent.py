"""DeepSeek V2, V3 and V3.2 and the families with their latent attention.

They differ in which layers are dense, which hold index keys of sparse attention, and small parts.
Two attentions per layer (LongCat) mean two caches per layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.blocks import gated_mlp, linear, llama_like, norm
from plimsoll.core.arch.classes import defaults_of
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.latent_parts import (
    ATTENTION,
    INDEXED,
    Indices,
    Latent,
    base,
    draft_layers,
    feed_forward,
    hyper_connections,
    index_rule,
    indexer,
    latent_attention,
    read_latent,
    trunk,
    with_latent,
)
from plimsoll.core.arch.mixtures import Mixture, after, read_mixture
from plimsoll.core.arch.spec import CacheGroup, Experts, TensorGroup
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

    Extras = Callable[[Fields, ModelSpec, Latent], Iterator[TensorGroup]]


@dataclass(frozen=True, slots=True)
class _Row:
    """One family.

    Attributes:
        dense: Dense layers at the start where the config does not say.
        index: Which layers index: "" none, ``all``, ``freq``, ``fourth``.
        query: Queries have the usual projections.
        extras: Further tensors.
    """

    dense: int = 0
    index: str = ""
    query: bool = True
    extras: Extras | None = None


def mixture_of(dense: int) -> Mixture:
    """Where such a config says what its experts are."""
    return Mixture(
        where=after(dense, "first_k_dense_replace"),
        width="moe_intermediate_size",
        shared_count=("n_shared_experts", "num_shared_experts"),
    )


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config with latent attention.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    if family == "kimi_k2":
        fields = replace(fields, defaults=_plain_defaults("deepseek_v3"))
        architecture = "DeepseekV3ForCausalLM"
    if family == "longcat_flash":
        return _longcat(fields, family, architecture)
    row = _ROWS[family]
    plain = not fields.flag("use_mla", default=True) or not fields.has("kv_lora_rank")
    spec = base(fields, family, architecture, grouped=plain)
    spec = replace(spec, experts=read_mixture(fields, spec, mixture_of(row.dense)))
    if plain:
        return replace(spec, tensors=llama_like(spec))
    latent = read_latent(fields, spec)
    spec = with_latent(spec, latent)
    indices = _indexed(fields, spec.layers, row)
    size = fields.integer("index_head_dim", MAX_DIM) if indices else 0
    cache = CacheGroup(
        spec.layers, 1, latent.rank, latent.rope, latent=True,
        index_dim=size, index_layers=len(indices),
    )  # fmt: skip
    spec = replace(spec, caches=(cache,))
    return replace(spec, tensors=tuple(_tensors(fields, spec, latent, row, indices)))


def _plain_defaults(model_type: str) -> dict[str, Any]:
    return {key: value for key, value in defaults_of(model_type).items() if key[0] != "#"}


def _indexed(fields: Fields, layers: int, row: _Row) -> Indices:
    """Layers that hold index keys."""
    if not row.index:
        return ()
    kinds = fields.choices("layer_types", layers, INDEXED | {"full_attention"})
    own = tuple(range(layers))
    if row.index != "all":
        own = index_rule(fields, layers, freq=row.index == "freq")
    if kinds is None or not INDEXED & set(kinds):  # older files call sparse layers full
        return own
    return tuple(index for index in own if kinds[index] in INDEXED)


def _tensors(
    fields: Fields, spec: ModelSpec, latent: Latent, row: _Row, indices: Indices
) -> Iterator[TensorGroup]:
    bias = fields.flag("attention_bias", default=False)
    yield from trunk(spec, norms=spec.family != "axk2")
    every = tuple(range(spec.layers))
    for group in latent_attention(latent, spec.hidden, every, bias=bias):
        if row.query or ".q_b_proj." not in group.name:
            yield group
    if indices:
        dtype = "fp32" if row.index == "fourth" else None
        width = latent.query_rank or spec.hidden
        yield from indexer(fields, width, spec.hidden, indices, dtype=dtype)
    yield from feed_forward(spec)
    if row.extras is not None:
        yield from row.extras(fields, spec, latent)


def _sparse(spec: ModelSpec) -> Indices:
    return tuple(sorted(spec.experts.layers)) if spec.experts else ()


def _axk1(_: Fields, spec: ModelSpec, __: Latent) -> Iterator[TensorGroup]:
    """A norm behind the experts."""
    if spec.experts and spec.experts.layers:
        yield from norm(f"{LAYER}.mlp.post_mlp_layernorm", spec.hidden, _sparse(spec))


def _axk2(fields: Fields, spec: ModelSpec, latent: Latent) -> Iterator[TensorGroup]:
    """Queries and their gate from one projection; norms with a gate of low rank."""
    query = (latent.query_rank or spec.hidden) * 2
    width = latent.heads * (latent.query + latent.value)
    every, sparse = tuple(range(spec.layers)), _sparse(spec)
    yield from linear(f"{ATTENTION}.q_gate_proj", width, query, every)
    rank = fields.integer("gated_norm_rank", MAX_DIM)
    for name, indices in (("input_layernorm", every), ("post_attention_layernorm", sparse)):
        if indices:
            yield from norm(f"{LAYER}.{name}.norm", spec.hidden, indices)
            yield from linear(f"{LAYER}.{name}.mlp.fc1", rank, spec.hidden, indices)
            yield from linear(f"{LAYER}.{name}.mlp.fc2", spec.hidden, rank, indices)
    dense = tuple(index for index in every if index not in set(sparse))
    if dense:
        yield from norm(f"{LAYER}.post_attention_layernorm", spec.hidden, dense)


def _hy_v4(fields: Fields, spec: ModelSpec, latent: Latent) -> Iterator[TensorGroup]:
    """Sinks, a gate on the attention's output, several residual streams."""
    every = tuple(range(spec.layers))
    yield TensorGroup(f"{ATTENTION}.sinks", (latent.heads,), every, "fp32")
    width = latent.heads * latent.value
    yield from linear(f"{ATTENTION}.gate_proj", width, spec.hidden, every)
    streams = fields.integer("hc_mult", MAX_LAYERS)
    yield from hyper_connections(spec.hidden, streams, every, mixing=False)


_ROWS: Final = {
    "axk1": _Row(1, extras=_axk1),
    "axk2": _Row(1, index="all", query=False, extras=_axk2),
    "deepseek_v2": _Row(),
    "deepseek_v3": _Row(3),
    "deepseek_v32": _Row(3, index="all"),
    "glm4_moe_lite": _Row(1),
    "glm_moe_dsa": _Row(3, index="freq"),
    "hy_v4": _Row(1, index="fourth", extras=_hy_v4),
    "hy_v4_vl_text": _Row(1, index="fourth", extras=_hy_v4),
    "kimi_k2": _Row(3),
    "minicpm3": _Row(),
    "mistral4": _Row(),
    "sarvam_mla": _Row(1),
    "youtu": _Row(),
}


def _longcat(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """LongCat Flash: every layer has two attentions, two dense parts and one mixture.

    ``num_hidden_layers`` counts the attentions where the file has it.
    """
    if not fields.states("num_layers") and fields.states("num_hidden_layers"):
        count = max(1, fields.integer("num_hidden_layers", 2 * MAX_LAYERS) // 2)
    else:
        count = fields.integer("num_layers", MAX_LAYERS)
    width = fields.either("ffn_hidden_size", "intermediate_size", most=MAX_DIM)
    values = {**fields.values, "num_hidden_layers": count, "intermediate_size": width}
    own = replace(fields, values=values)
    spec = base(own, family, architecture, grouped=False)
    latent = read_latent(own, spec)
    keys = ("expert_ffn_hidden_size", "moe_intermediate_size")
    mixture = Experts(
        count=own.first("n_routed_experts", "num_local_experts", most=MAX_EXPERTS),
        per_token=own.first("moe_topk", "num_experts_per_tok", most=MAX_EXPERTS),
        intermediate=own.first(*keys, most=MAX_DIM),
        shared_intermediate=0,
        layers=frozenset(range(spec.layers)),
    )
    cache = CacheGroup(2 * spec.layers, 1, latent.rank, latent.rope, latent=True)
    spec = replace(
        with_latent(spec, latent), experts=mixture, caches=(cache,), draft_layers=draft_layers(own)
    )
    return replace(spec, tensors=tuple(_longcat_tensors(own, spec, latent, mixture)))


def _longcat_tensors(
    fields: Fields, spec: ModelSpec, latent: Latent, mixture: Experts
) -> Iterator[TensorGroup]:
    hidden, every = spec.hidden, tuple(range(spec.layers))
    bias = fields.flag("attention_bias", default=False)
    yield from trunk(spec, norms=False)
    for half in (0, 1):
        prefix = f"{LAYER}.self_attn.{half}"
        yield from latent_attention(latent, hidden, every, bias=bias, prefix=prefix)
        yield from gated_mlp(f"{LAYER}.mlps.{half}", every, hidden=hidden, width=spec.intermediate)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield from norm(f"{LAYER}.{name}.{half}", hidden, every)
    # Experts that do nothing have rows in the router, and in transformers in the first matrix too.
    idle = fields.optional("zero_expert_num", MAX_EXPERTS, least=0, quiet=True) or 0
    name, width = f"{LAYER}.mlp", mixture.intermediate
    yield from linear(f"{name}.router.classifier", mixture.count + idle, hidden, every)
    up = (mixture.count + idle, 2 * width, hidden)
    yield TensorGroup(f"{name}.experts.gate_up_proj", up, every)
    yield TensorGroup(f"{name}.experts.down_proj", (mixture.count, hidden, width), every)
