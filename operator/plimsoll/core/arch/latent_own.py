"""Latent attention whose layers differ: dots3 (windows with a wider latent) and Mistral Large 4.

Mistral Large 4 has layers without position, which keep no positional row, and layers that read the
cache of an earlier one (``kv_source_layers``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS, Fields
from plimsoll.core.arch.latent import mixture_of
from plimsoll.core.arch.latent_parts import (
    ATTENTION,
    INDEXED,
    Indices,
    Latent,
    base,
    feed_forward,
    index_rule,
    indexer,
    latent_attention,
    read_latent,
    trunk,
    with_latent,
)
from plimsoll.core.arch.mixtures import Mixture, after, read_mixture
from plimsoll.core.arch.spec import CacheGroup, TensorGroup
from plimsoll.core.arch.windows import stated_window
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.spec import ModelSpec

#: Sizes of dots3's window layers in transformers' class.
_SLIDING: Final = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of the two families.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    spec = base(fields, family, architecture, grouped=False)
    if family == "dots3_note_text":
        return _dots3(fields, spec)
    return _mistral(fields, spec)


def _dots3(fields: Fields, spec: ModelSpec) -> ModelSpec:
    kinds = fields.choices(
        "layer_types", spec.layers, INDEXED | {"full_attention", "sliding_attention"}
    )
    windows = fields.flag("use_sliding_window", default=True)
    if kinds is None:
        kinds = tuple(
            "full_attention" if not windows or i < 2 or i % 4 == 1 else "sliding_attention"  # noqa: PLR2004 - the class's rule
            for i in range(spec.layers)
        )
    sliding = tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    others = tuple(i for i, kind in enumerate(kinds) if kind != "sliding_attention")
    sparse = fields.flag("use_dsa", default=not fields.has("per_layer_config"))
    # Only files with sizes by layer tell full from indexed; older ones say "full" and mean indexed.
    indices = others if sparse else tuple(i for i in others if kinds[i] in INDEXED)
    shared = ("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size")
    width = fields.either(*shared, most=MAX_DIM)
    mixture = Mixture(
        where=after(1, "first_k_dense_replace"),
        width="moe_intermediate_size",
        shared_count=("n_shared_experts",),
    )
    experts = read_mixture(fields, spec, mixture)
    if experts and width:
        times = experts.shared_intermediate // experts.intermediate
        experts = replace(experts, shared_intermediate=times * width)
    full, near = read_latent(fields, spec), _sliding_latent(fields, sliding)
    window = stated_window(fields) or 512
    size = fields.integer("index_head_dim", MAX_DIM) if indices else 0
    caches = []
    if others:
        caches.append(
            CacheGroup(
                len(others), 1, full.rank, full.rope, latent=True,
                index_dim=size, index_layers=len(indices),
            )
        )  # fmt: skip
    if sliding:
        caches.append(CacheGroup(len(sliding), 1, near.rank, near.rope, window, latent=True))
    spec = replace(with_latent(spec, full), experts=experts, caches=tuple(caches))
    tensors = [*trunk(spec), *feed_forward(spec)]
    bias = fields.flag("attention_bias", default=False)
    for latent, layers in ((full, others), (near, sliding)):
        if layers:
            tensors += latent_attention(latent, spec.hidden, layers, bias=bias)
            if latent.rope:
                tensors += norm(f"{ATTENTION}.k_rope_only_layernorm", latent.rope, layers)
            tensors += linear(f"{ATTENTION}.g_proj", latent.heads, spec.hidden, layers)
    if indices:
        tensors += indexer(fields, full.query_rank or spec.hidden, spec.hidden, indices)
    return replace(spec, tensors=tuple(tensors))


def _sliding_latent(fields: Fields, sliding: Indices) -> Latent:
    """Sizes of the window layers: ``per_layer_config``, else ``swa_`` fields, else the class's."""
    table = fields.child("per_layer_config")
    stated = {key: fields.get(f"swa_{key}") for key in (*_SLIDING, "qk_rope_head_dim")}
    fields.seen.add("swa_num_key_value_heads")
    known = {**_SLIDING, **{key: value for key, value in stated.items() if value is not None}}
    if sliding and table.has(str(sliding[0])):
        layer = table.child(str(sliding[0]), known)
    else:
        layer = Fields(known, fields.notes, path=f"{fields.path}swa_")
    nope = layer.integer("qk_nope_head_dim", MAX_DIM)
    rope = layer.optional("qk_rope_head_dim", MAX_DIM, least=0)
    if rope is None:
        rope = max(0, layer.integer("head_dim", MAX_DIM) - nope)
    return Latent(
        heads=layer.integer("num_attention_heads", MAX_DIM),
        rank=layer.integer("kv_lora_rank", MAX_DIM),
        rope=rope,
        nope=nope,
        value=layer.integer("v_head_dim", MAX_DIM),
        query_rank=layer.optional("q_lora_rank", MAX_DIM),
    )


def _mistral(fields: Fields, spec: ModelSpec) -> ModelSpec:
    spec = replace(spec, experts=read_mixture(fields, spec, mixture_of(1)))
    latent = replace(read_latent(fields, spec), query_rank=None)
    every = tuple(range(spec.layers))
    sources = fields.integers("kv_source_layers", MAX_LAYERS) or every
    flags = fields.integers("no_rope_layers", 1)
    if not flags:
        step = fields.optional("no_rope_layer_interval", MAX_LAYERS) or 4
        flags = tuple(int((index + 1) % step != 0) for index in every)
    for key, value in (("kv_source_layers", sources), ("no_rope_layers", flags)):
        if len(value) != spec.layers:
            raise fields.wrong(key, f"a list of {spec.layers} entries")
    bare = replace(latent, nope=latent.query, rope=0)
    indices = index_rule(fields, spec.layers)
    size = fields.integer("index_head_dim", MAX_DIM)
    caches, tensors = [], [*trunk(spec), *feed_forward(spec)]
    pending = len(indices)
    for flag, kind in ((1, latent), (0, bare)):
        alike = tuple(index for index in every if flags[index] == flag)
        own = tuple(index for index in alike if sources[index] == index)
        if own:
            # A layer that reads another's cache may still keep index keys of its own.
            group = CacheGroup(len(own), 1, kind.rank, kind.rope, latent=True)
            caches.append(replace(group, index_dim=size, index_layers=pending))
            pending = 0
        tensors += _mistral_attention(fields, spec, kind, alike, own)
    tensors += _mistral_indexer(fields, spec, indices)
    rotary = TensorGroup("model.rotary_emb.alpha", (max(1, latent.rope // 2),), None, "fp32")
    tensors.append(rotary)
    spec = replace(with_latent(spec, latent), caches=tuple(caches))
    return replace(spec, tensors=tuple(tensors))


def _mistral_attention(
    fields: Fields, spec: ModelSpec, latent: Latent, alike: Indices, own: Indices
) -> Iterator[TensorGroup]:
    """Layers of one kind; only those with a cache of their own have the down-projection."""
    if not alike:
        return
    bias = fields.flag("attention_bias", default=False)
    for group in latent_attention(latent, spec.hidden, alike, bias=bias):
        if ".kv_a_" not in group.name:
            yield group
        elif own:
            yield replace(group, indices=own)
    for name in ("scale", "bias"):
        yield TensorGroup(f"{ATTENTION}.softmax_scaling.{name}", (latent.heads,), alike)


def _mistral_indexer(fields: Fields, spec: ModelSpec, indices: Indices) -> Iterator[TensorGroup]:
    if not indices:
        return
    yield from indexer(fields, spec.hidden, spec.hidden, indices)
    prefix = f"{ATTENTION}.indexer"
    yield from norm(f"{prefix}.q_input_norm", spec.hidden, indices, bias=True)
    heads = fields.integer("index_n_heads", MAX_DIM)
    for name in ("scale", "bias"):
        yield TensorGroup(f"{prefix}.softmax_scaling.{name}", (heads,), indices)
