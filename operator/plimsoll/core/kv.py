"""What a token and a sequence keep in the cache, for the whole model. Bytes, exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.core import dtypes

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Cache of the whole model at tensor 1.

    Attributes:
        all_full: Bytes per token when every layer keeps every token.
        windows_honoured: Bytes per token of the layers without a window.
        window: Bytes per sequence of the windowed layers once their windows are full; a window of
            w tokens keeps w - 1 of them beside the one being computed.
    """

    all_full: int
    windows_honoured: int
    window: int


def cache_size(spec: ModelSpec, dtype: str) -> CacheSize:
    """Size of the cache in a canonical dtype.

    Per layer and token: one row of keys and one of values, ``kv_heads * head_dim`` elements each.
    """
    row = dtypes.bytes_of(spec.kv_heads * spec.key_dim, dtype)
    row += dtypes.bytes_of(spec.kv_heads * spec.value_dim, dtype)
    windowed = spec.windowed_layers * row
    kept = max(0, (spec.window or 1) - 1)
    return CacheSize(
        all_full=spec.layers * row,
        windows_honoured=(spec.layers - spec.windowed_layers) * row,
        window=kept * windowed,
    )
