"""Pure state models: Mamba, Falcon Mamba, Mamba 2. Nothing grows with length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import norm
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.mamba_parts import Mamba1, Mamba2, inner, step_rank
from plimsoll.core.arch.spec import ModelSpec, TensorGroup
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import StateGroup

_NEUTRAL = frozenset({
    "chunk_size", "expand", "intermediate_size", "layer_types", "residual_in_fp32", "time_step_rank",
    "use_falcon_mambapy",
})  # fmt: skip


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of a pure state model.

    Raises:
        BadModel: A size is of the wrong type or out of range.
    """
    fields.seen |= _NEUTRAL
    hidden = fields.first("hidden_size", "d_model", most=MAX_DIM)
    mixer = _second(fields, hidden) if family == "mamba2" else _first(fields, hidden)
    layers = fields.first("num_hidden_layers", "n_layer", most=MAX_LAYERS)
    spec = stateful(fields, (family, architecture), hidden, layers, (mixer.group(layers),))
    every = tuple(range(layers))
    tensors = [*state_trunk(spec), *norm(f"{LAYER}.norm", hidden, every)]
    tensors += mixer.tensors(f"{LAYER}.mixer", every)
    return replace(spec, tensors=tuple(tensors))


def stateful(
    fields: Fields,
    names: tuple[str, str],
    hidden: int,
    layers: int,
    states: tuple[StateGroup, ...],
) -> ModelSpec:
    """A model without attention; its heads are those over which ranks divide the state."""
    heads = states[0].heads or hidden
    return ModelSpec(
        family=names[0],
        architecture=names[1],
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        key_dim=max(1, hidden // heads),
        value_dim=max(1, hidden // heads),
        intermediate=fields.optional("intermediate_size", MAX_DIM, quiet=True) or hidden,
        vocab=fields.integer("vocab_size", MAX_VOCAB),
        context_length=fields.either("max_position_embeddings", "context_length", most=MAX_CONTEXT),
        dtype=fields.dtype(),
        tied=fields.flag("tie_word_embeddings", default=False),
        states=states,
    )


def state_trunk(spec: ModelSpec, name: str = "model.norm") -> Iterator[TensorGroup]:
    """Embedding, head and last norm."""
    yield TensorGroup("model.embed_tokens.weight", (spec.vocab, spec.hidden))
    if not spec.tied:
        yield TensorGroup("lm_head.weight", (spec.vocab, spec.hidden))
    yield from norm(name, spec.hidden)


def _first(fields: Fields, hidden: int) -> Mamba1:
    return Mamba1(
        hidden=hidden,
        # A stated width wins over the multiple: Falcon Mamba 7B says 8192 beside expand 16.
        width=fields.optional("intermediate_size", MAX_DIM, quiet=True)
        or inner(fields, "expand", hidden),
        state=fields.first("state_size", "d_state", most=MAX_DIM),
        kernel=fields.first("conv_kernel", "d_conv", most=MAX_DIM),
        rank=step_rank(fields, "time_step_rank", hidden),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias", default=False),
    )


def _second(fields: Fields, hidden: int) -> Mamba2:
    bias = fields.flag("use_bias", default=False)
    heads = fields.integer("num_heads", MAX_DIM)
    size = fields.integer("head_dim", MAX_DIM)
    return Mamba2(
        hidden=hidden,
        width=inner(fields, "expand", hidden),
        heads=heads,
        size=size,
        groups=fields.integer("n_groups", MAX_DIM),
        state=fields.integer("state_size", MAX_DIM),
        kernel=fields.integer("conv_kernel", MAX_DIM),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=bias,
        out_bias=bias,
    )
