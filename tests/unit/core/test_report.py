"""The termination message: written by us, read as if by an enemy."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.engines import Pinned
from plimsoll.core.errors import ResultInvalid
from plimsoll.core.report import (
    RESERVE_TERMS,
    Budget,
    CudaMemory,
    DeviceClass,
    Failure,
    Report,
    decode,
    encode,
    token_limit,
)
from plimsoll.core.strict import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

UID = "0d9a7f4e-5b5e-4f0e-9d5f-0a3b6d6f9c11"
HASH = "9f8e7d6c5b4a39281706f5e4d3c2b1a098765432"
CLASS = DeviceClass("NVIDIA-H100-80GB-HBM3", 85_520_809_984, None, None, 1)
BUDGET = Budget(
    85_029_615_042,
    85_029_615_042,
    84_000_000_000,
    16_060_522_496,
    {"nonTorch": 1 << 28, "extra": 5},
    3_000_000_000,
    64_671_042_043,
)
REPORT = Report(
    pod_uid=UID,
    request_hash=HASH,
    model_digest="ab" * 32,
    device_class=CLASS,
    driver="580.159.04",
    devices=("GPU-8f0c8b0e-2f1c-4c5a-8a1e-3a7a9d1c2b3d",),
    rank=0,
    budget=BUDGET,
    kv_bytes_per_rank=131_072,
    fixed_pools=0,
    granule=1,
    max_total_token_num=token_limit(BUDGET.kv, 0, 131_072, 1),
    token_meaning="AllLayersFull",
    max_sequences=256,
    context_length=131_072,
    prefill_tokens=8192,
    confidence="estimated",
    model_file=None,
)
PINNED = Pinned(
    max_total_token_num=REPORT.max_total_token_num,
    max_sequences=256,
    context_length=131_072,
    prefill_tokens=8192,
    kv_cache_bytes=BUDGET.kv,
    memory_fraction="0.981",
    block_tokens=16,
    graph_batch=256,
    state_dtype="float32",
)
WITH_PINNED = replace(REPORT, pinned=PINNED)
#: As of an engine whose groups of layers share blocks: bytes are pinned, the number is what they are worth.
BY_BYTES = replace(
    REPORT,
    token_meaning="ConcurrencyTimesContext",
    max_total_token_num=9_000_000,
    pinned=Pinned(max_sequences=256, kv_cache_bytes=BUDGET.kv, block_tokens=16, graph_batch=0),
)
FAILURE = Failure(
    UID, HASH, None, None, None, (), 0, "ModelNotFound", "no model", "spec.model.source", None
)


def read(text: str) -> Report | Failure:
    return decode(text, pod_uid=UID, request_hash=HASH)


def refuse(text: str) -> ResultInvalid:
    with pytest.raises(ResultInvalid) as caught:
        read(text)
    assert caught.value.reason == "ResultInvalid"
    assert len(caught.value.message) < 400
    return caught.value


def test_the_report_survives() -> None:
    text = encode(REPORT)
    assert read(text) == REPORT
    assert len(text.encode()) <= MAX_BYTES
    assert ": " not in text
    assert text.endswith('"end":"plimsoll"}')


def test_the_keys_are_those_of_the_contract() -> None:
    document = json.loads(encode(REPORT))
    assert list(document) == [
        "schema", "podUID", "requestHash", "modelDigest", "class", "driver", "devices", "rank",
        "budget", "perToken", "fixedPools", "granule", "maxTotalTokenNum", "tokenMeaning",
        "maxSequences", "contextLength", "prefillTokens", "modelFile", "confidence", "end",
    ]  # fmt: skip
    assert document["schema"] == "plimsoll.dev/report.v1"
    assert list(json.loads(encode(FAILURE))) == [
        "schema", "podUID", "requestHash", "modelDigest", "class", "driver", "devices", "rank", "error", "end",
    ]  # fmt: skip


def test_a_mig_slice_and_eight_devices_survive() -> None:
    mig = replace(
        REPORT,
        device_class=DeviceClass("NVIDIA A100", 1 << 36, "1g.10gb", "MPS", 8),
        devices=tuple(f"MIG-8f0c8b0e-2f1c-4c5a-8a1e-3a7a9d1c2b3{i}" for i in range(8)),
        model_file="quant/model-q4_1.gguf",
    )
    assert read(encode(mig)) == mig


@pytest.mark.parametrize(
    "report",
    [
        WITH_PINNED,
        BY_BYTES,
        replace(BY_BYTES, token_meaning="BlocksPerGroup"),
        replace(REPORT, pinned=Pinned(memory_fraction="0.5")),
        replace(REPORT, pinned=Pinned(max_total_token_num=REPORT.max_total_token_num)),
    ],
)
def test_what_is_pinned_survives(report: Report) -> None:
    assert read(encode(report)) == report


def test_the_keys_of_what_is_pinned() -> None:
    document = json.loads(encode(WITH_PINNED))
    assert document["pinned"] == {
        "maxTotalTokenNum": REPORT.max_total_token_num, "maxSequences": 256, "contextLength": 131_072,
        "prefillTokens": 8192, "kvCacheBytes": BUDGET.kv, "memoryFraction": "0.981",
        "blockTokens": 16, "graphBatch": 256, "stateDType": "float32",
    }  # fmt: skip
    assert set(document) - set(json.loads(encode(REPORT))) == {"pinned"}
    by_bytes = json.loads(encode(BY_BYTES))["pinned"]
    assert sorted(by_bytes) == ["blockTokens", "graphBatch", "kvCacheBytes", "maxSequences"]


def test_what_is_pinned_is_the_object_else_the_four_numbers() -> None:
    assert WITH_PINNED.all_pinned() is PINNED
    four = Pinned(REPORT.max_total_token_num, 256, 131_072, 8192)
    assert REPORT.all_pinned() == four


ON_CUDA = replace(REPORT, cuda=CudaMemory(BUDGET.device_total, 7))


def test_what_cuda_says_survives() -> None:
    assert read(encode(ON_CUDA)) == ON_CUDA
    assert set(json.loads(encode(ON_CUDA))) - set(json.loads(encode(REPORT))) == {"cuda"}
    larger = replace(REPORT, cuda=CudaMemory(BUDGET.device_total + 1, BUDGET.device_total + 1))
    assert read(encode(larger)) == larger  # a budget may be a part of a device


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"totalBytes": BUDGET.device_total},
        {"totalBytes": BUDGET.device_total, "freeBytes": -1},
        {"totalBytes": BUDGET.device_total, "freeBytes": "1"},
        {"totalBytes": BUDGET.device_total, "freeBytes": BUDGET.device_total + 1},
        {"totalBytes": BUDGET.device_total - 1, "freeBytes": 1},
        {"totalBytes": BUDGET.device_total, "freeBytes": 1, "more": 1},
    ],
)
def test_forged_words_of_cuda_are_refused(value: object) -> None:
    document = json.loads(encode(ON_CUDA))
    document["cuda"] = value
    assert refuse(json.dumps(document, separators=(",", ":"))).message


def test_eight_devices_of_a_tebibyte_fit() -> None:
    most = 1 << 40
    pinned = Pinned(most, 1 << 20, 1 << 30, 1 << 20, most, "0.999", 1 << 12, 1 << 12, "bfloat16")
    large = replace(
        REPORT,
        device_class=DeviceClass("NVIDIA RTX PRO 6000 Blackwell Server Edition", most, "4g.96gb", "MPS", 8),
        devices=("GPU-8f0c8b0e-2f1c-4c5a-8a1e-3a7a9d1c2b3d",) * 8,
        budget=Budget(most, most, most, most, dict.fromkeys(RESERVE_TERMS, most), most, most),
        kv_bytes_per_rank=1 << 30, fixed_pools=most, granule=1 << 12, max_total_token_num=most,
        token_meaning="ConcurrencyTimesContext", max_sequences=1 << 20, context_length=1 << 30,
        prefill_tokens=1 << 20, model_file="x" * 200, pinned=pinned,
        cuda=CudaMemory(most, most),
    )  # fmt: skip
    assert len(encode(large).encode()) <= MAX_BYTES


def test_a_failure_survives() -> None:
    whole = replace(
        FAILURE, model_digest="d", device_class=CLASS, driver="1", devices=("GPU-1",), file="a.json"
    )
    assert read(encode(FAILURE)) == FAILURE
    assert read(encode(replace(whole, exit_code=2))) == whole


@pytest.mark.parametrize("length", [0, 100, 1000, 1500, 2000, 100_000])
@pytest.mark.parametrize("character", ["x", "ä", "\x1b", "\U0001f600", "\ud800", '"'])
def test_a_long_message_is_shortened_to_fit(length: int, character: str) -> None:
    failure = replace(FAILURE, message=character * length, devices=("GPU-" + "0" * 36,) * 8)
    text = encode(failure)
    assert len(text.encode()) <= MAX_BYTES
    back = read(text)
    assert isinstance(back, Failure)
    assert back.reason == "ModelNotFound"
    if length == 1000 and character == "x":
        assert back.message.startswith("x" * 128)


def test_a_report_that_is_too_long_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="bytes"):
        encode(replace(REPORT, devices=("GPU-" + "0" * 36,) * 60))


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            document = document[parent]
        document[last] = value

    return apply


def forged(*changes: Callable[[dict[str, Any]], None]) -> str:
    document = json.loads(encode(REPORT))
    for apply in changes:
        apply(document)
    return json.dumps(document, separators=(",", ":"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "plimsoll.dev/report.v2"),
        ("podUID", "another"),
        ("podUID", 5),
        ("requestHash", "another"),
        ("modelDigest", None),
        ("modelDigest", "x" * 129),
        ("class", None),
        ("class", []),
        ("class.product", "a\nb"),
        ("class.totalBytes", 0),
        ("class.count", 65),
        ("class.mig", 1),
        ("class.more", 1),
        ("driver", "\x1b[2J"),
        ("devices", "GPU-1"),
        ("devices", [1]),
        ("devices", ["x"] * 65),
        ("rank", -1),
        ("rank", False),
        ("budget.kv", 64_671_042_044),
        ("budget.kv", -1),
        ("budget.safety", -1),
        ("budget.weights", True),
        ("budget.weights", 1.0),
        ("budget.weights", "1"),
        ("budget.reserve", []),
        ("budget.reserve.magic", 0),
        ("budget.reserve.nonTorch", 1 << 60),
        ("budget.deviceFree", 1 << 50),
        ("budget.freeAfterInit", 85_029_615_043),
        ("perToken", {}),
        ("perToken.kvBytesPerRank", 0),
        ("perToken.more", 1),
        ("fixedPools", -1),
        ("granule", 0),
        ("granule", 1000),  # the number is no multiple of it
        ("maxTotalTokenNum", 0),
        ("maxTotalTokenNum", -5),
        ("maxTotalTokenNum", 10**30),
        ("maxTotalTokenNum", REPORT.max_total_token_num + 1),
        ("tokenMeaning", "Wishes"),
        ("maxSequences", 0),
        ("maxSequences", 1 << 21),
        ("contextLength", 0),
        ("prefillTokens", 0),
        ("modelFile", "../../etc/passwd"),
        ("modelFile", "/models/a.gguf"),
        ("modelFile", "a b.gguf"),
        ("modelFile", ""),
        ("modelFile", "a/./b"),
        ("modelFile", "x" * 256),
        ("modelFile", 1),
        ("confidence", "certain"),
        ("more", 1),
    ],
)
def test_a_forged_value_is_refused(path: str, value: Any) -> None:
    # The end marker must stay last, or that check would hide the one under test.
    def keep_the_end_last(document: dict[str, Any]) -> None:
        document["end"] = document.pop("end")

    assert refuse(forged(change(path, value), keep_the_end_last)).message


@pytest.mark.parametrize("key", json.loads(encode(REPORT)).keys())
def test_a_missing_key_is_refused(key: str) -> None:
    refuse(forged(lambda document: document.pop(key)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pinned", None),
        ("pinned", []),
        ("pinned", {}),  # nothing limits the pool
        ("pinned", {"maxSequences": 4, "stateDType": "float32"}),
        ("more", 1),
        ("maxTotalTokenNum", None),
        ("maxTotalTokenNum", REPORT.max_total_token_num + 1),
        ("maxTotalTokenNum", 5),
        ("maxSequences", 0),
        ("maxSequences", 1 << 21),
        ("maxSequences", True),
        ("contextLength", 131_071),
        ("prefillTokens", 8193),
        ("kvCacheBytes", 0),
        ("kvCacheBytes", BUDGET.kv + 1),
        ("kvCacheBytes", "1"),
        ("memoryFraction", 1),
        ("memoryFraction", "0.000"),
        ("memoryFraction", "1.5"),
        ("memoryFraction", ".5"),
        ("memoryFraction", "0.5 --trust-remote-code"),
        ("memoryFraction", "0.5\n"),
        ("memoryFraction", "0.\u0665"),
        ("memoryFraction", "0.1234567"),
        ("blockTokens", 0),
        ("graphBatch", -1),
        ("graphBatch", 1 << 21),
        ("stateDType", ""),
        ("stateDType", "float32 --x"),
        ("stateDType", "$(X)"),
        ("stateDType", "-x"),
        ("stateDType", "x" * 33),
        ("stateDType", 32),
    ],
)
def test_a_forged_pin_is_refused(key: str, value: Any) -> None:
    document = json.loads(encode(WITH_PINNED))
    if key == "pinned":
        document["pinned"] = value
    else:
        document["pinned"][key] = value
    caught = refuse(json.dumps(document, separators=(",", ":"), ensure_ascii=False))
    assert caught.field == ("pinned" if key == "pinned" else f"pinned.{key}")


def test_pinned_bytes_that_hold_fewer_tokens_than_are_claimed() -> None:
    fewer = replace(WITH_PINNED, pinned=replace(PINNED, kv_cache_bytes=BUDGET.kv - 131_072))
    assert refuse(encode(fewer)).field == "maxTotalTokenNum"


@pytest.mark.parametrize(
    "report",
    [
        replace(BY_BYTES, pinned=None),  # no bytes: then only tokens limit the pool
        replace(BY_BYTES, pinned=Pinned(memory_fraction="0.9")),
        replace(BY_BYTES, pinned=replace(PINNED, max_total_token_num=9_000_000)),
        replace(BY_BYTES, token_meaning="AllLayersFull"),
        replace(BY_BYTES, token_meaning="FullAttentionPool"),
        replace(BY_BYTES, token_meaning="Ceiling"),
    ],
)
def test_a_meaning_is_no_way_around_the_limit(report: Report) -> None:
    """Only where bytes alone are pinned may the number be more than its terms allow."""
    assert refuse(encode(report)).field == "maxTotalTokenNum"


def test_a_message_that_is_too_long_is_refused_even_if_all_else_is_right() -> None:
    text = encode(REPORT)
    padding = MAX_BYTES - len(text)
    assert read("{" + " " * padding + text[1:]) == REPORT
    assert str(MAX_BYTES) in refuse("{" + " " * (padding + 1) + text[1:]).message


def test_a_pool_that_is_too_small_does_not_add_up_either() -> None:
    smaller = replace(BUDGET, kv=BUDGET.kv - 1)
    assert (
        refuse(encode(replace(REPORT, budget=smaller, max_total_token_num=5))).field == "budget.kv"
    )


def test_a_number_between_two_granules_is_refused() -> None:
    whole = replace(REPORT, granule=256, max_total_token_num=512)
    assert read(encode(whole)) == whole
    refuse(encode(replace(whole, max_total_token_num=513)))


def test_fewer_tokens_than_memory_allows_are_fine() -> None:
    fewer = replace(REPORT, max_total_token_num=1000)
    assert read(encode(fewer)) == fewer


def test_a_larger_number_that_adds_up_needs_more_memory_than_there_is() -> None:
    """Moving every term to kv still cannot exceed what the device has."""
    greedy = replace(BUDGET, weights=1, reserve={}, safety=0, kv=BUDGET.free_after_init - 1)
    tokens = token_limit(greedy.kv, 0, 131_072, 1)
    most = replace(REPORT, budget=greedy, max_total_token_num=tokens)
    assert read(encode(most)) == most
    refuse(encode(replace(REPORT, budget=greedy, max_total_token_num=tokens + 1)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        encode(REPORT)[:-1],
        encode(REPORT)[:500],
        encode(REPORT) + "\n",
        encode(REPORT).replace('"rank":0', '"rank":0,"rank":0'),
        encode(REPORT).replace('"rank":0', '"rank":NaN'),
        encode(REPORT).replace('"rank":0', '"rank":Infinity'),
        encode(REPORT).replace('"rank":0', '"rank":0e1'),
        encode(REPORT).replace('"rank":0', '"rank":1e999'),
        encode(REPORT).replace('"rank":0', '"rank":' + "9" * 1000),
        encode(REPORT).replace('"driver":"580.159.04"', '"driver":"' + "x" * 2000 + '"'),
        "[" * 1500 + '"end":"plimsoll"}',
        '{"a":' * 300 + '{"end":"plimsoll"}',
        '["end":"plimsoll"}',
        '"end":"plimsoll"}',
        '{"error":1,"end":"plimsoll"}',
        '{"\\ud800":1,"end":"plimsoll"}',
        '{"schema":"\ud800","end":"plimsoll"}',
        encode(FAILURE).replace("ModelNotFound", "model not found"),
        encode(FAILURE).replace('"message":"no model"', '"message":"no\\nmodel"'),
        encode(FAILURE).replace('"message":"no model"', '"message":null'),
        encode(FAILURE).replace('"error":{', '"error":{"more":1,'),
        encode(FAILURE).replace('"error":{', '"budget":{},"error":{'),
    ],
)
def test_not_a_result(text: str) -> None:
    refuse(text)


@given(st.text(max_size=300))
def test_arbitrary_text_raises_nothing_else(text: str) -> None:
    refuse(text + '"end":"plimsoll"}')
    refuse(text)


@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_flipped_character_never_raises_anything_else(position: int, code: int) -> None:
    text = encode(REPORT)
    position %= len(text)
    try:
        read(text[:position] + chr(code) + text[position + 1 :])
    except ResultInvalid:
        return


leaves = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False)
)


@given(
    st.sampled_from(sorted(json.loads(encode(REPORT)).keys() - {"end"})),
    st.recursive(
        leaves,
        lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=5), c, max_size=3),
        max_leaves=5,
    ),
)
def test_any_value_under_any_key_raises_nothing_else(key: str, value: Any) -> None:
    document = json.loads(encode(REPORT)) | {key: value}
    try:
        read(json.dumps(document, separators=(",", ":")))
    except ResultInvalid:
        return


def test_tokens_of_a_pool() -> None:
    assert token_limit(1000, 0, 10, 1) == 100
    assert token_limit(1009, 0, 10, 1) == 100
    assert token_limit(1000, 30, 10, 16) == 96
    assert token_limit(-5, 0, 10, 1) == 0
