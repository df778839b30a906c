"""Families with experts whose feed-forward part or attention has a shape of its own."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import FOUR_NORMS, LAYER, Style, attention, ends, read_decoder
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.mixtures import Mixture, after
from plimsoll.core.arch.moe import correction
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import CacheGroup, Experts, TensorGroup
from plimsoll.core.arch.windows import (
    all_windowed,
    chunked_with_positions,
    layer_types,
    repeating,
    stated_window,
)
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_BIASED: Final = Style(qkv_bias="attention_bias", o_bias="attention_bias")


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families."""
    return _READERS[family](fields, family, architecture)


def _cohere2(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Command with experts: dense layers at the start with their own width and pattern."""
    dense = fields.either("first_k_dense_replace", most=MAX_LAYERS, least=0) or 0

    def kinds(fields: Fields, layers: int) -> tuple[str, ...]:
        stated = layer_types(fields, layers)
        step = fields.optional("sliding_window_pattern", MAX_LAYERS, quiet=True) or 4
        first = fields.optional("prefix_dense_sliding_window_pattern", MAX_LAYERS, quiet=True) or 1
        border = min(dense, layers)
        # Each part counts from its own start.
        return stated or tuple(
            "full_attention" if (index + 1) % period == 0 else "sliding_attention"
            for period, count in ((first, border), (step, layers - border))
            for index in range(count)
        )

    style = replace(
        _BIASED,
        norms=("input_layernorm",),
        rule=kinds,
        mixture=Mixture(where=after(dense), shared_count=("num_shared_experts",)),
    )
    spec = read_decoder(fields, family, architecture, style)
    width = fields.optional("prefix_dense_intermediate_size", MAX_DIM)
    mixture = spec.experts
    if mixture is None or width is None:
        return spec
    dense_layers = tuple(i for i in range(spec.layers) if i not in mixture.layers)
    kept = [group for group in spec.tensors if not _is_dense(group, dense_layers)]
    if dense_layers:
        kept += gated_mlp(f"{LAYER}.mlp", dense_layers, hidden=spec.hidden, width=width)
    return replace(spec, intermediate=width, tensors=tuple(kept))


def _is_dense(group: TensorGroup, layers: tuple[int, ...]) -> bool:
    parts = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    return group.indices == layers and any(part in group.name for part in parts)


def _llama4(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Llama 4: chunks instead of windows, dense layers between those with experts."""
    style = replace(
        _BIASED,
        rule=chunked_with_positions,
        window=lambda fields: stated_window(fields, "attention_chunk_size"),
        mixture=Mixture(where=_llama4_layers, always_shared=1),
    )
    spec = read_decoder(fields, family, architecture, style)
    dense = fields.optional("intermediate_size_mlp", MAX_DIM, quiet=True)
    mixture = spec.experts
    if dense is None or mixture is None:
        return spec
    layers = tuple(i for i in range(spec.layers) if i not in mixture.layers)
    kept = [group for group in spec.tensors if not _is_dense(group, layers)]
    if layers:
        kept += gated_mlp(f"{LAYER}.mlp", layers, hidden=spec.hidden, width=dense)
    return replace(spec, intermediate=dense, tensors=tuple(kept))


def _llama4_layers(fields: Fields, layers: int) -> frozenset[int]:
    if fields.has("moe_layers"):
        return frozenset(i for i in fields.integers("moe_layers", MAX_LAYERS) if i < layers)
    step = fields.optional("interleave_moe_layer_step", MAX_LAYERS, quiet=True) or 1
    return frozenset(range(step - 1, layers, step))


def _mimo(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """MiMo V2: windowed layers have other KV heads, and values another width than keys."""
    spec = read_plain(fields, family, architecture)
    value_dim = fields.optional("v_head_dim", MAX_DIM) or spec.key_dim
    spec = replace(spec, value_dim=value_dim)
    kinds = _mimo_kinds(fields, spec.layers)
    # transformers' class doubles the heads, the published files state them.
    kv_heads = fields.optional("swa_num_key_value_heads", MAX_DIM, quiet=True) or 2 * spec.kv_heads
    local = replace(
        spec,
        heads=fields.optional("swa_num_attention_heads", MAX_DIM, quiet=True) or spec.heads,
        kv_heads=kv_heads,
        key_dim=fields.optional("swa_head_dim", MAX_DIM, quiet=True) or spec.key_dim,
        value_dim=fields.optional("swa_v_head_dim", MAX_DIM, quiet=True) or value_dim,
    )
    window = fields.optional("sliding_window_size", MAX_DIM, quiet=True)
    # The second spelling counts previous tokens only.
    window = stated_window(fields, "sliding_window") if window is None else window + 1
    full = tuple(i for i, kind in enumerate(kinds) if kind == "full_attention" or not window)
    rest = tuple(i for i in range(spec.layers) if i not in set(full))
    caches = [
        CacheGroup(len(indices), sizes.kv_heads, sizes.key_dim, sizes.value_dim, window=limit)
        for sizes, indices, limit in ((spec, full, None), (local, rest, window))
        if indices
    ]
    count = fields.either("n_routed_experts", "num_local_experts", most=MAX_EXPERTS) or 1
    mixture = Experts(
        count=count,
        per_token=min(count, fields.integer("num_experts_per_tok", MAX_EXPERTS)),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM),
        shared_intermediate=0,
        layers=after(1)(fields, spec.layers),
    )
    spec = replace(spec, caches=tuple(caches), experts=mixture)
    style = Style(qkv_bias="attention_bias")
    groups = [*ends(fields, spec, style), *_two_norms(spec)]
    groups += attention(fields, spec, style, full) if full else ()
    groups += attention(fields, local, replace(style, sinks=True), rest) if rest else ()
    return replace(spec, tensors=(*groups, *_dense_and_sparse(spec)))


def _mimo_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    pattern = fields.integers("hybrid_layer_pattern", 1)
    if fields.has("layer_types") or not pattern:
        return repeating(6, first=1)(fields, layers)
    if len(pattern) != layers:
        raise fields.wrong("hybrid_layer_pattern", f"a list of {layers} entries")
    return tuple("sliding_attention" if entry else "full_attention" for entry in pattern)


def _two_norms(spec: ModelSpec, names: tuple[str, ...] = FOUR_NORMS[:2]) -> Iterator[TensorGroup]:
    for name in names:
        yield from norm(f"{LAYER}.{name}", spec.hidden, tuple(range(spec.layers)))


def _dense_and_sparse(spec: ModelSpec) -> Iterator[TensorGroup]:
    """Feed-forward parts: dense layers, and layers with experts and a shared part."""
    mixture = spec.experts
    sparse = tuple(sorted(mixture.layers)) if mixture else ()
    dense = tuple(i for i in range(spec.layers) if i not in set(sparse))
    prefix = f"{LAYER}.mlp"
    if dense:
        yield from gated_mlp(prefix, dense, hidden=spec.hidden, width=spec.intermediate)
    if mixture is None or not sparse:
        return
    yield from linear(f"{prefix}.gate", mixture.count, spec.hidden, sparse)
    yield from experts(
        prefix, sparse, count=mixture.count, hidden=spec.hidden, width=mixture.intermediate
    )
    if mixture.shared_intermediate:
        yield from gated_mlp(
            f"{prefix}.shared_experts",
            sparse,
            hidden=spec.hidden,
            width=mixture.shared_intermediate,
        )


def _laguna(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Laguna: layers may have different numbers of query heads; the KV heads are the same."""
    gate = "elements" if fields.get("gating") == "per-element" else "heads"
    style = replace(
        _BIASED,
        head_norms="head",
        gate=gate,
        mixture=Mixture(
            where=after(1),
            width="moe_intermediate_size",
            shared="shared_expert_intermediate_size",
        ),
        extras=correction,
    )
    spec = read_decoder(fields, family, architecture, style)
    heads = fields.integers("num_attention_heads_per_layer", MAX_DIM)
    if not heads:
        return spec
    if len(heads) != spec.layers or not all(heads):
        raise fields.wrong("num_attention_heads_per_layer", f"a list of {spec.layers} numbers")
    kept = [group for group in spec.tensors if ".self_attn." not in group.name]
    for count in sorted(set(heads)):
        indices = tuple(i for i, own in enumerate(heads) if own == count)
        kept += attention(fields, replace(spec, heads=count), style, indices)
    return replace(spec, tensors=tuple(kept))


def _muse(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Muse Spark: experts of a narrower width than the residual stream, gated residuals."""

    def kinds(fields: Fields, layers: int) -> tuple[str, ...]:
        return repeating(4, full=layers - 1)(fields, layers)

    style = Style(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        norms=("input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        gate="elements",
        rule=kinds,
        mixture=Mixture(where=after(0), width="moe_intermediate_size"),
    )
    spec = read_decoder(fields, family, architecture, style)
    mixture = spec.experts
    if mixture is None:
        return spec
    width = fields.optional("moe_hidden_size", MAX_DIM) or spec.hidden
    every, sparse = tuple(range(spec.layers)), tuple(sorted(mixture.layers))
    kept = [group for group in spec.tensors if ".mlp.experts." not in group.name]
    prefix = f"{LAYER}.mlp"
    if sparse:
        kept += experts(
            prefix, sparse, count=mixture.count, hidden=width, width=mixture.intermediate
        )
        kept += linear(f"{prefix}.pre_expert_proj", width, spec.hidden, sparse)
        kept += norm(f"{prefix}.pre_expert_norm", width, sparse)
        kept += norm(f"{prefix}.experts.post_expert_norm", width, sparse)
        kept += linear(f"{prefix}.post_expert_proj", spec.hidden, width, sparse)
    for name in ("post_attention_residual_gate", "post_feedforward_residual_gate"):
        kept.append(TensorGroup(f"{LAYER}.{name}.gate", (spec.hidden,), every))
    return replace(spec, tensors=tuple(kept))


def _ernie_vl(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Ernie 4.5 VL: two sets of experts a layer, one for text and one for images."""
    spec = read_plain(fields, family, architecture)
    widths = fields.integers("moe_intermediate_size", MAX_DIM) or (1536, 512)
    counts = (fields.integers("moe_num_experts", MAX_EXPERTS)
              if isinstance(fields.get("moe_num_experts"), list)
              else (fields.either("moe_num_experts", "num_experts", most=MAX_EXPERTS) or 64,) * 2)  # fmt: skip
    if len(widths) != 2 or len(counts) != 2:  # noqa: PLR2004 - text and images
        raise fields.wrong("moe_intermediate_size", "a list of two widths")
    shared = fields.either("moe_num_shared_experts", most=MAX_EXPERTS, least=0) or 0
    mixture = Experts(
        count=counts[0],
        per_token=fields.first("moe_k", "num_experts_per_tok", most=MAX_EXPERTS, default=6),
        intermediate=widths[0],
        shared_intermediate=shared * widths[0],
        layers=after(1)(fields, spec.layers),
    )
    spec = replace(spec, experts=mixture)
    style = Style(qkv_bias="use_bias", o_bias="use_bias")
    sparse = tuple(sorted(mixture.layers))
    groups = [*ends(fields, spec, style), *_two_norms(spec)]
    groups += attention(fields, spec, style, tuple(range(spec.layers)))
    groups += _dense_and_sparse(spec)
    if sparse:
        prefix = f"{LAYER}.mlp.vision_moe"
        groups += linear(f"{prefix}.gate", counts[1], spec.hidden, sparse)
        groups += experts(prefix, sparse, count=counts[1], hidden=spec.hidden, width=widths[1])
        groups.append(TensorGroup(f"{prefix}.gate.e_score_correction_bias", (counts[1],), sparse))
        groups += correction(fields, spec)
    return replace(spec, tensors=tuple(groups))


def _hunyuan(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Hunyuan with experts: published files give some numbers as one list entry per layer."""
    spec = read_plain(fields, family, architecture)
    count = fields.either("num_experts", "num_local_experts", most=MAX_EXPERTS) or 1
    per_token = fields.get("moe_topk")
    if isinstance(per_token, list):
        listed = fields.integers("moe_topk", MAX_EXPERTS)
        per_token = max(listed, default=1)
    else:
        per_token = fields.either("moe_topk", "num_experts_per_tok", most=MAX_EXPERTS) or 1
    mixture = Experts(
        count=count,
        per_token=min(count, per_token),
        intermediate=spec.intermediate,
        shared_intermediate=spec.intermediate,
        layers=frozenset(range(spec.layers)),
    )
    spec = replace(spec, experts=mixture)
    style = replace(_BIASED, head_norms="head")
    groups = [*ends(fields, spec, style), *_two_norms(spec)]
    groups += attention(fields, spec, style, tuple(range(spec.layers)))
    return replace(spec, tensors=(*groups, *_dense_and_sparse(spec)))


def _jetmoe(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """JetMoE: experts in the attention too; each visited one has as many heads as there are KV heads."""
    # Its config has no number of query heads: they follow from the experts.
    values = {**fields.values, "num_attention_heads": fields.get("num_key_value_heads")}
    spec = read_plain(replace(fields, values=values), family, architecture)
    every = tuple(range(spec.layers))
    count = fields.either("num_local_experts", most=MAX_EXPERTS) or 8
    mixture = Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS),
        intermediate=spec.intermediate,
        shared_intermediate=0,
        layers=frozenset(every),
    )
    spec = replace(spec, experts=mixture, heads=spec.kv_heads * mixture.per_token)
    inner = spec.kv_heads * spec.key_dim
    style = Style()
    groups = [*ends(fields, spec, style), *_two_norms(spec), *_dense_and_sparse(spec)]
    prefix = f"{LAYER}.self_attention.experts"
    groups += linear(f"{LAYER}.self_attention.kv_proj", 2 * inner, spec.hidden, every)
    groups.append(TensorGroup(f"{prefix}.input_linear.weight", (count, inner, spec.hidden), every))
    groups.append(TensorGroup(f"{prefix}.output_linear.weight", (count, spec.hidden, inner), every))
    groups += linear(f"{prefix}.router.layer", count, spec.hidden, every)
    groups.append(TensorGroup(f"{prefix}.bias", (spec.hidden,), every))
    groups.append(TensorGroup(f"{LAYER}.mlp.bias", (spec.hidden,), every))
    return replace(spec, tensors=tuple(groups))


def _doge(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Doge: weighs its values by position; its experts are rows of two embeddings."""
    style = replace(
        _BIASED, mlp_bias="mlp_bias", head_norms="head", rule=all_windowed, extras=_doge_tensors
    )
    return read_decoder(fields, family, architecture, style)


def _doge_tensors(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    every, hidden = tuple(range(spec.layers)), spec.hidden
    yield TensorGroup(f"{LAYER}.input_residual", (hidden,), every)
    yield TensorGroup(f"{LAYER}.post_attention_residual", (hidden,), every)
    yield TensorGroup(f"{LAYER}.self_attn.A", (spec.kv_heads,), every)
    bias = fields.flag("attention_bias", default=False)
    inner = spec.kv_heads * spec.value_dim
    yield from linear(f"{LAYER}.self_attn.dt_proj", spec.kv_heads, inner, every, bias=bias)
    if fields.flag("is_moe", default=False):
        count = fields.integer("num_experts", 1 << 20)
        yield from linear(f"{LAYER}.mlp.router_gate", 2 * isqrt(count), hidden, every)
        for name in ("down_embed", "up_embed"):
            yield TensorGroup(f"{LAYER}.mlp.{name}.weight", (count, hidden), every)


_READERS: Final[Mapping[str, Callable[[Fields, str, str], ModelSpec]]] = {
    "cohere2_moe": _cohere2,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo,
    "laguna": _laguna,
    "muse_spark_text": _muse,
    "ernie4_5_vl_moe_text": _ernie_vl,
    "hunyuan_v1_moe": _hunyuan,
    "jetmoe": _jetmoe,
    "doge": _doge,
}
