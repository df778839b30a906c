"""What becomes flags: as JSON, and on its way from the arithmetic through the report to the words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.budget import Device, Fit, fit
from plimsoll.core.engines import ENGINES, Pinned, lookup
from plimsoll.core.errors import BadArgument, PlimsollError, ResultInvalid
from plimsoll.core.report import Report, decode, encode
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB
from tests.oracle import config, records

CARD: Final = Device(
    "NVIDIA H200", 139 * GIB, 141 * GIB, 138 * GIB, driver="580.1", uuids=("GPU-1",)
)

LLAMA: Final = "released/Llama-3.1-8B"
WINDOWS: Final = "released/Gemma-2-9B"
LATENT: Final = "released/DeepSeek-V2-Lite"
STATES: Final = "released/Qwen3-Next-80B-A3B"

#: Of an engine: what it pins in every model, as JSON keys. None: the four numbers of the report.
_FOUR: Final = {"maxTotalTokenNum", "maxSequences", "contextLength", "prefillTokens"}
KEYS: Final[dict[str, set[str] | None]] = {
    "LightLLM": _FOUR,
    "LlamaCpp": None,
    "SGLang": _FOUR | {"memoryFraction", "blockTokens", "graphBatch"},
    "TensorRTLLM": _FOUR | {"kvCacheBytes", "memoryFraction", "blockTokens"},
    "TGI": _FOUR - {"maxTotalTokenNum"} | {"memoryFraction", "blockTokens"},
    "VLLM": _FOUR - {"maxTotalTokenNum"}
    | {"kvCacheBytes", "memoryFraction", "blockTokens", "graphBatch"},
}


def asked(engine: str, version: str | None = None, *args: str, **more: Any) -> SizingRequest:
    return SizingRequest(engine, version, args, **more)


def delivered(found: Fit) -> Report:
    """The report as the operator reads it."""
    report = found.report(pod_uid="uid", request_hash="hash", model_digest="digest")
    back = decode(encode(report), pod_uid="uid", request_hash="hash")
    assert isinstance(back, Report)
    assert back == report
    return back


@pytest.mark.parametrize(
    ("request_", "model", "more"),
    [
        (asked("LightLLM", "1.2.0"), LLAMA, set()),
        (asked("LightLLM", "1.1.0", "--data_type=float16", "--disable_cudagraph"), LLAMA, set()),
        (asked("LightLLM", "1.2.0", tensor=4), LATENT, set()),
        (asked("LightLLM", None, tensor=2), STATES, {"stateDType"}),
        (asked("LightLLM", None, tensor=2, state_dtype="bf16"), STATES, {"stateDType"}),
        (asked("LlamaCpp", "b6000", max_concurrent_requests=4), LLAMA, set()),
        (asked("LlamaCpp", "b6000+cpu", kv_cache_dtype="q8_0"), WINDOWS, set()),
        (asked("VLLM", "0.25.0"), LLAMA, set()),
        (asked("VLLM", "0.25.0", "--dtype=float16", "--enforce-eager"), LLAMA, set()),
        (asked("VLLM", None, kv_cache_dtype="fp8", prefix_caching=False), LATENT, set()),
        (asked("VLLM", "0.11.0", context_length=8192), WINDOWS, set()),
        (asked("VLLM", "0.25.0", tensor=2, state_dtype="fp32"), STATES, set()),
        (asked("VLLM", "0.25.0", cuda_graphs=False), LLAMA, set()),
        (asked("SGLang", "0.5.23"), LLAMA, set()),
        (asked("SGLang", "0.5.23", "--dtype=float16", kv_cache_dtype="fp8"), LATENT, set()),
        (asked("SGLang", "0.5.23", "--disable-cuda-graph"), LLAMA, set()),
        (asked("SGLang", None, max_concurrent_requests=32), WINDOWS, set()),
        (asked("SGLang", "0.5.23", tensor=2, prefix_caching=False), STATES, set()),
        (asked("TGI", "3.3.7", "--dtype=bfloat16"), LLAMA, set()),
        (asked("TGI", "3.3.7", kv_cache_dtype="fp8", max_total_token_num=100_003), LLAMA, set()),
        (asked("TensorRTLLM", "1.2.0"), LLAMA, set()),
        (asked("TensorRTLLM", None, tensor=2, prefill_tokens=4096), LATENT, set()),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_the_words_are_those_of_the_arithmetic(
    request_: SizingRequest, model: str, more: set[str]
) -> None:
    found = fit(config(model), None, CARD, request_)
    report = delivered(found)
    wanted = KEYS[request_.engine_type]
    assert (report.pinned is None) == (wanted is None)
    if report.pinned is not None and wanted is not None:
        assert set(report.pinned.to_mapping()) == wanted | more
    engine, pinned = lookup(request_.engine_type), report.all_pinned()
    assert found.args
    # The operator never merges the user's flags into the request: both forms must give the same.
    for request in (found.request, request_):
        assert tuple(engine.pinned_args(pinned, request)) == found.args
        assert tuple(engine.pinned_env(pinned, request).items()) == found.env
    # What a status keeps of it is as good.
    assert Pinned.from_mapping(pinned.to_mapping()) == pinned


def test_every_engine_has_a_row() -> None:
    assert set(KEYS) == set(ENGINES)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_no_honest_report_is_refused(engine: str) -> None:
    """Of any model: the checks are for forgers."""
    seen = 0
    for name in sorted(records())[::9]:
        try:
            found = fit(config(name), None, CARD, asked(engine, max_total_token_num=1_000_003))
            report = delivered(found)
        except ResultInvalid as error:  # pragma: no cover - the failure that this looks for
            raise AssertionError(f"{name}: {error}") from error
        except PlimsollError:
            continue
        seen += 1
        words = tuple(lookup(engine).pinned_args(report.all_pinned(), found.request))
        assert words == found.args, name
    assert seen > 10


@pytest.mark.parametrize(
    ("stated", "word"),
    [(None, "float32"), ("auto", "float32"), ("fp32", "float32"), ("bf16", "bfloat16")],
)
def test_lightllms_own_word_for_the_states_dtype(stated: str | None, word: str) -> None:
    found = fit(config(STATES), None, CARD, asked("LightLLM", tensor=2, state_dtype=stated))
    assert f"--linear_att_ssm_data_type={word}" in found.args
    assert delivered(found).all_pinned().state_dtype == word


def test_lightllm_has_no_states_in_fp16() -> None:
    with pytest.raises(BadArgument, match="fp32 or bf16") as caught:
        fit(config(STATES), None, None, asked("LightLLM", state_dtype="fp16"))
    assert caught.value.field == "spec.sizing.stateDType"
    assert fit(config(LLAMA), None, CARD, asked("LightLLM", state_dtype="fp16")).tokens


numbers = st.none() | st.integers(1, 1 << 53)
few = st.none() | st.integers(1, 1 << 20)
pins = st.builds(
    Pinned,
    max_total_token_num=numbers,
    max_sequences=few,
    context_length=numbers,
    prefill_tokens=numbers,
    kv_cache_bytes=numbers,
    memory_fraction=st.none() | st.integers(1, 999).map(lambda n: f"{n / 1000:.3f}"),
    block_tokens=numbers,
    graph_batch=st.none() | st.integers(0, 1 << 20),
    state_dtype=st.sampled_from([None, "float32", "bfloat16"]),
)


@given(pins)
def test_the_mapping_survives(pinned: Pinned) -> None:
    document = pinned.to_mapping()
    assert Pinned.from_mapping(document) == pinned
    assert None not in document.values()
    given_fields = [f.name for f in fields(Pinned) if getattr(pinned, f.name) is not None]
    assert len(document) == len(given_fields)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"more": 1}, "status.capacity.pinned.more"),
        ({"max_sequences": 1}, "status.capacity.pinned.max_sequences"),
        ({"maxSequences": None}, "status.capacity.pinned.maxSequences"),
        ({"memoryFraction": 0.5}, "status.capacity.pinned.memoryFraction"),
        ({"kvCacheBytes": 1.0}, "status.capacity.pinned.kvCacheBytes"),
        ({"blockTokens": (1 << 53) + 1}, "status.capacity.pinned.blockTokens"),
    ],
)
def test_a_mapping_of_another_form_is_refused_by_its_path(
    document: dict[str, Any], field: str
) -> None:
    with pytest.raises(ResultInvalid) as caught:
        Pinned.from_mapping(document, "status.capacity.pinned.")
    assert caught.value.field == field
