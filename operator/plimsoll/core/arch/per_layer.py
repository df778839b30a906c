"""Models whose layers have sizes of their own: Nemotron-NAS (DeciLM) and OpenELM.

A layer may have no attention at all, or another number of KV heads than its neighbour.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from plimsoll.core.arch.blocks import gated_mlp, linear, norm, plain_mlp
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB, Fields
from plimsoll.core.arch.spec import CacheGroup, ModelSpec, TensorGroup
from plimsoll.core.records import dataclass, replace
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer; 0 heads: no attention, then ``linear`` may stand in for it. 0 width: no MLP.

    ``window`` None: every token.
    """

    heads: int
    kv_heads: int
    width: int
    window: int | None = None
    linear_attention: bool = False
    linear_mlp: bool = False


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config whose layers differ.

    Raises:
        BadModel: A list has another length than the model has layers, or a size is out of range.
    """
    if family == "openelm":
        return _openelm(fields, architecture)
    hidden = fields.integer("hidden_size", MAX_DIM)
    heads = fields.integer("num_attention_heads", MAX_DIM)
    layers = _blocks(fields, hidden, heads)
    head_dim = fields.optional("head_dim", MAX_DIM, least=0, quiet=True) or max(1, hidden // heads)
    spec = _spec(fields, (family, architecture), layers, hidden=hidden, head_dim=head_dim)
    spec = replace(
        spec,
        vocab=fields.integer("vocab_size", MAX_VOCAB, default=128256),
        context_length=fields.optional("max_position_embeddings", MAX_CONTEXT, quiet=True),
        tied=fields.flag("tie_word_embeddings", default=False),
    )
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    return replace(spec, tensors=tuple(_tensors(spec, layers, bias=bias, mlp_bias=mlp_bias)))


def _spec(
    fields: Fields, names: tuple[str, str], layers: list[_Layer], *, hidden: int, head_dim: int
) -> ModelSpec:
    """The model without its ends; the heads are those of its most usual attention."""
    found = Counter((layer.kv_heads, layer.window) for layer in layers if layer.kv_heads)
    usual = Counter((layer.heads, layer.kv_heads) for layer in layers if layer.kv_heads)
    heads, kv_heads = usual.most_common(1)[0][0] if usual else (1, 1)
    return ModelSpec(
        family=names[0],
        architecture=names[1],
        layers=len(layers),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        intermediate=max((layer.width for layer in layers), default=0) or hidden,
        vocab=1,
        context_length=None,
        dtype=fields.dtype(),
        tied=False,
        caches=tuple(
            CacheGroup(count, rows, head_dim, head_dim, window)
            for (rows, window), count in sorted(
                found.items(), key=lambda item: (item[0][0], item[0][1] or 0)
            )
        ),
    )


def _blocks(fields: Fields, hidden: int, heads: int) -> list[_Layer]:
    """``block_configs`` of Nemotron-NAS, or the list of KV heads of the first DeciLM."""
    count = fields.integer("num_hidden_layers", MAX_LAYERS)
    blocks = fields.get("block_configs")
    if blocks is None:
        rows = fields.integers("num_key_value_heads_per_layer", MAX_DIM)
        if len(rows) != count:
            raise fields.wrong("block_configs", f"a list of {count} objects")
        width = fields.integer("intermediate_size", MAX_DIM)
        for row in rows:
            if not row or row > heads or heads % row:
                raise fields.wrong("num_key_value_heads_per_layer", f"divisors of {heads}")
        return [_Layer(heads, row, width) for row in rows]
    if not isinstance(blocks, list) or len(blocks) != count:
        raise fields.wrong("block_configs", f"a list of {count} objects")
    return [
        _block(
            Fields(_object(fields, block), fields.notes, path=f"block_configs[{index}]."),
            hidden,
            heads,
        )
        for index, block in enumerate(blocks)
    ]


def _object(fields: Fields, value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever the file says
    if not isinstance(value, dict):
        raise fields.wrong("block_configs", "a list of objects")
    return value


def _block(block: Fields, hidden: int, heads: int) -> _Layer:
    attention, ffn = block.child("attention"), block.child("ffn")
    stands_in = attention.flag("replace_with_linear", default=False)
    rows, window = 0, None
    if not attention.flag("no_op", default=False) and not stands_in:
        group = attention.optional("n_heads_in_group", MAX_DIM, quiet=True)
        rows = heads // group if group else attention.integer("num_key_value_heads", MAX_DIM)
        if not rows or heads % rows:
            raise attention.wrong("n_heads_in_group", f"a divisor of the {heads} query heads")
        window = attention.optional("window_length", MAX_CONTEXT, least=0, quiet=True) or None
    plain = ffn.flag("replace_with_linear", default=False)
    width = 0
    if not ffn.flag("no_op", default=False) and not plain:
        width = ffn.optional("intermediate_size", MAX_DIM, quiet=True) or _multiplied(ffn, hidden)
    return _Layer(heads if rows else 0, rows, width, window, stands_in, plain)


def _multiplied(ffn: Fields, hidden: int) -> int:
    """Two thirds of the stated multiple of the hidden size, rounded up to 256."""
    multiple = ffn.number("ffn_mult", 1024, default=0)
    if not multiple:
        raise ffn.wrong("ffn_mult", "a positive number")
    return ceil_div(int(2 * multiple * hidden / 3), 256) * 256


def _tensors(
    spec: ModelSpec, layers: list[_Layer], *, bias: bool, mlp_bias: bool
) -> Iterator[TensorGroup]:
    """The tensors, layers of one kind together. Norms stand only before parts that are there."""
    hidden, size = spec.hidden, spec.key_dim
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, hidden))
    yield from norm("model.norm", hidden)
    for layer in dict.fromkeys(layers):
        same = tuple(index for index, other in enumerate(layers) if other == layer)
        name = f"{LAYER}.self_attn"
        if layer.heads or layer.linear_attention:
            yield from norm(f"{LAYER}.input_layernorm", hidden, same)
        if layer.heads:
            rows = layer.kv_heads * size
            yield from linear(f"{name}.q_proj", layer.heads * size, hidden, same, bias=bias)
            yield from linear(f"{name}.k_proj", rows, hidden, same, bias=bias)
            yield from linear(f"{name}.v_proj", rows, hidden, same, bias=bias)
            yield from linear(f"{name}.o_proj", hidden, layer.heads * size, same, bias=bias)
        elif layer.linear_attention:
            yield from linear(f"{name}.linear_attn", hidden, hidden, same)
        if layer.width or layer.linear_mlp:
            yield from norm(f"{LAYER}.post_attention_layernorm", hidden, same)
        if layer.width:
            yield from gated_mlp(
                f"{LAYER}.mlp", same, hidden=hidden, width=layer.width, bias=mlp_bias
            )
        elif layer.linear_mlp:
            yield from linear(f"{LAYER}.mlp.linear_mlp", hidden, hidden, same)


def _openelm(fields: Fields, architecture: str) -> ModelSpec:
    """OpenELM: lists of query heads, KV heads and multiples for the width of the MLP."""
    count = fields.integer("num_transformer_layers", MAX_LAYERS)
    hidden = fields.integer("model_dim", MAX_DIM)
    head_dim = fields.integer("head_dim", MAX_DIM)
    asked = fields.integers("num_query_heads", MAX_DIM)
    rows = fields.integers("num_kv_heads", MAX_DIM)
    multiples = fields.get("ffn_multipliers")
    for key, value in (("num_query_heads", asked), ("num_kv_heads", rows)):
        if len(value) != count or not all(value):
            raise fields.wrong(key, f"a list of {count} positive integers")
    if not isinstance(multiples, list) or len(multiples) != count:
        raise fields.wrong("ffn_multipliers", f"a list of {count} numbers")
    step = fields.optional("ffn_dim_divisor", MAX_DIM, quiet=True) or 256
    layers = [
        _Layer(heads, kv_heads, _divisible(fields, multiple, hidden, step))
        for heads, kv_heads, multiple in zip(asked, rows, multiples, strict=True)
    ]
    spec = _spec(fields, ("openelm", architecture), layers, hidden=hidden, head_dim=head_dim)
    spec = replace(
        spec,
        vocab=fields.integer("vocab_size", MAX_VOCAB, default=32000),
        context_length=fields.optional("max_context_length", MAX_CONTEXT, quiet=True),
        tied=fields.flag("share_input_output_layers", default=True),
    )
    gated = fields.flag("ffn_with_glu", default=True)
    tensors = list(_tensors(spec, layers, bias=False, mlp_bias=False))
    if not gated:
        tensors = [group for group in tensors if ".mlp." not in group.name]
        for layer in dict.fromkeys(layers):
            same = tuple(index for index, other in enumerate(layers) if other == layer)
            tensors += plain_mlp(f"{LAYER}.mlp", same, hidden=hidden, width=layer.width, bias=False)
    if fields.flag("normalize_qk_projections", default=False):
        every = tuple(range(count))
        for name in ("q_norm", "k_norm"):
            tensors += norm(f"{LAYER}.self_attn.{name}", head_dim, every)
    return replace(spec, tensors=tuple(tensors))


def _divisible(fields: Fields, multiple: Any, hidden: int, step: int) -> int:  # noqa: ANN401 - from a file
    """The multiple of the width, rounded to the nearest multiple of ``step``, never 10 % below."""
    if (
        not isinstance(multiple, int | float)
        or isinstance(multiple, bool)
        or not 0 < multiple <= MAX_LAYERS
    ):
        raise fields.wrong("ffn_multipliers", "a list of positive numbers")
    wanted = multiple * hidden
    rounded = max(step, int(wanted + step / 2) // step * step)
    return rounded + step if rounded < 0.9 * wanted else rounded
