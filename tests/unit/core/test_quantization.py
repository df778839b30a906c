"""Blocks that tools write into configs, and what they make of a matrix."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.errors import BadModel
from plimsoll.core.quantization import parse_quantization, quantization_of
from plimsoll.core.weights import computed
from tests.unit.core.test_weights import SMALL

W4 = {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
#: Blocks as published checkpoints carry them; bytes of a matrix of 256 x 512.
BLOCKS: list[tuple[dict[str, Any], int]] = [
    # 4 bits, and for each 128 inputs a scale of 16 and a zero point of 4 bits
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 65536 + 1024 * 20 // 8),
    # the same, and 4 bytes for each input row
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, 68096 + 512 * 4),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 131072 + 256 * 3 + 512 * 4),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 131072 + 2 * 4 * 4),
    ({"quant_method": "fbgemm_fp8"}, 131072 + 256 * 4),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": W4}}}, 65536 + 1024 * 2),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": FP8}}}, 131072 + 256 * 4),
    ({"quant_algo": "NVFP4", "group_size": 16}, 65536 + 8192),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, 131072 + 256 * 4),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, 131072 + 256 * 4),
    ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, 65536 + 8192),
    ({"quant_method": "mxfp4"}, 65536 + 4096),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 65536 + 2048 * 4),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 65536 + 2048),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, 131072 + 256 * 4),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}, 65536 + 4096),
    ({"quant_method": "torchao", "quant_type": "int8_weight_only", "group_size": -1}, 131072 + 512),
]  # fmt: skip


@pytest.mark.parametrize(("block", "size"), BLOCKS)
def test_bytes_of_a_matrix(block: dict[str, Any], size: int) -> None:
    found = parse_quantization(block)
    assert found is not None
    assert found.layout is not None
    assert found.layout.size((256, 512)) == size
    assert found.layout.size((3, 256, 512)) == 3 * size


def test_where_the_block_may_stand() -> None:
    block = {"quant_method": "awq"}
    assert quantization_of({}) is None
    assert quantization_of({"quantization_config": None}) is None
    assert quantization_of({"quantization_config": block}) == block
    assert quantization_of({"compression_config": block}) == block
    assert quantization_of({"text_config": {"quantization_config": block}}) == block
    assert quantization_of({"compression_config": {"quantization_config": block}}) == block
    assert read_spec(SMALL | {"quantization_config": block}).quantization == block
    with pytest.raises(BadModel) as caught:
        quantization_of({"quantization_config": "awq"})
    assert caught.value.field == "quantization_config"


@pytest.mark.parametrize(
    ("block", "dtype"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "int8"),
        ({"kv_cache_scheme": None}, None),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8"),
    ],
)
def test_the_caches_dtype(block: dict[str, Any], dtype: str | None) -> None:
    found = parse_quantization({"quant_method": "fp8"} | block)
    assert found is not None
    assert found.kv_dtype == dtype


MODULES = (
    "lm_head",
    "model.layers.3.mlp.gate",
    "model.layers.3.mlp.gate_proj",
    "model.visual.blocks.0.attn.qkv",
)


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("lm_head", {"lm_head"}),
        ("gate", {"model.layers.3.mlp.gate"}),
        ("model.layers.3.mlp.gate", {"model.layers.3.mlp.gate"}),
        ("model.layers.3", {"model.layers.3.mlp.gate", "model.layers.3.mlp.gate_proj"}),
        ("model.layers.30", set()),
        ("re:.*mlp.gate$", {"model.layers.3.mlp.gate"}),
        ("re:.*visual.*", {"model.visual.blocks.0.attn.qkv"}),
        ("re:.*\\.gate", {"model.layers.3.mlp.gate", "model.layers.3.mlp.gate_proj"}),
        ("*visual*", {"model.visual.blocks.0.attn.qkv"}),
        ("model.layers.3*", {"model.layers.3.mlp.gate", "model.layers.3.mlp.gate_proj"}),
    ],
)
def test_modules_that_stay(entry: str, kept: set[str]) -> None:
    found = parse_quantization({"quant_method": "awq", "ignore": [entry]})
    assert found is not None
    assert {module for module in MODULES if found.keeps(module)} == kept
    assert found.notes == ()


@pytest.mark.parametrize("entry", ["re:(a+)+$", "re:[ab]", "re:a|b", "re:a{9999}", "re:\\d"])
def test_a_strangers_regular_expression_is_told_and_never_run(entry: str) -> None:
    found = parse_quantization({"quant_method": "awq", "ignore": [entry]})
    assert found is not None
    assert not found.keeps("a" * 100 + "b")
    assert "1 modules" in found.notes[0]


@pytest.mark.parametrize(
    "block",
    [
        {"quant_method": "awq", "bits": 7},
        {"quant_method": "awq", "bits": True},
        {"quant_method": "awq", "bits": "4"},
        {"quant_method": "awq", "group_size": 0.5},
        {"quant_method": "awq", "group_size": -2},
        {"quant_method": "awq", "group_size": 1 << 70},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "weight_block_size": 128},
        {"quant_method": "fp8", "weight_block_size": [128, True]},
        {"quant_method": "fp8", "ignore": "lm_head"},
        {"quant_method": "fp8", "ignore": [5]},
        {"quant_method": "compressed-tensors", "config_groups": []},
    ],
)
def test_numbers_that_make_no_sense(block: dict[str, Any]) -> None:
    with pytest.raises(BadModel) as caught:
        parse_quantization(block)
    assert (caught.value.field or "").startswith("quantization_config")


def test_an_unknown_tool_is_told_and_changes_nothing() -> None:
    spec = read_spec(SMALL | {"quantization_config": {"quant_method": "aqlm"}})
    manifest = computed(spec, "bf16")
    assert manifest.parts == computed(read_spec(SMALL), "bf16").parts
    assert "aqlm" in manifest.notes[0]


def test_computed_weights_are_quantised_tensor_by_tensor() -> None:
    block = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1.mlp.up_proj"]}
    parts = computed(read_spec(SMALL | {"quantization_config": block}), "bf16").parts
    dtypes = {(part.role, part.layer): (part.kind.dtype, part.kind.size) for part in parts}
    up = "model.layers.*.mlp.up_proj.weight"
    assert dtypes[up, 0] == ("Q8", 96 * 64 + 96 * 4)
    assert dtypes[up, 1] == ("BF16", 96 * 64 * 2)
    for role in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"):
        assert dtypes[role, -1][0] == "BF16"
    assert dtypes["model.layers.*.self_attn.q_proj.bias", 0][0] == "BF16"


def test_mxfp4_quantises_experts_alone() -> None:
    config = SMALL | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                      "moe_intermediate_size": 32, "head_dim": 8,
                      "quantization_config": {"quant_method": "mxfp4"}}  # fmt: skip
    quantised = {
        part.role for part in computed(read_spec(config), "bf16").parts if part.kind.dtype == "Q4"
    }
    assert quantised == {
        "model.layers.*.mlp.experts.gate_up_proj",
        "model.layers.*.mlp.experts.down_proj",
    }
