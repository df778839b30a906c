"""The guard's comparison: bytes the stamped number needs against bytes there are."""

from __future__ import annotations

import json

import pytest

from plimsoll.core.report import Budget, DeviceClass, Report
from plimsoll.sizer.guard import compare

CLASS = DeviceClass("NVIDIA H100", 1000, None, None, 1)
STAMPED = {"product": "NVIDIA H100", "totalBytes": 1000, "mig": None, "sharing": None, "count": 1}

# kv 530 holds 50 tokens of 10 bytes beside 30 fixed; safety would hold 2 more.
REPORT = Report(
    pod_uid="u",
    request_hash="h",
    model_digest="d",
    device_class=CLASS,
    driver="580",
    devices=("GPU-1",),
    rank=0,
    budget=Budget(1000, 900, 850, 300, {}, safety=20, kv=530),
    kv_bytes_per_rank=10,
    fixed_pools=30,
    granule=1,
    max_total_token_num=50,
    token_meaning="AllLayersFull",
    max_sequences=1,
    context_length=50,
    prefill_tokens=8,
    confidence="estimated",
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
    comparison = compare(REPORT, stamped, None)
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
    comparison = compare(REPORT, 50, stamped)
    assert comparison.same_class is same
    assert comparison.verdict == ("Fits" if same else "AnotherClass")
    assert comparison.document()["wouldRefuse"] is not same
