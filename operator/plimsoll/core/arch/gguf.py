"""GGUF metadata, which names the same quantities by other keys, a number for all layers or one for each.

Mistral and Mixtral are written as ``llama`` there; Mixtral is told by its experts. Which layers are
windowed is often not in the file: llama.cpp knows it by the architecture's name (``_PERIODS``). Of
that table Gemma 2, Gemma 3n and Phi 3 were read in llama.cpp's own src/models; the other rows are
second-hand, from programs that say they copied them from there. The budget for llama.cpp counts every
layer in full, so a wrong row changes what is reported of windows, never what is reserved.
Recurrent architectures are refused by the key that gives them away.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.fields import (
    MAX_CONTEXT,
    MAX_DIM,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_VOCAB,
    Fields,
)
from plimsoll.core.arch.gguf_names import ARCHITECTURE_KEY, ARCHITECTURES
from plimsoll.core.arch.registry import architecture_of
from plimsoll.core.arch.spec import CacheGroup, Experts, ModelSpec
from plimsoll.core.errors import Unsupported
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Key under which a reader leaves the number of entries of an array that it did not keep.
LENGTH_SUFFIX: Final = "#length"

WIDEST_VOCAB: Final = 262_144


@dataclass(frozen=True, slots=True)
class _Period:
    """Windows by the architecture's name: every ``length``-th layer is full, the last or the first.

    Attributes:
        length: Layers after which the pattern repeats.
        first: The full layer is the first of them, not the last.
        window: Window where the file has none; 0: then every layer is full.
        chunked: The window is a chunk with fixed borders.
    """

    length: int
    first: bool = False
    window: int = 0
    chunked: bool = False


_PERIODS: Final[Mapping[str, _Period]] = {
    "afmoe": _Period(4),
    "cohere2": _Period(4),
    "cohere2moe": _Period(4, first=True),
    "exaone-moe": _Period(4, window=128),
    "exaone4": _Period(4),
    "gemma2": _Period(2, window=4096),
    "gemma3": _Period(6),
    "gemma3n": _Period(5),
    "gpt-oss": _Period(2),
    "laguna": _Period(4, first=True),
    "llama4": _Period(4, window=8192, chunked=True),
    "mellum": _Period(4),
    "olmo2": _Period(4),
    "plamo3": _Period(8),
    "smallthinker": _Period(4, first=True),
}
_FLAGS: Final = (False, True)  # a tuple: what is looked up may be a list
#: llama.cpp reads the window of these and then keeps every token all the same.
_WINDOWLESS: Final = frozenset({"phi3", "phimoe", "llama"})
#: Parts of keys that tell a model with states, an encoder, or another kind of cache.
_FOREIGN: Final = (
    ".ssm.", ".wkv.", ".shortconv.", ".time_mix_", ".token_shift_count", ".full_attention_interval",
    ".decoder_block_count", ".decoder_start_token_id", ".convnext.", ".posnet.", ".compress",
    ".kda.", ".hash",
)  # fmt: skip


def read(fields: Fields, name: str) -> ModelSpec:
    """Read GGUF metadata.

    Raises:
        BadModel: A value of the wrong type or out of range; the key is the field.
        Unsupported: The architecture is not known and its keys do not tell plain attention.
    """
    _refuse_foreign(fields, name)
    count = fields.optional(f"{name}.expert_count", MAX_EXPERTS, least=0) or 0
    family = _family(fields, name, count)
    hidden = fields.integer(f"{name}.embedding_length", MAX_DIM)
    blocks = fields.integer(f"{name}.block_count", MAX_LAYERS)
    draft = fields.optional(f"{name}.nextn_predict_layers", MAX_LAYERS, least=0) or 0
    layers = blocks - draft
    if layers < 1:
        raise fields.wrong(f"{name}.nextn_predict_layers", f"less than the {blocks} blocks")
    heads = _each(fields, f"{name}.attention.head_count", blocks)
    kv_key = f"{name}.attention.head_count_kv"
    kv_heads = _each(fields, kv_key, blocks) if fields.has(kv_key) else heads
    for own, kept in zip(heads, kv_heads, strict=True):
        if kept and (kept > own or own % kept):
            raise fields.wrong(kv_key, f"a divisor of the {own} query heads")
    most = max(heads)
    if not most or hidden < most:
        raise fields.wrong(f"{name}.embedding_length", f"at least the {most} query heads")
    key_dim = fields.optional(f"{name}.attention.key_length", MAX_DIM) or hidden // most
    value_dim = fields.optional(f"{name}.attention.value_length", MAX_DIM) or hidden // most
    latent = _latent(fields, name, layers)
    width = max(_each(fields, f"{name}.feed_forward_length", blocks, default=4 * hidden))
    sizes = (kv_heads[:layers], key_dim, value_dim)
    usual = Counter(kept for kept in kv_heads if kept).most_common(1)
    return ModelSpec(
        family=family,
        architecture=architecture_of(family),
        layers=layers,
        hidden=hidden,
        heads=most,
        kv_heads=1 if latent else usual[0][0] if usual else most,
        key_dim=latent.key_dim if latent else key_dim,
        value_dim=latent.value_dim if latent else value_dim,
        intermediate=width or 4 * hidden,
        vocab=_vocab(fields, name),
        context_length=fields.optional(f"{name}.context_length", MAX_CONTEXT),
        dtype=None,
        tied=False,
        caches=(latent,) if latent else _caches(fields, name, *sizes),
        experts=_experts(fields, name, count, width or 4 * hidden, layers) if count else None,
        draft_layers=draft,
        notes=tuple(fields.notes),
    )


def _family(fields: Fields, name: str, experts: int) -> str:
    """The family by its name; the name itself, with a note, where it is not in the table."""
    if name not in ARCHITECTURES:
        fields.notes.append(
            f"{ARCHITECTURE_KEY} {name[:64]} is not known; it is read as plain attention of its stated sizes"
        )
        return name[:64]
    dense, mixture = ARCHITECTURES[name]
    chosen = mixture if experts else dense
    if chosen is None:
        key = f"{name}.expert_count"
        raise fields.wrong(key, "0 for a dense architecture, more for a mixture")
    return chosen


def _refuse_foreign(fields: Fields, name: str) -> None:
    for key in fields.values:
        if any(part in key for part in _FOREIGN):
            raise Unsupported(
                f"{ARCHITECTURE_KEY} {name[:64]!r} has {key[:96]}: a cache that is not plain attention, "
                "which is not read from GGUF files; use the model's config.json",
                field=key[:96],
                value=name,
            )
    if fields.get(f"{name}.attention.causal") is False:
        raise Unsupported(
            f"{ARCHITECTURE_KEY} {name[:64]!r} is not causal: it generates no text",
            field=f"{name}.attention.causal",
            value=name,
        )


def _each(fields: Fields, key: str, count: int, default: int | None = None) -> tuple[int, ...]:
    """One number for each block, from a list or from one number for all."""
    if isinstance(fields.get(key), list):
        numbers = fields.integers(key, MAX_DIM)
        if len(numbers) != count:
            raise fields.wrong(key, f"a number, or a list of {count}")
        return numbers
    if default is not None and not fields.has(key):
        return (default,) * count
    return (fields.integer(key, MAX_DIM, least=0 if default is not None else 1),) * count


def _latent(fields: Fields, name: str, layers: int) -> CacheGroup | None:
    """The compressed rows of DeepSeek's attention.

    Older files have no ``key_length_mla``; they hold full heads, and llama.cpp caches those.
    """
    rank = fields.optional(f"{name}.attention.kv_lora_rank", MAX_DIM, least=0)
    if not rank or not fields.has(f"{name}.attention.key_length_mla"):
        return None
    index = fields.optional(f"{name}.attention.indexer.key_length", MAX_DIM, least=0) or 0
    return CacheGroup(
        layers,
        1,
        rank,
        fields.integer(f"{name}.rope.dimension_count", MAX_DIM),
        latent=True,
        index_dim=index,
        index_layers=layers if index else 0,
    )


def _caches(
    fields: Fields, name: str, kv_heads: tuple[int, ...], key_dim: int, value_dim: int
) -> tuple[CacheGroup, ...]:
    """Groups of layers that keep the same; layers without KV heads keep nothing."""
    layers = len(kv_heads)
    windowed, window = _windows(fields, name, layers)
    local_key = fields.optional(f"{name}.attention.key_length_swa", MAX_DIM) or key_dim
    local_value = fields.optional(f"{name}.attention.value_length_swa", MAX_DIM) or value_dim
    shared = fields.optional(f"{name}.attention.shared_kv_layers", MAX_LAYERS, least=0)
    if shared is None and name == "gemma3n":
        shared = max(0, layers - 20)  # llama.cpp: 20 layers write caches
    found: Counter[tuple[int, bool]] = Counter(
        (kept, index in windowed)
        for index, kept in enumerate(kv_heads[: max(1, layers - (shared or 0))])
        if kept
    )
    if not found:
        raise fields.wrong(f"{name}.attention.head_count_kv", "more than 0 somewhere")
    chunked = name in _PERIODS and _PERIODS[name].chunked
    return tuple(
        CacheGroup(count, kept, local_key, local_value, window=window, chunked=chunked)
        if local
        else CacheGroup(count, kept, key_dim, value_dim)
        for (kept, local), count in found.items()
    )


def _windows(fields: Fields, name: str, layers: int) -> tuple[frozenset[int], int | None]:
    """Indices of the windowed layers, and their window."""
    period = _PERIODS.get(name)
    key = f"{name}.attention.sliding_window"
    window = fields.optional(key, MAX_CONTEXT, least=0)
    if window is None:  # a stated 0 switches the windows off
        window = period.window if period else 0
    if not window or name in _WINDOWLESS:
        return frozenset(), None
    pattern: Any = fields.get(f"{key}_pattern")
    if isinstance(pattern, list):
        if len(pattern) < layers or any(entry not in _FLAGS for entry in pattern):
            raise fields.wrong(f"{key}_pattern", f"a list of {layers} flags")
        return frozenset(i for i in range(layers) if pattern[i]), window
    length = fields.optional(f"{key}_pattern", MAX_LAYERS, least=0)
    if length is None and period is None:
        fields.notes.append(f"{key} is given but not which layers have it; all are counted in full")
        return frozenset(), None
    length = (period.length if period else 1) if length is None else length
    full = 0 if period is not None and period.first else length - 1
    return frozenset(i for i in range(layers) if not length or i % length != full), window


def _vocab(fields: Fields, name: str) -> int:
    stated = fields.optional(f"{name}.vocab_size", MAX_VOCAB)
    if stated is not None:
        return stated
    return fields.integer("tokenizer.ggml.tokens" + LENGTH_SUFFIX, MAX_VOCAB, default=WIDEST_VOCAB)


def _experts(fields: Fields, name: str, count: int, width: int, layers: int) -> Experts:
    own = fields.optional(f"{name}.expert_feed_forward_length", MAX_DIM, least=0) or width
    shared = fields.optional(f"{name}.expert_shared_feed_forward_length", MAX_DIM, least=0)
    if not shared:
        times = fields.optional(f"{name}.expert_shared_count", MAX_EXPERTS, least=0) or 0
        shared = times * own
    dense = fields.optional(f"{name}.leading_dense_block_count", MAX_LAYERS, least=0) or 0
    step = fields.optional(f"{name}.interleave_moe_layer_step", MAX_LAYERS) or 1
    return Experts(
        count=count,
        per_token=fields.integer(f"{name}.expert_used_count", MAX_EXPERTS, default=min(2, count)),
        intermediate=own,
        shared_intermediate=shared,
        layers=frozenset(i for i in range(dense, layers) if (i + 1) % step == 0),
    )
