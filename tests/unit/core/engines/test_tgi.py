"""TGI: full heads only, and two shares of the card in place of a number."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from plimsoll.core.arch.spec import CacheGroup, Encoder, ModelSpec, StateGroup, TensorGroup
from plimsoll.core.device import Device
from plimsoll.core.engines import Allocation, Pinned, Situation, lookup
from plimsoll.core.engines.tgi_flags import FLAGS
from plimsoll.core.errors import BadArgument, FlagNotAllowed, Unsupported
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB

ENGINE = lookup("TGI")


def model(*caches: CacheGroup, **more: Any) -> ModelSpec:
    fields: dict[str, Any] = {
        "family": "llama", "architecture": "LlamaForCausalLM", "layers": 32, "hidden": 4096,
        "heads": 32, "kv_heads": 8, "key_dim": 128, "value_dim": 128, "intermediate": 14336,
        "vocab": 128_256, "context_length": 131_072, "dtype": "bf16", "tied": False,
    }  # fmt: skip
    return ModelSpec(caches=caches, **{**fields, **more})


LLAMA = model(CacheGroup(32, 8, 128, 128))
DEEPSEEK = model(
    CacheGroup(61, 1, 512, 64, latent=True), heads=128, kv_heads=128, layers=61,
    tensors=(TensorGroup("model.layers.*.self_attn.q_b_proj.weight", (128 * 192, 1536), tuple(range(61))),),
)  # fmt: skip


def request(
    *args: str, mode: str | None = None, version: str | None = "3.3.7", **more: Any
) -> SizingRequest:
    return SizingRequest("TGI", version, args, mode=mode, **more)


def allocate(
    spec: ModelSpec,
    asked: SizingRequest,
    *,
    total: int = 80 * GIB,
    weights: int = 15 * GIB,
    wide: bool = False,
) -> Allocation:
    asked, _ = ENGINE.adopt(asked)
    device = Device("NVIDIA H100 80GB HBM3", total, total, total, total - GIB // 2)
    free = device.free_after_init or 0
    cell = ENGINE.cell(spec, asked)
    return ENGINE.allocate(Situation(spec, asked, device, total, free, weights, 0, cell, wide))


@pytest.mark.parametrize(
    ("spec", "tensor", "kv", "cell"),
    [
        (LLAMA, 1, "auto", 131_072),
        (LLAMA, 8, "auto", 16_384),
        (LLAMA, 1, "fp8", 65_536),
        (model(CacheGroup(32, 8, 128, 128, window=4096)), 1, "auto", 131_072),  # no saving
        (
            model(CacheGroup(32, 1, 64, 64), kv_heads=1),
            8,
            "auto",
            32 * 128 * 2,
        ),  # one head stays whole
        (DEEPSEEK, 8, "auto", 749_568),  # 16 heads of 192, keys and values, not latent
    ],
)
def test_cells(spec: ModelSpec, tensor: int, kv: str, cell: int) -> None:
    assert ENGINE.cell(spec, request(tensor=tensor, kv_cache_dtype=kv)) == cell


@pytest.mark.parametrize(("spec", "tensor"), [(LLAMA, 16), (LLAMA, 3)])
def test_heads_are_never_replicated(spec: ModelSpec, tensor: int) -> None:
    with pytest.raises(Unsupported, match="cannot split"):
        ENGINE.cell(spec, request(tensor=tensor))


@pytest.mark.parametrize(
    "spec",
    [
        model(CacheGroup(8, 4, 64, 64), states=(StateGroup("mamba2", 24, recurrent=1),)),
        model(CacheGroup(8, 4, 64, 64), encoder=Encoder(64)),
        model(),
    ],
)
def test_models_that_it_sizes_by_a_constant_are_refused(spec: ModelSpec) -> None:
    with pytest.raises(Unsupported, match="plain attention"):
        ENGINE.cell(spec, request())


def test_engine_keeps_a_tenth_of_the_card() -> None:
    found = allocate(LLAMA, request(mode="Engine"))
    assert found.safety == 8 * GIB
    less = allocate(LLAMA, request("--cuda-memory-fraction=0.5", mode="Engine"))
    assert less.safety == 80 * GIB * 55 // 100
    assert found.tokens == found.kv // 131_072
    assert less.kv < found.kv


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("total", [24 * GIB, 80 * GIB + 12_345])
def test_the_wiggle_room_leaves_what_the_table_wants(total: int, *, wide: bool) -> None:
    found = allocate(LLAMA, request(), total=total, weights=9 * GIB, wide=wide)
    assert found.error is None
    free = total - GIB // 2
    assert free - 9 * GIB - sum(found.reserve.values()) - found.safety == found.kv
    assert found.pinned is not None
    assert found.pinned.memory_fraction is not None
    # TGI's own law at this share, with the peak that the table assumes.
    wiggle = Fraction(found.pinned.memory_fraction)
    peak = sum(found.reserve[term] for term in ("nonTorch", "activation", "workspace"))
    own = free - 9 * GIB - peak - (1 - wiggle) * total
    assert int(own) // 131_072 == found.tokens
    assert found.safety >= (found.kv + found.safety) // 100


def test_flags_and_environment() -> None:
    found = allocate(LLAMA, request())
    pinned = found.pinned
    assert pinned is not None
    args = ENGINE.pinned_args(pinned, request(kv_cache_dtype="fp8"))
    assert args == [
        "--cuda-memory-fraction=1.0", "--max-total-tokens=131072", "--max-input-tokens=131071",
        "--max-batch-prefill-tokens=4096", "--cuda-graphs=1,2,4,8,16,32", "--kv-cache-dtype=fp8_e4m3fn",
    ]  # fmt: skip
    env = ENGINE.pinned_env(pinned, request())
    assert env.keys() == {"TGI_WIGGLE_ROOM", "CUDA_MEMORY_FRACTION"}
    assert "--cuda-graphs=0" in ENGINE.pinned_args(pinned, request(cuda_graphs=False))
    assert ENGINE.pinned_env(Pinned(), request()) == {}


def test_the_number_is_a_ceiling_and_an_estimate() -> None:
    assert ENGINE.token_meaning == "Ceiling"
    assert ENGINE.confidence == "estimated"


def test_too_little_room() -> None:
    lowered = allocate(LLAMA, request(), total=24 * GIB, weights=16 * GIB)
    assert lowered.error is None
    assert lowered.context_length < 131_072
    refused = allocate(LLAMA, request(), total=24 * GIB, weights=22 * GIB)
    assert refused.error is not None
    engine = allocate(LLAMA, request(mode="Engine"), total=24 * GIB, weights=22 * GIB)
    assert engine.error is not None


@pytest.mark.parametrize(
    "arg", ["--cuda-memory-fraction=0.5", "--num-shard", "--max-batch-total-tokens=5", "-p"]
)
def test_owned_flags(arg: str) -> None:
    with pytest.raises(FlagNotAllowed):
        ENGINE.check_args([arg])


@pytest.mark.parametrize(
    "name", ["TGI_WIGGLE_ROOM", "MAX_TOTAL_TOKENS", "CUDA_MEMORY_FRACTION", "ATTENTION"]
)
def test_owned_names(name: str) -> None:
    with pytest.raises(FlagNotAllowed):
        ENGINE.check_args([], [name])


def test_adoption() -> None:
    asked, notes = ENGINE.adopt(request("--max-total-tokens=4096", "--num-shard=2", mode="Engine"))
    assert (asked.context_length, asked.tensor, notes) == (4096, 2, ())
    assert "widest" in ENGINE.adopt(request(version="4.0"))[1][0]
    assert ENGINE.adopt(request("--dtype=float16"))[0].dtype == "fp16"
    assert any("--quantize" in note for note in ENGINE.adopt(request("--quantize=awq"))[1])
    with pytest.raises(BadArgument, match="contradicts"):
        ENGINE.adopt(request("--dtype=float16", dtype="bf16"))
    with pytest.raises(BadArgument, match="no cache dtype"):
        ENGINE.cell(LLAMA, request(kv_cache_dtype="int8"))
    with pytest.raises(BadArgument, match="whole number"):
        ENGINE.adopt(request("--max-total-tokens=4k", mode="Engine"))
    neutral = {name.rstrip("!") for name in FLAGS.neutral}
    assert not neutral & (FLAGS.owned.keys() | FLAGS.unsized | FLAGS.sizing)
