"""What a token and a sequence keep in the cache, for the whole model. Bytes, exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core import dtypes
from plimsoll.core.records import dataclass
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import CacheGroup, ModelSpec, StateGroup


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Cache of the whole model at tensor 1, as transformers keeps it.

    Attributes:
        all_full: Bytes per token when every layer keeps every token.
        windows_honoured: Bytes per token of the layers without a window.
        window: Bytes per sequence of the windowed layers once their windows are full; a window of
            w tokens keeps w - 1 of them beside the one being computed.
        state: Bytes per sequence that no length changes: recurrent and convolution states, and the
            cross-attention cache of an encoder of fixed length.
        cross: Bytes per encoder position where the encoder's length is free.
    """

    all_full: int
    windows_honoured: int
    window: int
    state: int = 0
    cross: int = 0


def cache_size(spec: ModelSpec, dtype: str, *, model_dtype: str | None = None) -> CacheSize:
    """Size of the cache in a canonical dtype.

    Args:
        spec: The model.
        dtype: Dtype of keys and values, index keys of sparse attention included.
        model_dtype: Dtype of convolution states; the config's, else bf16.
    """
    compute = model_dtype or spec.dtype or "bf16"
    full = sum(token_bytes(group, dtype) for group in spec.caches if group.window is None)
    windowed = window = 0
    for group in spec.windowed:
        size = token_bytes(group, dtype)
        windowed += size
        window += max(0, (group.window or 1) - 1) * size
    state = sum(state_bytes(group, compute) for group in spec.states)
    cross = 0
    if spec.encoder is not None:
        cross = dtypes.bytes_of(spec.encoder.cross_elements, dtype)
        if spec.encoder.positions is not None:
            state, cross = state + cross * spec.encoder.positions, 0
    return CacheSize(full + windowed, full, window, state, cross)


def token_bytes(group: CacheGroup, dtype: str) -> int:
    """Bytes per token of all layers of a group, while they keep every token."""
    size = group.layers * dtypes.bytes_of(group.row, dtype)
    size += group.index_layers * dtypes.bytes_of(group.index_dim, dtype)
    return size if group.stride == 1 else ceil_div(size, group.stride)


def state_bytes(group: StateGroup, model_dtype: str) -> int:
    """Bytes per sequence of all layers of a group, as transformers keeps them."""
    conv = model_dtype if group.conv_dtype == "model" else group.conv_dtype
    recurrent = model_dtype if group.recurrent_dtype == "model" else group.recurrent_dtype
    return group.layers * (
        dtypes.bytes_of(group.conv_channels * group.columns, conv)
        + dtypes.bytes_of(group.recurrent, recurrent)
    )
