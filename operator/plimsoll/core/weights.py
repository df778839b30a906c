"""The tensors of a checkpoint, and how many of their bytes each rank holds.

Bytes come from tensor headers, never from file sizes. An engine casts plain floating-point tensors
to its compute dtype while loading; quantised ones stay as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from plimsoll.core import dtypes
from plimsoll.core.errors import BadModel
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec


class TensorKind(NamedTuple):
    """What a header says of a tensor beside its name; ``size`` is bytes on disk.

    Many tensors of a model are of one kind. Readers share the object: a model may have 200,000
    tensors, and one object for each would cost more time and memory than the headers themselves.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tensors of one checkpoint by name. Format: safetensors, gguf or computed."""

    tensors: Mapping[str, TensorKind]
    format: str

    @property
    def total(self) -> int:
        """Bytes of all tensors on disk."""
        return sum(kind.size for kind in self.tensors.values())


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weights of the heaviest rank, in bytes.

    Attributes:
        size: Bytes that stay, on the heaviest rank of all.
        load_peak: Further bytes while loading: the largest tensor passes through once more.
        stages: Bytes of the heaviest rank of each pipeline stage; empty for one stage.
        notes: What was assumed.
    """

    size: int
    load_peak: int
    stages: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardRules:
    """How one engine spreads weights over its ranks.

    Attributes:
        tensor: Tensor-parallel ranks.
        rank_kv_heads: KV heads on one rank.
        compute: Canonical dtype that floating-point tensors are cast to.
        pipeline: Pipeline stages.
        expert: Ranks over which whole experts are spread; 1: experts are divided inside.
        vocab_multiple: The vocabulary is padded to a multiple of this before it is divided.
        quantize: On-the-fly quantisation of linear layers (``fp8``, ``int8``, ``int4``); None without.
        latent_split: The up-projection of a latent cache is kept a second time, split and
            dequantised (vLLM, SGLang).
        towers: Vision and audio towers: ``whole`` on each rank, ``divided``, or ``none`` (not loaded).
        draft: Draft layers are loaded too.
    """

    tensor: int
    rank_kv_heads: int
    compute: str
    pipeline: int = 1
    expert: int = 1
    vocab_multiple: int = 1
    quantize: str | None = None
    latent_split: bool = False
    towers: str = "whole"
    draft: bool = False


#: Canonical dtype -> its name in a safetensors header.
HEADER_DTYPES: Final = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|blk)\.([0-9]{1,6})\.")
# Never loaded: tables that engines compute themselves.
_IGNORED: Final = re.compile(r"rotary_emb\.inv_freq$|rope_freqs\.weight$|\.masked_bias$")
_VOCAB: Final = re.compile(r"(?:^|\.)(?:embed_tokens|lm_head)\.weight$")
_KV: Final = re.compile(r"\.(?:k_proj|v_proj)\.")
_COLUMN: Final = re.compile(r"\.(?:q_proj|gate_proj|up_proj|gate_up_proj|w1|w3)(?:\.|$)")
_ROW: Final = re.compile(r"\.(?:o_proj|down_proj|w2)(?:\.|$)")


def shard(manifest: Manifest, spec: ModelSpec, engine: ShardRules) -> RankWeights:
    """Bytes of the heaviest rank under tensor parallelism, by the names that Hugging Face uses.

    Column- and row-parallel matrices, experts, embedding and head are divided; K and V follow the KV
    heads of a rank (so they are replicated where heads are); norms, routers, biases of row-parallel
    layers and every name that is not known are replicated. ``model.layers.N`` beyond the model's
    layers are draft layers that are loaded only with speculation.
    """
    rules: dict[str, str | None] = {}
    # Tensors of one rule and kind cost the same: counted first, worked out once for each.
    groups: Counter[tuple[str, TensorKind]] = Counter()
    for name, kind in manifest.tensors.items():
        layer = _LAYER.search(name)
        if layer is not None and int(layer[1]) >= spec.layers:
            continue
        # The layer's number decides nothing more, and without it few names are left to look at.
        role = name if layer is None else name[: layer.start(1)] + name[layer.end(1) :]
        rule = rules[role] if role in rules else rules.setdefault(role, _rule(role))
        if rule is not None:
            groups[rule, kind] += 1
    total = peak = 0
    for (rule, kind), count in groups.items():
        size = kind.size
        if kind.dtype in dtypes.CAST_ON_LOAD:
            size = dtypes.bytes_of(prod(kind.shape), engine.compute)
        peak = max(peak, size)
        total += count * _share(rule, kind.shape, size, engine.tensor, engine.rank_kv_heads, spec.kv_heads)
    return RankWeights(total, peak)


def _rule(name: str) -> str | None:
    """How tensors of this name are spread: vocab, kv, column, row, whole; None: not loaded."""
    if _IGNORED.search(name):
        return None
    if _VOCAB.search(name):
        return "vocab"
    if _KV.search(name):
        return "kv"
    if _COLUMN.search(name):
        return "column"
    return "row" if _ROW.search(name) else "whole"


def _share(
    rule: str, shape: tuple[int, ...], size: int, ranks: int, rank_kv_heads: int, kv_heads: int
) -> int:
    """Bytes of one tensor of ``size`` bytes that the heaviest rank holds."""
    match rule:
        case "vocab" if shape:
            return size // shape[0] * ceil_div(shape[0], ranks) if shape[0] else 0
        case "kv":
            return ceil_div(size * rank_kv_heads, kv_heads)
        case "column":
            return ceil_div(size, ranks)
        case "row" if len(shape) > 1:  # its bias is added once, after the sum over ranks
            return ceil_div(size, ranks)
    return size


def check_complete(manifest: Manifest, spec: ModelSpec) -> None:
    """Refuse weights that cannot belong to this config.

    Raises:
        BadModel: Layers are missing, or the embedding has another width than the config.
    """
    # As text first: a layer has many tensors, and int() of each would cost as much as the search.
    named = {m[1] for name in manifest.tensors if (m := _LAYER.search(name))}
    missing = sorted(set(range(spec.layers)) - {int(number) for number in named})
    if missing:
        raise BadModel(
            f"the weights lack layer {missing[0]} of {spec.layers}; the download may be incomplete",
            reason="WeightsUnreadable",
            field="num_hidden_layers",
            value=spec.layers,
        )
    for name, kind in manifest.tensors.items():
        if name.endswith("embed_tokens.weight") and kind.shape[-1:] != (spec.hidden,):
            raise BadModel(
                f"{name[-80:]} has the shape {list(kind.shape)!r:.64}, config.json says hidden_size "
                f"{spec.hidden}; the two do not belong together",
                reason="WeightsUnreadable",
                field="hidden_size",
                value=spec.hidden,
            )


def computed(spec: ModelSpec, compute: str) -> Manifest:
    """The tensors that a model of this shape has, for when only the config is at hand."""
    tensors: dict[str, TensorKind] = {}
    for group in spec.tensors:
        dtype = group.dtype or compute
        kind = TensorKind(
            HEADER_DTYPES.get(dtype, "BF16"), group.shape, dtypes.bytes_of(prod(group.shape), dtype)
        )
        if group.indices is None:
            tensors[group.name] = kind
        else:
            for index in group.indices:
                tensors[group.name.replace("*", str(index), 1)] = kind
    return Manifest(tensors, "computed")
