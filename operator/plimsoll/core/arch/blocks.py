"""Building blocks of weights: the tensors that a layer's parts are made of.

Used where only the config is at hand; a checkpoint's own headers always win. Names are Hugging
Face's, because the sharding rules go by them. ``*`` in a prefix stands for the layer's index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.spec import TensorGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.spec import ModelSpec

Indices = tuple[int, ...] | None


def linear(
    name: str, width_out: int, width_in: int, indices: Indices = None, *, bias: bool = False
) -> Iterator[TensorGroup]:
    """A matrix of ``[out, in]`` and its bias."""
    yield TensorGroup(f"{name}.weight", (width_out, width_in), indices)
    if bias:
        yield TensorGroup(f"{name}.bias", (width_out,), indices)


def norm(
    name: str, width: int, indices: Indices = None, *, bias: bool = False
) -> Iterator[TensorGroup]:
    """An RMS norm, or a layer norm when it has a bias."""
    yield TensorGroup(f"{name}.weight", (width,), indices)
    if bias:
        yield TensorGroup(f"{name}.bias", (width,), indices)


def embeddings(
    vocab: int, hidden: int, *, tied: bool, head_bias: bool = False
) -> Iterator[TensorGroup]:
    """Input embedding and output head."""
    yield TensorGroup("model.embed_tokens.weight", (vocab, hidden))
    if not tied:
        yield TensorGroup("lm_head.weight", (vocab, hidden))
    if head_bias:
        yield TensorGroup("lm_head.bias", (vocab,))


def attention(  # noqa: PLR0913 - the sizes of one block, all named
    prefix: str,
    indices: Indices,
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int | None = None,
    bias: bool = False,
    out_bias: bool = False,
    head_norms: bool = False,
) -> Iterator[TensorGroup]:
    """Projections q, k, v and o; ``head_norms`` are RMS norms of q and k over one head."""
    value_dim = key_dim if value_dim is None else value_dim
    yield from linear(f"{prefix}.q_proj", heads * key_dim, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.k_proj", kv_heads * key_dim, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.v_proj", kv_heads * value_dim, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.o_proj", hidden, heads * value_dim, indices, bias=out_bias)
    if head_norms:
        yield from norm(f"{prefix}.q_norm", key_dim, indices)
        yield from norm(f"{prefix}.k_norm", key_dim, indices)


def gated_mlp(
    prefix: str, indices: Indices, *, hidden: int, width: int, bias: bool = False
) -> Iterator[TensorGroup]:
    """gate, up and down."""
    yield from linear(f"{prefix}.gate_proj", width, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.up_proj", width, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.down_proj", hidden, width, indices, bias=bias)


def plain_mlp(
    prefix: str, indices: Indices, *, hidden: int, width: int, bias: bool = True
) -> Iterator[TensorGroup]:
    """Up and down, without a gate."""
    yield from linear(f"{prefix}.up_proj", width, hidden, indices, bias=bias)
    yield from linear(f"{prefix}.down_proj", hidden, width, indices, bias=bias)


def experts(
    prefix: str, indices: Indices, *, count: int, hidden: int, width: int, gated: bool = True
) -> Iterator[TensorGroup]:
    """The routed experts of one layer as stacked tensors; the router is the caller's."""
    rows = 2 * width if gated else width
    name = "gate_up_proj" if gated else "up_proj"
    yield TensorGroup(f"{prefix}.experts.{name}", (count, rows, hidden), indices)
    yield TensorGroup(f"{prefix}.experts.down_proj", (count, hidden, width), indices)


def llama_like(
    spec: ModelSpec,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    head_norms: bool = False,
    layer_norms: int = 2,
) -> tuple[TensorGroup, ...]:
    """The whole text model: gated feed-forward, RMS norms, experts where ``spec`` has them."""
    every = tuple(range(spec.layers))
    groups = list(embeddings(spec.vocab, spec.hidden, tied=spec.tied))
    groups += norm("model.norm", spec.hidden)
    names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
             "post_feedforward_layernorm")  # fmt: skip
    for name in names[:layer_norms]:
        groups += norm(f"model.layers.*.{name}", spec.hidden, every)
    groups += attention(
        "model.layers.*.self_attn",
        every,
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        bias=qkv_bias,
        out_bias=o_bias,
        head_norms=head_norms,
    )
    mixture = spec.experts.layers if spec.experts else frozenset()
    dense = tuple(index for index in every if index not in mixture)
    if dense:
        groups += gated_mlp(
            "model.layers.*.mlp", dense, hidden=spec.hidden, width=spec.intermediate, bias=mlp_bias
        )
    if mixture:
        groups += mixture_of(spec, tuple(sorted(mixture)))
    return tuple(groups)


def mixture_of(
    spec: ModelSpec, indices: Indices, *, shared_gate: bool = True
) -> Iterator[TensorGroup]:
    """Router, routed experts and the shared one with its gate."""
    mixture = spec.experts
    if mixture is None:
        return
    prefix = "model.layers.*.mlp"
    yield from linear(f"{prefix}.gate", mixture.count, spec.hidden, indices)
    yield from experts(
        prefix, indices, count=mixture.count, hidden=spec.hidden, width=mixture.intermediate
    )
    if mixture.shared_intermediate:
        yield from gated_mlp(
            f"{prefix}.shared_expert",
            indices,
            hidden=spec.hidden,
            width=mixture.shared_intermediate,
        )
        if shared_gate:
            yield from linear(f"{prefix}.shared_expert_gate", 1, spec.hidden, indices)
