"""Step-3 and Step-3.5: KV heads are called attention groups.

Step-3 squeezes all queries through ``share_q_dim`` before it spreads them. Step-3.5 has windowed
layers with other heads (``attention_other_setting``), and lists its draft layers behind the others.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER, NORMS
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import CacheGroup, Experts, TensorGroup
from plimsoll.core.arch.windows import FULL, WINDOWED, stated_window
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

#: The class of Step-3's text model, which transformers lacks.
_STEP3: Final[Mapping[str, Any]] = {
    "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64,
    "num_attention_groups": 1, "num_hidden_layers": 61, "max_position_embeddings": 65536,
    "vocab_size": 128815, "moe_intermediate_size": 5120, "moe_num_experts": 48, "moe_top_k": 3,
    "share_expert_dim": 5120, "share_q_dim": 2048, "head_dim": 256,
}  # fmt: skip

_NUMBER: Final = re.compile(r"[0-9]{1,4}")


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read the text model of Step-3 or Step-3.5."""
    if family == "step3_text":
        fields = replace(fields, defaults={**_STEP3, **fields.defaults})
    groups = fields.either("num_attention_groups", "num_key_value_heads", most=MAX_DIM)
    values = {**fields.values, "num_key_value_heads": groups}
    spec = read_plain(replace(fields, values=values), family, architecture)
    spec = replace(spec, experts=_experts(fields, family, spec))
    if family == "step3_text":
        return replace(spec, tensors=tuple(_tensors(fields, spec, {})))
    draft = (
        fields.either("num_nextn_predict_layers", "num_mtp_layers", most=MAX_LAYERS, least=0) or 0
    )
    kinds = _kinds(fields, spec.layers, draft)
    window = stated_window(fields)
    sizes = _sizes(fields, spec, kinds)
    found = Counter(
        (sizes[index][1], sizes[index][2], window if kind in WINDOWED else None)
        for index, kind in enumerate(kinds)
    )
    caches = tuple(
        CacheGroup(count, rows, size, size, span)
        for (rows, size, span), count in sorted(found.items(), key=lambda item: item[0][2] or 0)
    )
    spec = replace(spec, caches=caches, draft_layers=draft)
    return replace(spec, tensors=tuple(_tensors(fields, spec, sizes)))


def _kinds(fields: Fields, layers: int, draft: int) -> tuple[str, ...]:
    """One kind for each layer; a list may go on with those of the draft layers."""
    stated = fields.get("layer_types")
    count = layers + draft if isinstance(stated, list) and len(stated) == layers + draft else layers
    kinds = fields.choices("layer_types", count, FULL | WINDOWED)
    return (kinds or ("full_attention",) * layers)[:layers]


def _sizes(
    fields: Fields, spec: ModelSpec, kinds: tuple[str, ...]
) -> dict[int, tuple[int, int, int]]:
    """Query heads, KV heads and head size of each layer."""
    other = fields.child("attention_other_setting")
    heads = fields.optional("num_sliding_attention_heads", MAX_DIM, quiet=True)
    heads = heads or other.optional("num_attention_heads", MAX_DIM, quiet=True) or spec.heads
    rows = other.optional("num_attention_groups", MAX_DIM, quiet=True) or spec.kv_heads
    size = other.optional("head_dim", MAX_DIM, quiet=True) or spec.key_dim
    usual = (spec.heads, spec.kv_heads, spec.key_dim)
    return {
        index: (heads, rows, size) if kind in WINDOWED else usual
        for index, kind in enumerate(kinds)
    }


def _experts(fields: Fields, family: str, spec: ModelSpec) -> Experts:
    keys = ("moe_num_experts", "n_routed_experts")
    return Experts(
        count=fields.first(*keys, most=MAX_EXPERTS),
        per_token=fields.first("moe_top_k", "num_experts_per_tok", most=MAX_EXPERTS),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM),
        shared_intermediate=fields.first(
            "share_expert_dim", "share_expert_dims", most=MAX_DIM, least=0
        ),
        layers=_mixture(fields, family, spec.layers),
    )


def _mixture(fields: Fields, family: str, layers: int) -> frozenset[int]:
    """Layers with experts: ``mlp_layer_types``, or the numbers in ``moe_layers_enum``."""
    kinds = fields.get("mlp_layer_types")
    if isinstance(kinds, list):
        if not layers <= len(kinds) <= MAX_LAYERS:
            raise fields.wrong("mlp_layer_types", f"a list of {layers} entries")
        return frozenset(i for i, kind in enumerate(kinds[:layers]) if kind == "sparse")
    stated = fields.get("moe_layers_enum")
    if stated is None:
        first, last = (4, layers - 1) if family == "step3_text" else (3, layers)
        return frozenset(range(first, last))
    words = stated.split(",") if isinstance(stated, str) else stated
    if not isinstance(words, list) or len(words) > MAX_LAYERS:
        raise fields.wrong("moe_layers_enum", "a list of layers")
    texts = [str(word).strip() for word in words]
    if any(text and not _NUMBER.fullmatch(text) for text in texts):
        raise fields.wrong("moe_layers_enum", "a list of layers")
    return frozenset(int(text) for text in texts if text and int(text) < layers)


def _tensors(
    fields: Fields, spec: ModelSpec, sizes: Mapping[int, tuple[int, int, int]]
) -> Iterator[TensorGroup]:
    hidden, every = spec.hidden, tuple(range(spec.layers))
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, hidden))
    yield from norm("model.norm", hidden)
    for name in NORMS:
        yield from norm(f"{LAYER}.{name}", hidden, every)
    if not sizes:
        yield from _squeezed(fields, spec, every)
    for size in dict.fromkeys(sizes.values()):
        same = tuple(index for index in every if sizes[index] == size)
        yield from _grouped(fields, spec, size, same)
    mixture = spec.experts
    sparse = sorted(mixture.layers) if mixture else []
    dense = tuple(index for index in every if index not in set(sparse))
    prefix = f"{LAYER}.mlp"
    if dense:
        yield from gated_mlp(prefix, dense, hidden=hidden, width=spec.intermediate)
    if mixture is None or not sparse:
        return
    chosen = tuple(sparse)
    yield from linear(f"{prefix}.gate", mixture.count, hidden, chosen)
    yield from experts(
        prefix, chosen, count=mixture.count, hidden=hidden, width=mixture.intermediate
    )
    if mixture.shared_intermediate:
        width = mixture.shared_intermediate
        yield from gated_mlp(f"{prefix}.shared_experts", chosen, hidden=hidden, width=width)


def _grouped(
    fields: Fields, spec: ModelSpec, size: tuple[int, int, int], same: tuple[int, ...]
) -> Iterator[TensorGroup]:
    """Step-3.5: norms of queries and keys, and one gate for each head."""
    heads, rows, width = size
    prefix, bias = f"{LAYER}.self_attn", fields.flag("attention_bias", default=False)
    yield from linear(f"{prefix}.q_proj", heads * width, spec.hidden, same, bias=bias)
    yield from linear(f"{prefix}.k_proj", rows * width, spec.hidden, same, bias=bias)
    yield from linear(f"{prefix}.v_proj", rows * width, spec.hidden, same, bias=bias)
    yield from linear(f"{prefix}.o_proj", spec.hidden, heads * width, same, bias=bias)
    yield from norm(f"{prefix}.q_norm", width, same)
    yield from norm(f"{prefix}.k_norm", width, same)
    yield from linear(f"{prefix}.g_proj", heads, spec.hidden, same)


def _squeezed(fields: Fields, spec: ModelSpec, every: tuple[int, ...]) -> Iterator[TensorGroup]:
    """Step-3: the queries' common part, its norm, and the matrix that spreads it over the heads."""
    prefix, rows = f"{LAYER}.self_attn", spec.kv_heads * spec.key_dim
    inner = fields.optional("share_q_dim", MAX_CONTEXT, quiet=True) or spec.key_dim
    yield from linear(f"{prefix}.q_a_proj", inner, spec.hidden, every)
    yield from norm(f"{prefix}.inter_norm", inner, every)
    yield from linear(f"{prefix}.q_proj", spec.heads * spec.key_dim, inner, every)
    yield from linear(f"{prefix}.k_proj", rows, spec.hidden, every)
    yield from linear(f"{prefix}.v_proj", rows, spec.hidden, every)
    yield from linear(f"{prefix}.o_proj", spec.hidden, spec.heads * spec.key_dim, every)
