"""Bytes per rank from tensor names, and manifests that do not belong to their config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.errors import BadModel
from plimsoll.core.weights import Manifest, TensorKind, check_complete, computed, shard

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "cache_oracle.json").read_text())[
    "records"
]
SMALL: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
SPEC = read_spec(SMALL)


def rank(manifest: Manifest, tensor: int, kv: int, compute: str = "bf16") -> int:
    return shard(manifest, SPEC, tensor=tensor, rank_kv_heads=kv, compute=compute).size


def single(name: str, shape: tuple[int, ...], dtype: str = "BF16", width: int = 2) -> Manifest:
    size = width
    for length in shape:
        size *= length
    return Manifest({name: TensorKind(dtype, shape, size)}, "safetensors")


@pytest.mark.parametrize(
    ("name", "shape", "whole", "halved"),
    [
        # name, shape, bytes on one rank of one, of four (KV heads 2: one each, replicated)
        ("model.embed_tokens.weight", (101, 64), 12_928, 26 * 128),  # 101 rows: 26 on the heaviest
        ("lm_head.weight", (101, 64), 12_928, 26 * 128),
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), 8192, 2048),
        ("model.layers.0.self_attn.q_proj.bias", (64,), 128, 32),
        ("model.layers.0.self_attn.k_proj.weight", (16, 64), 2048, 1024),
        ("model.layers.0.self_attn.v_proj.bias", (16,), 32, 16),
        ("model.layers.0.self_attn.o_proj.weight", (64, 64), 8192, 2048),
        ("model.layers.0.self_attn.o_proj.bias", (64,), 128, 128),  # added once, after the sum
        ("model.layers.0.mlp.gate_proj.weight", (96, 64), 12_288, 3072),
        ("model.layers.0.mlp.down_proj.weight", (64, 96), 12_288, 3072),
        ("model.layers.0.block_sparse_moe.experts.3.w2.weight", (64, 96), 12_288, 3072),
        ("model.layers.0.mlp.experts.down_proj", (4, 64, 96), 49_152, 12_288),
        ("model.layers.0.block_sparse_moe.gate.weight", (4, 64), 512, 512),
        ("model.layers.0.mlp.shared_expert_gate.weight", (1, 64), 128, 128),
        ("model.layers.0.input_layernorm.weight", (64,), 128, 128),
        ("model.layers.0.self_attn.k_norm.weight", (8,), 16, 16),
        ("model.norm.weight", (64,), 128, 128),
        ("something.new", (8,), 16, 16),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (4,), 0, 0),
        ("model.layers.2.mlp.down_proj.weight", (64, 96), 0, 0),  # a draft layer beyond the model's
    ],
)
def test_rules_by_name(name: str, shape: tuple[int, ...], whole: int, halved: int) -> None:
    manifest = single(name, shape)
    assert rank(manifest, 1, 2) == whole
    assert rank(manifest, 4, 1) == halved


def test_floating_point_is_cast_and_quantised_is_not() -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    assert rank(single(name, (64, 96), "F32", 4), 1, 2) == 12_288
    assert rank(single(name, (64, 96), "BF16", 2), 1, 2, compute="fp32") == 24_576
    assert rank(single(name, (64, 96), "F8_E4M3", 1), 1, 2) == 6144
    packed = "model.layers.0.mlp.down_proj.qweight"
    assert rank(single(packed, (64, 12), "I32", 4), 1, 2) == 3072


def test_a_tied_head_is_counted_once_and_a_stored_one_twice() -> None:
    tied = read_spec(SMALL | {"tie_word_embeddings": True})
    names = computed(tied, "bf16").tensors
    assert "lm_head.weight" not in names
    stored = Manifest(
        {**names, "lm_head.weight": TensorKind("BF16", (101, 64), 12_928)},
        "safetensors",
    )
    difference = rank(stored, 1, 2) - rank(computed(tied, "bf16"), 1, 2)
    assert difference == 12_928  # LightLLM keeps both when the file has both


@pytest.mark.parametrize("name", [n for n in ORACLE if n.startswith("released/")])
def test_one_rank_holds_everything_and_more_ranks_hold_less(name: str) -> None:
    spec = read_spec(ORACLE[name]["config"])
    manifest = computed(spec, "bf16")
    sizes = [
        shard(
            manifest, spec, tensor=t, rank_kv_heads=max(1, spec.kv_heads // t), compute="bf16"
        ).size
        for t in (1, 2, 4)
    ]
    assert sizes[0] == manifest.total == ORACLE[name]["params"] * 2
    for ranks, size in ((2, sizes[1]), (4, sizes[2])):
        assert sizes[0] / ranks < size < 1.02 * sizes[0] / ranks + (1 << 24)


def test_the_load_passes_the_largest_tensor_once_more() -> None:
    weights = shard(computed(SPEC, "bf16"), SPEC, tensor=2, rank_kv_heads=1, compute="bf16")
    assert weights.load_peak == 101 * 64 * 2


def test_complete_weights_pass() -> None:
    check_complete(computed(SPEC, "bf16"), SPEC)


def test_a_missing_layer_is_told() -> None:
    whole = computed(SPEC, "bf16").tensors
    tensors = {name: kind for name, kind in whole.items() if ".layers.1." not in name}
    with pytest.raises(BadModel) as caught:
        check_complete(Manifest(tensors, "safetensors"), SPEC)
    assert "layer 1" in caught.value.message


def test_weights_of_another_model_are_told() -> None:
    other = read_spec(SMALL | {"hidden_size": 128})
    with pytest.raises(BadModel) as caught:
        check_complete(computed(other, "bf16"), SPEC)
    assert caught.value.field == "hidden_size"
