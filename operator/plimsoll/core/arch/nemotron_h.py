"""Nemotron-H: every layer is one thing, told by a letter: M state, * attention, - MLP, E experts.

The pattern also decides the number of layers; ``num_hidden_layers`` of old files does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import attention, experts, linear, norm, plain_mlp
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.latent_parts import base
from plimsoll.core.arch.mamba import state_trunk
from plimsoll.core.arch.mamba_parts import Mamba2
from plimsoll.core.arch.spec import CacheGroup, Experts, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

_LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES: Final = {
    "mamba": "mamba", "mamba2": "mamba", "linear_attention": "mamba", "attention": "attention",
    "full_attention": "attention", "mlp": "mlp", "moe": "moe",
}  # fmt: skip
_NEUTRAL: Final = frozenset({
    "chunk_size", "expand", "mamba_chunk_size", "mamba_expand", "mamba_hidden_act", "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern", "mtp_layers_block_type", "num_hidden_layers", "residual_in_fp32",
    "rescale_prenorm_residual", "mamba_dt_min", "mamba_dt_max", "mamba_dt_limit", "mamba_dt_init_floor",
})  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a Nemotron-H config.

    Raises:
        BadModel: A size or the pattern is of the wrong type or out of range.
    """
    fields.seen |= _NEUTRAL
    kinds = _kinds(fields)
    own = replace(fields, values={**fields.values, "num_hidden_layers": len(kinds)})
    # The head is a matrix of its own in transformers whatever the switch says.
    spec = replace(base(own, family, architecture), tied=False)
    at = {
        kind: tuple(index for index, other in enumerate(kinds) if other == kind)
        for kind in ("mamba", "attention", "mlp", "moe")
    }
    mixer = _mixer(fields, spec)
    full = at["attention"]
    caches = (CacheGroup(len(full), spec.kv_heads, spec.key_dim, spec.value_dim),) if full else ()
    states = (mixer.group(len(at["mamba"])),) if at["mamba"] else ()
    spec = replace(spec, caches=caches, states=states, experts=_experts(fields, at["moe"]))
    every = tuple(range(spec.layers))
    tensors = [*state_trunk(spec), *norm(f"{LAYER}.norm", spec.hidden, every)]
    name = f"{LAYER}.mixer"
    if at["mamba"]:
        tensors += mixer.tensors(name, at["mamba"])
    if full:
        tensors += attention(
            name,
            full,
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            key_dim=spec.key_dim,
        )
    bias = fields.flag("mlp_bias", default=False)
    if at["mlp"]:
        width = spec.intermediate
        tensors += plain_mlp(name, at["mlp"], hidden=spec.hidden, width=width, bias=bias)
    tensors += _mixture(fields, spec, bias=bias)
    return replace(spec, tensors=tuple(tensors))


def _kinds(fields: Fields) -> tuple[str, ...]:
    """The kind of each layer, from letters or names.

    Raises:
        BadModel: A letter or name that nobody knows, or more layers than any model has.
    """
    fields.seen |= {"hybrid_override_pattern", "layers_block_type", "layer_types"}
    for key in ("layer_types", "layers_block_type"):
        stated = fields.values.get(key)
        if isinstance(stated, list) and 0 < len(stated) <= MAX_LAYERS:
            words = fields.choices(key, len(stated), frozenset(_NAMES)) or ()
            return tuple(_NAMES[word] for word in words)
        if stated is not None:
            raise fields.wrong(key, f"a list of 1 to {MAX_LAYERS} kinds of layers")
    pattern = fields.text("hybrid_override_pattern")
    if pattern is None:
        fields.notes.append("config names no hybrid_override_pattern; four layers are assumed")
        return ("mamba", "moe", "attention", "mlp")
    if not 0 < len(pattern) <= MAX_LAYERS or set(pattern) - _LETTERS.keys():
        raise fields.wrong("hybrid_override_pattern", "letters M, *, - and E, one for each layer")
    return tuple(_LETTERS[letter] for letter in pattern)


def _mixer(fields: Fields, spec: ModelSpec) -> Mamba2:
    """The inner width is heads times head size, not a multiple of the hidden size."""
    heads = fields.integer("mamba_num_heads", MAX_DIM)
    size = fields.integer("mamba_head_dim", MAX_DIM)
    bias = fields.flag("use_bias", default=False)
    fields.seen |= {"mamba_n_groups", "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias"}
    old = fields.values.get("mamba_conv_bias") is not None
    dtype = fields.dtype_under("mamba_ssm_cache_dtype") or fields.dtype_under("mamba_ssm_dtype")
    return Mamba2(
        hidden=spec.hidden,
        width=heads * size,
        heads=heads,
        size=size,
        groups=fields.first("mamba_n_groups", "n_groups", most=MAX_DIM),
        state=fields.first("ssm_state_size", "mamba_state_dim", most=MAX_DIM),
        kernel=fields.first("mamba_d_conv", "conv_kernel", most=MAX_DIM),
        conv_bias=fields.flag("mamba_conv_bias" if old else "use_conv_bias", default=True),
        bias=bias,
        out_bias=bias,
        dtype=dtype,
    )


def _experts(fields: Fields, layers: tuple[int, ...]) -> Experts | None:
    if not layers:
        return None
    count = fields.first("n_routed_experts", "num_local_experts", most=MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=min(count, fields.integer("num_experts_per_tok", MAX_EXPERTS)),
        intermediate=fields.integer("moe_intermediate_size", MAX_DIM),
        shared_intermediate=fields.integer("moe_shared_expert_intermediate_size", MAX_DIM, least=0),
        layers=frozenset(layers),
    )


def _mixture(fields: Fields, spec: ModelSpec, *, bias: bool) -> Iterator[TensorGroup]:
    """Experts without a gate, on a narrower stream where the config says so."""
    mixture = spec.experts
    if mixture is None:
        return
    name, layers, hidden = f"{LAYER}.mixer", tuple(sorted(mixture.layers)), spec.hidden
    narrow = fields.optional("moe_latent_size", MAX_DIM, least=0, quiet=True) or 0
    yield TensorGroup(f"{name}.gate.weight", (mixture.count, hidden), layers, "fp32")
    yield from experts(
        name,
        layers,
        count=mixture.count,
        hidden=narrow or hidden,
        width=mixture.intermediate,
        gated=False,
    )
    if narrow:
        yield from linear(f"{name}.fc1_latent_proj", narrow, hidden, layers, bias=bias)
        yield from linear(f"{name}.fc2_latent_proj", hidden, narrow, layers, bias=bias)
    if mixture.shared_intermediate:
        width = mixture.shared_intermediate
        yield from plain_mlp(
            f"{name}.shared_experts", layers, hidden=hidden, width=width, bias=bias
        )
