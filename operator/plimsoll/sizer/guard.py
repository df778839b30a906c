"""Compares what was stamped with what is measured at this pod's start, and refuses where it was told to.

Refusing (exit codes 10 and 11) is safe only with an operator that reacts: one that measures again and stamps
another number. Such an operator sets ``PLIMSOLL_GUARD=Refuse``; a template of an older one does not, and
then a guard always exits 0: what it would have said is in its log and in the termination message.

A guard that cannot measure (NVML down, deadline) never stops a server. One reading that shows too little
memory does not either: a predecessor that is still terminating releases its memory over some seconds. So
a refusal for memory takes two consecutive readings that agree on the free bytes; a difference means that
memory still moves, and the guard goes on reading until it fits, or settles, or its time is over.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.core.answer import Fit
    from plimsoll.core.report import DeviceClass

EXIT_TOO_LITTLE_MEMORY: Final = 10
EXIT_MISMATCH: Final = 11
# Between two readings: a driver needs about one second to release a dead context.
READ_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the template says that the server was given; None: the template does not say.

    Attributes:
        tokens: the number in the server's arguments.
        pool_bytes: the pool in its arguments, in bytes per rank; wins over tokens.
        device_class: JSON of the class that these were computed for.
        model_digest: digest of the model's headers that they were computed from.
    """

    tokens: int | None = None
    pool_bytes: int | None = None
    device_class: str | None = None
    model_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Stamped against measured, for one rank.

    Attributes:
        stamped_tokens: the number in the server's arguments, if there is one.
        measured_tokens: the number that a measurement made now gives; 0 where nothing fits.
        needed_bytes: pool that the stamped number needs.
        available_bytes: pool that there is room for, safety kept; negative where the weights do not fit.
        available_without_safety_bytes: the same with the safety spent: the limit for a refusal.
        same_class: whether the devices are of the kind the number was computed for; None if not told.
        verdict: Fits, FitsWithoutSafety, TooLittleMemory or AnotherClass.
    """

    stamped_tokens: int | None
    measured_tokens: int
    needed_bytes: int
    available_bytes: int
    available_without_safety_bytes: int
    same_class: bool | None
    verdict: str

    @property
    def exit_code(self) -> int:
        """What a guard that refuses returns for this verdict; 0 lets the server start."""
        return {"TooLittleMemory": EXIT_TOO_LITTLE_MEMORY, "AnotherClass": EXIT_MISMATCH}.get(
            self.verdict, 0
        )

    def document(self) -> dict[str, Any]:
        """The comparison as the log shows it."""
        return {
            "stampedTokens": self.stamped_tokens,
            "measuredTokens": self.measured_tokens,
            "neededBytes": self.needed_bytes,
            "availableBytes": self.available_bytes,
            "availableWithoutSafetyBytes": self.available_without_safety_bytes,
            "sameClass": self.same_class,
            "verdict": self.verdict,
            "wouldRefuse": self.exit_code != 0,
        }


@dataclass(frozen=True, slots=True)
class Look:
    """One reading.

    Attributes:
        fit: the answer of the arithmetic for it, also where nothing fits.
        free: free bytes of each device.
        comparison: with what was stamped.
    """

    fit: Fit
    free: tuple[int, ...]
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Decision:
    """The last reading, how many there were, and the exit code that follows."""

    look: Look
    reads: int
    exit_code: int


def decide(
    look: Callable[[], Look],
    settle: float,
    *,
    refuses: bool,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Decision:
    """Read until the answer is known.

    Args:
        look: makes one reading.
        settle: seconds after which the last reading decides, although the free bytes still move.
        refuses: whether the template asks for refusals; without, one reading is made and the code is 0.
        clock: monotonic seconds.
        sleep: waits so many seconds.

    Returns:
        The decision: 0, 10 (too little memory) or 11 (another class).

    Raises:
        PlimsollError: from ``look``; the caller lets the server start.
    """
    start = clock()
    reads, before = 0, None
    while True:
        reads += 1
        now = look()
        code = now.comparison.exit_code if refuses else 0
        settled = now.free == before or clock() - start + READ_SECONDS > settle
        if code != EXIT_TOO_LITTLE_MEMORY or settled:
            return Decision(now, reads, code)
        before = now.free
        sleep(READ_SECONDS)


def compare(fit: Fit, stamp: Stamp) -> Comparison:
    """Compare what was stamped with a fresh answer.

    The pool of N tokens is ``N * kvBytesPerRank + fixedPools`` (the termination message's formula, turned
    round).

    Args:
        fit: the arithmetic for what was measured now, also where nothing fits.
        stamp: what the server was given. Neither tokens nor bytes: it needs its weights and reserve alone.

    Returns:
        The comparison. Another class outweighs memory: the number says nothing about this GPU.

    Raises:
        ValueError: the answer was computed without a device.
    """
    if fit.budget is None or fit.device is None:
        raise ValueError("a comparison needs a device")
    needed = 0
    if stamp.pool_bytes is not None:
        needed = stamp.pool_bytes
    elif stamp.tokens is not None:
        fixed = fit.allocation.fixed_pools if fit.allocation else 0
        needed = stamp.tokens * (fit.kv_bytes_per_rank or 0) + fixed
    available = fit.budget.kv
    limit = available + fit.budget.safety
    found = fit.device.device_class()
    same = None if stamp.device_class is None else _same_class(found, stamp.device_class)
    if same is False:
        verdict = "AnotherClass"
    elif needed <= available:
        verdict = "Fits"
    else:
        verdict = "FitsWithoutSafety" if needed <= limit else "TooLittleMemory"
    return Comparison(
        stamped_tokens=stamp.tokens,
        measured_tokens=fit.tokens or 0,
        needed_bytes=needed,
        available_bytes=available,
        available_without_safety_bytes=limit,
        same_class=same,
        verdict=verdict,
    )


def _same_class(measured: DeviceClass, stamped: str) -> bool:
    try:
        document = json.loads(stamped)
    except (ValueError, RecursionError):
        return False  # a class that cannot be read is not this one
    if not isinstance(document, dict):
        return False
    # Absent and null are the same: the operator leaves out what is not known.
    found = measured.to_dict()
    return {key: document.get(key) for key in found} == found
