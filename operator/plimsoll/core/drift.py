"""Whether the engines made of their memory what was stamped. Pure.

Engines count one pool in different ways, so the first of these that both sides know is compared:

1. blocks of the same size,
2. tokens, where both mean the same by them: with several groups of layers a number of tokens that is only
   blocks times their size means something else,
3. bytes of the pool, where the engine measured them (in its log: other places repeat the flag).

What an engine rounds away by itself is no drift. Source: the research on engines, section 6.4, and a run of
vLLM 0.32 on a CPU.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.readback import Reading
from plimsoll.core.records import dataclass, field
from plimsoll.core.units import GIB, ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

DRIFT_TOLERANCE_PERCENT: Final = 5

METRICS: Final = "Metrics"
INFO: Final = "Info"
LOG: Final = "Log"

WITHIN_TOLERANCE: Final = "WithinTolerance"
DRIFT_EXCEEDED: Final = "DriftExceeded"
NOT_REPORTED: Final = "NotReported"

_ONE_GROUP: Final = "AllLayersFull"
_SEVERAL_GROUPS: Final = frozenset({"BlocksPerGroup", "ConcurrencyTimesContext"})
_SLOT_STEP: Final = 256  # llama.cpp rounds each slot up to a multiple of this
_PRINTED: Final = GIB // 100  # logs print sizes in GiB with two digits
_HALF_DIGIT: Final = 0.00501
_HUNDREDTH: Final = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class PodReading:
    """What the engine of one pod says.

    Attributes:
        pod: Name of the pod.
        uid: UID of the pod.
        found: What was read; empty where nothing was.
        source: Metrics, Info or Log; None where nothing was read.
        running: Requests that run, where that was asked and answered.
        failure: Why nothing was read: a clause without a full stop.
    """

    pod: str
    uid: str
    found: Reading = field(default_factory=Reading)
    source: str | None = None
    running: int | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Stamped:
    """What the engine was told, or, where it chooses itself, what it was predicted to choose.

    Attributes:
        engine: Name of the engine table.
        tokens: Tokens of the pool; None where nothing was stamped or nothing grows with length.
        blocks: Blocks of the pool.
        block_tokens: Tokens of a block.
        kv_bytes: The pool on one rank.
        meaning: What ``tokens`` counts, see ``report.TOKEN_MEANINGS``.
        granule: Tokens are handed out in steps of this.
        predicted: The number is not in the template: the engine chooses its own.
    """

    engine: str
    tokens: int | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    kv_bytes: int | None = None
    meaning: str = _ONE_GROUP
    granule: int = 1
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all pods together come to.

    Attributes:
        reported_tokens: Tokens of the pod that is furthest off, of equals the fewest; None where no
            engine told any that can be set beside the stamped ones.
        drift_percent: 100 * (reported - stamped) / stamped of that pod, two digits; None: not compared.
        matches: Whether that is within the tolerance; None: not compared.
        text: Sentences for a condition.
    """

    reported_tokens: int | None
    drift_percent: Decimal | None
    matches: bool | None
    text: str

    @property
    def reason(self) -> str:
        """Reason of the condition CapacityVerified."""
        if self.matches is None:
            return NOT_REPORTED
        return WITHIN_TOLERANCE if self.matches else DRIFT_EXCEEDED


@dataclass(frozen=True, slots=True)
class _Compared:
    pod: str
    unit: str
    reported: int
    wanted: int
    percent: Decimal
    tokens: int | None


def judge(stamped: Stamped, readings: Sequence[PodReading]) -> Verdict:
    """Compare every pod with what was stamped; the one that is furthest off decides.

    Args:
        stamped: What was stamped, the same for all these pods.
        readings: Pods of the current template; those that could not be read count for nothing.
    """
    read = [reading for reading in readings if reading.source is not None]
    compared = [c for c in (_compare(stamped, reading) for reading in read) if c is not None]
    if compared:
        worst = max(compared, key=lambda c: (abs(c.percent), -(c.tokens or 0)))
        matches = abs(worst.percent) <= DRIFT_TOLERANCE_PERCENT
        count = f"{len(compared)} of {len(readings)} ready pods read"
        text = _sentence(stamped, worst, matches=matches, read=count)
        return Verdict(worst.tokens, worst.percent, matches, text)
    told = [reading for reading in read if reading.found.tokens is not None]
    if told:
        fewest = min(told, key=lambda reading: reading.found.tokens or 0)
        return Verdict(_tokens(stamped, fewest.found), None, None, _incomparable(stamped, fewest))
    return Verdict(None, None, None, _silent(readings))


def _compare(stamped: Stamped, reading: PodReading) -> _Compared | None:
    found = reading.found
    tokens = _tokens(stamped, found)
    slots = stamped.engine == "LlamaCpp"  # its blocks are slots
    if not slots and found.blocks is not None and stamped.blocks and _same_size(stamped, found):
        same = found.blocks == stamped.blocks
        return _compared(reading.pod, "blocks", (found.blocks, stamped.blocks), tokens, same=same)
    if tokens is not None and stamped.tokens:
        same = abs(tokens - stamped.tokens) < _step(stamped, found)
        return _compared(reading.pod, "tokens", (tokens, stamped.tokens), tokens, same=same)
    if found.pool_bytes is not None and stamped.kv_bytes and reading.source == LOG:
        same = abs(found.pool_bytes - stamped.kv_bytes) <= _PRINTED
        pair = (found.pool_bytes, stamped.kv_bytes)
        return _compared(reading.pod, "bytes of KV cache", pair, tokens, same=same)
    return None


def _compared(
    pod: str, unit: str, pair: tuple[int, int], tokens: int | None, *, same: bool
) -> _Compared:
    reported, wanted = pair
    percent = Decimal(0) if same else Decimal(100 * (reported - wanted)) / Decimal(wanted)
    rounded = percent.quantize(_HUNDREDTH)
    return _Compared(pod, unit, reported, wanted, rounded or abs(rounded), tokens)


def _same_size(stamped: Stamped, found: Reading) -> bool:
    return None in {stamped.block_tokens, found.block_tokens} or (
        stamped.block_tokens == found.block_tokens
    )


def _means_blocks(stamped: Stamped, found: Reading) -> bool:
    """The engine's number of tokens is blocks times their size, and the stamped one is not."""
    if stamped.meaning not in _SEVERAL_GROUPS or found.blocks is None or not found.block_tokens:
        return False
    return found.tokens == found.blocks * found.block_tokens


def _tokens(stamped: Stamped, found: Reading) -> int | None:
    """Tokens as we count them: with one group of layers, whole blocks; None: meant otherwise."""
    if _means_blocks(stamped, found):
        return None
    if found.tokens is None or stamped.engine != "VLLM" or stamped.meaning != _ONE_GROUP:
        return found.tokens
    if found.blocks is not None and found.block_tokens:
        return found.blocks * found.block_tokens
    block = stamped.block_tokens or stamped.granule
    if not found.context or found.concurrency is None or block <= 1:
        return found.tokens
    # It prints int(concurrency * context), and releases before 0.22 blocks times their size. The
    # concurrency beside it, blocks / blocks of the longest request to two digits, tells which.
    if abs(found.tokens - found.concurrency * found.context) > 1 + found.context * _HALF_DIGIT:
        return found.tokens
    per_request = ceil_div(found.context, block)
    return round(found.tokens * per_request / found.context) * block


def _step(stamped: Stamped, found: Reading) -> int:
    """What the engine rounds away, in tokens: less than this is no difference."""
    if stamped.engine == "LlamaCpp":
        return _SLOT_STEP * (found.blocks or 1)
    return stamped.block_tokens or stamped.granule


def _sentence(stamped: Stamped, worst: _Compared, *, matches: bool, read: str) -> str:
    verb = "predicted" if stamped.predicted else "stamped"
    if worst.percent == 0:
        rounded = "" if worst.reported == worst.wanted else f" but for rounding ({worst.wanted})"
        return f"The engine reports {worst.reported} {worst.unit}, as {verb}{rounded} ({read})."
    numbers = (
        f"The engine of pod {worst.pod} reports {worst.reported} {worst.unit} where {worst.wanted} "
        f"were {verb} ({worst.percent:+} %)"
    )
    if matches:
        return f"{numbers}, within the tolerance of {DRIFT_TOLERANCE_PERCENT} % ({read})."
    if worst.reported < worst.wanted:
        effect = "fewer requests run at once than the number promises"
    else:
        effect = (
            "it takes memory that was kept for other things, and a long prompt may run out of it"
        )
    return (
        f"{numbers}: {effect} ({read}). Compare `kubectl logs {worst.pod} -c server` with "
        "status.capacity.breakdown, and set spec.engine.version to the release in the image."
    )


def _incomparable(stamped: Stamped, reading: PodReading) -> str:
    number = f"The engine of pod {reading.pod} reports {reading.found.tokens} tokens"
    if stamped.tokens is None and stamped.blocks is None and stamped.kv_bytes is None:
        return f"{number}; no number was stamped to compare it with."
    return (
        f"{number}, counted in another way than the {stamped.tokens} that were stamped "
        f"({stamped.meaning}); they are not compared."
    )


def _silent(readings: Sequence[PodReading]) -> str:
    if not readings:
        return (
            "No server pod is ready, so no engine was asked for its KV cache; it goes on by itself."
        )
    first = next((r for r in readings if r.failure), readings[0])
    why = first.failure or "its answers hold no size of the KV cache"
    return (
        f"No engine has reported its KV cache ({len(readings)} asked); pod {first.pod}: {why}. "
        "The server works with the stamped number; whether the engine keeps it is not known."
    )
