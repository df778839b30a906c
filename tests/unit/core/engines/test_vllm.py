"""vLLM: how it groups layers, its law of memory by release, and the flags that pin it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.arch.spec import CacheGroup, Encoder, ModelSpec, StateGroup
from plimsoll.core.device import Device
from plimsoll.core.engines import Allocation, Pinned, Situation, lookup
from plimsoll.core.engines import vllm_blocks as blocks
from plimsoll.core.engines import vllm_releases as releases
from plimsoll.core.engines.vllm_flags import FLAGS
from plimsoll.core.errors import BadArgument, FlagNotAllowed, Unsupported
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB, MIB

DATA = Path(__file__).parents[3] / "data"
ENGINE = lookup("VLLM")
H100 = "NVIDIA H100 80GB HBM3"


def model(*caches: CacheGroup, layers: int = 32, **more: Any) -> ModelSpec:
    fields: dict[str, Any] = {
        "architecture": "LlamaForCausalLM", "family": "llama", "hidden": 4096, "heads": 32,
        "kv_heads": 8, "key_dim": 128, "value_dim": 128, "intermediate": 14336, "vocab": 128_256,
        "context_length": 131_072, "dtype": "bf16", "tied": False,
    }  # fmt: skip
    return ModelSpec(layers=layers, caches=caches, **{**fields, **more})


def full(layers: int, heads: int = 2, dim: int = 64) -> CacheGroup:
    return CacheGroup(layers, heads, dim, dim)


def window(layers: int, heads: int = 2, dim: int = 64, reach: int = 512) -> CacheGroup:
    return CacheGroup(layers, heads, dim, dim, window=reach)


LLAMA = model(CacheGroup(32, 8, 128, 128))
MLA = model(CacheGroup(61, 1, 512, 64, latent=True), layers=61)
DSA = model(CacheGroup(61, 1, 512, 64, latent=True, index_dim=128, index_layers=61), layers=61)
GEMMA3 = model(full(5), window(25), layers=30)


def delta(layers: int, heads: int) -> StateGroup:
    """Gated delta rule with 16 key heads, all heads 128 wide."""
    channels = (2 * 16 + heads) * 128
    return StateGroup(
        "delta", layers, conv_channels=channels, conv_kernel=4, recurrent=heads * 128 * 128,
        heads=heads, groups=16, group_channels=256,
    )  # fmt: skip


QWEN35_9B = model(CacheGroup(8, 4, 256, 256), states=(delta(24, 32),))
QWEN35_27B = model(CacheGroup(16, 4, 256, 256), states=(delta(48, 48),), layers=64, heads=24)


def request(
    *args: str, mode: str | None = "Engine", version: str | None = "0.33.0", **more: Any
) -> SizingRequest:
    return SizingRequest("VLLM", version, args, mode=mode, **more)


def allocate(
    spec: ModelSpec,
    asked: SizingRequest,
    *,
    total: int = int(79.19 * GIB),
    free: int = int(78.68 * GIB),
    weights: int = 15 * GIB,
) -> Allocation:
    asked, doubts = ENGINE.adopt(asked)
    device = Device(H100, total, 81_559 * MIB, free, free)
    cell = ENGINE.cell(spec, asked)
    situation = Situation(spec, asked, device, total, free, weights, 0, cell, bool(doubts))
    return ENGINE.allocate(situation)


# -- groups and blocks ---------------------------------------------------------------------------------


def cut(
    spec: ModelSpec, asked: SizingRequest | None = None, block: int = 16, *, hybrid: bool = True
) -> blocks.Layout:
    found = blocks.layout(spec, asked or request(), block=block, hybrid=hybrid)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("spec", "groups", "layers"),
    [
        # The smallest class sets the size: 5 full, 25 windows in 5 tables.
        (GEMMA3, 6, 5),
        # 11 windows beside 5 full: three tables, the last with 4 layers of padding.
        (model(full(5), window(11), layers=16), 4, 5),
        # Below 1.5 times the smallest, the largest does: one padding layer, not 12 + 12 + 1.
        (model(full(13), window(12), layers=25), 2, 13),
        (model(full(20), window(29), layers=49), 2, 29),
        # Exactly 1.5 times is no longer below.
        (model(full(20), window(30), layers=50), 3, 20),
        # One window on every layer is one table.
        (model(window(32)), 1, 32),
        (LLAMA, 1, 32),
    ],
)
def test_groups_are_of_equal_size(spec: ModelSpec, groups: int, layers: int) -> None:
    found = cut(spec)
    assert len(found.groups) == groups
    page = 16 * max(group.row for group in spec.caches) * 2
    assert found.block_bytes == layers * page


def test_what_one_request_takes_of_windows() -> None:
    """4,096 tokens, window 512, batches of 2,048, blocks of 16."""
    found = cut(GEMMA3)
    assert found.block_bytes == 5 * 16 * 2 * 2 * 64 * 2
    # full: 4096 / 16 = 256; each window table: ceil((511 + 2048) / 16) + 1 = 161.
    assert found.request_blocks(4096, 2048, 2) == 256 + 5 * 161
    # Two batches in flight (0.33): 511 + 4096 is more than the request, 256 + 1.
    assert found.request_blocks(4096, 2 * 2048, 2) == 256 + 5 * 257
    # Without the hybrid manager every layer keeps every token.
    flat = cut(GEMMA3, hybrid=False)
    assert (len(flat.groups), flat.block_bytes) == (1, 30 * 16 * 512)
    assert flat.request_blocks(4096, 2048, 2) == 256


def test_chunks_need_no_block_more() -> None:
    chunked = CacheGroup(36, 8, 128, 128, window=8192, chunked=True)
    found = cut(model(full(12, 8, 128), chunked, layers=48))
    assert len(found.groups) == 4
    # ceil((8192 + 8192) / 16) for each chunk table, 131,072 / 16 for the full one.
    assert found.request_blocks(131_072, 8192, 2) == 8192 + 3 * 1024


def test_smaller_layers_get_longer_blocks() -> None:
    """Gemma 4: a full layer costs half of a windowed one, so its block holds twice the tokens."""
    spec = model(full(10, 4, 512), window(50, 16, 256, 1024), layers=60)
    found = cut(spec)
    assert found.block_bytes == 10 * 16 * 16_384
    assert [group.kind.block for group in found.groups] == [32, 16, 16, 16, 16, 16]
    # ceil(4096 / 32) and five times ceil((1023 + 2048) / 16) + 1.
    assert found.request_blocks(4096, 2048, 2) == 128 + 5 * 193


def test_index_keys_lie_beside_their_rows() -> None:
    found = cut(DSA, block=64)
    assert (len(found.groups), found.block_bytes) == (1, 64 * 61 * (1152 + 132))
    packed = cut(DSA, request(kv_cache_dtype="fp8"), block=64)
    assert packed.block_bytes == 64 * 61 * (656 + 132)


def test_cross_attention_has_a_table_of_its_own() -> None:
    """Whisper large: 32 layers of 20 heads of 64 on either side, 1,500 encoder positions."""
    spec = model(
        full(32, 20), heads=20, kv_heads=20, encoder=Encoder(32 * 2 * 20 * 64, 1500)
    )  # fmt: skip
    found = cut(spec)
    assert found.block_bytes == 32 * 16 * 5120
    assert found.request_blocks(448, 2048, 2) == 28 + 94


@pytest.mark.parametrize(
    ("spec", "block", "printed_gib", "printed"),
    # Public start-up logs of 0.19.0 on four ranks: "Setting attention block size to ... tokens".
    [(QWEN35_9B, 528, 15.36, 502_656), (QWEN35_27B, 784, 7.47, 122_304)],
)
def test_states_raise_the_block(
    spec: ModelSpec, block: int, printed_gib: float, printed: int
) -> None:
    found = cut(spec, request(tensor=4))
    assert found.block == block
    assert len(found.groups) == 4
    own = request(
        f"--kv-cache-memory-bytes={int(printed_gib * GIB)}", "--max-model-len=32768",
        version="0.19.0", tensor=4,
    )  # fmt: skip
    tokens = allocate(spec, own, weights=4 * GIB).tokens
    assert tokens is not None
    # The log rounds to 0.01 GiB: up to 1.4 blocks per table of the larger model.
    assert abs(tokens - printed) <= 2 * block


def test_states_take_blocks_of_every_request() -> None:
    found = cut(QWEN35_9B)
    state = 24 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)
    assert ENGINE.state(QWEN35_9B, request()) == state
    assert found.block_bytes == 8 * 528 * 4096 >= state / 3
    # Three tables of states: two blocks each since 0.21, one without prefix caching and before.
    long = request("--max-model-len=5280", f"--kv-cache-memory-bytes={100 * found.block_bytes}")
    plain = replace(long, engine_args=(*long.engine_args, "--no-enable-prefix-caching"))
    assert allocate(QWEN35_9B, long).concurrency == pytest.approx(100 / (10 + 6))
    assert allocate(QWEN35_9B, plain).concurrency == pytest.approx(100 / (10 + 3))
    old = replace(long, engine_version="0.19.0")
    assert allocate(QWEN35_9B, old).concurrency == pytest.approx(100 / (10 + 3))


def test_a_model_of_states_alone_prints_no_tokens() -> None:
    found = allocate(model(states=(delta(32, 32),)), request())
    assert found.tokens is None
    assert found.error is None
    assert found.sequences > 0


@pytest.mark.parametrize(
    ("version", "printed"),
    # 100 blocks of 16 in 6 tables; one request takes 256 + 5 * 161 of them (0.33: 5 * 257).
    [
        ("0.19.0", 100_000 // 6 * 16),
        ("0.22.0", int(100_000 / 1061 * 4096)),
        ("0.33.0", int(100_000 / 1541 * 4096)),
    ],
)
def test_the_log_counts_tokens_by_release(version: str, printed: int) -> None:
    size = 100_000 * cut(GEMMA3).block_bytes
    flags = (f"--kv-cache-memory-bytes={size}", "--max-model-len=4096")
    asked = request(*flags, "--max-num-batched-tokens=2048", version=version)
    assert allocate(GEMMA3, asked).tokens == printed


# -- the law of memory -----------------------------------------------------------------------------------


def test_the_law_of_mode_engine() -> None:
    asked = request("--gpu-memory-utilization=0.85", "--max-model-len=8192")
    found = allocate(LLAMA, asked)
    requested = -(-int(79.19 * GIB) * 85 // 100)
    assert found.kv == requested - 15 * GIB - sum(found.reserve.values())
    assert int(78.68 * GIB) - requested == found.safety
    assert found.blocks == found.kv // (16 * 131_072)
    assert found.reserve["graphs"] > 0


def test_graphs_are_inside_since_021_and_the_default_share_grew() -> None:
    eager = ("--enforce-eager", "--gpu-memory-utilization=0.9", "--max-model-len=8192")
    for version, inside in (("0.19.0", False), ("0.22.0", True)):
        with_graphs = allocate(LLAMA, request(*eager[1:], version=version))
        assert (with_graphs.kv < allocate(LLAMA, request(*eager, version=version)).kv) is inside
    old, new = (
        allocate(LLAMA, request(version=v, cuda_graphs=False)) for v in ("0.19.0", "0.21.0")
    )
    assert new.kv - old.kv == pytest.approx(0.02 * 79.19 * GIB, abs=2)


def test_more_than_is_free_is_refused_at_the_start() -> None:
    found = allocate(LLAMA, request("--gpu-memory-utilization=0.95"), free=70 * GIB)
    assert found.error is not None
    assert "--gpu-memory-utilization" in str(found.error.field)
    assert allocate(LLAMA, request("--gpu-memory-utilization=0.85"), free=70 * GIB).error is None


def test_one_request_that_does_not_fit_is_refused() -> None:
    small = f"--kv-cache-memory-bytes={GIB}"  # 8,192 tokens of 131,072 bytes
    refused = allocate(LLAMA, request(small, "--max-model-len=8192"))
    assert refused.error is not None
    assert refused.error.reason == "BudgetTooSmall"
    assert "513 blocks" in str(refused.error)
    assert refused.tokens == 0
    assert allocate(LLAMA, request(small, "--max-model-len=8176")).error is None
    fitted = allocate(LLAMA, request(small, "--max-model-len=auto"))
    assert fitted.error is None
    assert fitted.context_length == 8176


def test_the_number_of_blocks_wins() -> None:
    asked = request("--num-gpu-blocks-override=1000", "--max-model-len=8192")
    found = allocate(LLAMA, asked)
    assert (found.blocks, found.tokens) == (1000, int(1000 / 512 * 8192))
    assert found.kv == 1000 * 16 * 131_072


@pytest.mark.parametrize(
    ("name", "gib", "tokens", "sequences"),
    [
        (H100, 79.19, 8192, 1024), ("NVIDIA A100-SXM4-80GB", 79.25, 2048, 256),
        ("NVIDIA L4", 22.03, 2048, 256), ("NVIDIA B200", 178.4, 16384, 1024),
    ],
)  # fmt: skip
def test_defaults_by_card(name: str, gib: float, tokens: int, sequences: int) -> None:
    assert releases.card_defaults("0.33.0", name, int(gib * GIB), 1) == (tokens, sequences)


def test_a_cpu_build_has_no_context_and_scales_with_ranks() -> None:
    cpu = request(version="0.32.0+cpu", tensor=2)
    assert ENGINE.preinit(cpu, wide=False) == 0
    assert ENGINE.preinit(request(tensor=2), wide=False) > GIB
    assert releases.card_defaults("0.32.0+cpu", "", 8 * GIB, 2) == (4096, 256)


@pytest.mark.parametrize(
    ("text", "number"), [("64M", 1 << 26), ("1k", 1000), ("1K", 1024), ("25.6k", 25_600)]
)
def test_numbers_as_vllm_reads_them(text: str, number: int) -> None:
    assert releases.whole(text, "max-model-len") == number


@pytest.mark.parametrize("text", ["", "64Mi", "1.5", "1.5K", "-1", "1e3", " 1", "٣", None])
def test_numbers_that_are_none(text: str | None) -> None:
    with pytest.raises(BadArgument, match="--max-model-len"):
        releases.whole(text, "max-model-len")


# -- adopt and absorb ----------------------------------------------------------------------------------


def test_flag_and_field_may_agree_but_not_differ() -> None:
    adopted, _ = ENGINE.adopt(request("--max-model-len=4096", context_length=4096))
    assert adopted.context_length == 4096
    with pytest.raises(BadArgument, match="give it once"):
        ENGINE.adopt(request("--max-model-len=4096", context_length=8192))
    with pytest.raises(BadArgument, match="give it once"):
        ENGINE.adopt(request("-tp=4", tensor=2))
    with pytest.raises(BadArgument, match="contradicts"):
        ENGINE.adopt(request("--dtype=float16", dtype="bf16"))


def test_the_engines_flags_fill_the_request() -> None:
    flags = (
        "-tp", "4", "-pp=2", "--max_model_len=4K", "--max-num-seqs=7", "--max-num-batched-tokens",
        "1k", "--kv-cache-dtype=fp8", "--dtype=half", "--enforce-eager", "--no-enable-prefix-caching",
    )  # fmt: skip
    adopted, notes = ENGINE.adopt(request(*flags))
    assert notes == ()
    assert (adopted.tensor, adopted.pipeline, adopted.context_length) == (4, 2, 4096)
    assert (adopted.max_concurrent_requests, adopted.prefill_tokens) == (7, 1000)
    assert (adopted.kv_cache_dtype, adopted.dtype) == ("fp8", "fp16")
    assert (adopted.cuda_graphs, adopted.prefix_caching) == (False, False)
    assert ENGINE.adopt(request("--max-model-len=auto"))[0].context_length is None
    assert ENGINE.adopt(request("--max-model-len=-1"))[0].context_length is None


def test_absorb_moves_flags_into_fields() -> None:
    asked = request("--max-model-len", "4096", "-tp=2", "--seed=1", mode=None)
    absorbed = ENGINE.absorb(asked)
    assert (absorbed.context_length, absorbed.tensor) == (4096, 2)
    assert absorbed.engine_args == ("--seed=1",)
    with pytest.raises(BadArgument, match="give it once"):
        ENGINE.absorb(replace(asked, context_length=8192))


@pytest.mark.parametrize(
    "arg",
    [
        "--gpu-memory-utilization=0.9", "--gpu-mem=0.9", "--device-memory-utilization=0.9", "-tp=2",
        "--kv_cache_memory_bytes", "--num-gpu-blocks-override=1", "--block-size=16", "-dp=2",
        "--max-model-len=1", "--cudagraph-capture-sizes", "--config=f",
    ],
)  # fmt: skip
def test_owned_flags_are_refused_in_a_cluster(arg: str) -> None:
    with pytest.raises(FlagNotAllowed):
        ENGINE.check_args([arg])


def test_an_environment_that_overrides_the_pool_is_refused() -> None:
    with pytest.raises(FlagNotAllowed, match="overrides"):
        ENGINE.check_args([], ["VLLM_CPU_KVCACHE_SPACE"])


@pytest.mark.parametrize("flag", ["--no-such-flag=1", "--enable-lora", "--cpu-offload-gb=4"])
def test_a_flag_that_is_not_computed_widens(flag: str) -> None:
    notes = ENGINE.adopt(request(flag, mode=None, version="0.19.0"))[1]
    assert any(flag.split("=", maxsplit=1)[0] in note for note in notes)
    narrow = allocate(LLAMA, request(mode=None, version="0.19.0"))
    wide = allocate(LLAMA, request(flag, mode=None, version="0.19.0"))
    assert wide.kv < narrow.kv
    assert (narrow.confidence, wide.confidence) == ("calibrated", "estimated")


def test_a_neutral_flag_does_not_widen() -> None:
    asked = request("--seed=1", "--enable-log-requests", mode=None, version="0.19.0")
    assert allocate(LLAMA, asked) == allocate(LLAMA, request(mode=None, version="0.19.0"))


def test_a_draft_is_counted() -> None:
    draft = request("--speculative-config={}", mode=None)
    assert "draft" in ENGINE.adopt(draft)[1][0]
    assert allocate(LLAMA, draft).reserve["draft"] == 15 * GIB // 10


def test_versions() -> None:
    for known in ("0.12.0", "0.22.0", "0.33.0", "0.33.0.post1", "v0.19.1"):
        assert ENGINE.adopt(request(version=known))[1] == ()
    assert "widest" in ENGINE.adopt(request(version="0.34.0"))[1][0]
    assert "none given" in ENGINE.adopt(request(version=None))[1][0]
    with pytest.raises(Unsupported):
        ENGINE.adopt(request(version="0.10.1", mode=None))
    assert ENGINE.adopt(request(version="0.10.1"))[1] == ()  # it pins nothing there


@pytest.mark.parametrize("mode", [None, "Engine"])
@pytest.mark.parametrize("spec", [LLAMA, GEMMA3, QWEN35_9B])
def test_an_unknown_release_gets_the_least_pool(spec: ModelSpec, mode: str | None) -> None:
    unknown = allocate(spec, request(version=None, mode=mode, context_length=4096))
    assert unknown.confidence == "estimated"
    for row in releases.RELEASES:
        known = f"{row.since[0]}.{row.since[1]}.9"
        if mode is None and row.since < releases.PINS_SINCE[:2]:
            continue
        assert (
            unknown.kv <= allocate(spec, request(version=known, mode=mode, context_length=4096)).kv
        )


# -- what Plimsoll writes ------------------------------------------------------------------------------

PINNED = {
    "--kv-cache-memory-bytes", "--gpu-memory-utilization", "--max-model-len",
    "--max-num-batched-tokens", "--max-num-seqs", "--block-size", "--kv-cache-dtype", "--dtype",
    "--cudagraph-capture-sizes",
}  # fmt: skip


def pins(spec: ModelSpec, asked: SizingRequest, **device: Any) -> tuple[Allocation, dict[str, str]]:
    found = allocate(spec, asked, **device)
    assert found.pinned is not None
    args = ENGINE.pinned_args(found.pinned, ENGINE.adopt(asked)[0])
    return found, dict(arg.split("=", 1) for arg in args if "=" in arg)


@pytest.mark.parametrize("spec", [LLAMA, MLA, DSA, GEMMA3, QWEN35_9B])
@pytest.mark.parametrize(
    ("total", "free"),
    [(79_190, 78_680), (79_190, 60_000), (23_690, 23_040), (139_810, 138_990), (40_000, 40_000)],
)
def test_the_engine_starts_with_what_is_pinned(spec: ModelSpec, total: int, free: int) -> None:
    """Fraction, blocks and request pass the engine's own checks, and nothing exceeds the budget."""
    card: dict[str, Any] = {"total": total * MIB, "free": free * MIB, "weights": 8 * GIB}
    found, args = pins(spec, request(mode=None), **card)
    assert found.error is None
    assert args.keys() == PINNED
    assert found.kv == free * MIB - 8 * GIB - sum(found.reserve.values()) - found.safety, (
        "the budget adds up"
    )
    thousandths = int(args["--gpu-memory-utilization"].replace("0.", "", 1))
    assert len(args["--gpu-memory-utilization"]) == len("0.123")
    assert thousandths * total <= (1000 * free) - 10 * total
    own = request(*(f"{flag}={args[flag]}" for flag in sorted(args)))
    engine = allocate(spec, own, **card)
    assert engine.error is None
    assert engine.kv == found.kv == int(args["--kv-cache-memory-bytes"])
    assert (engine.blocks, engine.block_tokens) == (found.blocks, found.block_tokens)
    assert engine.context_length == found.context_length


def test_a_defaulted_context_is_lowered_a_stated_one_is_not() -> None:
    card: dict[str, Any] = {"total": 24 * GIB, "free": 23 * GIB, "weights": 15 * GIB}
    lowered = allocate(LLAMA, request(mode=None), **card)
    assert lowered.error is None
    assert lowered.blocks is not None
    assert lowered.context_length < 131_072
    assert lowered.blocks > lowered.context_length // 16
    assert any("contextLength was lowered" in note for note in lowered.notes)
    stated = allocate(LLAMA, request(mode=None, context_length=131_072), **card)
    assert stated.error is not None
    assert stated.tokens == 0


def test_the_users_bound_is_a_bound() -> None:
    found, args = pins(LLAMA, request(mode=None, max_total_token_num=200_000))
    assert found.tokens == 200_000
    assert args["--kv-cache-memory-bytes"] == str(200_000 * 131_072)


FLAG_TABLES = {
    name.split()[0]: table
    for name, table in json.loads((DATA / "engine_flags.json").read_text())["vllm"].items()
}


@pytest.mark.parametrize("version", sorted(FLAG_TABLES))
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("kv", ["auto", "bf16", "fp8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("block", [16, 64, 528])
def test_every_rendered_flag_exists(version: str, kv: str, block: int, *, graphs: bool) -> None:
    asked = request(
        mode=None, version=version, cuda_graphs=graphs, dtype="bf16", kv_cache_dtype=kv,
        prefix_caching=False, pipeline=2, state_dtype="fp32",
    )  # fmt: skip
    pinned = Pinned(
        max_sequences=8, context_length=4096, prefill_tokens=2048, kv_cache_bytes=GIB,
        memory_fraction="0.900", block_tokens=block, graph_batch=16 if graphs else 0,
    )  # fmt: skip
    args = ENGINE.pinned_args(pinned, asked)
    args += ENGINE.serve_args(
        model_path="m", served_name="n", host="0.0.0.0", port=1, request=asked
    )
    names = [arg.partition("=")[0] for arg in args]
    assert len(names) == len(set(names))
    assert set(names) >= PINNED - (set() if graphs else {"--cudagraph-capture-sizes"})
    table = FLAG_TABLES[version]
    for arg in args:
        name, _, value = arg.partition("=")
        assert name in table["all_flags"], name
        entry = table["flags"].get(name) or {}
        choices = entry.get("choices") or entry.get("known_values")
        assert choices is None or value in map(str, choices), arg


@pytest.mark.parametrize("version", sorted(FLAG_TABLES))
@pytest.mark.parametrize("kv", sorted(ENGINE.kv_dtypes))
def test_every_cache_dtype_exists_or_is_refused(version: str, kv: str) -> None:
    entry = FLAG_TABLES[version]["flags"]["--kv-cache-dtype"]
    known = entry.get("choices") or entry["known_values"]
    asked = request(mode=None, version=version, kv_cache_dtype=kv)
    if ENGINE.kv_dtypes[kv] in known:
        assert f"--kv-cache-dtype={ENGINE.kv_dtypes[kv]}" in ENGINE.pinned_args(Pinned(), asked)
    else:
        with pytest.raises(BadArgument, match="no cache dtype"):
            ENGINE.pinned_args(Pinned(), asked)


def test_the_flag_table_names_real_flags() -> None:
    """Each flag is one of some known release, and none is in two lists."""
    known = {name.lstrip("-") for table in FLAG_TABLES.values() for name in table["all_flags"]}
    neutral = {name.rstrip("!") for name in FLAGS.neutral}
    # --device went before 0.12.
    assert (FLAGS.owned.keys() | FLAGS.sizing | FLAGS.unsized) - known == {"device"}
    lists = [set(FLAGS.owned), set(FLAGS.sizing), set(FLAGS.unsized), neutral]
    assert sum(map(len, lists)) == len(set().union(*lists))


@pytest.mark.parametrize(
    ("version", "block"), [("0.12.0", 16), ("0.22.0", 528), ("0.33.0", 528), (None, 16)]
)
def test_a_raised_block_is_left_to_releases_that_take_only_a_few(
    version: str | None, block: int
) -> None:
    found, args = pins(QWEN35_9B, request(mode=None, version=version))
    assert found.block_tokens == 528
    assert args["--block-size"] == str(block)
    own = request(*(f"{flag}={args[flag]}" for flag in sorted(args)), version=version)
    assert allocate(QWEN35_9B, own).blocks == found.blocks


def test_graph_sizes_are_words_for_argparse() -> None:
    args = ENGINE.pinned_args(Pinned(graph_batch=24), request(mode=None))
    assert "--cudagraph-capture-sizes=1,2,4,8,16,24" in args
    assert ENGINE.argv(args)[-7:] == ["--cudagraph-capture-sizes", "1", "2", "4", "8", "16", "24"]
    assert releases.capture_sizes(512)[-2:] == (496, 512)
    assert "--enforce-eager" in ENGINE.pinned_args(Pinned(), request(mode=None, cuda_graphs=False))


def test_the_users_own_switches_are_not_written_twice() -> None:
    asked = request("--dtype=bfloat16", "--enforce-eager", "--no-enable-prefix-caching", mode=None)
    args = ENGINE.pinned_args(Pinned(graph_batch=0), ENGINE.adopt(asked)[0])
    assert not {"--dtype=bfloat16", "--enforce-eager", "--no-enable-prefix-caching"} & set(args)
