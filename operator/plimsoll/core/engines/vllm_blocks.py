"""Blocks: how vLLM cuts the pool, and what one request takes of it.

Layers of one kind (full, one window, chunks, states, cross attention) form groups of equal size. All
groups draw blocks of the same bytes from one pool, so that::

    block bytes = page of one layer * layers per group      blocks = floor(pool / block bytes)

Source: ``v1/core/kv_cache_planning.py`` and ``v1/kv_cache_interface.py`` of 0.33.0; older releases group
alike, which the printed tokens of 0.15 to 0.25 confirm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.engines import vllm_cells as cells
from plimsoll.core.engines.versions import is_cpu_build, parse_release
from plimsoll.core.records import dataclass, replace
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.vllm_releases import Release
    from plimsoll.core.request import SizingRequest

_BLOCK: Final = 16
_BLOCK_CPU: Final = 128
_LATENT_HYBRID: Final = 128
#: All that ``--block-size`` took up to some release before 0.22; 0.12.0 has this list.
_CHOICES: Final = frozenset({1, 8, 16, 32, 64, 128, 256})
_ANY_SINCE: Final = (0, 22)
_PAD_RATIO: Final = (3, 2)  # the largest class sets the group's size below 1.5 times the smallest
_ENCODER: Final = 1500  # positions of an encoder of free length: Whisper's


@dataclass(frozen=True, slots=True)
class Kind:
    """Layers that share a block table.

    Attributes:
        role: full, window, chunk, state or cross.
        layers: How many.
        size: Bytes per token of one layer; of a state, per sequence.
        reach: Window, chunk or encoder positions, in tokens.
        block: Tokens per block; 0 for states.
    """

    role: str
    layers: int
    size: int
    reach: int = 0
    block: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """One block table: its kind, and whose layers it serves."""

    kind: Kind

    def blocks(self, context: int, in_flight: int, state_blocks: int) -> int:
        """Blocks that one request of that many tokens may hold at once."""
        kind = self.kind
        if kind.role == "state":
            return state_blocks
        if kind.role == "cross":
            return ceil_div(kind.reach, kind.block)
        if kind.role == "window":
            # One more: a window may begin in the middle of a block.
            return ceil_div(min(kind.reach - 1 + in_flight, context), kind.block) + 1
        held = context if kind.role == "full" else min(kind.reach + in_flight, context)
        return ceil_div(held, kind.block)


@dataclass(frozen=True, slots=True)
class Layout:
    """The pool's cut.

    Attributes:
        block: Tokens per block of the layers that keep every token, as the flag writes it.
        block_bytes: Bytes of one block of the pool.
        groups: Block tables.
        finest: Tokens per block of the finest table.
    """

    block: int
    block_bytes: int
    groups: tuple[Group, ...]
    finest: int

    def request_blocks(self, context: int, in_flight: int, state_blocks: int) -> int:
        """Blocks that one request of that many tokens may hold at once, over all tables."""
        return sum(g.blocks(context, in_flight, state_blocks) for g in self.groups)

    @property
    def grows(self) -> bool:
        """Whether anything grows with the length of a request."""
        return any(g.kind.role != "state" for g in self.groups)


def default_block(spec: ModelSpec, request: SizingRequest, stated: int | None) -> int:
    """Tokens per block before a state raises it."""
    if stated is not None:
        return stated
    if is_cpu_build(request.engine_version):
        return _BLOCK if spec.latent else _BLOCK_CPU
    return _BLOCK


def written(block: int, version: str | None) -> int:
    """Tokens per block as ``--block-size`` takes them.

    Where a state raised the block to a number that the release's flag refuses, the default is written:
    vLLM raises it to the same number by itself.
    """
    release = parse_release(version)
    if block in _CHOICES or (release is not None and release[:2] >= _ANY_SINCE):
        return block
    return _BLOCK_CPU if is_cpu_build(version) else _BLOCK


def layout(
    spec: ModelSpec, request: SizingRequest, *, block: int, hybrid: bool = True
) -> Layout | None:
    """Cut the pool for one rank.

    Args:
        spec: The model, or one stage of it.
        request: Ranks and dtypes.
        block: Tokens per block, see ``default_block``.
        hybrid: Windows get tables of their own; without, they keep every token.

    Returns:
        None where nothing is cached at all.
    """
    kinds = _attention(spec, request, hybrid=hybrid)
    states = [
        Kind("state", group.layers, cells.state_of_layer(spec, group, request))
        for group in spec.states
        if group.layers
    ]
    if not kinds and not states:
        return None
    if not kinds:
        page = max(kind.size for kind in states)
        total = sum(kind.layers for kind in states)
        return Layout(block, page * total, (Group(Kind("state", total, page)),), block)
    if states:
        block = _raised(kinds, states, block, latent=spec.latent)
    if len({kind.role for kind in kinds}) == 1 and kinds[0].role == "full" and not states:
        size = block * sum(
            kind.layers * kind.size for kind in kinds
        )  # one table, pages of any size
        return Layout(block, max(1, size), (Group(replace(kinds[0], block=block)),), block)
    page = max(kind.size * block for kind in kinds)
    even = [replace(kind, block=_fitted(kind.size, block, page)) for kind in kinds]
    if states:
        even.append(Kind("state", sum(kind.layers for kind in states), page))
    return _grouped(even, page, block)


def _attention(spec: ModelSpec, request: SizingRequest, *, hybrid: bool) -> list[Kind]:
    found: dict[tuple[str, int, int], int] = {}
    for group in spec.caches:
        size = ceil_div(cells.layer_bytes(spec, group, request), group.stride)
        role = "full"
        if group.window is not None and hybrid:
            role = "chunk" if group.chunked else "window"
        key = (role, size, group.window or 0 if role != "full" else 0)
        found[key] = found.get(key, 0) + group.layers
        if group.index_layers and group.index_dim:
            key = ("full", ceil_div(cells.index_bytes(group), group.stride), 0)
            found[key] = found.get(key, 0) + group.index_layers
    kinds = [Kind(role, layers, size, reach) for (role, size, reach), layers in found.items()]
    if spec.encoder is not None:
        layers = sum(group.layers for group in spec.caches)
        reach = spec.encoder.positions or _ENCODER
        kinds.append(Kind("cross", layers, cells.cross_bytes(spec, request), reach))
    return [kind for kind in kinds if kind.layers and kind.size]


def _raised(kinds: list[Kind], states: list[Kind], block: int, *, latent: bool) -> int:
    """The block whose attention page is not smaller than a state."""
    step = max(block, _LATENT_HYBRID) if latent else block
    state = max(kind.size for kind in states)
    sizes = [kind.size for kind in kinds if kind.role == "full"] or [kind.size for kind in kinds]
    least = min(sizes, default=1)
    return max(block, step * ceil_div(state, step * least))


def _fitted(size: int, block: int, page: int) -> int:
    """Tokens of a layer's block once all pages are as large as the largest; others are padded."""
    return page // size if page % (size * block) == 0 else block


def _grouped(kinds: list[Kind], page: int, block: int) -> Layout:
    fewest = min(kind.layers for kind in kinds)
    most = max(kind.layers for kind in kinds)
    above, below = _PAD_RATIO
    size = most if most * below < fewest * above else fewest
    groups = tuple(Group(kind) for kind in kinds for _ in range(ceil_div(kind.layers, size)))
    finest = min(kind.block for kind in kinds if kind.role != "state")
    return Layout(block, page * size, groups, finest)


def printed_tokens(
    cut: Layout, release: Release, blocks: int, per_request: int, context: int
) -> int:
    """The number of tokens that this release writes into its log."""
    if "concurrency" not in release.features:
        return blocks // len(cut.groups) * cut.finest
    # Requests of the longest length times that length; float division, as there.
    return int(blocks / max(1, per_request) * context)
