"""The guard: bytes that the stamp needs against bytes there are, and how many readings a refusal takes."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plimsoll.core.answer import Fit
from plimsoll.core.device import Device
from plimsoll.core.errors import DeviceUnavailable, DoesNotFit
from plimsoll.core.report import Budget
from plimsoll.core.request import SizingRequest
from plimsoll.sizer.guard import Look, Stamp, compare, decide

STAMPED = {"product": "NVIDIA H100", "totalBytes": 1000, "mig": None, "sharing": None, "count": 1}
NOTHING: Any = None

# kv 530 holds 50 tokens of 10 bytes beside 30 fixed; safety would hold 2 more.
FIT = Fit(
    spec=NOTHING,
    request=SizingRequest(),
    cache=NOTHING,
    kv_bytes_per_rank=10,
    device=Device("NVIDIA H100", total=990, nvml_total=1000, free=900),
    budget=Budget(1000, 900, 850, 300, {}, safety=20, kv=530),
    allocation=cast("Any", SimpleNamespace(fixed_pools=30, tokens=50)),
)


@pytest.mark.parametrize(
    ("stamped", "verdict", "would_refuse"),
    [
        (1, "Fits", False),
        (50, "Fits", False),
        (51, "FitsWithoutSafety", False),
        (52, "FitsWithoutSafety", False),
        (53, "TooLittleMemory", True),
    ],
)
def test_memory(stamped: int, verdict: str, would_refuse: bool) -> None:  # noqa: FBT001 - table
    comparison = compare(FIT, Stamp(tokens=stamped))
    assert comparison.verdict == verdict
    assert comparison.document() == {
        "stampedTokens": stamped,
        "measuredTokens": 50,
        "neededBytes": stamped * 10 + 30,
        "availableBytes": 530,
        "availableWithoutSafetyBytes": 550,
        "sameClass": None,
        "verdict": verdict,
        "wouldRefuse": would_refuse,
    }


@pytest.mark.parametrize(
    ("stamped", "same"),
    [
        (json.dumps(STAMPED), True),
        (json.dumps({**STAMPED, "driver": "570"}), True),  # not part of a class
        (json.dumps({k: v for k, v in STAMPED.items() if v is not None}), True),
        (json.dumps({**STAMPED, "product": "NVIDIA H200"}), False),
        (json.dumps({**STAMPED, "totalBytes": 999}), False),
        (json.dumps({**STAMPED, "mig": "1g.10gb"}), False),
        (json.dumps({**STAMPED, "sharing": "mps"}), False),
        (json.dumps({**STAMPED, "count": 2}), False),
        ("[]", False),
        ("{", False),
        ("[" * 100_000, False),
    ],
)
def test_class(stamped: str, same: bool) -> None:  # noqa: FBT001 - table
    comparison = compare(FIT, Stamp(tokens=50, device_class=stamped))
    assert comparison.same_class is same
    assert comparison.verdict == ("Fits" if same else "AnotherClass")
    assert comparison.document()["wouldRefuse"] is not same


@pytest.mark.parametrize(
    ("stamp", "kv", "verdict"),
    [
        (Stamp(pool_bytes=550), 530, "FitsWithoutSafety"),
        (Stamp(pool_bytes=551), 530, "TooLittleMemory"),
        (Stamp(tokens=10_000, pool_bytes=530), 530, "Fits"),  # bytes win
        (Stamp(), 530, "Fits"),
        (Stamp(), -20, "FitsWithoutSafety"),
        (Stamp(), -21, "TooLittleMemory"),  # not even weights and reserve
        (Stamp(tokens=1), -21, "TooLittleMemory"),
    ],
)
def test_what_is_stamped(stamp: Stamp, kv: int, verdict: str) -> None:
    assert FIT.budget is not None
    fit = dataclasses.replace(FIT, budget=dataclasses.replace(FIT.budget, kv=kv))
    assert compare(fit, stamp).verdict == verdict


def test_a_number_that_fits_without_safety_is_kept_although_a_new_one_would_not_be_given() -> None:
    fit = dataclasses.replace(FIT, error=DoesNotFit("below the minimum"))
    comparison = compare(fit, Stamp(tokens=52))
    assert (comparison.verdict, comparison.measured_tokens) == ("FitsWithoutSafety", 0)
    assert comparison.exit_code == 0


# ---- readings over time ----------------------------------------------------------------------------------------

# Free bytes of each reading (the stamp needs 550 without safety; kv is free - 370) -> exit code, readings made.
NEEDS = 900  # free bytes below which a reading refuses
TABLE = [
    ("fits at once", [900], True, 60, 0, 1),
    ("fits by its safety", [NEEDS], True, 60, 0, 1),
    ("too little, twice the same", [500, 500], True, 60, 10, 2),
    ("still releasing, then fits", [100, 400, 700, 950], True, 60, 0, 4),
    ("one byte short, then fits", [NEEDS - 1, NEEDS], True, 60, 0, 2),
    ("releases a part and stops", [100, 400, 700, 700], True, 60, 10, 4),
    ("a neighbour grows, then rests", [800, 600, 600], True, 60, 10, 3),
    ("equal, but not in a row", [500, 600, 500, 600, 600], True, 60, 10, 5),
    ("moves until the time is over", [1, 2, 3, 4, 5, 6], True, 10, 10, 6),
    ("the last reading decides", [1, 2, 3, 4, 5, 950], True, 10, 0, 6),
    ("no time to wait", [500], True, 0, 10, 1),
    ("an old template never refuses", [500], False, 60, 0, 1),
]


def look_of(free: int, stamp: Stamp) -> Look:
    assert FIT.budget is not None
    budget = dataclasses.replace(FIT.budget, device_free=free, kv=free - 370)
    fit = dataclasses.replace(FIT, budget=budget)
    return Look(fit, (free,), compare(fit, stamp))


@pytest.mark.parametrize(
    ("free", "refuses", "settle", "code", "reads"),
    [row[1:] for row in TABLE],
    ids=[r[0] for r in TABLE],
)
def test_readings_over_time(
    free: list[int],
    refuses: bool,  # noqa: FBT001 - table
    settle: float,
    code: int,
    reads: int,
) -> None:
    now = [100.0]
    readings = iter(free)  # one reading too many raises StopIteration
    decision = decide(
        lambda: look_of(next(readings), Stamp(tokens=52)),
        settle,
        refuses=refuses,
        clock=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    assert (decision.exit_code, decision.reads) == (code, reads)
    assert now[0] == 100 + 2.0 * (reads - 1)
    assert decision.look.free == (free[-1],)


@pytest.mark.parametrize(("refuses", "code"), [(True, 11), (False, 0)])
def test_another_class_is_told_after_one_reading(refuses: bool, code: int) -> None:  # noqa: FBT001 - table
    stamp = Stamp(tokens=52, device_class=json.dumps({**STAMPED, "product": "NVIDIA H200"}))
    decision = decide(
        lambda: look_of(500, stamp), 60, refuses=refuses, clock=lambda: 0.0, sleep=NOTHING
    )
    assert (decision.exit_code, decision.reads) == (code, 1)


def test_a_driver_that_goes_down_between_readings_ends_the_waiting() -> None:
    readings = iter([500])

    def look() -> Look:
        for free in readings:
            return look_of(free, Stamp(tokens=52))
        raise DeviceUnavailable("NVML: GPU is lost")

    with pytest.raises(DeviceUnavailable):
        decide(look, 60, refuses=True, clock=lambda: 0.0, sleep=lambda _: None)
