"""TensorRT-LLM: a share of what its own measurement leaves."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from plimsoll.core.arch.spec import CacheGroup, Encoder, ModelSpec, StateGroup
from plimsoll.core.device import Device
from plimsoll.core.engines import Allocation, Situation, lookup
from plimsoll.core.engines.tensorrtllm_flags import FLAGS
from plimsoll.core.errors import BadArgument, FlagNotAllowed, Unsupported
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB

ENGINE = lookup("TensorRTLLM")


def model(*caches: CacheGroup, **more: Any) -> ModelSpec:
    fields: dict[str, Any] = {
        "family": "llama", "architecture": "LlamaForCausalLM", "layers": 32, "hidden": 4096,
        "heads": 32, "kv_heads": 8, "key_dim": 128, "value_dim": 128, "intermediate": 14336,
        "vocab": 128_256, "context_length": 8192, "dtype": "bf16", "tied": False,
    }  # fmt: skip
    return ModelSpec(caches=caches, **{**fields, **more})


LLAMA = model(CacheGroup(32, 8, 128, 128))
MLA = model(CacheGroup(61, 1, 512, 64, latent=True))
HYBRID = model(
    CacheGroup(8, 4, 256, 256),
    states=(
        StateGroup("mamba2", 24, conv_channels=8192, conv_kernel=4, recurrent=1 << 19, heads=32),
    ),
)


def request(
    *args: str, mode: str | None = None, version: str | None = "1.3.0", **more: Any
) -> SizingRequest:
    return SizingRequest("TensorRTLLM", version, args, mode=mode, **more)


def allocate(
    spec: ModelSpec,
    asked: SizingRequest,
    *,
    free: int = 139 * GIB,
    weights: int = 15 * GIB,
    wide: bool = False,
) -> Allocation:
    asked, _ = ENGINE.adopt(asked)
    device = Device("NVIDIA H200", free, free, free, free)
    cell = ENGINE.cell(spec, asked)
    return ENGINE.allocate(Situation(spec, asked, device, free, free, weights, 0, cell, wide))


@pytest.mark.parametrize(
    ("spec", "tensor", "kv", "cell"),
    [
        (LLAMA, 1, "auto", 131_072),
        (LLAMA, 16, "auto", 16_384),  # replicated in the pool
        (LLAMA, 1, "fp8", 65_536),
        (LLAMA, 1, "nvfp4", 36_864),
        (MLA, 8, "auto", 70_272),
        (MLA, 8, "fp8", 35_136),
    ],
)
def test_cells(spec: ModelSpec, tensor: int, kv: str, cell: int) -> None:
    assert ENGINE.cell(spec, request(tensor=tensor, kv_cache_dtype=kv)) == cell


def test_the_law_on_the_published_start() -> None:
    """Llama-3-8B on H200: 17.76 GiB in use at the peak of 139.80, 0.9 of the rest, 900,800 tokens.

    The weights are chosen so that they and the estimated peak make up the printed 17.76 GiB, less
    the trial pool of 0.13 GiB that is added back.
    """
    free = int(139.80 * GIB)
    asked = request(mode="Engine")
    peak = sum(allocate(LLAMA, asked, free=free).reserve.values())
    weights = int((17.76 - 0.13) * GIB) - peak
    found = allocate(LLAMA, asked, free=free, weights=weights)
    assert found.tokens == pytest.approx(900_800, rel=0.001)
    assert found.tokens is not None
    assert found.tokens % 32 == 0
    assert found.kv == pytest.approx(109.96 * GIB, rel=0.001)
    half = request("--free_gpu_memory_fraction=0.45", mode="Engine")
    assert allocate(LLAMA, half, free=free, weights=weights).tokens == pytest.approx(
        450_400, rel=0.001
    )


@pytest.mark.parametrize("spec", [LLAMA, MLA, HYBRID])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("free", [40 * GIB, 139 * GIB + 999])
def test_the_pinned_share_gives_the_number(spec: ModelSpec, free: int, *, wide: bool) -> None:
    found = allocate(spec, request(), free=free, wide=wide)
    assert found.error is None
    assert free - 15 * GIB - sum(found.reserve.values()) - found.safety == found.kv
    assert found.safety >= 0
    pinned = found.pinned
    assert pinned is not None
    assert pinned.memory_fraction is not None
    fraction = Fraction(pinned.memory_fraction)
    assert fraction <= Fraction(95, 100)
    peak = sum(found.reserve[term] for term in ("nonTorch", "activation", "workspace", "graphs"))
    own = int((free - 15 * GIB - peak) * fraction)
    assert own == found.kv
    assert (own - found.fixed_pools) // (ENGINE.cell(spec, request()) * 32) * 32 == found.tokens
    assert f"max_gpu_total_bytes: {own}" in found.notes[0]


def test_flags() -> None:
    pinned = allocate(LLAMA, request()).pinned
    assert pinned is not None
    args = ENGINE.pinned_args(pinned, request(kv_cache_dtype="fp8"))
    assert args[1:] == [
        "--max_num_tokens=8192", "--max_batch_size=256", "--max_seq_len=8192", "--kv_cache_dtype=fp8",
    ]  # fmt: skip
    assert args[0].startswith("--kv_cache_free_gpu_memory_fraction=0.")
    serve = ENGINE.serve_args(
        model_path="/m", served_name="n", host="h", port=1, request=request(tensor=2, pipeline=2)
    )
    assert serve[0] == "/m"
    assert {"--tp_size=2", "--pp_size=2"} <= set(serve)
    listed = FLAGS.owned.keys() | {"served-model-name"}
    written = {arg.split("=")[0].lstrip("-").replace("_", "-") for arg in (*args, *serve[1:])}
    assert written <= listed | {n.rstrip("!") for n in FLAGS.neutral}


def test_states_come_off_the_pool() -> None:
    found = allocate(HYBRID, request(max_concurrent_requests=10))
    state = ENGINE.state(HYBRID, request())
    assert state == 24 * (8192 * 3 * 2 + (1 << 19) * 2)
    assert found.fixed_pools == 10 * state
    assert ENGINE.state(HYBRID, request(state_dtype="fp32")) == 24 * (8192 * 3 * 2 + (1 << 19) * 4)
    assert ENGINE.state(HYBRID, request(tensor=8)) * 8 == state


def test_too_little_room() -> None:
    assert allocate(LLAMA, request(), free=24 * GIB, weights=23 * GIB).error is not None
    assert (
        allocate(LLAMA, request(mode="Engine"), free=24 * GIB, weights=23 * GIB).error is not None
    )
    lowered = allocate(
        model(CacheGroup(32, 8, 128, 128), context_length=131_072),
        request(),
        free=24 * GIB,
        weights=14 * GIB,
    )
    assert lowered.error is None
    assert lowered.context_length < 131_072


def test_what_is_refused() -> None:
    with pytest.raises(Unsupported, match="encoder"):
        ENGINE.cell(model(CacheGroup(8, 4, 64, 64), encoder=Encoder(64)), request())
    with pytest.raises(BadArgument, match="no cache dtype"):
        ENGINE.cell(LLAMA, request(kv_cache_dtype="int8"))
    for arg in (
        "--max_seq_len=5",
        "--max-seq-len=5",
        "--config=f.yaml",
        "--extra_llm_api_options",
        "--tp_size=2",
    ):
        with pytest.raises(FlagNotAllowed):
            ENGINE.check_args([arg])
    with pytest.raises(BadArgument, match="above 0"):
        allocate(LLAMA, request("--kv_cache_free_gpu_memory_fraction=0", mode="Engine"))


def test_adoption() -> None:
    asked, notes = ENGINE.adopt(request("--max_seq_len=4096", "--tp_size=2", mode="Engine"))
    assert (asked.context_length, asked.tensor, notes) == (4096, 2, ())
    assert "widest" in ENGINE.adopt(request(version="0.18.2"))[1][0]
    assert any("--backend" in note for note in ENGINE.adopt(request("--backend=tensorrt"))[1])
