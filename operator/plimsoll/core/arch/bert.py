"""BERT and its relatives as decoders: every layer full, two layer norms, a head with a layer of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import attention, linear, norm, plain_mlp
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_VOCAB
from plimsoll.core.arch.plain import read_plain
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

MAX_POSITIONS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class _Kind:
    """What differs: parts of the embedding and of the head.

    Attributes:
        types: Token types are embedded, as many as ``type_vocab_size``.
        embed_norm: The embedding has a norm.
        last_norm: There is a norm after the last layer.
        pooler: A layer over the first token, which generation does not use.
        transform: The head has a layer and a norm before the vocabulary.
        embed_key: Field with the width of the embedding, where it differs from the model's.
    """

    types: bool = True
    embed_norm: bool = True
    last_norm: bool = False
    pooler: bool = False
    transform: bool = True
    embed_key: str = ""


_BERT: Final = _Kind()
_KINDS: Final[Mapping[str, _Kind]] = {
    "bert": _BERT,
    "bert-generation": _Kind(types=False, transform=False),
    "big_bird": _Kind(pooler=True),
    "camembert": _BERT,
    "data2vec-text": _BERT,
    "electra": _Kind(embed_key="embedding_size"),
    "ernie": _BERT,
    "megatron-bert": _Kind(embed_norm=False, last_norm=True),
    "rembert": _Kind(embed_key="input_embedding_size"),
    "roberta": _BERT,
    "roberta-prelayernorm": _Kind(last_norm=True),
    "roc_bert": _BERT,
    "roformer": _Kind(embed_key="embedding_size"),
    "xlm-roberta": _BERT,
    "xlm-roberta-xl": _Kind(embed_norm=False, last_norm=True),
    "xmod": _BERT,
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read the config of one of these families."""
    spec = read_plain(fields, family, architecture)
    kind = _KINDS[family]
    width = (fields.optional(kind.embed_key, MAX_DIM) if kind.embed_key else None) or spec.hidden
    cross = fields.flag("add_cross_attention", default=False)
    # The weights of cross-attention are there; what it caches belongs to a wrapper with an encoder.
    groups = [*_embeddings(fields, spec, kind, width), *_layers(spec, cross=cross)]
    groups += _head(fields, spec, kind, width)
    groups += _own(fields, spec)
    return replace(spec, tensors=tuple(groups))


def _embeddings(fields: Fields, spec: ModelSpec, kind: _Kind, width: int) -> Iterator[TensorGroup]:
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, width))
    # Positions of RoFormer are rotary, and kept as a table of one head's width.
    across = spec.key_dim if spec.family == "roformer" else width
    rows = min(spec.context_length or 0, MAX_POSITIONS)
    yield TensorGroup("model.embed_positions.weight", (rows, across))
    if kind.types:
        types = fields.optional("type_vocab_size", MAX_VOCAB, quiet=True) or 0
        yield TensorGroup("model.token_type_embeddings.weight", (types, width))
    if fields.flag("use_task_id", default=False):
        tasks = fields.optional("task_type_vocab_size", MAX_VOCAB, quiet=True) or 3
        yield TensorGroup("model.task_type_embeddings.weight", (tasks, width))
    if kind.embed_norm:
        yield from norm("model.embed_norm", width, bias=True)
    if width != spec.hidden or spec.family == "rembert":
        yield from linear("model.embeddings_project", spec.hidden, width, bias=True)


def _layers(spec: ModelSpec, *, cross: bool) -> Iterator[TensorGroup]:
    every = tuple(range(spec.layers))
    for name in ("self_attn", "cross_attn") if cross else ("self_attn",):
        yield from attention(
            f"{LAYER}.{name}",
            every,
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            key_dim=spec.key_dim,
            bias=True,
            out_bias=True,
        )
        yield from norm(f"{LAYER}.{name}_norm", spec.hidden, every, bias=True)
    yield from plain_mlp(f"{LAYER}.mlp", every, hidden=spec.hidden, width=spec.intermediate)
    yield from norm(f"{LAYER}.output_norm", spec.hidden, every, bias=True)


def _head(fields: Fields, spec: ModelSpec, kind: _Kind, width: int) -> Iterator[TensorGroup]:
    if kind.last_norm:
        yield from norm("model.norm", spec.hidden, bias=True)
    if kind.pooler:
        yield from linear("pooler", spec.hidden, spec.hidden, bias=True)
    if spec.family == "rembert":
        width = fields.optional("output_embedding_size", MAX_DIM, quiet=True) or 1664
    if kind.transform:
        yield from linear("head.transform", width, spec.hidden, bias=True)
        yield from norm("head.norm", width, bias=True)
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, width))
    yield TensorGroup("lm_head.bias", (spec.vocab,))


def _own(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """RoCBERT's embeddings of sound and shape, X-MOD's adapters."""
    every = tuple(range(spec.layers))
    if spec.family == "roc_bert":
        inner = spec.hidden
        for name, rows, width in (("pronunciation", 910, 768), ("shape", 24858, 512)):
            count = fields.optional(f"{name}_vocab_size", MAX_VOCAB, quiet=True) or rows
            size = fields.optional(f"{name}_embed_dim", MAX_DIM, quiet=True) or width
            # The table is there even where it is switched off.
            inner += size if fields.flag(f"enable_{name}", default=True) else 0
            yield TensorGroup(f"model.{name}_embed.weight", (count, size))
        if fields.flag("concat_input", default=True):
            yield from linear("model.map_inputs_layer", spec.hidden, inner, bias=True)
    if spec.family == "xmod":
        languages = fields.get("languages")
        if not isinstance(languages, list) or len(languages) > MAX_DIM:
            raise fields.wrong("languages", "a list of languages")
        factor = fields.optional("adapter_reduction_factor", MAX_DIM, quiet=True) or 2
        narrow = spec.hidden // factor
        for number in range(min(len(languages), 256)):
            prefix = f"{LAYER}.adapter_{number}"
            yield from linear(f"{prefix}.dense1", narrow, spec.hidden, every, bias=True)
            yield from linear(f"{prefix}.dense2", spec.hidden, narrow, every, bias=True)
        if fields.flag("adapter_layer_norm", default=False):
            yield from norm(f"{LAYER}.adapter_norm", spec.hidden, every, bias=True)
        if fields.flag("pre_norm", default=False):
            yield from norm("model.norm", spec.hidden, bias=True)
