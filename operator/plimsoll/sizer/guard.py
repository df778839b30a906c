"""Compares a stamped number with what is measured at this pod's start. It reports and never refuses.

Refusing (exit codes 10 and 11) is safe only with an operator that reacts: one that measures again, stamps
another number and scales the new ReplicaSet down after some refusals. Without that, a few MiB taken by
a neighbour, or an NVML that is down for a minute, would keep a server from starting that would have run.
So in this version a guard always exits 0; what it would have said is in its log, and its report (or its
failure) in the termination message, where the operator can read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.core.report import DeviceClass, Report


@dataclass(frozen=True, slots=True)
class Comparison:
    """Stamped against measured, for one rank.

    Attributes:
        stamped_tokens: the number in the server's arguments.
        measured_tokens: the number that a measurement made now gives.
        needed_bytes: pool that the stamped number needs.
        available_bytes: pool that there is room for, safety kept.
        available_without_safety_bytes: the same with the safety spent: the limit for a refusal.
        same_class: whether the devices are of the kind the number was computed for; None if not told.
        verdict: Fits, FitsWithoutSafety, TooLittleMemory or AnotherClass.
    """

    stamped_tokens: int
    measured_tokens: int
    needed_bytes: int
    available_bytes: int
    available_without_safety_bytes: int
    same_class: bool | None
    verdict: str

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
            "wouldRefuse": self.verdict in {"TooLittleMemory", "AnotherClass"},
        }


def compare(report: Report, stamped_tokens: int, stamped_class: str | None) -> Comparison:
    """Compare a stamped number with a fresh report.

    The pool of N tokens is ``N * kvBytesPerRank + fixedPools`` (the termination message's formula, turned
    round).

    Args:
        report: what was measured now.
        stamped_tokens: the number in the server's arguments.
        stamped_class: JSON of the class it was computed for; None if unknown.

    Returns:
        The comparison. Another class outweighs memory: the number says nothing about this GPU.
    """
    needed = stamped_tokens * report.kv_bytes_per_rank + report.fixed_pools
    available = report.budget.kv
    limit = available + report.budget.safety
    same = None if stamped_class is None else _same_class(report.device_class, stamped_class)
    if same is False:
        verdict = "AnotherClass"
    elif needed <= available:
        verdict = "Fits"
    else:
        verdict = "FitsWithoutSafety" if needed <= limit else "TooLittleMemory"
    return Comparison(
        stamped_tokens=stamped_tokens,
        measured_tokens=report.max_total_token_num,
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
    found = {
        "product": measured.product,
        "totalBytes": measured.total_bytes,
        "mig": measured.mig,
        "sharing": measured.sharing,
        "count": measured.count,
    }
    return {key: document.get(key) for key in found} == found
