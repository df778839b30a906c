"""Models that nobody here knows by name, told by the structure of their config.

Only plain attention is read this way, and only from a config that names every size itself. Whatever
speaks of another kind of memory (latent rows, states, shared caches, an indexer, an unknown pattern)
is refused by name: a guess there is wrong by factors of up to 70.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.decoder import Style, read_decoder
from plimsoll.core.arch.fields import Fields
from plimsoll.core.arch.mixtures import SHARED_COUNTS, Mixture, after
from plimsoll.core.arch.plain import HEAD_SIZES, HEADS, HIDDEN, LAYERS
from plimsoll.core.arch.unread import betraying, not_understood, unread_fields
from plimsoll.core.arch.windows import CHUNKED, FULL, WINDOWED, letters_or_repeating
from plimsoll.core.errors import Unsupported
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec

WIDEST_VOCAB: Final = 262_144

#: Kinds of encoders: no text is generated from such a config by itself.
_ENCODERS: Final = (
    "is_encoder_decoder",
    "encoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
)
#: Other ways to say how many KV heads there are or how wide: they are read for the families that have
#: them, where it is known which of them counts.
_OTHER_HEADS: Final = (
    "multi_query", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups", "attn_config",
    "v_head_dim", "d_kv", "attention_head_size", "global_head_dim", "attn_layers", "attention_chunk_size",
    "qk_dim_factor", "v_dim_factor",
)  # fmt: skip
#: Fields that a plain model may state, read or not, because they change no cache.
_PLAIN: Final = frozenset({"layer_types", "sliding_window", "sliding_window_pattern"})


def _kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    """Full unless the config says which layers are windowed: keeping more is the safe side."""
    if fields.get("use_sliding_window") is False:
        return ("full_attention",) * layers
    if fields.has("layer_types") or fields.has("sliding_window_pattern"):
        return letters_or_repeating(fields, layers)
    return ("full_attention",) * layers


_STYLE: Final = Style(
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    rule=_kinds,
    mixture=Mixture(
        where=after(0, "first_k_dense_replace"),
        width="moe_intermediate_size",
        shared="shared_expert_intermediate_size",
        shared_count=SHARED_COUNTS,
    ),
)


def read_structure(model_type: str, values: Mapping[str, Any], path: str = "") -> ModelSpec:
    """Read a config of unknown type as plain attention; the notes say that it is an estimate.

    Raises:
        BadModel: A field of the wrong type or out of range.
        Unsupported: A size is missing, or a field speaks of another kind of memory.
    """
    fields = Fields(values, path=path)
    for names in (LAYERS, HEADS, HIDDEN):
        if not any(fields.has(name) for name in names):
            raise _unsupported(fields, model_type, names[0], "its config does not name")
    for key in (*_ENCODERS, *_OTHER_HEADS):
        if values.get(key):
            raise _unsupported(fields, model_type, key, "its config has")
    listed = values.get("layer_types")
    if isinstance(listed, list) and not {str(kind) for kind in listed} <= FULL | WINDOWED | CHUNKED:
        raise _unsupported(
            fields, model_type, "layer_types", "its config has kinds that nobody knows in"
        )
    if not fields.has("vocab_size"):
        values = {**values, "vocab_size": WIDEST_VOCAB}
        fields = replace(fields, values=values)
        fields.notes.append(
            f"config names no {path}vocab_size; {WIDEST_VOCAB} is assumed, the widest in use"
        )
    classes = values.get("architectures")
    named = str(classes[0]) if isinstance(classes, list) and classes else model_type
    spec = read_decoder(fields, model_type, named[:128], _STYLE)
    foreign = betraying(unread_fields("", values, fields.seen | _PLAIN))
    if foreign is not None:
        raise _unsupported(fields, model_type, foreign, "its config has")
    where = path.rstrip(".") or "its config"
    name = model_type[:64]
    notes = [
        f"model_type {name} is not known; {where} is read as plain attention of its stated sizes"
    ]
    if not any(values.get(key) for key in HEAD_SIZES):
        notes.append("config names no head_dim; hidden / heads is assumed")
    if values.get("sliding_window") and not spec.windowed:
        notes.append("config names a window but not which layers have it; all are counted in full")
    notes += [not_understood(path, key) for key in unread_fields("", values, fields.seen | _PLAIN)]
    return replace(spec, notes=(*notes, *fields.notes))


def _unsupported(fields: Fields, model_type: str, key: str, why: str) -> Unsupported:
    name = f"{fields.path}{key}"[:128]
    return Unsupported(
        f"model_type {model_type!r:.80} is not supported, and {why} {name}, so that it cannot be read as "
        "plain attention either",
        field=name,
        value=fields.values.get(key),
    )
