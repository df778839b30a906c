"""MiniMax M3: plain attention with an index over its keys where ``sparse_attention_config`` says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS
from plimsoll.core.arch.latent_parts import ATTENTION, Indices, base, plain_attention, trunk
from plimsoll.core.arch.mixtures import listed
from plimsoll.core.arch.spec import CacheGroup, Experts
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec, TensorGroup

_SPARSE: Final = "minimax_m3_sparse"


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read the text part of a MiniMax M3 config.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    fields.seen |= {"index_block_size", "index_local_blocks", "index_topk_blocks", "rotary_dim"}
    spec = base(fields, family, architecture)
    table = fields.child("sparse_attention_config")
    own = _sparse_layers(fields, table, spec.layers)
    size = table.optional("sparse_index_dim", MAX_DIM) or fields.integer("index_head_dim", MAX_DIM)
    heads = table.optional("sparse_num_index_heads", MAX_DIM)
    heads = heads or fields.integer("index_n_heads", MAX_DIM)
    group = CacheGroup(
        spec.layers, spec.kv_heads, spec.key_dim, spec.value_dim,
        index_dim=size if own else 0, index_layers=len(own),
    )  # fmt: skip
    width = spec.intermediate
    layers = listed(fields, spec.layers)
    flags = fields.integers("moe_layer_freq", 1)
    if layers is None:
        layers = frozenset(
            i for i in range(spec.layers) if not flags or (i < len(flags) and flags[i])
        )
    count = fields.first("num_local_experts", "num_experts", most=MAX_EXPERTS)
    mixture = Experts(
        count=count,
        per_token=min(count, fields.integer("num_experts_per_tok", MAX_EXPERTS)),
        intermediate=width,
        shared_intermediate=fields.optional("shared_intermediate_size", MAX_DIM, least=0) or 0,
        layers=layers,
    )
    dense = fields.integer("dense_intermediate_size", MAX_DIM)
    spec = replace(spec, caches=(group,), experts=mixture, intermediate=dense)
    return replace(spec, tensors=tuple(_tensors(spec, mixture, own, (heads, size))))


def _sparse_layers(fields: Fields, table: Fields, layers: int) -> Indices:
    """Layers with an index."""
    kinds = fields.choices("layer_types", layers, frozenset({_SPARSE, "full_attention"}))
    if kinds is not None:
        return tuple(index for index, kind in enumerate(kinds) if kind == _SPARSE)
    flags = table.integers("sparse_attention_freq", 1)
    if flags and len(flags) != layers:
        raise table.wrong("sparse_attention_freq", f"a list of {layers} entries, 0 or 1")
    return tuple(index for index, flag in enumerate(flags) if flag)


def _tensors(
    spec: ModelSpec, mixture: Experts, own: Indices, index: tuple[int, int]
) -> Iterator[TensorGroup]:
    hidden, every = spec.hidden, tuple(range(spec.layers))
    yield from trunk(spec)
    yield from plain_attention(spec, every, head_norms=True)
    if own:
        heads, size = index
        prefix = f"{ATTENTION}.indexer"
        yield from linear(f"{prefix}.q_proj", heads * size, hidden, own)
        yield from linear(f"{prefix}.k_proj", size, hidden, own)
        yield from norm(f"{prefix}.q_norm", size, own)
        yield from norm(f"{prefix}.k_norm", size, own)
    sparse, name = tuple(sorted(mixture.layers)), f"{LAYER}.mlp"
    dense = tuple(i for i in every if i not in mixture.layers)
    if dense:
        yield from gated_mlp(name, dense, hidden=hidden, width=spec.intermediate)
    if sparse:
        yield from linear(f"{name}.gate", mixture.count, hidden, sparse)
        width = mixture.intermediate
        yield from experts(name, sparse, count=mixture.count, hidden=hidden, width=width)
        if mixture.shared_intermediate:
            width = mixture.shared_intermediate
            yield from gated_mlp(f"{name}.shared_experts", sparse, hidden=hidden, width=width)
