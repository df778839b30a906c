"""A smaller pool: how much a step takes, what it leaves, and that the status is believed again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.steps.capacity import believable, stamp_of
from plimsoll.controller.steps.shrink import shrunk
from plimsoll.core.units import GIB
from tests.unit.controller.builders import TOKENS, server
from tests.unit.controller.plan_worlds import sized_status

CELL = 128 * 1024


def capacity(tokens: int = TOKENS, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = sized_status()["capacity"]
    return {**found, "maxTotalTokenNum": tokens, **more}


@pytest.mark.parametrize(("policy", "left"), [
    ({}, 50 * GIB - 50 * GIB * 5 // 100),
    ({"stepPercent": 1}, 49 * GIB),
    ({"stepPercent": 1, "minStep": "1"}, 50 * GIB - 50 * GIB // 100),
    ({"minStep": "10Gi"}, 40 * GIB),
])  # fmt: skip
def test_a_step_is_a_share_and_no_less_than_the_least(policy: dict[str, Any], left: int) -> None:
    made = shrunk(server(sizing={"onOutOfMemory": policy}), capacity())
    assert made is not None
    assert made["kvCacheBytes"] == made["breakdown"]["kv"] == left
    assert made["maxTotalTokenNum"] == left // CELL
    assert made["breakdown"]["reserve"]["extra"] == 50 * GIB - left
    assert made["shrinkSteps"] == 1


def test_a_limit_below_the_pool_does_not_swallow_the_step() -> None:
    made = shrunk(server(), capacity(tokens=5 * GIB // CELL))
    assert made is not None
    assert made["maxTotalTokenNum"] == 4 * GIB // CELL


@pytest.mark.parametrize("sizing", [
    {"minTotalTokenNum": TOKENS - 1}, {"contextLength": TOKENS - 1}, {"onOutOfMemory": {"minStep": "50Gi"}},
])  # fmt: skip
def test_nothing_useful_is_left(sizing: dict[str, Any]) -> None:
    assert shrunk(server(sizing=sizing), capacity()) is None


def test_what_engines_said_of_the_larger_pool_is_dropped() -> None:
    made = shrunk(server(), capacity(engineReportedTokens=TOKENS, driftPercent="0"))
    assert made is not None
    assert not {"engineReportedTokens", "driftPercent"} & made.keys()


@given(
    tokens=st.integers(1, TOKENS),
    percent=st.integers(1, 50),
    step=st.integers(1, 8 * GIB),
    granule=st.sampled_from([1, 16, 256]),
    pinned=st.sampled_from([None, "tokens", "bytes"]),
    meaning=st.sampled_from(["AllLayersFull", "BlocksPerGroup"]),
)
def test_every_smaller_pool_is_believed_and_is_another_stamp(
    tokens: int, percent: int, step: int, granule: int, pinned: str | None, meaning: str
) -> None:
    tokens = max(granule, tokens // granule * granule)
    pins = {"tokens": {"maxTotalTokenNum": tokens}, "bytes": {"kvCacheBytes": tokens * CELL}}
    more = {"pinned": pins[pinned]} if pinned else {}
    if meaning == "BlocksPerGroup" and pinned == "tokens":
        more = {}
    asked = server(sizing={"onOutOfMemory": {"stepPercent": percent, "minStep": str(step)}})
    before = capacity(
        tokens, granule=granule, tokenMeaning=meaning, contextLength=min(131072, tokens), **more
    )
    assert believable({"capacity": before})
    for _ in range(3):
        made = shrunk(asked, before)
        if made is None:
            return
        assert believable({"capacity": made}) == made
        assert made["maxTotalTokenNum"] < before["maxTotalTokenNum"] or pinned == "bytes"
        assert stamp_of(asked, made) != stamp_of(asked, before)
        before = made
