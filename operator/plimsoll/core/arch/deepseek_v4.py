"""DeepSeek V4: a window of one shared key and value row in every layer, and compressed rows behind it.

A compressed sparse layer stores one row and one index key per 4 tokens, a heavily compressed one a
row per 128. Sparse layers also keep the last tokens' rows that overlap the next group. Source:
transformers' ``modeling_deepseek_v4.py``, measured: 6,584 bytes per token at bf16 for 43 layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.latent_parts import ATTENTION, Indices, base, hyper_connections, trunk
from plimsoll.core.arch.mixtures import Mixture, read_mixture
from plimsoll.core.arch.spec import CacheGroup, StateGroup, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_SPARSE: Final = "compressed_sparse_attention"
_HEAVY: Final = "heavily_compressed_attention"
_NEAR: Final = "sliding_attention"
_RATIOS: Final = {0: _NEAR, 4: _SPARSE, 128: _HEAVY}
_RATES: Final = {_SPARSE: 4, _HEAVY: 128}
_NEUTRAL: Final = frozenset({
    "compress_rate_csa", "compress_rate_hca", "compress_rates", "compress_ratios", "compress_rope_theta",
    "expert_dtype", "num_hash_layers", "qk_rope_head_dim",
})  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a DeepSeek V4 config.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    fields.seen |= _NEUTRAL
    width = fields.either("moe_intermediate_size", "intermediate_size", most=MAX_DIM)
    own = replace(fields, values={**fields.values, "intermediate_size": width})
    spec = base(own, family, architecture)
    mixture = Mixture(width="moe_intermediate_size", shared_count=("n_shared_experts",))
    spec = replace(spec, experts=read_mixture(own, spec, mixture))
    kinds = _kinds(own, spec.layers)
    rates = _rates(fields)
    size = spec.key_dim
    index = own.integer("index_head_dim", MAX_DIM)
    window = own.integer("sliding_window", MAX_CONTEXT)
    caches = [CacheGroup(spec.layers, 1, size, 0, window, latent=True)]
    at = {kind: tuple(i for i, own_ in enumerate(kinds) if own_ == kind) for kind in _RATES}
    sparse, heavy = len(at[_SPARSE]), len(at[_HEAVY])
    if sparse:
        caches.append(
            CacheGroup(
                sparse, 1, size, 0, latent=True, index_dim=index, index_layers=sparse,
                stride=rates[_SPARSE],
            )
        )  # fmt: skip
    if heavy:
        caches.append(CacheGroup(heavy, 1, size, 0, latent=True, stride=rates[_HEAVY]))
    overlap = StateGroup(
        "overlap",
        sparse,
        conv_channels=size + index,
        conv_kernel=rates[_SPARSE],
        recurrent=rates[_SPARSE] * (size + index),
    )
    spec = replace(spec, caches=tuple(caches), states=(overlap,) if sparse else ())
    return replace(spec, tensors=tuple(_tensors(own, spec, at, rates)))


def _kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    """``layer_types``, else ``compress_ratios`` (0, 4, 128), else two heavy ones, then in turn."""
    kinds = fields.choices("layer_types", layers, frozenset({_SPARSE, _HEAVY, _NEAR}))
    if kinds is not None:
        return kinds
    ratios = fields.integers("compress_ratios", MAX_CONTEXT)
    if ratios:
        # Files may list the layer for multi-token prediction behind the others.
        if len(ratios) < layers or set(ratios) - _RATIOS.keys():
            raise fields.wrong("compress_ratios", f"a list of {layers} entries, 0, 4 or 128")
        return tuple(_RATIOS[ratio] for ratio in ratios[:layers])
    return tuple(_HEAVY if i < 2 or i % 2 == 0 else _SPARSE for i in range(layers))  # noqa: PLR2004


def _rates(fields: Fields) -> dict[str, int]:
    """Tokens per compressed row, by kind of layer."""
    table = fields.child("compress_rates", _RATES)
    found = {kind: table.optional(kind, MAX_DIM, quiet=True) or _RATES[kind] for kind in _RATES}
    for key, kind in (("compress_rate_csa", _SPARSE), ("compress_rate_hca", _HEAVY)):
        found[kind] = fields.optional(key, MAX_DIM) or found[kind]
    return found


def _tensors(
    fields: Fields, spec: ModelSpec, at: dict[str, Indices], rates: dict[str, int]
) -> Iterator[TensorGroup]:
    hidden, every, size = spec.hidden, tuple(range(spec.layers)), spec.key_dim
    rank = fields.integer("q_lora_rank", MAX_DIM)
    groups = fields.integer("o_groups", MAX_DIM)
    narrow = fields.integer("o_lora_rank", MAX_DIM)
    yield from trunk(spec)
    yield TensorGroup(f"{ATTENTION}.sinks", (spec.heads,), every, "fp32")
    yield from linear(f"{ATTENTION}.q_a_proj", rank, hidden, every)
    yield from norm(f"{ATTENTION}.q_a_norm", rank, every)
    yield from linear(f"{ATTENTION}.q_b_proj", spec.heads * size, rank, every)
    yield from linear(f"{ATTENTION}.kv_a_proj", size, hidden, every)
    yield from norm(f"{ATTENTION}.kv_norm", size, every)
    part = max(1, spec.heads * size // groups)
    yield from linear(f"{ATTENTION}.o_a_proj", groups * narrow, part, every)
    yield from linear(f"{ATTENTION}.o_b_proj", hidden, groups * narrow, every)
    prefix = f"{ATTENTION}.compressor"
    if at[_HEAVY]:
        yield from _compressor(prefix, hidden, size, (1, rates[_HEAVY]), at[_HEAVY])
    if at[_SPARSE]:
        index = fields.integer("index_head_dim", MAX_DIM)
        heads = fields.integer("index_n_heads", MAX_DIM)
        sparse, twice = at[_SPARSE], (2, rates[_SPARSE])
        yield from _compressor(prefix, hidden, size, twice, sparse)
        yield from _compressor(f"{prefix}.indexer", hidden, index, twice, sparse)
        yield from linear(f"{prefix}.indexer.q_b_proj", heads * index, rank, sparse)
        yield from linear(f"{prefix}.indexer.weights_proj", heads, hidden, sparse)
    if spec.experts:
        count, width = spec.experts.count, spec.experts.intermediate
        name, shared = f"{LAYER}.mlp", spec.experts.shared_intermediate
        yield from linear(f"{name}.gate", count, hidden, every)
        yield from experts(name, every, count=count, hidden=hidden, width=width)
        if shared:
            yield from gated_mlp(f"{name}.shared_experts", every, hidden=hidden, width=shared)
    streams = fields.integer("hc_mult", MAX_LAYERS)
    yield from hyper_connections(hidden, streams, every, mixing=True)


def _compressor(
    prefix: str, hidden: int, size: int, shape: tuple[int, int], indices: Indices
) -> Iterator[TensorGroup]:
    """Rows and their gates; ``shape``: parts that overlap, tokens per row."""
    wide = shape[0] * size
    yield TensorGroup(f"{prefix}.position_bias", (shape[1], wide), indices, "fp32")
    for name in ("kv_proj", "gate_proj"):
        yield from linear(f"{prefix}.{name}", wide, hidden, indices)
    yield from norm(f"{prefix}.kv_norm", size, indices)
