"""Inkling 1, 2 and the looped Inkling 2: windows with heads of their own, convolutions in every layer.

Four short convolutions per layer, over keys, values and both outputs, keep fp32 columns beside the
keys and values. The looped one runs its middle layers several times, each pass with its own caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.latent_parts import ATTENTION, Indices, base
from plimsoll.core.arch.mixtures import listed
from plimsoll.core.arch.spec import CacheGroup, Experts, StateGroup, TensorGroup
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_KINDS: Final = frozenset({"hybrid", "hybrid_sliding"})
_NEUTRAL: Final = frozenset({
    "chain_hidden_post_norm", "dense_mlp_idx", "local_layer_ids", "log_scaling_n_floor", "loop_config",
    "mtp_hidden_states_first", "mtp_local_layer_ids", "n_layers_per_attn_res_block", "shared_expert_sink",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Side:
    """Attention of full or of window layers.

    Attributes:
        layers: Their indices.
        caches: How many caches they keep; more than layers in a loop.
        heads: Query heads.
        kv_heads: KV heads.
        size: Head size.
        extent: Distances with a bias of their own.
        window: The window, None for full layers.
    """

    layers: Indices
    caches: int
    heads: int
    kv_heads: int
    size: int
    extent: int
    window: int | None

    @property
    def rows(self) -> int:
        """Elements of keys, or of values, per token."""
        return self.kv_heads * self.size


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read the text part of an Inkling config.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    fields.seen |= _NEUTRAL
    spec = base(fields, family, architecture)
    kernel = fields.first("conv_kernel_size", "sconv_kernel_size", most=MAX_DIM)
    near = _sliding_layers(fields, spec)
    far = tuple(index for index in range(spec.layers) if index not in set(near))
    loop = _loop(fields, spec) if family == "inkling2_loop_text" else ((), 1)
    sides = _sides(fields, spec, near, far, loop)
    sides = tuple(side for side in sides if side.layers)
    caches = tuple(CacheGroup(s.caches, s.kv_heads, s.size, s.size, s.window) for s in sides)
    states = tuple(
        StateGroup(
            "sconv",
            s.caches,
            conv_channels=2 * (s.rows + spec.hidden),
            conv_kernel=kernel,
            conv_dtype="fp32",
        )
        for s in sides
    )
    mixture, dense = _experts(fields, spec)
    spec = replace(spec, caches=caches, states=states, experts=mixture, intermediate=dense)
    head = fields.optional("unpadded_vocab_size", MAX_VOCAB, quiet=True) or spec.vocab
    every = tuple(range(spec.layers))
    tensors = [TensorGroup("model.embed_tokens.weight", (spec.vocab, spec.hidden))]
    tensors += norm("model.embed_tokens.embed_norm", spec.hidden)
    tensors += norm("model.norm", spec.hidden)
    if not spec.tied:
        tensors.append(TensorGroup("lm_head.weight", (head, spec.hidden)))
    for name in ("attn_sconv", "mlp_sconv"):
        shape = (spec.hidden, 1, kernel)
        tensors.append(TensorGroup(f"{LAYER}.{name}.conv1d.weight", shape, every, "fp32"))
    relative = fields.integer("d_rel", MAX_DIM)
    for side in sides:
        build = _first if family == "inkling_text" else _second
        tensors += build(spec, side, kernel, relative)
    if family == "inkling_text":
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors += norm(f"{LAYER}.{name}", spec.hidden, every)
    else:
        tensors += _inputs(spec, near, far)
    tensors += _feed_forward(spec, mixture, fields)
    tensors += _messages(fields, spec, loop[0]) if loop[0] else ()
    return replace(spec, tensors=tuple(tensors))


def _sliding_layers(fields: Fields, spec: ModelSpec) -> Indices:
    """``layer_types``, else ``local_layer_ids``, else all but every sixth."""
    kinds = fields.choices("layer_types", spec.layers, _KINDS)
    every = range(spec.layers)
    if kinds is not None:
        return tuple(index for index in every if kinds[index] == "hybrid_sliding")
    if fields.has("local_layer_ids"):
        local = fields.integers("local_layer_ids", MAX_LAYERS)
        return tuple(index for index in every if index in local)
    return tuple(index for index in every if (index + 1) % 6)


def _loop(fields: Fields, spec: ModelSpec) -> tuple[Indices, int]:
    """The layers that loop, and how often they run."""
    table = fields.child("loop_config")
    fields.seen |= {"loop_layer_index_start", "loop_layer_index_end", "loop_num_passes"}
    found = []
    for nested, flat, least in (
        ("core_start", "loop_layer_index_start", 0),
        ("core_end", "loop_layer_index_end", 0),
        ("num_passes", "loop_num_passes", 1),
    ):
        stated = table.optional(nested, MAX_LAYERS, least=least)
        found.append(fields.integer(flat, MAX_LAYERS, least=least) if stated is None else stated)
    start, end, passes = found
    return tuple(range(start, min(end, spec.layers))), passes


def _sides(
    fields: Fields, spec: ModelSpec, near: Indices, far: Indices, loop: tuple[Indices, int]
) -> tuple[_Side, ...]:
    """Full layers and window layers; the same head counts where there are no ``swa_`` fields."""
    window = fields.first("sliding_window_size", "sliding_window", most=MAX_CONTEXT)
    again, passes = set(loop[0]), loop[1]
    fields.seen |= {"swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim"}

    def caches(layers: Indices) -> int:
        return len(layers) + (passes - 1) * len(again.intersection(layers))

    extent = fields.integer("rel_extent", MAX_CONTEXT)
    full = _Side(far, caches(far), spec.heads, spec.kv_heads, spec.key_dim, extent, None)
    local = _Side(
        near,
        caches(near),
        fields.optional("swa_num_attention_heads", MAX_DIM) or spec.heads,
        fields.optional("swa_num_key_value_heads", MAX_DIM) or spec.kv_heads,
        fields.optional("swa_head_dim", MAX_DIM) or spec.key_dim,
        window,
        window,
    )
    return full, local


def _experts(fields: Fields, spec: ModelSpec) -> tuple[Experts, int]:
    """Experts, and the width of dense layers.

    With ``dense_intermediate_size`` in the file, ``intermediate_size`` is the experts' width.
    """
    every = frozenset(range(spec.layers))
    first = spec.family == "inkling_text"
    width = fields.optional("moe_intermediate_size", MAX_DIM)
    dense = spec.intermediate
    stated = fields.optional("dense_intermediate_size", MAX_DIM) if first else None
    if stated:
        width, dense = spec.intermediate, stated
    width = width or spec.intermediate
    layers = listed(fields, spec.layers) if first else every
    if layers is None:
        start = fields.optional("dense_mlp_idx", MAX_LAYERS, least=0) or 0
        layers = frozenset(range(start, spec.layers))
    count = fields.first("n_routed_experts", "num_local_experts", most=MAX_EXPERTS)
    shared = fields.integer("n_shared_experts", MAX_EXPERTS, least=0) if first else 0
    visited = min(count, fields.integer("num_experts_per_tok", MAX_EXPERTS))
    return Experts(count, visited, width, shared * width, layers), dense


def _first(spec: ModelSpec, side: _Side, kernel: int, relative: int) -> Iterator[TensorGroup]:
    """Attention of the first generation."""
    hidden, layers, inner = spec.hidden, side.layers, side.heads * side.size
    yield from linear(f"{ATTENTION}.q_proj", inner, hidden, layers)
    yield from linear(f"{ATTENTION}.r_proj", side.heads * relative, hidden, layers)
    yield from linear(f"{ATTENTION}.o_proj", hidden, inner, layers)
    for name in ("k", "v"):
        yield from linear(f"{ATTENTION}.{name}_proj", side.rows, hidden, layers)
        shape = (side.rows, 1, kernel)
        yield TensorGroup(f"{ATTENTION}.{name}_sconv.conv1d.weight", shape, layers, "fp32")
    yield from norm(f"{ATTENTION}.q_norm", side.size, layers)
    yield from norm(f"{ATTENTION}.k_norm", side.size, layers)
    yield TensorGroup(f"{ATTENTION}.rel_logits_proj.proj", (relative, side.extent), layers)


def _second(spec: ModelSpec, side: _Side, kernel: int, relative: int) -> Iterator[TensorGroup]:
    """Attention of the second: a gate, sinks, and in full layers weights of the convolution by token."""
    hidden, layers, inner = spec.hidden, side.layers, side.heads * side.size
    yield from linear(f"{ATTENTION}.q_proj", inner, hidden, layers)
    yield TensorGroup(f"{ATTENTION}.q_norm.scale", (side.heads, side.size), layers)
    yield from linear(f"{ATTENTION}.gate_proj", inner, hidden, layers)
    yield from linear(f"{ATTENTION}.o_proj", hidden, inner, layers)
    yield from linear(f"{ATTENTION}.sink_proj", side.heads, hidden, layers)
    for name in ("k", "v"):
        yield from linear(f"{ATTENTION}.{name}_proj", side.rows, hidden, layers)
        prefix = f"{ATTENTION}.{name}_sconv"
        if side.window is None:
            yield TensorGroup(f"{prefix}.static_weight", (kernel, side.rows), layers)
            yield from linear(f"{prefix}.weight_proj", kernel * side.kv_heads, hidden, layers)
        else:
            yield TensorGroup(f"{prefix}.conv1d.weight", (side.rows, 1, kernel), layers, "fp32")
    prefix = f"{ATTENTION}.relative_position_bias"
    yield TensorGroup(f"{prefix}.proj", (relative, side.extent), layers)
    yield from linear(f"{prefix}.linear", side.heads * relative, hidden, layers)
    yield TensorGroup(f"{prefix}.norm.scale", (side.heads, relative), layers)


def _inputs(spec: ModelSpec, near: Indices, far: Indices) -> Iterator[TensorGroup]:
    """Second generation: what a layer takes from the streams before it, and its norms."""
    hidden, every = spec.hidden, tuple(range(spec.layers))
    yield from norm(f"{LAYER}.post_attention_layernorm", hidden, every)
    yield TensorGroup(f"{LAYER}.mlp_input.query", (hidden,), every, "fp32")
    yield TensorGroup("model.final_input.query", (hidden,), None, "fp32")
    if near:
        yield from norm(f"{LAYER}.input_layernorm", hidden, near)
        later = tuple(index for index in near if index)
        if later:
            yield TensorGroup(f"{LAYER}.attention_input.query", (hidden,), later, "fp32")
    if far:
        for name in ("q", "k", "v"):
            yield from norm(f"{LAYER}.{name}_input_layernorm", hidden, far)
        later = tuple(index for index in far if index)
        if later:
            yield TensorGroup(f"{LAYER}.attention_input.query", (3, hidden), later, "fp32")


def _feed_forward(spec: ModelSpec, mixture: Experts, fields: Fields) -> Iterator[TensorGroup]:
    hidden, name, width = spec.hidden, f"{LAYER}.mlp", mixture.intermediate
    sparse = tuple(sorted(mixture.layers))
    dense = tuple(i for i in range(spec.layers) if i not in mixture.layers)
    first = spec.family == "inkling_text"
    if dense:
        yield from gated_mlp(name, dense, hidden=hidden, width=spec.intermediate)
        yield TensorGroup(f"{name}.global_scale", (1,), dense)
    if not sparse:
        return
    yield from experts(name, sparse, count=mixture.count, hidden=hidden, width=width)
    shared = mixture.shared_intermediate // width
    # The router scores the shared experts too.
    rows = mixture.count + shared
    yield TensorGroup(f"{name}.gate.weight", (rows, hidden), sparse, None if first else "fp32")
    if first:
        yield TensorGroup(f"{name}.gate.global_scale", (1,), sparse, "fp32")
    if shared:
        part = f"{name}.shared_experts"
        for kind in ("gate_proj", "up_proj"):
            yield from linear(f"{part}.{kind}", shared * width, hidden, sparse)
        yield from linear(f"{part}.down_proj", hidden, shared * width, sparse)
    fields.seen.add("n_shared_experts")


def _messages(fields: Fields, spec: ModelSpec, layers: Indices) -> Iterator[TensorGroup]:
    """Gates by which one pass of the loop speaks to the next."""
    table = fields.child("loop_config")
    rank = table.optional("gate_rank", MAX_DIM) or fields.integer("loop_gate_rank", MAX_DIM)
    for part in ("q", "k", "v", "mlp"):
        prefix = f"{LAYER}.{part}_message_gate"
        yield from linear(f"{prefix}.down_proj", rank, 2 * spec.hidden, layers)
        for name in ("forget_gate_proj", "message_gate_proj"):
            shape = (spec.hidden, rank)
            yield TensorGroup(f"{prefix}.{name}.weight", shape, layers, "fp32")
    whole = (len(layers), 4, spec.hidden)
    yield TensorGroup("model.message_input.query", whole, None, "fp32")
