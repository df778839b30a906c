"""Which layers are windowed: the pattern of layers in every spelling that configs use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_LAYERS
from plimsoll.core.arch.spec import CacheGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.core.arch.fields import Fields

    #: From a config and its number of layers to the kind of each layer.
    Rule = Callable[[Fields, int], tuple[str, ...]]

FULL: Final = frozenset({"full_attention", "attention", "global", "global_attention"})
WINDOWED: Final = frozenset({"sliding_attention", "local_attention", "sliding_window", "local"})
CHUNKED: Final = frozenset({"chunked_attention"})


def stated_window(fields: Fields, *spellings: str) -> int | None:
    """The window in tokens; None when absent without a default, null or 0.

    Raises:
        BadModel: Not a length.
    """
    keys = spellings or ("sliding_window", "sliding_window_size")
    fields.seen.update(keys)
    for key in keys:
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


def all_full(fields: Fields, layers: int) -> tuple[str, ...]:
    """Every layer full unless the config lists its layers."""
    return layer_types(fields, layers) or ("full_attention",) * layers


def all_windowed(fields: Fields, layers: int) -> tuple[str, ...]:
    """Every layer windowed, where there is a window, unless the config lists its layers."""
    return layer_types(fields, layers) or ("sliding_attention",) * layers


def repeating(
    period: int, *, full: int = -1, key: str = "", last: bool = False, first: int = 0
) -> Rule:
    """A rule: full where ``i % period`` is ``full % period``, unless the config lists its layers.

    Args:
        period: Layers after which the pattern repeats.
        full: Which of them is full; negative counts from the end.
        key: Field that overrides the period.
        last: The last layer is full too.
        first: How many layers at the start are full too.
    """

    def rule(fields: Fields, layers: int) -> tuple[str, ...]:
        stated = layer_types(fields, layers)
        if stated is not None:
            return stated
        step = (fields.optional(key, MAX_LAYERS, quiet=True) if key else None) or period
        return tuple(
            "full_attention"
            if index % step == full % step or index < first or (last and index == layers - 1)
            else "sliding_attention"
            for index in range(layers)
        )

    return rule


def letters_or_repeating(fields: Fields, layers: int) -> tuple[str, ...]:
    """EXAONE 4: a period, or letters that repeat (``LLLG``); by letters the last layer is full."""
    stated = layer_types(fields, layers)
    letters = fields.get("sliding_window_pattern")
    if stated is not None or not isinstance(letters, str):
        return stated or repeating(4, key="sliding_window_pattern")(fields, layers)
    if not letters or set(letters) - {"L", "G"}:
        raise fields.wrong("sliding_window_pattern", "a number, or letters L and G")
    return tuple(
        "sliding_attention"
        if letters[index % len(letters)] == "L" and index != layers - 1
        else "full_attention"
        for index in range(layers)
    )


def from_layer(fields: Fields, layers: int) -> tuple[str, ...]:
    """Windowed from ``max_window_layers`` on (Qwen 2, dots.llm1)."""
    stated = layer_types(fields, layers)
    if stated is not None:
        return stated
    full = fields.optional("max_window_layers", MAX_LAYERS, least=0, quiet=True) or 0
    full = min(full, layers)
    return ("full_attention",) * full + ("sliding_attention",) * (layers - full)


def with_switch(rule: Rule) -> Rule:
    """The rule only with ``use_sliding_window``; every layer full without."""

    def switched(fields: Fields, layers: int) -> tuple[str, ...]:
        kinds = rule(fields, layers)
        if fields.flag("use_sliding_window", default=False):
            return kinds
        return ("full_attention",) * layers

    return switched


def where_positions_lack(fields: Fields, layers: int) -> tuple[str, ...]:
    """SmolLM 3: windowed where ``no_rope_layers`` is 0, every fourth layer by default."""
    stated = layer_types(fields, layers)
    if stated is not None:
        return stated
    return tuple("full_attention" if has else "sliding_attention" for has in rotary(fields, layers))


def chunked_with_positions(fields: Fields, layers: int) -> tuple[str, ...]:
    """Llama 4: in chunks where ``no_rope_layers`` is 1, full where it is 0."""
    stated = layer_types(fields, layers)
    if stated is not None:
        return stated
    return tuple("chunked_attention" if has else "full_attention" for has in rotary(fields, layers))


def rotary(fields: Fields, layers: int) -> tuple[int, ...]:
    """``no_rope_layers``, which is 1 where a layer has rotary positions; empty means by interval.

    Raises:
        BadModel: Another number of entries than layers.
    """
    listed = fields.integers("no_rope_layers", 1)
    if listed and len(listed) != layers:
        raise fields.wrong("no_rope_layers", f"a list of {layers} entries")
    step = fields.optional("no_rope_layer_interval", MAX_LAYERS, quiet=True) or 4
    return listed or tuple(int((index + 1) % step != 0) for index in range(layers))
