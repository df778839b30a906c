"""The whole answer: identities, properties, and the document's form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.budget import Device, Fit, fit
from plimsoll.core.errors import BadArgument, BadModel, FlagNotAllowed, PlimsollError, Unsupported
from plimsoll.core.report import RESERVE_TERMS, decode, encode, token_limit
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB
from plimsoll.core.weights import Manifest, TensorKind

CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
DEVICE = Device("NVIDIA-H100", 80 * GIB, 81 * GIB, 79 * GIB, driver="580.1", uuids=("GPU-1",))
REQUEST = SizingRequest("LightLLM", "1.2.0")

requests = st.builds(
    SizingRequest,
    engine_type=st.sampled_from(["LightLLM", "LlamaCpp"]),
    engine_version=st.sampled_from(["1.2.0", "2026.10", "2026.10+cpu", None]),
    engine_args=st.sampled_from([(), ("--new_flag",)]),
    context_length=st.none() | st.integers(256, 200_000),
    prefill_tokens=st.none() | st.integers(1, 16_384),
    max_concurrent_requests=st.none() | st.integers(1, 2048),
    cuda_graphs=st.booleans(),
    extra_reserve=st.integers(0, 4 * GIB),
    max_total_token_num=st.none() | st.integers(1, 1 << 22),
    min_total_token_num=st.none() | st.integers(1, 1 << 22),
)
sizes = st.integers(1, 200 * GIB)


def answer(request: SizingRequest, total: int, weights: int) -> Fit:
    return fit(CONFIG, None, Device("x", total, total, total), request, weights=[weights])


@given(requests, sizes, sizes)
def test_every_byte_is_accounted_for(request: SizingRequest, total: int, weights: int) -> None:
    result = answer(request, total, weights)
    budget, allocation = result.budget, result.allocation
    assert budget is not None
    assert allocation is not None
    terms = sum(budget.reserve.values())
    assert budget.kv == budget.free_after_init - budget.weights - terms - budget.safety
    assert set(budget.reserve) <= set(RESERVE_TERMS)
    assert all(type(size) is int and size >= 0 for size in budget.reserve.values())
    assert budget.safety >= 0
    tokens = result.tokens
    assert tokens is not None
    if result.error is not None:
        assert tokens == 0
        assert result.exit_code == 1
        return
    cell = result.kv_bytes_per_rank
    assert cell is not None
    assert tokens > 0
    assert tokens * cell + allocation.fixed_pools <= budget.kv
    assert tokens % allocation.granule == 0
    assert tokens <= token_limit(budget.kv, allocation.fixed_pools, cell, allocation.granule)
    assert tokens <= (request.max_total_token_num or tokens)
    assert tokens >= (request.min_total_token_num or 0)
    assert 0 < allocation.largest_request <= min(tokens, allocation.context_length)


@given(requests, st.integers(GIB, 200 * GIB), st.integers(1, 100 * GIB))
def test_a_report_of_it_survives_the_way(request: SizingRequest, total: int, weights: int) -> None:
    result = answer(request, total, weights)
    if result.error is not None:
        with pytest.raises(type(result.error)):
            result.report(pod_uid="u", request_hash="h", model_digest="d")
        return
    report = result.report(pod_uid="u", request_hash="h", model_digest="d")
    text = encode(report)
    assert len(text.encode()) <= 2048
    assert decode(text, pod_uid="u", request_hash="h") == report


@given(
    st.sampled_from(["LightLLM", "LlamaCpp"]),
    st.integers(16 * GIB, 120 * GIB),
    st.integers(0, 8 * GIB),
    st.integers(512, 32_768),
    st.integers(1, 16_384),
)
def test_more_free_memory_never_gives_fewer_tokens(
    engine: str, free: int, more: int, context: int, prefill: int
) -> None:
    """With settings that are stated; a defaulted context rises with memory, and its tables with it."""
    request = SizingRequest(engine, "1.2.0", context_length=context, prefill_tokens=prefill)
    device = Device("x", 128 * GIB, 128 * GIB, free)
    less = fit(CONFIG, None, device, request)
    greater = fit(CONFIG, None, replace(device, free=free + more), request)
    assert less.tokens is not None
    assert greater.tokens is not None
    assert less.tokens <= greater.tokens


@given(st.integers(16 * GIB, 40 * GIB), st.integers(0, GIB))
def test_a_defaulted_context_costs_at_most_a_rounding(free: int, more: int) -> None:
    device = Device("x", 48 * GIB, 48 * GIB, free)
    less = fit(CONFIG, None, device, REQUEST)
    greater = fit(CONFIG, None, replace(device, free=free + more), REQUEST)
    assert less.tokens is not None
    assert greater.tokens is not None
    assert less.tokens <= greater.tokens + 2


def test_the_document_has_every_key_always() -> None:
    keys = {
        "schema", "model", "perToken", "perSequence", "perEncoderToken", "budget", "maxTotalTokenNum",
        "tokenMeaning", "maxSequences", "maxContextLength", "concurrencyAtContext", "engine",
        "confidence", "warnings",
    }  # fmt: skip
    alone = fit(CONFIG, None, None, None).document()
    with_engine = fit(CONFIG, None, None, REQUEST).document()
    whole = fit(CONFIG, None, DEVICE, REQUEST).document()
    refused = fit(CONFIG, None, DEVICE, replace(REQUEST, min_total_token_num=10**9)).document()
    for document in (alone, with_engine, whole):
        assert document.keys() == keys
        assert json.loads(json.dumps(document)) == document
    assert refused.keys() == keys | {"error"}
    gpu_part = (
        "budget",
        "maxTotalTokenNum",
        "maxSequences",
        "maxContextLength",
        "concurrencyAtContext",
    )
    for document in (alone, with_engine):
        assert [document[key] for key in gpu_part] == [None] * 5
    assert (
        alone["engine"],
        alone["perToken"]["kvBytesPerRank"],
        alone["perSequence"]["stateBytesEngine"],
    ) == (None,) * 3
    assert alone["confidence"] == "exact"
    assert with_engine["engine"] == {"type": "LightLLM", "version": "1.2.0", "args": [], "env": {}}
    assert None not in [whole[key] for key in gpu_part]
    assert whole["budget"].keys() == {
        "deviceTotal", "deviceFree", "freeAfterInit", "weights", "reserve", "safety", "kv",
    }  # fmt: skip
    assert whole["budget"]["deviceTotal"] == 80 * GIB
    assert whole["budget"]["deviceFree"] == 79 * GIB
    assert refused["maxTotalTokenNum"] == 0
    assert refused["engine"]["args"] == []
    assert refused["error"]["reason"] == "BudgetTooSmall"
    assert refused["error"].keys() == {"reason", "message", "field", "file", "value"}


def test_concurrency_is_at_the_stated_context_or_the_models() -> None:
    whole = fit(CONFIG, None, DEVICE, REQUEST).document()
    tokens = whole["maxTotalTokenNum"]
    assert whole["concurrencyAtContext"] == {
        "context": 32768,
        "requests": round(tokens / 32768, 2),
    }
    stated = fit(CONFIG, None, DEVICE, replace(REQUEST, context_length=4096)).document()
    assert stated["concurrencyAtContext"]["context"] == 4096
    assert stated["maxContextLength"] == 4096
    assert whole["maxContextLength"] == 32768


def test_a_longer_context_than_the_models_is_not_silently_cut() -> None:
    result = fit(CONFIG, None, DEVICE, replace(REQUEST, context_length=65536))
    assert any("65536" in warning and "32768" in warning for warning in result.warnings)


def test_free_after_init_wins_over_free() -> None:
    derived = fit(CONFIG, None, DEVICE, REQUEST).budget
    stated = fit(CONFIG, None, replace(DEVICE, free_after_init=70 * GIB), REQUEST).budget
    assert derived is not None
    assert stated is not None
    assert derived.free_after_init < derived.device_free
    assert stated.free_after_init == 70 * GIB


def test_the_heaviest_rank_counts() -> None:
    request = replace(REQUEST, tensor=2)
    budget = fit(CONFIG, None, DEVICE, request, weights=[7 * GIB, 9 * GIB]).budget
    assert budget is not None
    assert budget.weights == 9 * GIB


@pytest.mark.parametrize("weights", [[], [GIB, GIB, GIB], [0], [-1]])
def test_weights_are_given_once_or_for_each_rank(weights: list[int]) -> None:
    with pytest.raises(BadArgument):
        fit(CONFIG, None, DEVICE, replace(REQUEST, tensor=2), weights=weights)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (SizingRequest("Vllm"), Unsupported),
        (SizingRequest(""), BadArgument),  # a device without an engine
        (SizingRequest("LightLLM", tensor=0), BadArgument),
        (SizingRequest("LightLLM", engine_args=("--max_total_token_num=5",)), FlagNotAllowed),
        (SizingRequest("LightLLM", engine_env=("CUDA_VISIBLE_DEVICES",)), FlagNotAllowed),
        (SizingRequest("LightLLM", dtype="float7"), BadArgument),
        (SizingRequest("LightLLM", dtype="int8"), BadArgument),  # only stored, never computed in
        (SizingRequest("LightLLM", engine_args=("--data_type=fp8",)), BadArgument),
        (SizingRequest("LlamaCpp", dtype="q4_0"), BadArgument),
        (SizingRequest("LightLLM", kv_cache_dtype="float7"), BadArgument),
        (SizingRequest("LlamaCpp", tensor=2), Unsupported),
    ],
)
def test_refusals(request_: SizingRequest, kind: type[PlimsollError]) -> None:
    with pytest.raises(kind):
        fit(CONFIG, None, DEVICE, request_)


def test_a_config_that_names_a_dtype_for_storage_only() -> None:
    stored = {**CONFIG, "torch_dtype": "float8_e4m3fn"}
    with pytest.raises(BadArgument) as caught:
        fit(stored, None, DEVICE, REQUEST)
    assert caught.value.field == "torch_dtype"
    assert fit(stored, None, DEVICE, replace(REQUEST, dtype="bf16")).tokens


def test_a_format_that_the_engine_does_not_load() -> None:
    manifest = Manifest.of({"blk.0.x": TensorKind("F16", (1,), 2)}, "gguf")
    with pytest.raises(BadModel) as caught:
        fit(CONFIG, manifest, None, REQUEST)
    assert caught.value.reason == "WeightsUnreadable"


@pytest.mark.parametrize(
    ("settings", "full"),
    [
        ({}, 57_344),
        ({"dtype": "fp32"}, 114_688),
        ({"kv_cache_dtype": "fp8"}, 28_672),
        ({"kv_cache_dtype": "int4kv"}, 14_336),
        ({"kv_cache_dtype": "q8_0"}, 30_464),
        ({"dtype": "fp32", "kv_cache_dtype": "bf16"}, 57_344),
    ],
)
def test_the_cache_is_counted_in_the_chosen_dtype(settings: dict[str, Any], full: int) -> None:
    assert fit(CONFIG, None, None, SizingRequest(**settings)).cache.all_full == full
    named = CONFIG | {"torch_dtype": "float32"}
    assert fit(named, None, None, None).cache.all_full == 114_688


def test_an_unlisted_flag_widens_the_reserve_and_says_so() -> None:
    plain = fit(CONFIG, None, DEVICE, REQUEST)
    odd = fit(CONFIG, None, DEVICE, replace(REQUEST, engine_args=("--brand_new=1",)))
    assert plain.tokens is not None
    assert odd.tokens is not None
    assert odd.tokens < plain.tokens
    assert any("--brand_new" in warning for warning in odd.warnings)
    model_only = fit(CONFIG, None, None, replace(REQUEST, engine_args=("--brand_new=1",)))
    assert model_only.confidence == "estimated"


def test_an_answer_without_a_device_has_nothing_to_pin() -> None:
    with pytest.raises(ValueError, match="no device"):
        fit(CONFIG, None, None, REQUEST).pinned()


@pytest.mark.parametrize(
    "name", ["a b.gguf", "../a.gguf", "/a.gguf", "a//b.gguf", "-\n.gguf", "x" * 256]
)
def test_a_file_name_that_cannot_be_an_argument_is_refused(name: str) -> None:
    result = replace(fit(CONFIG, None, DEVICE, REQUEST), model_file=name)
    with pytest.raises(BadModel):
        result.report(pod_uid="u", request_hash="h", model_digest="d")
