"""Whether the numbers of a sizing can be true together: of a report, and of what a status keeps of it.

Both are inputs that somebody else may have written, and both end in a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.errors import ResultInvalid
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from plimsoll.core.engines.base import Pinned

#: Meanings of a number that no single size per token leads to: several pools share the bytes.
_SHARED: Final = frozenset({"ConcurrencyTimesContext", "BlocksPerGroup"})


@dataclass(frozen=True, slots=True)
class Claim:
    """What a sizing says that fits. Bytes are one rank's.

    Attributes:
        kv: Bytes that the budget leaves for the pool.
        fixed_pools: Bytes of it that hold no tokens.
        cell: Bytes per token, at least 1.
        granule: Tokens are handed out in steps of this, at least 1.
        tokens: The number.
        meaning: What it counts, see ``report.TOKEN_MEANINGS``.
        context_length: Longest request, in tokens.
        prefill_tokens: Tokens per prefill batch.
        pinned: What becomes flags; None where it is the numbers above.
    """

    kv: int
    fixed_pools: int
    cell: int
    granule: int
    tokens: int
    meaning: str
    context_length: int
    prefill_tokens: int
    pinned: Pinned | None


def token_limit(kv: int, fixed_pools: int, cell: int, granule: int) -> int:
    """Tokens that a pool of ``kv`` bytes holds: whole granules of ``cell`` bytes a token."""
    return max(0, (kv - fixed_pools) // cell // granule * granule)


def check(claim: Claim) -> None:
    """Refuse a number that its own terms do not allow, and flags other than what is claimed.

    Raises:
        ResultInvalid: Names what does not agree, as a key of the report.
    """
    if claim.pinned is not None:
        _check_pinned(claim, claim.pinned)
    _check_tokens(claim)


def _check_pinned(claim: Claim, pinned: Pinned) -> None:
    """Without this a number that adds up could stand beside flags that do not."""
    pool = (pinned.max_total_token_num, pinned.kv_cache_bytes, pinned.memory_fraction)
    if pool == (None, None, None):
        raise ResultInvalid("the result's pinned limits no pool", field="pinned")
    for name, found, wanted in (
        ("maxTotalTokenNum", pinned.max_total_token_num, claim.tokens),
        ("contextLength", pinned.context_length, claim.context_length),
        ("prefillTokens", pinned.prefill_tokens, claim.prefill_tokens),
    ):
        if found not in {None, wanted}:
            raise ResultInvalid(
                f"the result pins {name} {found}, but reports {wanted}", field=f"pinned.{name}"
            )
    if pinned.kv_cache_bytes is not None and pinned.kv_cache_bytes > claim.kv:
        raise ResultInvalid(
            f"the result pins a pool of {pinned.kv_cache_bytes} bytes; its budget leaves {claim.kv}",
            field="pinned.kvCacheBytes",
        )


def _check_tokens(claim: Claim) -> None:
    """The number is what its own terms allow, wherever a token has one size."""
    pinned, kv = claim.pinned, claim.kv
    if pinned is not None and pinned.kv_cache_bytes is not None:
        if claim.meaning in _SHARED and pinned.max_total_token_num is None:
            return  # bytes are pinned, and were checked; the number only says what they are worth
        kv = pinned.kv_cache_bytes
    limit = token_limit(kv, claim.fixed_pools, claim.cell, claim.granule)
    if claim.tokens > limit or claim.tokens % claim.granule:
        raise ResultInvalid(
            f"the result claims {claim.tokens} tokens; its own terms allow {limit} "
            f"in steps of {claim.granule}",
            field="maxTotalTokenNum",
        )
