"""The tensors of a checkpoint, and how many of their bytes each rank holds.

Bytes come from tensor headers, never from file sizes. An engine casts plain floating-point tensors
to its compute dtype while loading; quantised ones stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from plimsoll.core import dtypes
from plimsoll.core.errors import BadModel
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its header describes it; ``size`` is bytes on disk."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tensors of one checkpoint, each name once. Format: safetensors, gguf or computed."""

    tensors: tuple[Tensor, ...]
    format: str

    @property
    def total(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(tensor.size for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weights of the heaviest rank, in bytes.

    Attributes:
        size: Bytes that stay.
        load_peak: Further bytes while loading: the largest tensor passes through once more.
    """

    size: int
    load_peak: int


_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|blk)\.([0-9]{1,6})\.")
# Never loaded: tables that engines compute themselves.
_IGNORED: Final = re.compile(r"rotary_emb\.inv_freq$|rope_freqs\.weight$|\.masked_bias$")
_VOCAB: Final = re.compile(r"(?:^|\.)(?:embed_tokens|lm_head)\.weight$")
_KV: Final = re.compile(r"\.(?:k_proj|v_proj)\.")
_COLUMN: Final = re.compile(r"\.(?:q_proj|gate_proj|up_proj|gate_up_proj|w1|w3)(?:\.|$)")
_ROW: Final = re.compile(r"\.(?:o_proj|down_proj|w2)(?:\.|$)")


def shard(
    manifest: Manifest, spec: ModelSpec, *, tensor: int, rank_kv_heads: int, compute: str
) -> RankWeights:
    """Bytes of the heaviest rank under tensor parallelism, by the names that Hugging Face uses.

    Column- and row-parallel matrices, experts, embedding and head are divided; K and V follow the KV
    heads of a rank (so they are replicated where heads are); norms, routers, biases of row-parallel
    layers and every name that is not known are replicated. ``model.layers.N`` beyond the model's
    layers are draft layers that are loaded only with speculation.

    Args:
        manifest: The tensors.
        spec: The model.
        tensor: Ranks.
        rank_kv_heads: KV heads on one rank.
        compute: Canonical dtype that floating-point tensors are cast to.
    """
    total = peak = 0
    for item in manifest.tensors:
        layer = _LAYER.search(item.name)
        if _IGNORED.search(item.name) or (layer and int(layer[1]) >= spec.layers):
            continue
        size = item.size
        if item.dtype in dtypes.CAST_ON_LOAD:
            size = dtypes.bytes_of(item.elements, compute)
        peak = max(peak, size)
        if _VOCAB.search(item.name) and item.shape:
            total += size // item.shape[0] * ceil_div(item.shape[0], tensor) if item.shape[0] else 0
        elif _KV.search(item.name):
            total += ceil_div(size * rank_kv_heads, spec.kv_heads)
        elif _COLUMN.search(item.name) or (_ROW.search(item.name) and len(item.shape) > 1):
            total += ceil_div(size, tensor)
        else:
            total += size
    return RankWeights(total, peak)


def check_complete(manifest: Manifest, spec: ModelSpec) -> None:
    """Refuse weights that cannot belong to this config.

    Raises:
        BadModel: Layers are missing, or the embedding has another width than the config.
    """
    layers = {int(m[1]) for t in manifest.tensors if (m := _LAYER.search(t.name))}
    missing = sorted(set(range(spec.layers)) - layers)
    if missing:
        raise BadModel(
            f"the weights lack layer {missing[0]} of {spec.layers}; the download may be incomplete",
            reason="WeightsUnreadable",
            field="num_hidden_layers",
            value=spec.layers,
        )
    for tensor in manifest.tensors:
        if tensor.name.endswith("embed_tokens.weight") and tensor.shape[-1:] != (spec.hidden,):
            raise BadModel(
                f"{tensor.name} has the shape {list(tensor.shape)}, config.json says hidden_size "
                f"{spec.hidden}; the two do not belong together",
                reason="WeightsUnreadable",
                field="hidden_size",
                value=spec.hidden,
            )


def computed(spec: ModelSpec, compute: str) -> Manifest:
    """The tensors that a model of this shape has, for when only the config is at hand."""
    header = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}.get(compute, "BF16")
    tensors = tuple(
        Tensor(name, header, shape, dtypes.bytes_of(prod(shape), compute))
        for name, shape in _shapes(spec)
    )
    return Manifest(tensors, "computed")


def _shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes; experts of one layer are one stacked tensor."""
    hidden, width = spec.hidden, spec.intermediate
    yield "model.embed_tokens.weight", (spec.vocab, hidden)
    if not spec.tied:
        yield "lm_head.weight", (spec.vocab, hidden)
    yield "model.norm.weight", (hidden,)
    for index in range(spec.layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield from _attention(spec, f"{layer}.self_attn")
        experts = spec.experts
        if experts is None or index not in experts.layers:
            yield from _feed_forward(f"{layer}.mlp", hidden, width, bias=spec.mlp_bias)
            continue
        yield f"{layer}.mlp.gate.weight", (experts.count, hidden)
        stacked = (experts.count, 2 * experts.intermediate, hidden)
        yield f"{layer}.mlp.experts.gate_up_proj", stacked
        yield f"{layer}.mlp.experts.down_proj", (experts.count, hidden, experts.intermediate)
        if experts.shared_intermediate:
            yield from _feed_forward(
                f"{layer}.mlp.shared_expert", hidden, experts.shared_intermediate, bias=False
            )
            yield f"{layer}.mlp.shared_expert_gate.weight", (1, hidden)


def _attention(spec: ModelSpec, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    rows = {
        "q_proj": spec.heads * spec.key_dim,
        "k_proj": spec.kv_heads * spec.key_dim,
        "v_proj": spec.kv_heads * spec.value_dim,
    }
    for part, width in rows.items():
        yield f"{name}.{part}.weight", (width, spec.hidden)
        if spec.qkv_bias:
            yield f"{name}.{part}.bias", (width,)
    yield f"{name}.o_proj.weight", (spec.hidden, spec.heads * spec.value_dim)
    if spec.o_bias:
        yield f"{name}.o_proj.bias", (spec.hidden,)
    if spec.qk_norm:
        yield f"{name}.q_norm.weight", (spec.key_dim,)
        yield f"{name}.k_norm.weight", (spec.key_dim,)


def _feed_forward(
    name: str, hidden: int, width: int, *, bias: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part, shape in (
        ("gate_proj", (width, hidden)),
        ("up_proj", (width, hidden)),
        ("down_proj", (hidden, width)),
    ):
        yield f"{name}.{part}.weight", shape
        if bias:
            yield f"{name}.{part}.bias", shape[:1]
