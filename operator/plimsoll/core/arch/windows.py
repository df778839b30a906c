"""Which layers are windowed: the pattern of layers in every spelling that configs use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_CONTEXT
from plimsoll.core.arch.spec import CacheGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.core.arch.fields import Fields

FULL: Final = frozenset({"full_attention", "attention", "global", "global_attention"})
WINDOWED: Final = frozenset({"sliding_attention", "local_attention", "sliding_window", "local"})
CHUNKED: Final = frozenset({"chunked_attention"})


def stated_window(fields: Fields, *spellings: str) -> int | None:
    """The window in tokens; None when absent without a default, null or 0.

    Raises:
        BadModel: Not a length.
    """
    for key in spellings or ("sliding_window", "sliding_window_size"):
        value = fields.optional(key, MAX_CONTEXT, least=0, quiet=True)
        if value:
            return value
    return None


def layer_types(fields: Fields, layers: int, key: str = "layer_types") -> tuple[str, ...] | None:
    """The list of kinds, one for each layer; None when the config has none.

    Raises:
        BadModel: Another number of entries than layers, or a kind that nobody knows.
    """
    return fields.choices(key, layers, FULL | WINDOWED | CHUNKED)


def split(
    kinds: Sequence[str], *, kv_heads: int, key_dim: int, value_dim: int, window: int | None
) -> tuple[CacheGroup, ...]:
    """Cache groups from a list of kinds, where all layers have the same heads."""
    chunked = sum(kind in CHUNKED for kind in kinds)
    windowed = sum(kind in WINDOWED for kind in kinds) if window else 0
    if not window:
        chunked = 0
    full = len(kinds) - windowed - chunked
    groups = []
    if full:
        groups.append(CacheGroup(full, kv_heads, key_dim, value_dim))
    if windowed:
        groups.append(CacheGroup(windowed, kv_heads, key_dim, value_dim, window=window))
    if chunked:
        groups.append(
            CacheGroup(chunked, kv_heads, key_dim, value_dim, window=window, chunked=True)
        )
    return tuple(groups)


def every_nth_full(layers: int, interval: int) -> tuple[str, ...]:
    """Full where ``(i + 1) % interval == 0``, windowed elsewhere (Gemma 3, Cohere 2)."""
    return tuple(
        "full_attention" if (index + 1) % interval == 0 else "sliding_attention"
        for index in range(layers)
    )
