"""Cells, flags and laws of the two engines, against worked numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from plimsoll.core import dtypes
from plimsoll.core.arch import ModelSpec, read_spec
from plimsoll.core.budget import Device, Fit, fit
from plimsoll.core.engines import ENGINES, Pinned, lookup
from plimsoll.core.engines.base import largest
from plimsoll.core.errors import BadArgument, FlagNotAllowed, Unsupported
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB, MIB
from tests.oracle import config as config_of

LLAMA3: dict[str, Any] = config_of("released/Llama-3.1-8B")
LLAMA2: dict[str, Any] = config_of("collected/meta-llama/Llama-2-7b-hf")
QWEN3: dict[str, Any] = config_of("released/Qwen3-8B")
MIXTRAL: dict[str, Any] = config_of("released/Mixtral-8x7B")
MISTRAL: dict[str, Any] = config_of("released/Mistral-7B-v0.1 (window on every layer)")
SMOL = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.context_length": 8192,
    "llama.vocab_size": 49152,
}


def lightllm(
    config: dict[str, Any], tensor: int = 1, kv: str = "auto", version: str = "1.2.0"
) -> int:
    request = SizingRequest("LightLLM", version, tensor=tensor, kv_cache_dtype=kv)
    return lookup("LightLLM").cell(read_spec(config), request)


@pytest.mark.parametrize(
    ("config", "tensor", "kv", "cell"),
    [
        # Test vectors of the engines' own memory managers, bytes per token and rank.
        (LLAMA2, 1, "auto", 524_288),
        (LLAMA3, 1, "auto", 131_072),
        (LLAMA3, 1, "bf16", 131_072),
        (LLAMA3, 1, "int8kv", 81_920),
        (LLAMA3, 1, "int8", 81_920),
        (LLAMA3, 1, "int4kv", 49_152),
        (LLAMA3, 1, "fp8kv_sph", 65_536),
        (LLAMA3, 1, "fp8kv_spt", 65_536),
        (LLAMA3, 1, "fp8", 65_536),
        (LLAMA3, 8, "auto", 16_384),
        (QWEN3, 8, "auto", 18_432),
        (QWEN3, 16, "auto", 18_432),  # one head each, replicated
        (MIXTRAL, 1, "int8kv", 131_072),  # its class ignores llm_kv_type
        (MISTRAL, 1, "auto", 131_072),  # its window saves nothing
    ],
)
def test_lightllm_cells(config: dict[str, Any], tensor: int, kv: str, cell: int) -> None:
    assert lightllm(config, tensor, kv) == cell


@pytest.mark.parametrize(
    ("config", "tensor"),
    [
        (LLAMA3, 16),  # 8 KV heads over 16 ranks: its llama class asserts
        (LLAMA3, 3),
        (QWEN3, 3),
        (config_of("released/Qwen2.5-7B (window given, not used)"), 8),  # 28 heads over 8
    ],
)
def test_lightllm_refuses_uneven_heads(config: dict[str, Any], tensor: int) -> None:
    with pytest.raises(Unsupported) as caught:
        lightllm(config, tensor)
    assert (caught.value.reason, caught.value.value) == ("UnsupportedParallelism", tensor)


def test_lightllm_cache_dtypes_that_do_not_exist() -> None:
    with pytest.raises(BadArgument):
        lightllm(LLAMA3, kv="q8_0")
    with pytest.raises(BadArgument):
        lightllm(LLAMA3, kv="fp32")  # the cache has the compute dtype
    assert lightllm(LLAMA3 | {"torch_dtype": "float32"}) == 262_144
    with pytest.raises(Unsupported):
        lightllm(LLAMA3, kv="int8kv", version="1.1.0")  # it has no --llm_kv_type


def test_lightllm_flags_are_exactly_these() -> None:
    engine = lookup("LightLLM")
    pinned = Pinned(100_000, 64, 8192, 4096)
    assert engine.pinned_args(pinned, SizingRequest("LightLLM", "1.2.0")) == [
        "--max_total_token_num=100000",
        "--batch_max_tokens=4096",
        "--chunked_prefill_size=2048",
        "--running_max_req_size=64",
        "--max_req_total_len=8192",
        "--graph_max_batch_size=64",
        "--llm_kv_type=None",
        "--mem_fraction=0.8",
    ]
    without = SizingRequest("LightLLM", "1.1.0", cuda_graphs=False, dtype="bfloat16")
    assert engine.pinned_args(Pinned(5), without) == [
        "--max_total_token_num=5",
        "--disable_cudagraph",
        "--data_type=bf16",
        "--mem_fraction=0.8",
    ]
    own = SizingRequest(
        "LightLLM", "1.2.0", engine_args=("--disable_cudagraph", "--data_type=fp16")
    )
    assert engine.pinned_args(Pinned(5), engine.adopt(own)[0]) == [
        "--max_total_token_num=5",
        "--llm_kv_type=None",
        "--mem_fraction=0.8",
    ]
    assert engine.serve_args(
        model_path="/models/x",
        served_name="x",
        host="0.0.0.0",
        port=8000,
        request=SizingRequest("LightLLM", tensor=2),
    ) == ["--model_dir=/models/x", "--model_name=x", "--host=0.0.0.0", "--port=8000", "--tp=2"]
    assert engine.argv(["--tp=2"]) == ["--tp=2"]


def test_llamacpp_flags_are_exactly_these() -> None:
    engine = lookup("LlamaCpp")
    request = SizingRequest("LlamaCpp", kv_cache_dtype="q8_0")
    assert engine.pinned_args(Pinned(24576, 3, 8192, 4096), request) == [
        "--ctx-size=24576",
        "--parallel=3",
        "--n-gpu-layers=999",
        "--batch-size=4096",
        "--ubatch-size=4096",
        "--cache-type-k=q8_0",
        "--cache-type-v=q8_0",
    ]
    assert engine.pinned_args(Pinned(256), SizingRequest("LlamaCpp"))[:5] == [
        "--ctx-size=256",
        "--parallel=1",
        "--n-gpu-layers=999",
        "--batch-size=2048",
        "--ubatch-size=512",
    ]
    # Its parser knows no "=".
    assert engine.argv(["--ctx-size=24576", "--metrics", "--alias=a=b"]) == [
        "--ctx-size",
        "24576",
        "--metrics",
        "--alias",
        "a=b",
    ]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.type)
def test_no_engine_pins_a_flag_that_a_user_may_set(engine: Any) -> None:
    """A flag of ours is refused, or left out where the user gives it."""
    request = SizingRequest(engine.type)
    pinned = Pinned(1024, 2, 512, 256, 1 << 30, "0.900", 16, 2)
    ours = engine.pinned_args(pinned, request)
    assert ours
    for arg in ours:
        try:
            engine.check_args([arg])
        except FlagNotAllowed:
            continue
        flag = arg.split("=")[0] + "="
        with_it = dataclasses.replace(request, engine_args=(arg,))
        again = engine.pinned_args(pinned, engine.adopt(with_it)[0])
        assert not any(other.startswith(flag) for other in again)


@pytest.mark.parametrize(
    ("kv", "cell"),
    [("auto", 23_040), ("fp16", 23_040), ("fp32", 46_080), ("q8_0", 12_240), ("q4_0", 6480)],
)
def test_llamacpp_cells(kv: str, cell: int) -> None:
    request = SizingRequest("LlamaCpp", kv_cache_dtype=kv)
    assert lookup("LlamaCpp").cell(read_spec(SMOL), request) == cell


def test_llamacpp_takes_one_device_and_its_own_dtypes() -> None:
    with pytest.raises(Unsupported):
        lookup("LlamaCpp").cell(read_spec(SMOL), SizingRequest("LlamaCpp", tensor=2))
    with pytest.raises(BadArgument):
        lookup("LlamaCpp").cell(read_spec(SMOL), SizingRequest("LlamaCpp", kv_cache_dtype="int8kv"))


#: Reserve of SmolLM2 on a CPU build: 512 * 49152 * 4 B + 64 MiB.
SMOL_RESERVE = 512 * 49152 * 4 + 64 * MIB


def smol(
    tokens: int,
    *,
    spare: int = 0,
    weights: int = 98 * MIB,
    version: str = "2026.10+cpu",
    **settings: Any,
) -> Fit:
    """SmolLM2 where the law finds room for exactly so many tokens (and ``spare`` bytes)."""
    left = -(-(tokens * 23_040 + spare) * 100 // 99)
    free = weights + SMOL_RESERVE + left
    device = Device("cpu", free, free, free)
    request = SizingRequest("LlamaCpp", version, **settings)
    return fit(SMOL, None, device, request, weights=[weights])


@pytest.mark.parametrize(
    ("tokens", "settings", "slots", "per_slot", "granule"),
    [
        # tokens in memory, settings -> slots x tokens per slot (the law of the llama.cpp page).
        (8192, {}, 1, 8192, 8192),
        (8191, {}, 1, 7936, 256),  # one slot, lowered because it was defaulted
        (24_576, {}, 3, 8192, 8192),
        (20_000, {}, 2, 8192, 8192),
        (100_000, {}, 12, 8192, 8192),
        (100_000, {"max_concurrent_requests": 5}, 5, 8192, 8192),
        (100_000, {"context_length": 4096}, 24, 4096, 4096),
        (100_000, {"context_length": 1000}, 100, 768, 768),  # whole multiples of 256 only
        (100_000, {"context_length": 20_000}, 12, 8192, 8192),  # never beyond the trained context
        (100_000, {"max_total_token_num": 30_000}, 3, 8192, 8192),
        (100_000, {"max_total_token_num": 5000}, 1, 4864, 256),
        (300, {}, 1, 256, 256),
    ],
)
def test_llamacpp_law(
    tokens: int, settings: dict[str, Any], slots: int, per_slot: int, granule: int
) -> None:
    answer = smol(tokens, **settings)
    allocation = answer.allocation
    assert allocation is not None
    assert answer.error is None
    assert (allocation.sequences, allocation.context_length, allocation.granule) == (
        slots,
        per_slot,
        granule,
    )
    assert answer.tokens == slots * per_slot
    assert answer.args[:2] == (f"--ctx-size={slots * per_slot}", f"--parallel={slots}")
    assert per_slot % 256 == 0
    assert allocation.reserve["activation"] == SMOL_RESERVE


def test_llamacpp_lowers_only_what_was_defaulted() -> None:
    short = smol(200)
    assert short.error is None
    assert short.allocation is not None
    assert short.allocation.prefill_tokens < 512
    assert any("prefillTokens" in warning for warning in short.warnings)
    stated: list[dict[str, Any]] = [{"context_length": 8192}, {"prefill_tokens": 512}]
    for settings in stated:
        refused = smol(200, **settings)
        assert refused.error is not None
        assert (refused.error.reason, refused.error.exit_code) == ("BudgetTooSmall", 1)
        assert "activation" in refused.error.message
        assert refused.tokens == 0


def test_llamacpp_has_no_slot_below_its_granule() -> None:
    with pytest.raises(BadArgument):
        smol(10_000, context_length=255)


def test_a_cpu_build_makes_no_context_and_an_unknown_one_the_widest() -> None:
    engine = lookup("LlamaCpp")
    assert engine.preinit(SizingRequest("LlamaCpp", "2026.10+cpu"), wide=False) == 0
    assert engine.preinit(SizingRequest("LlamaCpp", "2026.10"), wide=False) == GIB // 2
    assert engine.preinit(SizingRequest("LlamaCpp", None), wide=True) > GIB // 2
    unknown = smol(100_000, version="b9999+cpu")
    assert unknown.allocation is not None
    assert unknown.allocation.reserve["activation"] > SMOL_RESERVE
    assert any("b9999+cpu" in warning for warning in unknown.warnings)


H100 = int(79.19 * GIB)


def big(config: dict[str, Any], total: int = H100, **settings: Any) -> Fit:
    weights = settings.pop("weights", None)
    request = SizingRequest("LightLLM", settings.pop("version", "1.2.0"), **settings)
    return fit(config, None, Device("H100", total, total, total), request, weights=weights)


def test_lightllm_first_number_is_the_smaller_of_two_laws() -> None:
    answer = big(LLAMA3)
    budget = answer.budget
    assert budget is not None
    left = budget.free_after_init - budget.weights - sum(budget.reserve.values())
    table = (left - -(-left * 5 // 100)) // 131_072
    fraction = (budget.free_after_init - budget.weights - -(-H100 // 10)) // 131_072
    assert answer.tokens == min(table, fraction) == fraction
    tight = big(LLAMA3, 40 * GIB, max_concurrent_requests=2000)  # a reserve of more than a tenth
    assert tight.budget is not None
    left = tight.budget.free_after_init - tight.budget.weights - sum(tight.budget.reserve.values())
    assert tight.budget.safety == -(-left * 5 // 100)
    assert answer.confidence == tight.confidence == "estimated"


def test_lightllm_terms_of_llama_3_on_an_h100() -> None:
    """Each term recomputed by hand from its sentence; a change here changes every first number."""
    budget = big(LLAMA3).budget
    assert budget is not None
    assert H100 - budget.free_after_init == 51 * GIB // 100
    assert budget.weights == 8_030_261_248 * 2
    rows = 257
    assert budget.reserve == {
        "nonTorch": GIB // 4,
        # 2 * 8192 * (4.26 * 4096 + 3 * 14336) = 990.5e6 loses to the largest tensor passing through.
        "activation": 128_256 * 4096 * 2,
        "workspace": 512 * MIB,
        "requestTables": rows * (131_072 + 8) * 4 + rows * 128_256 * 4,
        "graphs": 256 * 2 * MIB,
        "fragmentation": -(-H100 * 25 // 1000),
    }
    wide = big(LLAMA3, version="latest").budget
    assert wide is not None
    assert sum(wide.reserve.values()) > 1.5 * sum(budget.reserve.values())
    assert wide.free_after_init < budget.free_after_init


@pytest.mark.parametrize(
    ("settings", "term"),
    [
        ({"prefill_tokens": 32_768}, "activation"),
        ({"max_concurrent_requests": 1024}, "requestTables"),
        ({"cuda_graph_max_batch": 512}, "graphs"),
        ({"extra_reserve": GIB}, "extra"),
        ({"max_concurrent_requests": 8192}, "fragmentation"),
    ],
)
def test_lightllm_each_setting_moves_its_term(settings: dict[str, Any], term: str) -> None:
    base, changed = big(LLAMA3).budget, big(LLAMA3, **settings).budget
    assert base is not None
    assert changed is not None
    assert changed.reserve[term] > base.reserve.get(term, 0)


def test_lightllm_experts_cost_activation() -> None:
    dense = MIXTRAL | {"model_type": "mistral", "sliding_window": None}
    terms = []
    for config in (dense, MIXTRAL | {"num_experts_per_tok": 1}, MIXTRAL):
        budget = big(config, weights=[GIB]).budget
        assert budget is not None
        terms.append(budget.reserve["activation"])
    one = 2 * 8192 * 3 * 14_336  # bytes that a further expert per token adds
    assert terms == [terms[0], terms[0] + GIB // 2, terms[0] + GIB // 2 + one]


def test_lightllm_prefill_follows_the_card() -> None:
    for total, prefill in ((H100, 8192), (40 * GIB, 8192), (40 * GIB - 1, 2048)):
        answer = big(QWEN3, total)
        assert answer.allocation is not None
        assert answer.allocation.prefill_tokens == prefill


def test_lightllm_graphs_can_be_off() -> None:
    answer = big(LLAMA3, cuda_graphs=False)
    assert answer.budget is not None
    assert "graphs" not in answer.budget.reserve
    assert "--disable_cudagraph" in answer.args


@pytest.mark.parametrize("total", [19, 20, 22, 24])
def test_lightllm_lowers_a_defaulted_context(total: int) -> None:
    answer = big(LLAMA3, total * GIB)
    allocation = answer.allocation
    assert allocation is not None
    assert answer.tokens is not None
    assert allocation.context_length < 131_072
    assert answer.tokens >= allocation.context_length + 8
    assert answer.tokens > allocation.prefill_tokens
    assert any("contextLength was lowered" in warning for warning in answer.warnings)
    assert f"--max_req_total_len={allocation.context_length}" in answer.args
    one_more = big(LLAMA3, total * GIB, context_length=allocation.context_length + 1)
    assert one_more.error is not None, "a longer context would have fitted"


def test_lightllm_lowers_prefill_after_context() -> None:
    for weights in range(30 * GIB, 39 * GIB, 64 * MIB):
        answer = big(LLAMA3, 40 * GIB, weights=[weights])
        allocation = answer.allocation
        assert allocation is not None
        if answer.error is None and allocation.prefill_tokens < 8192:
            break
    else:
        pytest.fail("no size lowers prefillTokens")
    assert answer.tokens is not None
    assert answer.tokens > allocation.prefill_tokens
    assert any("prefillTokens was lowered" in warning for warning in answer.warnings)
    fixed = big(LLAMA3, 40 * GIB, weights=[weights], prefill_tokens=8192)
    assert fixed.error is not None
    assert fixed.error.field == "spec.sizing.prefillTokens"
    assert "8192" in fixed.error.message


def test_an_explicit_context_is_a_promise() -> None:
    answer = big(LLAMA3, 20 * GIB, context_length=131_072)
    assert answer.error is not None
    assert (answer.error.reason, answer.error.field) == (
        "BudgetTooSmall",
        "spec.sizing.contextLength",
    )
    assert "131080" in answer.error.message
    assert answer.args == ()


def test_weights_larger_than_the_device_are_named() -> None:
    answer = big(LLAMA3, 12 * GIB)
    assert answer.error is not None
    assert answer.error.reason == "WeightsDoNotFit"
    assert "14.96 GiB" in answer.error.message
    assert answer.budget is not None
    assert answer.budget.kv < 0


def test_the_users_own_reserve_is_not_held_against_the_model() -> None:
    answer = big(LLAMA3, extra_reserve=70 * GIB)
    assert answer.error is not None
    assert answer.error.reason == "BudgetTooSmall"
    assert "extra" in answer.error.message


@pytest.mark.parametrize(
    ("least", "most", "limit", "found"),
    [(1, 9, 5, 5), (1, 9, 99, 9), (1, 9, 1, 1), (3, 9, 2, None), (5, 4, 9, None)],
)
def test_largest(least: int, most: int, limit: int, found: int | None) -> None:
    assert largest(least, most, lambda n: n <= limit) == found


def test_no_reserve_is_called_exact() -> None:
    assert {engine.confidence for engine in ENGINES.values()} == {"estimated"}
    assert big(LLAMA3).confidence == smol(8192).confidence == "estimated"


def test_specs_are_values() -> None:
    assert isinstance(read_spec(LLAMA3), ModelSpec)
    assert hash(read_spec(LLAMA3)) == hash(read_spec(dict(LLAMA3)))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_cache_dtype_of_an_engine_can_be_asked_for(engine: str) -> None:
    """The model's own part of the answer knows the elements of each word of an engine."""
    for word in lookup(engine).kv_dtypes.keys() - {"auto", "none"}:
        assert dtypes.canonical(word, "kvCacheDType") in dtypes.SIZES
