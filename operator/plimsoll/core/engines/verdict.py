"""Saying no, with the term that is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.errors import DoesNotFit
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.engines.base import Situation


def does_not_fit(
    situation: Situation, reserve: Mapping[str, int], *, tokens: int, need: str, field: str
) -> DoesNotFit:
    """Explain why one rank's memory is too small.

    Args:
        situation: The device and the model on it.
        reserve: Named terms, in bytes.
        tokens: Tokens that would fit.
        need: What the engine needs instead, for people.
        field: Field whose lower value would help, when memory is short of tokens only.

    Returns:
        WeightsDoNotFit when the weights leave nothing beside what the engine itself takes (the
        user's own extra reserve is not held against the model), otherwise BudgetTooSmall.
    """
    own = sum(reserve.values()) - reserve.get("extra", 0)
    term, amount = max(reserve.items(), key=lambda item: item[1], default=("none", 0))
    where = (
        f"of {format_bytes(situation.free_after_init)} free per rank, weights take "
        f"{format_bytes(situation.weights)} and the reserve {format_bytes(sum(reserve.values()))} "
        f"(largest term: {term}, {format_bytes(amount)})"
    )
    if situation.weights + own >= situation.free_after_init:
        return DoesNotFit(
            f"the model does not fit: {where}; use a larger GPU, more of them (spec.accelerator.count), "
            "or a smaller or quantised model",
            reason="WeightsDoNotFit",
            field="budget.weights",
            value=situation.weights,
        )
    return DoesNotFit(
        f"the KV cache would hold {max(tokens, 0)} tokens but {need}: {where}; "
        f"lower {field}, or use a larger GPU",
        reason="BudgetTooSmall",
        field=field,
        value=max(tokens, 0),
    )
