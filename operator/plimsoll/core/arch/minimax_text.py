"""MiniMax-Text-01 and MiniMax-M1: ``attn_type_list`` says 1 for attention, 0 for lightning attention.

A lightning layer keeps one matrix per head for each sequence, in the model's dtype, and no convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER, NORMS
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import CacheGroup, Experts, StateGroup, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config with ``attn_type_list``.

    Raises:
        BadModel: The list has another length than there are layers, or other entries than 0 and 1.
    """
    assumed = {"vocab_size": 200064, "intermediate_size": 9216, "num_local_experts": 32,
               "num_experts_per_tok": 2}  # fmt: skip
    fields = replace(fields, defaults={**assumed, **fields.defaults})
    spec = read_plain(fields, family, architecture)
    kinds = fields.integers("attn_type_list", 1)
    if len(kinds) != spec.layers:
        raise fields.wrong("attn_type_list", f"a list of {spec.layers} entries, 0 or 1")
    full = tuple(index for index, kind in enumerate(kinds) if kind)
    lightning = tuple(index for index, kind in enumerate(kinds) if not kind)
    shared = (
        fields.integers("shared_intermediate_size", MAX_DIM)
        if isinstance(fields.get("shared_intermediate_size"), list)
        else (fields.optional("shared_intermediate_size", MAX_DIM, least=0, quiet=True) or 0,)
    )
    mixture = Experts(
        count=fields.integer("num_local_experts", MAX_EXPERTS),
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS),
        intermediate=spec.intermediate,
        shared_intermediate=max(shared, default=0),
        layers=frozenset(range(spec.layers)),
    )
    caches = (CacheGroup(len(full), spec.kv_heads, spec.key_dim, spec.value_dim),) if full else ()
    state = StateGroup(
        "lightning",
        len(lightning),
        recurrent=spec.heads * spec.key_dim * spec.key_dim,
        heads=spec.heads,
        recurrent_dtype="model",
    )
    spec = replace(spec, caches=caches, states=(state,) if lightning else (), experts=mixture)
    draft = fields.optional("num_nextn_predict_layers", MAX_LAYERS, least=0, quiet=True) or 0
    tensors = tuple(_tensors(spec, mixture, full, lightning))
    return replace(spec, tensors=tensors, draft_layers=draft)


def _tensors(
    spec: ModelSpec, mixture: Experts, full: tuple[int, ...], lightning: tuple[int, ...]
) -> Iterator[TensorGroup]:
    hidden, inner = spec.hidden, spec.heads * spec.key_dim
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, hidden))
    yield from norm("model.norm", hidden)
    every = tuple(range(spec.layers))
    for name in NORMS:
        yield from norm(f"{LAYER}.{name}", hidden, every)
    prefix, rows = f"{LAYER}.self_attn", spec.kv_heads * spec.key_dim
    if full:
        yield from linear(f"{prefix}.q_proj", inner, hidden, full)
        yield from linear(f"{prefix}.k_proj", rows, hidden, full)
        yield from linear(f"{prefix}.v_proj", rows, hidden, full)
        yield from linear(f"{prefix}.o_proj", hidden, inner, full)
    if lightning:
        yield from linear(f"{prefix}.qkv_proj", 3 * inner, hidden, lightning)
        yield from linear(f"{prefix}.output_gate", inner, hidden, lightning)
        yield from linear(f"{prefix}.out_proj", hidden, inner, lightning)
        yield from norm(f"{prefix}.norm", inner, lightning)
    name = f"{LAYER}.block_sparse_moe"
    yield from linear(f"{name}.gate", mixture.count, hidden, every)
    yield from experts(name, every, count=mixture.count, hidden=hidden, width=mixture.intermediate)
    if mixture.shared_intermediate:
        width = mixture.shared_intermediate
        yield from gated_mlp(f"{LAYER}.shared_mlp", every, hidden=hidden, width=width)
        yield from linear(f"{LAYER}.coefficient", 1, hidden, every)
