"""Stamped against reported: which figures are compared, what counts as equal, and what is said."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.drift import (
    DRIFT_EXCEEDED,
    INFO,
    LOG,
    METRICS,
    NOT_REPORTED,
    WITHIN_TOLERANCE,
    PodReading,
    Stamped,
    judge,
)
from plimsoll.core.engines.readback import Reading, read_endpoint, read_log
from plimsoll.core.report import TOKEN_MEANINGS
from plimsoll.core.units import GIB

LIGHTLLM = Stamped("LightLLM", tokens=100_000)
SGLANG = Stamped("SGLang", tokens=100_000, block_tokens=64)
LLAMA = Stamped("LlamaCpp", tokens=20_000, granule=6656)
SLOTS = Stamped("LlamaCpp", tokens=20_000, blocks=3)
VLLM = Stamped("VLLM", tokens=48_768, blocks=762, block_tokens=64, granule=64)
VLLM_BY_TOKENS = Stamped("VLLM", tokens=48_768, granule=64)
HYBRID = Stamped(
    "VLLM", tokens=30_922, blocks=1525, block_tokens=128, meaning="ConcurrencyTimesContext"
)
HYBRID_BY_TOKENS = Stamped("VLLM", tokens=30_922, granule=128, meaning="ConcurrencyTimesContext")
STATES = Stamped("SGLang", kv_bytes=10 * GIB)


def pod(found: Reading, source: str = INFO, name: str = "a") -> PodReading:
    return PodReading(name, f"uid-{name}", found, source)


def tokens(number: int, **more: int) -> Reading:
    return Reading(tokens=number, **more)


def printed(number: int, context: int, concurrency: str) -> Reading:
    """VLLM's own line."""
    line = f"GPU KV cache size: {number:,} tokens, Maximum concurrency for {context:,} tokens per "
    line += f"request: {concurrency}x"
    found = read_log("VLLM", line)
    assert found.tokens == number
    return found


@pytest.mark.parametrize(
    ("stamped", "found", "source", "percent", "reported"),
    [
        (LIGHTLLM, tokens(100_000), LOG, "0.00", 100_000),
        (LIGHTLLM, tokens(90_112), LOG, "-9.89", 90_112),
        (LIGHTLLM, tokens(100_001), LOG, "0.00", 100_001),  # two digits of a percent
        (LIGHTLLM, tokens(99_999), LOG, "0.00", 99_999),
        (LIGHTLLM, tokens(110_000), LOG, "10.00", 110_000),
        # Pages: less than one is the engine's rounding, one is not.
        (SGLANG, tokens(99_968), INFO, "0.00", 99_968),
        (SGLANG, tokens(99_936), INFO, "-0.06", 99_936),
        # Slots are rounded up to 256 tokens each, three here: 20,736 of 20,000; a slot less is drift.
        (LLAMA, tokens(20_736, blocks=3, block_tokens=6912), INFO, "0.00", 20_736),
        (LLAMA, tokens(14_592, blocks=3, block_tokens=4864), INFO, "-27.04", 14_592),
        (SLOTS, tokens(14_592, blocks=3, block_tokens=4864), INFO, "-27.04", 14_592),
        # The log counts 762 blocks of 64 as 47,625 tokens, as the longest request has 1,000 (a real
        # run); the label says the same, and older releases count 48,768.
        (VLLM, printed(47_625, 1000, "47.62"), LOG, "0.00", 48_768),
        (VLLM_BY_TOKENS, printed(47_625, 1000, "47.62"), LOG, "0.00", 48_768),
        (VLLM_BY_TOKENS, printed(48_768, 1000, "47.62"), LOG, "0.00", 48_768),
        (VLLM_BY_TOKENS, printed(52_375, 1000, "52.38"), LOG, "9.97", 53_632),
        (VLLM_BY_TOKENS, printed(53_632, 1000, "52.38"), LOG, "9.97", 53_632),
        (VLLM, tokens(47_625, blocks=762, block_tokens=64), METRICS, "0.00", 48_768),
        (VLLM, tokens(42_875, blocks=686, block_tokens=64), METRICS, "-9.97", 43_904),
        (VLLM_BY_TOKENS, tokens(42_875, blocks=686, block_tokens=64), METRICS, "-9.97", 43_904),
        # Blocks of another size: tokens decide.
        (VLLM, tokens(48_768, blocks=3048, block_tokens=16), METRICS, "0.00", 48_768),
        # Several groups: blocks, or tokens that the engine itself gave.
        (HYBRID, tokens(195_200, blocks=1525, block_tokens=128), METRICS, "0.00", None),
        (HYBRID, tokens(30_922, blocks=1373, block_tokens=128), METRICS, "-9.97", 30_922),
        (HYBRID_BY_TOKENS, tokens(27_840, blocks=1373, block_tokens=128), METRICS, "-9.97", 27_840),
        (HYBRID_BY_TOKENS, printed(30_922, 2048, "15.10"), LOG, "0.00", 30_922),
        # Bytes where nothing grows with length; the log has two digits of a GiB.
        (STATES, Reading(pool_bytes=10 * GIB - GIB // 200), LOG, "0.00", None),
        (STATES, Reading(pool_bytes=9 * GIB), LOG, "-10.00", None),
    ],
)  # fmt: skip
def test_what_is_compared(
    stamped: Stamped, found: Reading, source: str, percent: str, reported: int | None
) -> None:
    verdict = judge(stamped, [pod(found, source)])
    assert str(verdict.drift_percent) == percent
    assert verdict.reported_tokens == reported
    assert verdict.matches is (abs(Decimal(percent)) <= 5)
    assert verdict.reason == (WITHIN_TOLERANCE if verdict.matches else DRIFT_EXCEEDED)


@pytest.mark.parametrize(
    ("stamped", "found", "source", "reported"),
    [
        # The bytes of vLLM's label are its flag.
        (STATES, Reading(pool_bytes=9 * GIB), METRICS, None),
        # Blocks times their size is no number of tokens that several groups have.
        (HYBRID_BY_TOKENS, tokens(195_200, blocks=1525, block_tokens=128), METRICS, None),
        (Stamped("LightLLM"), tokens(5), LOG, 5),
        (LIGHTLLM, Reading(weights_bytes=1), LOG, None),
    ],
)
def test_what_is_not_compared(
    stamped: Stamped, found: Reading, source: str, reported: int | None
) -> None:
    verdict = judge(stamped, [pod(found, source)])
    assert (verdict.drift_percent, verdict.matches) == (None, None)
    assert verdict.reported_tokens == reported
    assert verdict.reason == NOT_REPORTED


@pytest.mark.parametrize(
    ("number", "matches"), [(95_000, True), (94_990, False), (105_000, True), (105_010, False)]
)
def test_five_percent_is_tolerated(number: int, *, matches: bool) -> None:
    assert judge(LIGHTLLM, [pod(tokens(number), LOG)]).matches is matches


@pytest.mark.parametrize(
    ("numbers", "reported", "percent"),
    [
        ((100_000, 98_000, 99_000), 98_000, "-2.00"),
        ((100_000, 110_000), 110_000, "10.00"),  # the fewest alone would hide it
        ((98_000, 102_000), 98_000, "-2.00"),
    ],
)
def test_the_pod_that_is_furthest_off_decides(
    numbers: tuple[int, ...], reported: int, percent: str
) -> None:
    pods = [pod(tokens(n), LOG, name) for n, name in zip(numbers, "abc", strict=False)]
    for order in (pods, pods[::-1]):
        verdict = judge(LIGHTLLM, order)
        assert (verdict.reported_tokens, str(verdict.drift_percent)) == (reported, percent)


FAILED = PodReading("b", "uid-b", failure="its log cannot be read: pods/log is forbidden")


@pytest.mark.parametrize(
    ("stamped", "readings", "text"),
    [
        (
            LIGHTLLM,
            [pod(tokens(100_000), LOG), FAILED],
            "The engine reports 100000 tokens, as stamped (1 of 2 ready pods read).",
        ),
        (
            SGLANG,
            [pod(tokens(99_968))],
            "The engine reports 99968 tokens, as stamped but for rounding (100000) (1 of 1 ready pods read).",
        ),
        (
            LIGHTLLM,
            [pod(tokens(97_000), LOG)],
            (
                "The engine of pod a reports 97000 tokens where 100000 were stamped (-3.00 %), within "
                "the tolerance of 5 % (1 of 1 ready pods read)."
            ),
        ),
        (
            LIGHTLLM,
            [pod(tokens(90_112), LOG)],
            (
                "The engine of pod a reports 90112 tokens where 100000 were stamped (-9.89 %): fewer "
                "requests run at once than the number promises (1 of 1 ready pods read). Compare "
                "`kubectl logs a -c server` with status.capacity.breakdown, and set spec.engine.version "
                "to the release in the image."
            ),
        ),
        (
            Stamped("SGLang", tokens=100_000, predicted=True),
            [pod(tokens(120_000))],
            (
                "The engine of pod a reports 120000 tokens where 100000 were predicted (+20.00 %): it "
                "takes memory that was kept for other things, and a long prompt may run out of it (1 of "
                "1 ready pods read). Compare `kubectl logs a -c server` with status.capacity.breakdown, "
                "and set spec.engine.version to the release in the image."
            ),
        ),
        (
            HYBRID,
            [pod(tokens(0, blocks=1373, block_tokens=128), METRICS)],
            (
                "The engine of pod a reports 1373 blocks where 1525 were stamped (-9.97 %): fewer "
                "requests run at once than the number promises (1 of 1 ready pods read). Compare "
                "`kubectl logs a -c server` with status.capacity.breakdown, and set spec.engine.version "
                "to the release in the image."
            ),
        ),
        (
            Stamped("LightLLM"),
            [pod(tokens(5), LOG)],
            "The engine of pod a reports 5 tokens; no number was stamped to compare it with.",
        ),
        (
            HYBRID_BY_TOKENS,
            [pod(tokens(195_200, blocks=1525, block_tokens=128), METRICS)],
            (
                "The engine of pod a reports 195200 tokens, counted in another way than the 30922 that "
                "were stamped (ConcurrencyTimesContext); they are not compared."
            ),
        ),
        (
            LIGHTLLM,
            [],
            "No server pod is ready, so no engine was asked for its KV cache; it goes on by itself.",
        ),
        (
            LIGHTLLM,
            [FAILED],
            (
                "No engine has reported its KV cache (1 asked); pod b: its log cannot be read: pods/log "
                "is forbidden. The server works with the stamped number; whether the engine keeps it is "
                "not known."
            ),
        ),
    ],
)
def test_what_is_said(stamped: Stamped, readings: list[PodReading], text: str) -> None:
    assert judge(stamped, readings).text == text


def test_a_pod_that_was_not_read_counts_for_nothing() -> None:
    alone = judge(LIGHTLLM, [pod(tokens(97_000), LOG)])
    beside = judge(LIGHTLLM, [FAILED, pod(tokens(97_000), LOG)])
    assert (alone.matches, alone.drift_percent) == (beside.matches, beside.drift_percent)


def test_readers_of_logs_and_metrics_fit_in() -> None:
    """VLLM's label of bytes is the flag; its blocks are what it made of them."""
    text = (
        'vllm:cache_config_info{block_size="64",num_gpu_blocks="686",kv_cache_memory_bytes="100000000"} 1.0\n'
    )  # fmt: skip
    found = read_endpoint("VLLM", "/metrics", text)
    stamped = Stamped("VLLM", tokens=48_768, granule=64, kv_bytes=100_000_000)
    assert str(judge(stamped, [pod(found, METRICS)]).drift_percent) == "-9.97"


NUMBER = st.none() | st.integers(0, 1 << 50)


@given(
    stamped=st.builds(
        Stamped,
        engine=st.sampled_from(["LightLLM", "SGLang", "VLLM", "TGI", "TensorRTLLM", "LlamaCpp"]),
        tokens=NUMBER,
        blocks=NUMBER,
        block_tokens=NUMBER,
        kv_bytes=NUMBER,
        meaning=st.sampled_from(TOKEN_MEANINGS),
        granule=st.integers(1, 1 << 20),
    ),
    readings=st.lists(
        st.builds(
            PodReading,
            pod=st.sampled_from("abc"),
            uid=st.just("u"),
            found=st.builds(
                Reading,
                tokens=NUMBER,
                blocks=NUMBER,
                block_tokens=NUMBER,
                pool_bytes=NUMBER,
                context=NUMBER,
                concurrency=st.none() | st.just(1.0),
            ),
            source=st.sampled_from([None, METRICS, INFO, LOG]),
        ),
        max_size=4,
    ),
)
def test_whatever_is_read_there_is_a_verdict(stamped: Stamped, readings: list[PodReading]) -> None:
    verdict = judge(stamped, readings)
    assert (verdict.matches is None) == (verdict.drift_percent is None)
    assert verdict.text.endswith(".")
    if verdict.matches is not None and verdict.drift_percent is not None:
        assert verdict.matches == (abs(verdict.drift_percent) <= 5)
        assert str(verdict.drift_percent) != "-0.00"
