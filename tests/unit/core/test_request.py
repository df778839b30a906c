from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.errors import BadArgument
from plimsoll.core.request import SizingRequest

FULL = SizingRequest(
    engine_type="LightLLM",
    engine_version="1.2.0",
    engine_args=("--data_type=bf16", "ä"),
    engine_env=("HF_HOME",),
    tensor=2,
    dtype="bf16",
    kv_cache_dtype="int8kv",
    context_length=8192,
    prefill_tokens=2048,
    max_concurrent_requests=64,
    cuda_graphs=False,
    cuda_graph_max_batch=8,
    extra_reserve=1 << 30,
    max_total_token_num=100_000,
    min_total_token_num=1000,
    model_file="a.gguf",
)


@pytest.mark.parametrize("request_", [FULL, SizingRequest("LlamaCpp")])
def test_round_trip(request_: SizingRequest) -> None:
    assert SizingRequest.from_json(request_.to_json()) == request_


def test_json_is_compact_sorted_and_without_nulls() -> None:
    text = SizingRequest("LightLLM").to_json()
    document = json.loads(text)
    assert text == json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert None not in document.values()
    assert list(document) == [
        "cudaGraphs",
        "dtype",
        "engineArgs",
        "engineEnv",
        "engineType",
        "extraReserve",
        "kvCacheDType",
        "tensor",
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tensor": 0}, "tensor"),
        ({"tensor": True}, "tensor"),
        ({"tensor": "2"}, "tensor"),
        ({"tensor": 2.0}, "tensor"),
        ({"tensor": None}, "tensor"),
        ({"cudaGraphs": 1}, "cudaGraphs"),
        ({"contextLength": -1}, "contextLength"),
        ({"extraReserve": -1}, "extraReserve"),
        ({"extraReserve": 1 << 63}, "extraReserve"),
        ({"engineArgs": "--a"}, "engineArgs"),
        ({"engineArgs": [1]}, "engineArgs"),
        ({"engineArgs": ["x" * 1025]}, "engineArgs"),
        ({"engineArgs": ["x"] * 513}, "engineArgs"),
        ({"engineType": 5}, "engineType"),
        ({"engineType": ""}, "engineType"),
        ({"engineType": None}, "engineType"),
        ({"dtype": "a\nb"}, "dtype"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_strict(change: dict[str, Any], field: str) -> None:
    document = json.loads(FULL.to_json()) | change
    with pytest.raises(BadArgument) as caught:
        SizingRequest.from_json(json.dumps(document))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"engineType":"a","engineType":"b"}',
        "[" * 100_000,
        '{"engineType":"a","tensor":' + "9" * 5000 + "}",
        "x" * 300_000,
    ],
)
def test_not_a_request(text: str) -> None:
    with pytest.raises(BadArgument):
        SizingRequest.from_json(text)


@given(st.text(max_size=64))
def test_arbitrary_text_raises_nothing_else(text: str) -> None:
    with pytest.raises(BadArgument):
        SizingRequest.from_json(text)
