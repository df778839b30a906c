"""Other recurrences: RecurrentGemma (RG-LRU and windows), RWKV 4, xLSTM, MiniMax (lightning attention)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import experts, gated_mlp, linear, norm
from plimsoll.core.arch.decoder import LAYER, NORMS
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.latent_parts import ATTENTION, Indices, base, plain_attention
from plimsoll.core.arch.mamba import state_trunk, stateful
from plimsoll.core.arch.spec import CacheGroup, Experts, StateGroup, TensorGroup
from plimsoll.core.records import replace
from plimsoll.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_BLOCKS: Final = frozenset({"recurrent", "attention"})


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of one of these families.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    readers = {"recurrent_gemma": _gemma, "rwkv": _rwkv, "xlstm": _xlstm, "minimax": _minimax}
    return readers[family](fields, family, architecture)


def _gemma(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """``block_types`` is repeated until the layers are filled; attention always has a window."""
    fields.seen |= {"block_types", "_block_types", "layers_block_type", "layer_types"}
    spec = base(fields, family, architecture)
    key = "block_types" if fields.states("block_types") else "_block_types"
    key = key if fields.states(key) else "block_types"
    stated = fields.get(key)
    if not isinstance(stated, list) or not 0 < len(stated) <= MAX_LAYERS:
        raise fields.wrong(key, "a list of recurrent and attention")
    kinds = fields.choices(key, len(stated), _BLOCKS) or ()
    every = range(spec.layers)
    full = tuple(index for index in every if kinds[index % len(kinds)] == "attention")
    states = tuple(index for index in every if index not in set(full))
    width = fields.optional("lru_width", MAX_DIM, quiet=True) or spec.hidden
    kernel = fields.integer("conv1d_width", MAX_DIM)
    window = fields.optional("attention_window_size", MAX_CONTEXT, least=0) or None
    cache = CacheGroup(len(full), spec.kv_heads, spec.key_dim, spec.value_dim, window)
    group = StateGroup(
        "rglru",
        len(states),
        conv_channels=width,
        conv_kernel=kernel,
        recurrent=width,
        heads=spec.heads,
        reference_columns=kernel - 1,
    )
    spec = replace(
        spec,
        intermediate=max(1, spec.intermediate // 2),  # the config counts gate and up together
        caches=(cache,) if full else (),
        states=(group,) if states else (),
    )
    bias = fields.flag("attention_bias", default=False)
    return replace(spec, tensors=tuple(_gemma_tensors(spec, group, states, full, bias=bias)))


def _gemma_tensors(
    spec: ModelSpec, group: StateGroup, states: Indices, full: Indices, *, bias: bool
) -> Iterator[TensorGroup]:
    hidden, width, every = spec.hidden, group.recurrent, tuple(range(spec.layers))
    yield from state_trunk(spec)
    for name in ("temporal_pre_norm", "channel_pre_norm"):
        yield from norm(f"{LAYER}.{name}", hidden, every)
    yield from gated_mlp(f"{LAYER}.mlp", every, hidden=hidden, width=spec.intermediate, bias=True)
    if full:
        yield from plain_attention(spec, full, bias=bias, out_bias=True)
    if states:
        prefix, part = f"{LAYER}.recurrent", max(1, width // spec.heads)
        for name in ("linear_y", "linear_x"):
            yield from linear(f"{prefix}.{name}", width, hidden, states, bias=True)
        yield from linear(f"{prefix}.out_proj", hidden, width, states, bias=True)
        yield TensorGroup(f"{prefix}.conv1d.weight", (width, 1, group.conv_kernel), states)
        yield TensorGroup(f"{prefix}.conv1d.bias", (width,), states)
        yield TensorGroup(f"{prefix}.rg_lru.recurrent_param", (width,), states)
        for name in ("input_gate", "recurrent_gate"):
            shape = (spec.heads, part, part)
            yield TensorGroup(f"{prefix}.rg_lru.{name}_weight", shape, states)
            yield TensorGroup(f"{prefix}.rg_lru.{name}_bias", (spec.heads, part), states)


def _rwkv(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Two vectors of the residual stream and three of the attention, per layer."""
    hidden = fields.integer("hidden_size", MAX_DIM)
    inner = fields.optional("attention_hidden_size", MAX_DIM, quiet=True) or hidden
    width = fields.optional("intermediate_size", MAX_DIM, quiet=True) or 4 * hidden
    layers = fields.integer("num_hidden_layers", MAX_LAYERS)
    # The two vectors are the last token's: one column, of a convolution over two.
    group = StateGroup(
        "rwkv", layers, 2 * hidden, conv_kernel=2, recurrent=3 * inner, reference_columns=1
    )
    spec = stateful(fields, (family, architecture), hidden, layers, (group,))
    every, prefix = tuple(range(layers)), "model.layers.*"
    tensors = [*state_trunk(spec), TensorGroup("model.norm.bias", (hidden,))]
    tensors += norm(f"{prefix}.pre_ln", hidden, (0,), bias=True)
    for name in ("ln1", "ln2"):
        tensors += norm(f"{prefix}.{name}", hidden, every, bias=True)
    mixes = ("attention.time_mix_key", "attention.time_mix_value", "attention.time_mix_receptance",
             "feed_forward.time_mix_key", "feed_forward.time_mix_receptance")  # fmt: skip
    tensors += [TensorGroup(f"{prefix}.{name}", (1, 1, hidden), every) for name in mixes]
    for name in ("time_decay", "time_first"):
        tensors.append(TensorGroup(f"{prefix}.attention.{name}", (inner,), every))
    for name in ("key", "value", "receptance"):
        tensors += linear(f"{prefix}.attention.{name}", inner, hidden, every)
    tensors += linear(f"{prefix}.attention.output", hidden, inner, every)
    tensors += linear(f"{prefix}.feed_forward.key", width, hidden, every)
    tensors += linear(f"{prefix}.feed_forward.receptance", hidden, hidden, every)
    tensors += linear(f"{prefix}.feed_forward.value", hidden, width, every)
    return replace(spec, intermediate=width, tensors=tuple(tensors))


def _xlstm(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """One matrix, one vector and one number per head, in the model's dtype."""
    hidden = fields.first("hidden_size", "embedding_dim", most=MAX_DIM)
    layers = fields.first("num_hidden_layers", "num_blocks", most=MAX_LAYERS)
    fields.seen |= {"inference_state_dtype", "chunkwise_kernel", "return_last_states", "mode"}
    heads = fields.integer("num_heads", MAX_DIM)
    key = _rounded(fields, "qk_dim_factor", hidden, 64)
    value = _rounded(fields, "v_dim_factor", hidden, 64)
    step = fields.integer("ffn_round_up_to_multiple_of", MAX_DIM)
    width = _rounded(fields, "ffn_proj_factor", hidden, step)
    one = key // heads
    group = StateGroup(
        "mlstm",
        layers,
        recurrent=heads * (one * (value // heads) + one + 1),
        heads=heads,
        recurrent_dtype="model",
    )
    spec = replace(
        stateful(fields, (family, architecture), hidden, layers, (group,)),
        intermediate=width,
        tied=False,  # its class has the field and never ties
    )
    bias, every = fields.flag("use_bias", default=False), tuple(range(layers))
    last = fields.flag("add_out_norm", default=True)
    tensors = [group for group in state_trunk(spec) if last or group.name != "model.norm.weight"]
    name = f"{LAYER}.mlstm_layer"
    for part, rows in (("q", key), ("k", key), ("v", value), ("ogate_preact", value)):
        tensors += linear(f"{name}.{part}", rows, hidden, every, bias=bias)
    for part in ("igate_preact", "fgate_preact"):
        tensors += linear(f"{name}.{part}", heads, hidden, every, bias=True)
    tensors += norm(f"{name}.multihead_norm", value, every, bias=bias)
    tensors += linear(f"{name}.out_proj", hidden, value, every, bias=bias)
    tensors += gated_mlp(f"{LAYER}.mlp", every, hidden=hidden, width=width, bias=bias)
    for part in ("norm_mlstm", "norm_ffn"):
        tensors += norm(f"{LAYER}.{part}", hidden, every, bias=bias)
    return replace(spec, tensors=tuple(tensors))


def _rounded(fields: Fields, key: str, hidden: int, step: int) -> int:
    """A multiple of the hidden size, rounded up."""
    width = int(fields.number(key, 1024, default=1) * hidden)
    if not 1 <= width <= MAX_DIM:
        raise fields.wrong(key, "a multiple of the hidden size")
    return ceil_div(width, step) * step


def _minimax(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Lightning attention keeps one square matrix per head, in the model's dtype."""
    # The class has a window too, which its attention does not look at.
    fields.seen |= {"block_size", "attn_type_list", "sliding_window"}
    spec = base(fields, family, architecture)
    every = tuple(range(spec.layers))
    full = _minimax_full(fields, spec, every)
    states = tuple(index for index in every if index not in set(full))
    inner = spec.heads * spec.key_dim
    group = StateGroup(
        "lightning",
        len(states),
        recurrent=inner * spec.key_dim,
        heads=spec.heads,
        recurrent_dtype="model",
    )
    mixture = Experts(
        count=fields.first("num_local_experts", "num_experts", most=MAX_EXPERTS),
        per_token=fields.integer("num_experts_per_tok", MAX_EXPERTS),
        intermediate=spec.intermediate,
        shared_intermediate=0,
        layers=frozenset(every),
    )
    cache = CacheGroup(len(full), spec.kv_heads, spec.key_dim, spec.value_dim)
    spec = replace(
        spec,
        caches=(cache,) if full else (),
        states=(group,) if states else (),
        experts=mixture,
    )
    tensors = list(state_trunk(spec))
    for name in NORMS:
        tensors += norm(f"{LAYER}.{name}", spec.hidden, every)
    if full:
        tensors += plain_attention(spec, full)
    if states:
        tensors += norm(f"{ATTENTION}.norm", inner, states)
        tensors += linear(f"{ATTENTION}.qkv_proj", 3 * inner, spec.hidden, states)
        tensors += linear(f"{ATTENTION}.output_gate", inner, spec.hidden, states)
        tensors += linear(f"{ATTENTION}.out_proj", spec.hidden, inner, states)
    name = f"{LAYER}.mlp"
    tensors += linear(f"{name}.gate", mixture.count, spec.hidden, every)
    tensors += experts(
        name, every, count=mixture.count, hidden=spec.hidden, width=mixture.intermediate
    )
    return replace(spec, tensors=tuple(tensors))


def _minimax_full(fields: Fields, spec: ModelSpec, every: Indices) -> Indices:
    """Layers with softmax attention: ``layer_types``, ``attn_type_list`` (1), else every other one."""
    kinds = fields.choices(
        "layer_types", spec.layers, frozenset({"full_attention", "linear_attention"})
    )
    flags = fields.integers("attn_type_list", 1)
    if kinds is not None:
        return tuple(index for index in every if kinds[index] == "full_attention")
    if flags:
        if len(flags) != spec.layers:
            raise fields.wrong("attn_type_list", f"a list of {spec.layers} entries, 0 or 1")
        return tuple(index for index in every if flags[index])
    return every[::2]
