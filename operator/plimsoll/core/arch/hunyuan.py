"""Hunyuan-Large (``hunyuan``): layers in groups share keys and values.

``cla_share_factor`` layers use the first one's keys and values. No engine is known to leave out the
buffers of the others, so every layer counts; only the projections are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER, NORMS
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import Experts, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

#: Hunyuan-Large as published, for what a config leaves out.
_LARGE: Final[Mapping[str, int | bool]] = {
    "vocab_size": 128512, "intermediate_size": 18304, "num_experts": 16, "num_shared_expert": 1,
    "moe_topk": 1, "tie_word_embeddings": True, "use_qk_norm": True,
}  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Hunyuan config of the first generation."""
    fields = replace(fields, defaults={**_LARGE, **fields.defaults})
    spec = read_plain(fields, family, architecture)
    count = _largest(fields, "num_experts", MAX_EXPERTS)
    if count > 1:
        width = _largest(fields, "moe_intermediate_size", MAX_DIM) or spec.intermediate
        shared = _largest(fields, "num_shared_expert", MAX_EXPERTS)
        if not fields.flag("use_mixed_mlp_moe", default=True):
            shared = 0
        mixture = Experts(
            count=count,
            per_token=max(1, _largest(fields, "moe_topk", MAX_EXPERTS)),
            intermediate=width,
            shared_intermediate=shared * width,
            layers=frozenset(range(spec.layers)),
        )
        spec = replace(spec, experts=mixture)
    factor = 1
    if fields.flag("use_cla", default=False):
        factor = fields.optional("cla_share_factor", MAX_LAYERS, quiet=True) or 1
        fields.notes.append(
            f"layers share keys and values in groups of {factor} (cla_share_factor); "
            "every layer is counted, as engines allocate"
        )
    return replace(spec, tensors=tuple(_tensors(fields, spec, factor)))


def _largest(fields: Fields, key: str, most: int) -> int:
    """A number, or the largest of a list with one for each layer."""
    if isinstance(fields.get(key), list):
        return max(fields.integers(key, most), default=0)
    return fields.optional(key, most, least=0, quiet=True) or 0


def _tensors(fields: Fields, spec: ModelSpec, factor: int) -> Iterator[TensorGroup]:
    hidden = spec.hidden
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, hidden))
    yield from norm("model.norm", hidden)
    every = tuple(range(spec.layers))
    own = tuple(index for index in every if index % factor == 0)
    for name in NORMS:
        yield from norm(f"{LAYER}.{name}", hidden, every)
    prefix = f"{LAYER}.self_attn"
    yield from linear(f"{prefix}.q_proj", spec.heads * spec.key_dim, hidden, every)
    yield from linear(f"{prefix}.k_proj", spec.kv_heads * spec.key_dim, hidden, own)
    yield from linear(f"{prefix}.v_proj", spec.kv_heads * spec.key_dim, hidden, own)
    yield from linear(f"{prefix}.o_proj", hidden, spec.heads * spec.key_dim, every)
    if fields.flag("use_qk_norm", default=False):
        yield from norm(f"{prefix}.q_norm", spec.key_dim, every)
        yield from norm(f"{prefix}.k_norm", spec.key_dim, own)
    mixture = spec.experts
    if mixture is None:
        yield from gated_mlp(f"{LAYER}.mlp", every, hidden=hidden, width=spec.intermediate)
        return
    name = f"{LAYER}.mlp"
    yield from linear(f"{name}.gate", mixture.count, hidden, every)
    yield from experts(name, every, count=mixture.count, hidden=hidden, width=mixture.intermediate)
    if mixture.shared_intermediate:
        width = mixture.shared_intermediate
        yield from gated_mlp(f"{name}.shared_mlp", every, hidden=hidden, width=width)
