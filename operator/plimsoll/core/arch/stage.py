"""The part of a model that one pipeline stage holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.records import replace

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec


def stage_layers(layers: int, index: int, stages: int) -> int:
    """Layers of one stage; the remainder goes to the stages before the last, as vLLM does.

    Source: vLLM, ``distributed/utils.py``, ``get_pp_indices``.
    """
    each, left = divmod(layers, stages)
    return each + (1 if stages - 1 - left <= index < stages - 1 else 0)


def stage_of(spec: ModelSpec, index: int, stages: int) -> ModelSpec:
    """The model with the caches and states of one stage.

    Layers of several kinds are taken to be spread evenly, each kind's remainder on every stage:
    the safe side where the order of the layers is not known any more.
    """
    if stages == 1:
        return spec
    mine = stage_layers(spec.layers, index, stages)

    def share(layers: int) -> int:
        return -(-layers * mine // spec.layers)

    return replace(
        spec,
        layers=mine,
        caches=tuple(
            replace(group, layers=share(group.layers), index_layers=share(group.index_layers))
            for group in spec.caches
        ),
        states=tuple(replace(group, layers=share(group.layers)) for group in spec.states),
    )
