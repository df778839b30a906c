"""Bytes of one rank: what stays on a device once the weights are loaded and divided."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Final

from plimsoll.core import dtypes
from plimsoll.core.arch.stage import stage_layers
from plimsoll.core.records import dataclass
from plimsoll.core.units import ceil_div
from plimsoll.core.weights.manifest import NO_LAYER, is_decoder_layer
from plimsoll.core.weights.roles import Placing, Side, Split, placing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.weights.manifest import Manifest, Part, TensorKind

_MATRIX: Final = 2
_BY_HEADS: Final = frozenset({Split.KV, Split.QKV, Split.GROUPS})
_SCALE: Final = 4  # bytes of one scale of on-the-fly quantisation, one for each output row
_MXFP4_BLOCK: Final = 32
#: Unknown names beyond this share of the weights are worth a warning, in percent.
_WORTH_A_NOTE: Final = 1


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weights of the heaviest rank, in bytes.

    Attributes:
        size: Bytes that stay, on the heaviest rank of all.
        load_peak: Further bytes while loading: the largest tensor passes through once more, and
            with on-the-fly quantisation a whole layer.
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
        expert: Groups of ranks over which whole experts are spread; 1: experts are divided inside.
        vocab_multiple: The vocabulary is padded to a multiple of this before it is divided.
        quantize: On-the-fly quantisation of linear layers (``fp8``, ``int8``, ``int4``); None without.
        latent_split: The up-projection of a latent cache is kept a second time, split and
            dequantised (vLLM, SGLang).
        towers: Vision and audio towers: ``whole`` on each rank, ``divided``, or ``none`` (not loaded).
        draft: Draft layers are loaded too.
        retie: A stored head of a tied model is dropped again (vLLM); without, both stay (LightLLM).
        fp4_padding: Multiples that hidden and intermediate size of MXFP4 experts are padded to
            (vLLM with Marlin: 256 and 128).
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
    retie: bool = False
    fp4_padding: tuple[int, int] | None = None


def shard(manifest: Manifest, spec: ModelSpec, engine: ShardRules) -> RankWeights:
    """Bytes of the heaviest rank, stage by stage, by the names that checkpoints use.

    Column- and row-parallel matrices, experts, embedding and head are divided; K and V follow the KV
    heads of a rank (so they are replicated where heads are); norms, routers, biases of row-parallel
    layers, latent down-projections and every name that is not known are replicated.
    """
    ends = _stage_ends(spec.layers, engine.pipeline)
    stages = [0] * engine.pipeline
    layers: Counter[int] = Counter()  # 16-bit bytes by layer, for the peak of quantising
    unknown: Counter[str] = Counter()
    peak = 0
    for part, count in manifest.parts.items():
        place = placing(part.role)
        if not _loaded(part, place, spec, engine):
            continue
        size = held_bytes(part.kind, place, spec, engine)
        each = _share(part.kind, place, size, spec, engine)
        here = _bytes_here(part, count, each, place, engine)
        if engine.latent_split and ".kv_b_proj." in part.role and part.kind.shape[1:]:
            here += count * _latent_copy(part, engine)
        for stage in _stages_of(part, place, ends, spec, engine):
            stages[stage] += here
        peak = max(peak, size)
        if engine.quantize is not None and place.linear:
            layers[part.layer] += here * part.kind.size // max(1, size)
        if place.split is Split.UNKNOWN and place.side is Side.TEXT and engine.tensor > 1:
            unknown[part.role] += here
    if layers:
        peak = max(peak, *layers.values())
    notes = (*manifest.notes, *_unknown_note(unknown, max(stages)))
    return RankWeights(max(stages), peak, tuple(stages) if engine.pipeline > 1 else (), notes)


def held_bytes(kind: TensorKind, place: Placing, spec: ModelSpec, engine: ShardRules) -> int:
    """Bytes of a whole tensor once it is on the devices, before it is divided."""
    size = kind.size
    if kind.dtype in dtypes.CAST_ON_LOAD and not place.exact:
        size = dtypes.bytes_of(prod(kind.shape), engine.compute)
        if engine.quantize is not None and place.linear and len(kind.shape) >= _MATRIX:
            rows = prod(kind.shape[:-1])
            size = dtypes.bytes_of(prod(kind.shape), engine.quantize) + rows * _SCALE
    elif engine.fp4_padding is not None and place.expert and kind.dtype == "U8":
        size = _padded_fp4(kind, place, spec, engine.fp4_padding)
    return size


def _padded_fp4(
    kind: TensorKind, place: Placing, spec: ModelSpec, multiples: tuple[int, int]
) -> int:
    """MXFP4 blocks and scales of experts with both of their sides padded.

    Blocks are ``[experts, out, in / 32, 16]``, scales ``[experts, out, in / 32]`` (GPT-OSS).
    """
    if spec.experts is None or len(kind.shape) < 3:  # noqa: PLR2004 - experts, out, in
        return kind.size
    sides = [(spec.experts.intermediate, multiples[1]), (spec.hidden, multiples[0])]
    if place.split is Split.ROW:
        sides.reverse()

    def padded(width: int, whole: int, multiple: int) -> int:
        return (
            width // whole * ceil_div(whole, multiple) * multiple if width % whole == 0 else width
        )

    experts, rows, blocks, *rest = kind.shape
    columns = padded(blocks * _MXFP4_BLOCK, *sides[1])
    return experts * padded(rows, *sides[0]) * ceil_div(columns, _MXFP4_BLOCK) * prod(rest)


def _loaded(part: Part, place: Placing, spec: ModelSpec, engine: ShardRules) -> bool:
    if place.split is Split.NOT_LOADED or place.side is Side.OTHER:
        return False
    if place.side is Side.TOWER:
        return engine.towers != "none"
    draft = place.side is Side.DRAFT or (
        part.layer >= spec.layers and is_decoder_layer(part.role) and spec.encoder is None
    )
    if draft:
        return engine.draft
    return not (engine.retie and spec.tied and place.split is Split.VOCAB and place.edge == "last")


def _share(kind: TensorKind, place: Placing, size: int, spec: ModelSpec, engine: ShardRules) -> int:
    """Bytes of one tensor of ``size`` bytes that the heaviest rank holds."""
    ranks, split = engine.tensor, place.split
    if place.side is Side.TOWER:
        ranks = ranks if engine.towers == "divided" else 1
        split = Split.COLUMN if split in _BY_HEADS else split
    elif place.expert:
        ranks = max(1, ranks // engine.expert)
    if split is Split.VOCAB:
        return _vocabulary(kind.shape, size, ranks, engine.vocab_multiple)
    if ranks == 1 or prod(kind.shape) <= 1:
        return size
    if split in _BY_HEADS:
        return _by_heads(kind, split, size, spec, engine)
    # Of row-parallel layers, one scale for each output row is whole.
    divided = split is Split.COLUMN or (split is Split.ROW and kind.shape[-1] > 1)
    return ceil_div(size, ranks) if divided else size


def _by_heads(
    kind: TensorKind, split: Split, size: int, spec: ModelSpec, engine: ShardRules
) -> int:
    if split is Split.KV:
        return _kv(kind, size, spec, engine)
    if split is Split.QKV:
        return _fused(size, spec, engine)
    return _grouped(size, kind.shape, spec, engine.tensor)


def _vocabulary(shape: tuple[int, ...], size: int, ranks: int, multiple: int) -> int:
    if not shape or not shape[0]:
        return size
    rows = ceil_div(ceil_div(shape[0], multiple) * multiple, ranks)
    return ceil_div(size * rows, shape[0])


def _kv(kind: TensorKind, size: int, spec: ModelSpec, engine: ShardRules) -> int:
    """K or V of one layer; a layer with other heads than most keeps the same proportion."""
    if spec.latent:  # what is called so beside a latent cache are heads of linear attention
        return ceil_div(size, engine.tensor)
    heads = usual = max(1, spec.kv_heads)
    plain = kind.dtype in dtypes.CAST_ON_LOAD
    if plain and spec.key_dim and kind.shape[0] % spec.key_dim == 0:
        heads = max(1, kind.shape[0] // spec.key_dim)
    mine = max(1, ceil_div(heads * engine.rank_kv_heads, usual))
    return ceil_div(size * min(mine, heads), heads)


def _fused(size: int, spec: ModelSpec, engine: ShardRules) -> int:
    """q, k and v in one matrix: heads are divided, KV heads perhaps replicated."""
    kv = spec.key_dim + spec.value_dim
    whole = spec.heads * spec.key_dim + spec.kv_heads * kv
    mine = ceil_div(spec.heads, engine.tensor) * spec.key_dim
    mine += min(spec.kv_heads, engine.rank_kv_heads) * kv
    if spec.latent or not whole:
        return ceil_div(size, engine.tensor)
    return ceil_div(size * min(mine, whole), whole)


def _grouped(size: int, shape: tuple[int, ...], spec: ModelSpec, ranks: int) -> int:
    """Mamba 2's input side: B and C of each group are on every rank that needs them."""
    for state in spec.states:
        if state.groups and state.groups % ranks and shape[0]:
            # The channels of all groups: B and C are alike, and `in_proj` and `conv1d` hold both.
            shared = min(shape[0], state.groups * state.group_channels)
            mine = max(1, ceil_div(state.groups, ranks)) * state.group_channels
            rows = ceil_div(shape[0] - shared, ranks) + min(mine, shared)
            return ceil_div(size * rows, shape[0])
    return ceil_div(size, ranks)


def _bytes_here(part: Part, count: int, each: int, place: Placing, engine: ShardRules) -> int:
    """Bytes of ``count`` tensors on the rank with the most experts, where whole ones are spread."""
    if not place.expert or engine.expert == 1:
        return count * each
    if place.numbered:
        return ceil_div(count, engine.expert) * each
    experts = part.kind.shape[0] if part.kind.shape else 0  # stacked: one tensor for all of them
    return count * ceil_div(each * ceil_div(experts, engine.expert), experts) if experts else 0


def _latent_copy(part: Part, engine: ShardRules) -> int:
    """W_UK and W_UV in the compute dtype beside ``kv_b_proj``, divided by heads."""
    if not part.role.endswith((".weight", ".qweight", ".weight_packed")):
        return 0
    elements = prod(part.kind.shape)
    if part.kind.dtype in {"I32", "U32"}:
        elements *= 8  # eight values of 4 bits
    elif part.kind.dtype == "U8":
        elements *= 2
    return ceil_div(dtypes.bytes_of(elements, engine.compute), engine.tensor)


def _stage_ends(layers: int, stages: int) -> list[int]:
    """First layer behind each pipeline stage."""
    ends, end = [], 0
    for index in range(stages):
        end += stage_layers(layers, index, stages)
        ends.append(end)
    return ends


def _stages_of(
    part: Part, place: Placing, ends: list[int], spec: ModelSpec, engine: ShardRules
) -> Sequence[int]:
    """Stages that hold a tensor."""
    every = range(len(ends))
    last = every[-1:]
    everywhere = place.edge == "all" or (not place.edge and part.layer == NO_LAYER)
    if len(ends) == 1 or place.side is Side.TOWER or everywhere:
        return every
    if place.side is Side.DRAFT or place.edge == "last":
        return last
    if place.edge == "first":
        # A tied head is the embedding once more, at the other end; draft layers look up too.
        return (0, last[0]) if spec.tied or engine.draft else (0,)
    return (next((stage for stage, end in enumerate(ends) if part.layer < end), last[0]),)


def _unknown_note(unknown: Counter[str], total: int) -> tuple[str, ...]:
    size = sum(unknown.values())
    if size * 100 < total * _WORTH_A_NOTE or not size:
        return ()
    role = max(unknown, key=lambda name: unknown[name])
    note = (
        f"{len(unknown)} kinds of tensors, among them {role[-80:]!r}, are not known; each rank is "
        "taken to hold all of them"
    )
    return (note,)
