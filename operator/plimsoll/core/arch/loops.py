"""Looped text models: the same weights run several times, and each pass keeps a cache of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.arch.blocks import attention, gated_mlp, linear
from plimsoll.core.arch.decoder import LAYER
from plimsoll.core.arch.fields import MAX_DIM, MAX_LAYERS
from plimsoll.core.arch.latent_parts import ATTENTION, base
from plimsoll.core.arch.spec import CacheGroup, ModelSpec, TensorGroup
from plimsoll.core.arch.windows import split, stated_window
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.fields import Fields


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a config of a looped model.

    Raises:
        BadModel: A size or a list is of the wrong type or out of range.
    """
    if family == "dory":
        return _dory(fields, family, architecture)
    return _hrm(fields, family, architecture)


def _dory(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Layers in the middle loop. Files that list MLPs as layers count everything twice."""
    fields.seen |= {"n_input_layers", "n_output_layers", "n_recurrent_layers", "n_recurrent_loops"}
    allowed = frozenset({"full_attention", "sliding_attention", "mlp"})
    count = fields.integer("num_hidden_layers", MAX_LAYERS)
    kinds = fields.choices("layer_types", count, allowed)
    twice = 2 if kinds is not None and "mlp" in kinds else 1
    layers = max(1, count // twice)
    kinds = kinds[::twice] if kinds else tuple(
        "full_attention" if (index + 1) % 4 == 0 else "sliding_attention" for index in range(layers)
    )  # fmt: skip
    first = fields.integer("n_input_layers", MAX_LAYERS, least=0)
    first = first // (twice if fields.states("n_input_layers") else 1)
    middle = fields.optional("n_recurrent_layers", MAX_LAYERS, least=0)
    last = fields.optional("n_output_layers", MAX_LAYERS, least=0)
    last = 8 if last is None else last // twice
    middle = layers - first - last if middle is None else middle // twice
    if middle < 0 or first + middle > layers:
        raise fields.wrong("n_recurrent_layers", "the layers between n_input and n_output_layers")
    loops = fields.integer("n_recurrent_loops", MAX_LAYERS)
    mode = fields.text("recurrent_kv_cache_mode", frozenset({"per_loop", "last_loop"}))
    again = kinds[first : first + middle]
    extra = () if mode == "last_loop" else (*again,) * (loops - 1)
    own = replace(fields, values={**fields.values, "num_hidden_layers": layers})
    spec = base(own, family, architecture)
    caches = split(
        (*kinds, *extra),
        kv_heads=spec.kv_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        window=stated_window(fields),
    )
    spec = replace(spec, caches=caches)
    every, hidden = tuple(range(layers)), spec.hidden
    tensors = _ends(spec)
    tensors += _layer(fields, spec, every, LAYER)
    for name, width in (
        ("lambda_1", hidden), ("lambda_2", hidden), ("self_attn.sqk", spec.heads * spec.key_dim),
        ("self_attn.s_gate", spec.heads * spec.key_dim), ("mlp.suv_gate", spec.intermediate),
        ("mlp.suv_up", spec.intermediate),
    ):  # fmt: skip
        tensors.append(TensorGroup(f"{LAYER}.{name}", (width,), every))
    tensors.append(TensorGroup("lm_head.logit_scale", (spec.vocab,)))
    return replace(spec, tensors=tuple(tensors))


def _ends(spec: ModelSpec) -> list[TensorGroup]:
    """Embedding and head; the norms of both families have no weights."""
    tensors = [TensorGroup("model.embed_tokens.weight", (spec.vocab, spec.hidden))]
    if not spec.tied:
        tensors.append(TensorGroup("lm_head.weight", (spec.vocab, spec.hidden)))
    return tensors


def _layer(
    fields: Fields, spec: ModelSpec, indices: tuple[int, ...], prefix: str
) -> list[TensorGroup]:
    """Attention with a gate, and the feed-forward part."""
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    inner = spec.heads * spec.key_dim
    name = prefix.replace(LAYER, ATTENTION) if prefix == LAYER else f"{prefix}.self_attn"
    tensors = list(
        attention(
            name,
            indices,
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            key_dim=spec.key_dim,
            bias=bias,
            out_bias=bias,
        )
    )
    tensors += linear(f"{name}.gate_proj", inner, spec.hidden, indices, bias=bias)
    tensors += gated_mlp(
        f"{prefix}.mlp", indices, hidden=spec.hidden, width=spec.intermediate, bias=mlp_bias
    )
    return tensors


def _hrm(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Two stacks that call each other: a cache for every call of every layer.

    ``num_hidden_layers`` is the number of calls in files that also have ``num_layers_per_stack``,
    and the layers of one stack in the others.
    """
    fields.seen |= {"H_cycles", "L_cycles", "L_bp_cycles"}
    slow = fields.integer("H_cycles", MAX_LAYERS)
    fast = fields.integer("L_cycles", MAX_LAYERS)
    stack = fields.optional("num_layers_per_stack", MAX_LAYERS, quiet=True)
    if stack is None:
        stack = fields.integer("num_hidden_layers", MAX_LAYERS)
    caches = stack * slow * (fast + 1)
    if caches > MAX_DIM:
        raise fields.wrong("H_cycles", "a number of cycles")
    own = replace(fields, values={**fields.values, "num_hidden_layers": 2 * stack})
    spec = base(own, family, architecture)
    group = CacheGroup(caches, spec.kv_heads, spec.key_dim, spec.value_dim)
    spec = replace(spec, caches=(group,))
    indices, tensors = tuple(range(stack)), _ends(spec)
    for module in ("L_module", "H_module"):
        tensors += _layer(fields, spec, indices, f"model.{module}.layers.*")
    tensors.append(TensorGroup("model.z_L_init", (spec.hidden,)))
    return replace(spec, tensors=tuple(tensors))
