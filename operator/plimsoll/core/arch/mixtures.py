"""Mixtures of experts: how many, how wide, and in which layers, in every spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.spec import Experts
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.spec import ModelSpec

    #: From a config and its number of layers to the layers that have experts.
    Where = Callable[[Fields, int], frozenset[int]]

COUNTS: Final = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
PER_TOKEN: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_k",
    "moe_topk",
    "top_k_experts",
)
SHARED_COUNTS: Final = (
    "n_shared_experts",
    "num_shared_experts",
    "moe_num_shared_experts",
    "num_shared_expert",
)


def everywhere(_: Fields, layers: int) -> frozenset[int]:
    """Every layer has experts."""
    return frozenset(range(layers))


def listed(fields: Fields, layers: int) -> frozenset[int] | None:
    """``mlp_layer_types``: sparse or dense, one for each layer; None when absent or null.

    transformers compares the list's length only in classes that also have ``layer_types``; others
    look their layers up in it and never see what is left over.
    """
    stated = fields.get("mlp_layer_types")
    length = layers
    known = fields.defaults
    if isinstance(stated, list) and "mlp_layer_types" in known and "layer_types" not in known:
        length = min(max(layers, len(stated)), MAX_LAYERS)
    kinds = fields.choices("mlp_layer_types", length, frozenset({"sparse", "dense"}))
    if kinds is None:
        return None
    return frozenset(index for index, kind in enumerate(kinds[:layers]) if kind == "sparse")


def after(dense: int, *keys: str) -> Where:
    """A rule: the first layers are dense, as many as the first of these fields says."""

    def rule(fields: Fields, layers: int) -> frozenset[int]:
        found = listed(fields, layers)
        if found is not None:
            return found
        count = fields.either(*keys, most=MAX_LAYERS, least=0) if keys else None
        first = dense if count is None else count
        if isinstance(fields.get("moe_layer_freq"), list):  # one flag for each layer
            flags = fields.integers("moe_layer_freq", 1)[:layers]
            return frozenset(index for index, flag in enumerate(flags) if flag)
        step = fields.optional("moe_layer_freq", MAX_LAYERS, quiet=True) or 1
        return frozenset(i for i in range(first, layers) if i % step == 0)

    return rule


def stepped(fields: Fields, layers: int, dense: tuple[int, ...] = ()) -> frozenset[int]:
    """Qwen: every ``decoder_sparse_step``-th layer, without those of ``mlp_only_layers``."""
    step = fields.optional("decoder_sparse_step", MAX_LAYERS, quiet=True) or 1
    if fields.has("mlp_only_layers"):
        dense = fields.integers("mlp_only_layers", MAX_LAYERS)
    return frozenset(i for i in range(layers) if i not in dense and (i + 1) % step == 0)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Where a family's config says what its experts are.

    Attributes:
        where: Which layers have them.
        width: Field with the width of one expert; the dense width when absent or null.
        shared: Field with the width of the shared part.
        shared_count: Fields that say how many experts' widths the shared part has.
        always_shared: Shared experts where the config does not say how many.
        shared_gate: The shared part is gated by one row more.
        router_bias: Bias of the router as a parameter; most families keep it as a buffer.
        bias: Experts have biases (GPT-OSS).
    """

    where: Where = everywhere
    width: str = ""
    shared: str = ""
    shared_count: tuple[str, ...] = ()
    always_shared: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False


def read_mixture(fields: Fields, spec: ModelSpec, mixture: Mixture) -> Experts | None:
    """The experts; None when the config names none.

    Raises:
        BadModel: A count or width of the wrong type or out of range.
    """
    count = fields.either(*COUNTS, most=MAX_EXPERTS, least=0)
    if not count:
        return None
    width = fields.optional(mixture.width, MAX_DIM) if mixture.width else None
    width = width or spec.intermediate
    shared = (
        fields.optional(mixture.shared, MAX_DIM, least=0, quiet=True) if mixture.shared else None
    )
    if not shared:
        times = None
        if mixture.shared_count:
            times = fields.either(*mixture.shared_count, most=MAX_EXPERTS, least=0)
        shared = width * (mixture.always_shared if times is None else times)
    return Experts(
        count=count,
        per_token=min(fields.first(*PER_TOKEN, most=MAX_EXPERTS, default=1), count),
        intermediate=width,
        shared_intermediate=shared,
        layers=mixture.where(fields, spec.layers),
    )
