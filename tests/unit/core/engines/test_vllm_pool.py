"""vLLM's law against a real server: vLLM 0.32.0 on CPU, dummy weights, 2026-12-01.

The model has 2 layers of 2 KV heads of 64, so a bf16 token costs 1,024 bytes. Numbers are what the server's
log and its metric ``vllm:cache_config_info`` said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plimsoll.core.budget import Device, Fit, fit
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 272, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
MLA: dict[str, Any] = TINY | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": None,
    "n_routed_experts": None, "first_k_dense_replace": 2, "num_key_value_heads": 4,
}  # fmt: skip
GEMMA: dict[str, Any] = TINY | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 6,
    "sliding_window": 512, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip
PER_HEAD: dict[str, Any] = {"kv_cache_dtype": "int8_per_token_head"}
CARD = Device("", 24 * GIB, 24 * GIB, 24 * GIB)


def started(
    config: dict[str, Any],
    size: int,
    *flags: str,
    length: int = 2048,
    version: str = "0.32.0+cpu",
    **settings: Any,
) -> Fit:
    request = SizingRequest(
        "VLLM",
        version,
        (f"--kv-cache-memory-bytes={size}", f"--max-model-len={length}", *flags),
        mode="Engine",
        **settings,
    )
    return fit(config, None, CARD, request, weights=[1 << 20])


@pytest.mark.parametrize(
    ("config", "size", "flags", "length", "settings", "blocks", "block", "printed"),
    [
        (TINY, 67_108_864, (), 2048, {}, 512, 128, 65_536),
        (TINY, 67_108_864, ("--block-size=32",), 2048, {}, 2048, 32, 65_536),
        (TINY, 1_073_741_824, (), 2048, {}, 8192, 128, 1_048_576),
        (TINY, 2_228_224, (), 2048, {}, 17, 128, 2176),
        (TINY, 100_000_000, ("--block-size=64",), 1000, {"dtype": "float32"}, 762, 64, 47_625),
        (TINY, 100_000_000, (), 2048, {"kv_cache_dtype": "fp8"}, 1525, 128, 195_200),
        (TINY, 100_000_000, (), 2048, PER_HEAD, 1525, 128, 195_200),
        (TINY, 100_000_000, ("--block-size=16",), 2048, {}, 6103, 16, 97_648),
        (TINY, 67_108_864, ("--num-gpu-blocks-override=100",), 2048, {}, 100, 128, 12_800),
        (TINY, 100_000_000, (), 2048, {"tensor": 2}, 1525, 128, 195_200),
        (TINY, 100_000_000, (), 2048, {"tensor": 4}, 1525, 128, 195_200),
        (MLA, 100_000_000, (), 2048, {}, 2712, 16, 43_392),
        (GEMMA, 100_000_000, (), 2048, {}, 1525, 128, 30_922),
    ],
    ids=[
        "bf16", "block 32", "1 GiB", "least", "fp32", "fp8", "int8", "block 16", "override", "tp 2",
        "tp 4", "mla", "windows",
    ],
)  # fmt: skip
def test_the_pool_is_cut_as_the_server_cuts_it(  # noqa: PLR0917
    config: dict[str, Any],
    size: int,
    flags: tuple[str, ...],
    length: int,
    settings: dict[str, Any],
    blocks: int,
    block: int,
    printed: int,
) -> None:
    answer = started(config, size, *flags, length=length, **settings)
    assert answer.error is None
    assert answer.allocation is not None
    assert (answer.allocation.blocks, answer.allocation.block_tokens) == (blocks, block)
    assert answer.tokens == printed


def test_one_block_is_never_served() -> None:
    """16 blocks of 128 hold 2,048 tokens, and the server refuses them: one is the null block."""
    refused = started(TINY, 2_097_152)
    assert refused.error is not None
    assert refused.error.reason == "BudgetTooSmall"
    assert started(TINY, 2_228_224).error is None
    # Releases before 0.32 did not reserve it.
    assert started(TINY, 2_097_152, "--block-size=128", version="0.22.0+cpu").error is None


def test_auto_fits_the_length_beside_the_null_block() -> None:
    """A pool of 1 MiB: ``reduced from 8192 to 896``, and 2,048 tokens are refused with 1,024 held."""
    request = SizingRequest(
        "VLLM",
        "0.32.0+cpu",
        ("--kv-cache-memory-bytes=1048576", "--max-model-len=auto"),
        mode="Engine",
    )
    answer = fit(TINY, None, CARD, request, weights=[1 << 20])
    assert answer.error is None
    assert answer.allocation is not None
    assert answer.allocation.context_length == 896
    refused = started(TINY, 1_048_576)
    assert refused.error is not None
    assert refused.allocation is not None
    assert (refused.allocation.blocks, refused.tokens) == (8, 0)


def test_what_is_pinned_leaves_room_for_the_start_check() -> None:
    device = replace(CARD, total=80 * GIB, free=79 * GIB, nvml_total=81 * GIB)
    answer = fit(TINY, None, device, SizingRequest("VLLM", "0.33.0"), weights=[16 * GIB])
    assert answer.budget is not None
    share = next(arg for arg in answer.args if arg.startswith("--gpu-memory-utilization="))
    budget = answer.budget
    assert float(share.split("=")[1]) <= budget.free_after_init / budget.device_total - 0.01 + 1e-9
    assert f"--kv-cache-memory-bytes={budget.kv}" in answer.args
    names = {arg.split("=")[0] for arg in answer.args}
    assert names == {
        "--kv-cache-memory-bytes", "--gpu-memory-utilization", "--max-model-len",
        "--max-num-batched-tokens", "--max-num-seqs", "--block-size", "--kv-cache-dtype", "--dtype",
        "--cudagraph-capture-sizes",
    }  # fmt: skip


def test_an_unknown_release_gets_the_least_pool_of_all() -> None:
    device = replace(CARD, total=80 * GIB, free=79 * GIB, nvml_total=81 * GIB)

    def pool(version: str | None) -> tuple[int, str]:
        answer = fit(TINY, None, device, SizingRequest("VLLM", version), weights=[16 * GIB])
        assert answer.budget is not None
        return answer.budget.kv, answer.confidence

    unknown, confidence = pool("9.9.9")
    assert confidence == "estimated"
    assert unknown <= min(pool(version)[0] for version in ("0.11.0", "0.19.0", "0.33.0"))
