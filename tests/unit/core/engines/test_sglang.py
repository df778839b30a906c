"""SGLang: cells, the law of its budget, and the flags that pin it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.arch.spec import CacheGroup, ModelSpec, StateGroup
from plimsoll.core.budget import fit
from plimsoll.core.device import Device
from plimsoll.core.engines import Allocation, Pinned, Situation, lookup
from plimsoll.core.engines import sglang_defaults as defaults
from plimsoll.core.engines.sglang_cells import whole
from plimsoll.core.engines.sglang_flags import FLAGS
from plimsoll.core.errors import BadArgument, FlagNotAllowed, Unsupported
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB, MIB

DATA = Path(__file__).parents[3] / "data"
ENGINE = lookup("SGLang")


def model(
    *caches: CacheGroup,
    architecture: str = "LlamaForCausalLM",
    layers: int = 32,
    **more: Any,
) -> ModelSpec:
    fields: dict[str, Any] = {
        "family": "llama", "hidden": 4096, "heads": 32, "kv_heads": 8, "key_dim": 128,
        "value_dim": 128, "intermediate": 14336, "vocab": 128_256, "context_length": 131_072,
        "dtype": "bf16", "tied": False,
    }  # fmt: skip
    return ModelSpec(architecture=architecture, layers=layers, caches=caches, **{**fields, **more})


LLAMA = model(CacheGroup(32, 8, 128, 128))
MLA = CacheGroup(61, 1, 512, 64, latent=True)
DSA = CacheGroup(61, 1, 512, 64, latent=True, index_dim=128, index_layers=61)
GEMMA4 = model(
    CacheGroup(10, 4, 512, 512),
    CacheGroup(50, 16, 256, 256, window=1024),
    architecture="Gemma4ForConditionalGeneration",
    layers=60,
    modalities=frozenset({"vision"}),
)
# Qwen3.5-9B: 8 of 32 layers keep keys and values, 24 a state of 32 heads of 128 x 128.
HYBRID = model(
    CacheGroup(8, 4, 256, 256),
    architecture="Qwen3_5ForConditionalGeneration",
    states=(
        StateGroup(
            "delta", 24, conv_channels=8192, conv_kernel=4, recurrent=32 * 128 * 128, heads=32,
            groups=16, group_channels=256,
        ),
    ),
)  # fmt: skip


def request(
    *args: str, mode: str | None = "Engine", version: str | None = "0.5.12", **more: Any
) -> SizingRequest:
    return SizingRequest("SGLang", version, args, mode=mode, **more)


def allocate(
    spec: ModelSpec,
    asked: SizingRequest,
    *,
    free: int = 79 * GIB,
    weights: int = 15 * GIB,
    product: str = "NVIDIA H100 80GB HBM3",
    nvml: int = 81_559 * MIB,
    wide: bool = False,
) -> Allocation:
    asked, _ = ENGINE.adopt(asked)
    device = Device(product, free, nvml, free, free)
    cell = ENGINE.cell(spec, asked)
    return ENGINE.allocate(Situation(spec, asked, device, free, free, weights, 0, cell, wide))


@pytest.mark.parametrize(
    ("spec", "tensor", "kv", "cell"),
    [
        # Test vectors of the research on engines, section 8: bytes per token and rank.
        (LLAMA, 1, "auto", 131_072),
        (LLAMA, 8, "auto", 16_384),
        (LLAMA, 16, "auto", 16_384),  # one head each, replicated
        (LLAMA, 1, "fp8_e4m3", 65_536),
        (LLAMA, 1, "fp8_e5m2", 65_536),
        (LLAMA, 1, "nvfp4", 36_864),
        (LLAMA, 1, "mxfp8", 67_584),
        (model(MLA, layers=61), 1, "auto", 70_272),
        (model(MLA, layers=61), 8, "auto", 70_272),
        (model(MLA, layers=61), 8, "fp8", 35_136),
        (model(DSA, layers=61), 8, "auto", 78_324),
        (model(DSA, layers=61), 8, "fp8", 48_068),
    ],
)
def test_cells(spec: ModelSpec, tensor: int, kv: str, cell: int) -> None:
    assert ENGINE.cell(spec, request(tensor=tensor, kv_cache_dtype=kv)) == cell


def test_fp4_counts_no_scales_before_056() -> None:
    assert ENGINE.cell(LLAMA, request(kv_cache_dtype="fp4_e2m1", version="0.5.2")) == 32_768


def test_the_raw_layout_of_sparse_latent_rows_has_no_scales() -> None:
    spec = model(DSA, layers=61)
    raw = request("--dsa-decode-backend=trtllm", kv_cache_dtype="fp8", version="0.5.23")
    assert ENGINE.cell(spec, raw) == 61 * (576 + 132)


def test_data_parallel_attention_divides_by_its_own_ranks() -> None:
    plain = request("--tp-size=16")
    grouped = request("--tp-size=16", "--dp-size=4", "--enable-dp-attention")
    spec = model(CacheGroup(62, 8, 128, 128), layers=62, heads=96)
    assert ENGINE.cell(spec, ENGINE.adopt(plain)[0]) == 62 * 256 * 2
    assert ENGINE.cell(spec, ENGINE.adopt(grouped)[0]) == 2 * 62 * 256 * 2
    with pytest.raises(BadArgument, match="does not divide"):
        ENGINE.cell(spec, request("--dp-size=3", "--enable-dp-attention", tensor=16))


def test_layers_that_share_a_cache_get_a_row_each() -> None:
    # Gemma 4 E4B: 24 of 42 layers own a cache, 4 of them full; SGLang allocates for 42.
    spec = model(
        CacheGroup(4, 2, 512, 512),
        CacheGroup(20, 2, 256, 256, window=512),
        architecture="Gemma4ForConditionalGeneration",
        layers=42,
    )
    expected = 7 * 2 * 1024 * 2 + Fraction(8, 10) * 35 * 2 * 512 * 2
    assert ENGINE.cell(spec, request()) == expected


def test_windows_outside_the_list_of_classes_keep_every_token() -> None:
    window = CacheGroup(32, 8, 128, 128, window=4096)
    assert ENGINE.cell(model(window, architecture="MistralForCausalLM"), request()) == 131_072
    half = CacheGroup(16, 8, 128, 128), CacheGroup(16, 8, 128, 128, window=4096)
    assert ENGINE.cell(model(*half, architecture="Gemma2ForCausalLM"), request()) == 131_072
    gpt_oss = model(
        CacheGroup(18, 8, 64, 64), CacheGroup(18, 8, 64, 64, window=128),
        architecture="GptOssForCausalLM", layers=36,
    )  # fmt: skip
    row = 8 * 128 * 2
    assert ENGINE.cell(gpt_oss, request()) == 18 * row + 18 * row * 8 // 10 + 1  # rounded up
    off = request("--disable-hybrid-swa-memory")
    assert ENGINE.cell(gpt_oss, off) == 36 * row


# The published starts: two RTX 3090, 22.91 GiB free before load.
@pytest.mark.parametrize(
    ("fraction", "printed"),
    [("0.9", 202_093), ("0.92", 214_107)],  # Devstral Small 2 24B AWQ, FP8 cache
)
def test_the_law_on_published_starts(fraction: str, printed: int) -> None:
    spec = model(CacheGroup(40, 8, 128, 128), layers=40)
    asked = request(
        f"--mem-fraction-static={fraction}", "--attention-backend=flashinfer",
        tensor=2, kv_cache_dtype="fp8_e4m3",
    )  # fmt: skip
    found = allocate(spec, asked, free=int(22.91 * GIB), weights=int(12.91 * GIB))
    assert found.tokens == pytest.approx(printed, rel=0.001)
    assert found.confidence == "calibrated"


@pytest.mark.parametrize(("ratio", "printed"), [("0.8", 24_248), ("0.03", 167_877)])
def test_the_law_of_two_pools(ratio: str, printed: int) -> None:
    """Gemma 4 31B on two RTX 3090: 8.33 GiB at 0.85, whatever the ratio (public start-up logs)."""
    weights = int((0.85 * 22.91 - 8.33) * GIB)
    asked = request("--mem-fraction-static=0.85", f"--swa-full-tokens-ratio={ratio}", tensor=2)
    found = allocate(GEMMA4, asked, free=int(22.91 * GIB), weights=weights)
    assert found.tokens == pytest.approx(printed, rel=0.002)
    assert found.meaning == "FullAttentionPool"
    assert found.tokens is not None
    # One request of 131,072 tokens needs as many in the full pool and a window in the other.
    windows = found.tokens * float(ratio) / 1025
    assert found.concurrency == pytest.approx(min(found.tokens / 131_072, windows))


def test_a_windowed_pool_without_room_for_a_window_is_refused() -> None:
    asked = request("--mem-fraction-static=0.85", "--swa-full-tokens-ratio=0.001", tensor=2)
    found = allocate(GEMMA4, asked, free=int(22.91 * GIB), weights=11 * GIB)
    assert found.error is not None
    assert "windowed layers" in str(found.error)


def test_the_state_pool_takes_its_share_first() -> None:
    """Qwen3.5-9B, tp 2, 0.8 of 60.42 GiB: 1,359,146 tokens beside 18.68 GiB of states (public log)."""
    asked = request(
        "--mem-fraction-static=0.8", "--page-size=1", "--mamba-ssm-dtype=bfloat16", tensor=2
    )
    found = allocate(HYBRID, asked, free=int(60.42 * GIB), weights=int(8.96 * GIB))
    assert found.tokens == pytest.approx(1_359_146, rel=0.005)
    slot = 24 * (4096 * 3 * 2 + 16 * 128 * 128 * 2)
    assert ENGINE.state(HYBRID, asked) == slot
    # Printed: max_mamba_cache_size 1521, and one slot for padding; free memory is rounded to 0.01 GiB.
    assert found.fixed_pools // slot in range(1519, 1525)
    assert found.fixed_pools % slot == 0


def test_states_are_fp32_unless_stated_and_convolutions_always_bf16() -> None:
    fp16 = request(dtype="fp16")
    assert ENGINE.state(HYBRID, fp16) == 24 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)
    # 16 groups over 32 ranks: extended by as many as are missing, 256 channels each.
    many = request(tensor=32)
    assert ENGINE.state(HYBRID, many) == 24 * ((8192 + 16 * 256) // 32 * 3 * 2 + 128 * 128 * 4)


def test_state_slots_by_requests_without_prefix_cache() -> None:
    asked = request(
        "--mem-fraction-static=0.8", "--disable-radix-cache", "--max-running-requests=64"
    )
    found = allocate(HYBRID, asked)
    assert found.fixed_pools == 65 * ENGINE.state(HYBRID, asked)
    assert found.sequences == 64
    stated = request("--mem-fraction-static=0.8", "--max-mamba-cache-size=99")
    assert allocate(HYBRID, stated).sequences == 99 // 3


def test_the_newest_release_keeps_back_the_embedding_cache() -> None:
    old = allocate(GEMMA4, request("--mem-fraction-static=0.8"))
    new = allocate(GEMMA4, request("--mem-fraction-static=0.8", version="0.5.23"))
    assert old.kv - new.kv == 100 * MIB
    ipc = request("--mem-fraction-static=0.8", "--mm-feature-transport=cuda_ipc", version="0.5.23")
    assert old.kv - allocate(GEMMA4, ipc).kv == 1124 * MIB


def test_pages() -> None:
    stated = allocate(LLAMA, request("--mem-fraction-static=0.8", "--page-size=64"))
    assert stated.tokens is not None
    assert stated.tokens % 64 == 0
    forced = request("--mem-fraction-static=0.8", "--attention-backend=flashmla", "--page-size=1")
    assert allocate(model(MLA, layers=61), forced).granule == 64
    assert allocate(model(DSA, layers=61), request("--mem-fraction-static=0.8")).granule == 64
    ascend = request("--mem-fraction-static=0.8", "--attention-backend=ascend", "--page-size=1")
    assert allocate(LLAMA, ascend).granule == 1


def test_the_cap_of_the_user_is_a_cap() -> None:
    capped = allocate(LLAMA, request("--mem-fraction-static=0.8", "--max-total-tokens=100k"))
    assert capped.tokens == 100_000
    generous = allocate(LLAMA, request("--mem-fraction-static=0.8", "--max-total-tokens=99M"))
    assert generous.tokens == allocate(LLAMA, request("--mem-fraction-static=0.8")).tokens


def test_a_fraction_that_leaves_nothing_is_refused_and_names_the_least() -> None:
    found = allocate(LLAMA, request("--mem-fraction-static=0.18"))
    assert found.error is not None
    assert "0.190" in str(found.error)


# Evaluated from the formula of 0.5.23 for tensor 1 and 8, on the cards' totals by nvidia-smi.
@pytest.mark.parametrize(
    ("memory", "tensor", "fraction"),
    [
        (15_360, 1, 0.735), (15_360, 8, 0.677), (81_559, 1, 0.830), (81_559, 8, 0.812),
        (143_771, 1, 0.903), (143_771, 8, 0.893), (183_359, 1, 0.854), (183_359, 8, 0.849),
    ],
)  # fmt: skip
def test_the_automatic_fraction(memory: int, tensor: int, fraction: float) -> None:
    release = defaults.release_of("0.5.23")
    chunk, graphs = defaults.card_defaults(release, memory, tensor)
    load = defaults.Load(tensor, 1, chunk, graphs, latent=False)
    found = defaults.automatic_fraction(release, memory, load, LLAMA)
    assert float(found) == pytest.approx(fraction, abs=0.0075)


@pytest.mark.parametrize(
    ("version", "tensor", "fraction"),
    [
        ("0.4.6", 1, 0.88),
        ("0.4.6", 8, 0.81),
        ("0.5.2", 1, 0.874),
        ("0.5.2", 8, 0.83),
        ("0.5.6", 1, 0.835),
    ],
)
def test_the_automatic_fraction_of_older_releases(
    version: str, tensor: int, fraction: float
) -> None:
    release = defaults.release_of(version)
    memory = 80 * 1024 - 361  # an 80 GB card
    chunk, graphs = defaults.card_defaults(release, memory, tensor)
    load = defaults.Load(tensor, 1, chunk, graphs, latent=False)
    found = defaults.automatic_fraction(release, memory, load, LLAMA)
    assert float(found) == pytest.approx(fraction, abs=0.003)


def test_without_a_fraction_the_engines_choice_is_told() -> None:
    found = allocate(LLAMA, request(version="0.5.23"))
    assert found.confidence == "estimated"
    assert "0.83" in found.notes[0]
    less = allocate(LLAMA, request("--chunked-prefill-size=16384", version="0.5.23"))
    assert less.kv < found.kv


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("1k", 1000), ("25.6k", 25_600), ("1M", 10**6), ("1Ki", 1024), ("2Mi", 2 << 20)],
)
def test_numbers_as_sglang_reads_them(text: str, number: int) -> None:
    assert whole(text, "max-total-tokens") == number


@pytest.mark.parametrize(
    "text", ["", "1K", "1.5", "1.5Ki", "-1", "1e3", " 1", "٣", "9" * 16, "1kk", None]
)
def test_numbers_that_are_none(text: str | None) -> None:
    with pytest.raises(BadArgument, match="--page-size"):
        whole(text, "page-size")


@pytest.mark.parametrize("text", ["0", "1.5", "nan", "-0.1", "1/2", "inf", "", "x"])
def test_fractions_that_are_none(text: str) -> None:
    for flag in ("mem-fraction-static", "swa-full-tokens-ratio"):
        with pytest.raises(BadArgument, match=flag):
            allocate(GEMMA4, request(f"--{flag}={text}"))


def test_flag_and_field_may_agree_but_not_differ() -> None:
    asked, _ = ENGINE.adopt(request("--context-length=4096", context_length=4096))
    assert asked.context_length == 4096
    assert ENGINE.adopt(request("--tp=4"))[0].tensor == 4
    with pytest.raises(BadArgument, match="give it once"):
        ENGINE.adopt(request("--context-length=4096", context_length=8192))
    with pytest.raises(BadArgument, match="contradicts"):
        ENGINE.adopt(request("--dtype=float16", dtype="bf16"))


# -- what Plimsoll writes ----------------------------------------------------------------------------

PINNED = {
    "--mem-fraction-static", "--max-total-tokens", "--chunked-prefill-size", "--max-prefill-tokens",
    "--max-running-requests", "--context-length", "--page-size", "--kv-cache-dtype",
    "--swa-full-tokens-ratio", "--mamba-full-memory-ratio",
}  # fmt: skip


def pins(spec: ModelSpec, asked: SizingRequest, **device: Any) -> tuple[Allocation, dict[str, str]]:
    found = allocate(spec, asked, **device)
    assert found.pinned is not None
    args = ENGINE.pinned_args(found.pinned, asked)
    return found, dict(arg.split("=", 1) for arg in args if "=" in arg)


@pytest.mark.parametrize(
    "spec", [LLAMA, model(MLA, layers=61), model(DSA, layers=61), GEMMA4, HYBRID]
)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("free", [24 * GIB, 79 * GIB, 139 * GIB])
def test_the_pinned_fraction_allows_the_number_and_leaves_the_reserve(
    spec: ModelSpec, free: int, *, wide: bool
) -> None:
    asked = request(mode=None, version="0.5.23")
    found, args = pins(spec, asked, free=free, weights=8 * GIB, wide=wide)
    assert found.error is None
    assert free - 8 * GIB - sum(found.reserve.values()) - found.safety == found.kv
    assert args.keys() >= PINNED
    fraction = Fraction(args["--mem-fraction-static"])
    assert len(args["--mem-fraction-static"]) == len("0.123")
    # What the engine itself would take at this fraction, before the cap.
    own = request(*(f"{flag}={args[flag]}" for flag in sorted(args)), version="0.5.23")
    engine = allocate(spec, own, free=free, weights=8 * GIB)
    assert engine.tokens == found.tokens == int(args["--max-total-tokens"])
    # Beside the pools, the named terms still have their room.
    assert found.tokens is not None
    pools = found.tokens * ENGINE.cell(spec, asked) + engine.fixed_pools
    assert free - 8 * GIB - pools >= sum(found.reserve.values())
    assert 0 < fraction < 1


def test_prefill_is_whole_pages() -> None:
    found, args = pins(model(DSA, layers=61), request(mode=None, prefill_tokens=1000))
    assert found.prefill_tokens == 1024 == int(args["--chunked-prefill-size"])


def test_a_defaulted_context_is_lowered_a_stated_one_is_not() -> None:
    small: dict[str, Any] = {"free": 20 * GIB, "weights": 14 * GIB}
    lowered = allocate(LLAMA, request(mode=None), **small)
    assert lowered.error is None
    assert lowered.context_length < 131_072
    assert lowered.tokens is not None
    assert lowered.tokens > lowered.context_length
    assert any("contextLength was lowered" in note for note in lowered.notes)
    stated = allocate(LLAMA, request(mode=None, context_length=131_072), **small)
    assert stated.error is not None
    assert stated.tokens == 0


def test_the_request_table_is_counted() -> None:
    found = allocate(LLAMA, request(mode=None, max_concurrent_requests=100, context_length=8192))
    assert found.reserve["requestTables"] == 101 * 8196 * 4
    assert found.sequences == 100


def test_a_model_without_a_growing_cache() -> None:
    spec = model(architecture="MambaForCausalLM", states=HYBRID.states)
    found = allocate(spec, request(mode=None))
    assert found.tokens is None
    assert found.error is None
    assert found.sequences > 0


def test_the_widest_reserve_is_wider() -> None:
    narrow = allocate(LLAMA, request(mode=None))
    wide = allocate(LLAMA, request(mode=None), wide=True)
    assert wide.kv < narrow.kv


FLAG_TABLES = json.loads((DATA / "engine_flags.json").read_text())["sglang"]


@pytest.mark.parametrize("version", sorted(FLAG_TABLES))
@pytest.mark.parametrize("graphs", [True, False])
def test_every_rendered_flag_exists(version: str, *, graphs: bool) -> None:
    asked = request(
        mode=None, version=version, cuda_graphs=graphs, dtype="bf16", kv_cache_dtype="fp8",
        prefix_caching=False, pipeline=2,
    )  # fmt: skip
    pinned = Pinned(100, 8, 4096, 2048, None, "0.800", 1, 8 if graphs else 0)
    args = ENGINE.pinned_args(pinned, asked)
    args += ENGINE.serve_args(
        model_path="m",
        served_name="n",
        host="0.0.0.0",
        port=1,
        request=asked,
    )
    table = FLAG_TABLES[version]
    for arg in args:
        name, _, value = arg.partition("=")
        assert name in table["all_flags"], name
        choices = (table["flags"].get(name) or {}).get("choices")
        assert choices is None or value in choices, arg
        if name in PINNED:
            assert value.replace(".", "").replace("fp8_e4m3", "").isdigit() or value == "fp8_e4m3"


@pytest.mark.parametrize("version", sorted(FLAG_TABLES))
def test_the_flag_table_names_real_flags(version: str) -> None:
    """Each owned or sizing flag is one of some known release, and none is in two lists."""
    known = {name.lstrip("-") for table in FLAG_TABLES.values() for name in table["all_flags"]}
    neutral = {name.rstrip("!") for name in FLAGS.neutral}
    assert (FLAGS.owned.keys() | FLAGS.sizing | FLAGS.unsized | neutral) - known <= {"attn-dp-size"}
    lists = [set(FLAGS.owned), set(FLAGS.sizing), set(FLAGS.unsized), neutral]
    assert sum(map(len, lists)) == len(set().union(*lists))
    for word in ("auto", "fp8_e4m3", "fp8_e5m2", "bf16"):
        assert word in FLAG_TABLES[version]["flags"]["--kv-cache-dtype"]["choices"]


def test_the_graph_limit_is_left_out_where_its_name_is_not_known() -> None:
    args = ENGINE.pinned_args(Pinned(max_sequences=8), request(mode=None, version="0.5.17"))
    assert not any("graph" in arg for arg in args)
    args = ENGINE.pinned_args(Pinned(max_sequences=8), request(mode=None, version="0.5.12"))
    assert "--cuda-graph-max-bs=8" in args


@pytest.mark.parametrize(
    "arg",
    ["--mem-fraction-static=0.9", "--mem-frac=0.9", "--tp=2", "--max_total_tokens", "--dp-size=2"],
)
def test_owned_flags_are_refused_in_a_cluster(arg: str) -> None:
    with pytest.raises(FlagNotAllowed):
        ENGINE.check_args([arg])


def test_the_users_own_ratio_is_not_written_twice() -> None:
    asked = request("--swa-full-tokens-ratio=0.3", mode=None)
    ENGINE.check_args(asked.engine_args)
    assert not any("swa" in arg for arg in ENGINE.pinned_args(Pinned(), asked))


def test_versions() -> None:
    assert ENGINE.adopt(request(version="0.5.23"))[1] == ()
    assert ENGINE.adopt(request(version="0.5.12.post1"))[1] == ()
    assert "widest" in ENGINE.adopt(request(version="0.6.1"))[1][0]
    assert "none given" in ENGINE.adopt(request(version=None))[1][0]
    with pytest.raises(Unsupported):
        ENGINE.adopt(request(version="0.3.9"))


def test_unlisted_flags_make_an_estimate() -> None:
    notes = ENGINE.adopt(request("--no-such-flag=1", "--enable-lora"))[1]
    assert any("--no-such-flag" in note for note in notes)
    assert any("--enable-lora" in note for note in notes)
    draft = ENGINE.adopt(request("--speculative-algorithm=EAGLE"))[1]
    assert any("draft" in note for note in draft)


def test_through_fit() -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 131_072,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    device = Device("NVIDIA H100 80GB HBM3", 79 * GIB, 81_559 * MIB, 79 * GIB)
    result = fit(config, None, device, request(mode=None), weights=[15 * GIB])
    document = result.document()
    assert document["maxTotalTokenNum"] == result.tokens
    assert result.tokens is not None
    assert result.tokens > 300_000
    assert document["perToken"]["kvBytesPerRank"] == 131_072
    assert {arg.split("=")[0] for arg in document["engine"]["args"]} >= PINNED
    assert document["confidence"] == "estimated"
