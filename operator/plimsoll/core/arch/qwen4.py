"""Qwen 4 (experimental): an index over the keys of full layers, several residual streams.

The n-gram embedding (``ple_layer_ids``) is noted, not sized: it makes the result an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.latent_parts import ATTENTION, Indices
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec, TensorGroup


def qwen4(fields: Fields, spec: ModelSpec, full: Indices) -> ModelSpec:
    """What the family adds to Qwen 3.5 with experts.

    Raises:
        BadModel: The index is not described, or a size is out of range.
    """
    fields.seen |= {"indexer_compress_ratio", "indexer_budget", "ple_conv_kernel_size"}
    size = fields.integer("indexer_head_dim", MAX_DIM) if full else 0
    caches = tuple(
        replace(group, index_dim=size, index_layers=group.layers) for group in spec.caches
    )
    if fields.integers("ple_layer_ids", MAX_LAYERS):
        fields.notes.append("the n-gram embedding of ple_layer_ids and its states are not counted")
    tensors = [group for group in spec.tensors if "layernorm" not in group.name]
    tensors = [group for group in tensors if group.name != "model.norm.weight"]
    tensors += _streams(fields, spec)
    tensors += _index(fields, spec, full, size) if full else ()
    return replace(spec, caches=caches, tensors=tuple(tensors))


def _streams(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    count = fields.integer("hc_count", MAX_LAYERS)
    rank = fields.integer("hc_lowrank", MAX_DIM)
    width, every = count * spec.hidden, tuple(range(spec.layers))
    names = (f"{LAYER}.attn_hyper_connection", f"{LAYER}.mlp_hyper_connection")
    for name, indices in (
        *((part, every) for part in names),
        ("model.hyper_connection_mixer", None),
    ):
        yield from norm(f"{name}.hc_norm", width, indices)
        yield from linear(f"{name}.input_mix_weight_down", rank, width, indices)
        yield from linear(f"{name}.input_mix_weight_up", width, rank, indices)
        if indices is not None:
            yield from linear(f"{name}.block_inject_weight", count, width, indices)


def _index(fields: Fields, spec: ModelSpec, full: Indices, size: int) -> Iterator[TensorGroup]:
    heads = fields.integer("indexer_n_heads", MAX_DIM) + fields.integer("indexer_kv_heads", MAX_DIM)
    prefix = f"{ATTENTION}.indexer"
    yield from linear(f"{prefix}.index_qk_proj", heads * size, spec.hidden, full)
    yield from norm(f"{prefix}.q_layernorm", size, full)
    yield from norm(f"{prefix}.k_layernorm", size, full)
