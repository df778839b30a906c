"""Ring-linear (``bailing_moe_linear``): lightning attention, and plain attention at each group's end.

A lightning layer keeps one matrix per head for each sequence; its keys have as many heads as its queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.custom import BAILING
from plimsoll.core.arch.decoder import LAYER, attention, read_decoder
from plimsoll.core.arch.fields import MAX_LAYERS
from plimsoll.core.arch.spec import CacheGroup, StateGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec, TensorGroup


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Ring-linear config.

    Raises:
        BadModel: The group size does not divide the layers, which no engine takes.
    """
    assumed = {"vocab_size": 157184, "use_qk_norm": True}
    fields = replace(fields, defaults={**assumed, **fields.defaults})
    fields.seen.add("group_norm_size")
    spec = read_decoder(fields, family, architecture, BAILING)
    size = fields.integer("layer_group_size", MAX_LAYERS)
    if spec.layers % size:
        raise fields.wrong("layer_group_size", f"a divisor of the {spec.layers} layers")
    full = tuple(index for index in range(spec.layers) if (index + 1) % size == 0)
    lightning = tuple(index for index in range(spec.layers) if (index + 1) % size)
    state = StateGroup(
        "lightning",
        len(lightning),
        recurrent=spec.heads * spec.key_dim * spec.key_dim,
        heads=spec.heads,
    )
    tensors = [group for group in spec.tensors if ".self_attn." not in group.name]
    tensors += attention(fields, spec, BAILING, full)
    if lightning:
        tensors += _lightning(fields, spec, lightning)
    draft = fields.optional("num_nextn_predict_layers", MAX_LAYERS, least=0, quiet=True) or 0
    return replace(
        spec,
        caches=(CacheGroup(len(full), spec.kv_heads, spec.key_dim, spec.value_dim),),
        states=(state,) if lightning else (),
        tensors=tuple(tensors),
        draft_layers=draft,
    )


def _lightning(fields: Fields, spec: ModelSpec, indices: tuple[int, ...]) -> Iterator[TensorGroup]:
    """Projections of equal heads, a gate, and the norm before the output."""
    own = replace(spec, kv_heads=spec.heads)
    yield from attention(fields, own, BAILING, indices)
    inner = spec.heads * spec.key_dim
    yield from linear(f"{LAYER}.self_attn.g_proj", inner, spec.hidden, indices)
    yield from norm(f"{LAYER}.self_attn.g_norm", inner, indices)
