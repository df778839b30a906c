"""Finding settings that fit: a defaulted context is lowered first, then a defaulted prefill batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.base import Allocation, Situation, largest
from plimsoll.core.engines.verdict import does_not_fit
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAST: Final = 512  # a server for shorter prompts or smaller prefill batches is of no use


@dataclass(frozen=True, slots=True)
class Wish:
    """What would be served if memory allowed it, in tokens."""

    context: int
    prefill: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """A budget under one context and one prefill batch.

    Attributes:
        allocation: The budget.
        need: What the engine needs instead, for people; empty when it fits.
        field: Field whose lower value would help.
    """

    allocation: Allocation
    need: str
    field: str

    @property
    def fits(self) -> bool:
        """Whether the engine can serve like this."""
        return not self.need


def settle(situation: Situation, wish: Wish, attempt: Callable[[int, int], Attempt]) -> Allocation:
    """The budget of the largest settings that fit, or the refusal.

    Args:
        situation: The device and the model on it; a stated context or batch is never lowered.
        wish: Where to start.
        attempt: Context and prefill batch -> budget. Smaller ones must fit wherever larger ones do.
    """
    request = situation.request

    def lower(prefill: int) -> int:
        if request.context_length is not None:
            return wish.context
        least = min(_LEAST, wish.context)
        return largest(least, wish.context, lambda c: attempt(c, prefill).fits) or least

    context, prefill = wish.context, wish.prefill
    if not attempt(context, prefill).fits:
        context = lower(prefill)
        if not attempt(context, prefill).fits and request.prefill_tokens is None:
            prefill = largest(_LEAST, prefill, lambda p: attempt(context, p).fits) or prefill
            context = lower(prefill)
    final = attempt(context, prefill)
    if final.fits:
        notes = (*final.allocation.notes, *_lowered(wish, context, prefill))
        return replace(final.allocation, notes=notes)
    error = does_not_fit(
        situation,
        final.allocation.reserve,
        tokens=final.allocation.tokens or 0,
        need=final.need,
        field=final.field,
    )
    tokens = None if final.allocation.tokens is None else 0
    return replace(final.allocation, tokens=tokens, largest_request=0, error=error)


def _lowered(wish: Wish, context: int, prefill: int) -> tuple[str, ...]:
    notes = []
    if context < wish.context:
        notes.append(
            f"contextLength was lowered from {wish.context} to {context} so that one request fits"
        )
    if prefill < wish.prefill:
        notes.append(
            f"prefillTokens was lowered from {wish.prefill} to {prefill} so that the cache fits"
        )
    return tuple(notes)
