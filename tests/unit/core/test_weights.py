"""Bytes per rank from tensor names, and manifests that do not belong to their config."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.arch import read_spec
from plimsoll.core.arch.spec import CacheGroup, Experts, StateGroup
from plimsoll.core.errors import BadModel
from plimsoll.core.weights import (
    Manifest,
    ShardRules,
    TensorKind,
    check_complete,
    computed,
    role_of,
    shard,
)

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
EXPERTS = Experts(
    count=4, per_token=2, intermediate=96, shared_intermediate=0, layers=frozenset({0})
)
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}
ONE = ShardRules(tensor=1, rank_kv_heads=2, compute="bf16")
FOUR = ShardRules(tensor=4, rank_kv_heads=1, compute="bf16")


def tensor(shape: tuple[int, ...], dtype: str = "BF16") -> TensorKind:
    return TensorKind(dtype, shape, prod(shape) * WIDTHS[dtype])


def single(name: str, shape: tuple[int, ...], dtype: str = "BF16") -> Manifest:
    return Manifest.of({name: tensor(shape, dtype)}, "safetensors")


def held(name: str, shape: tuple[int, ...], rules: ShardRules, dtype: str = "BF16") -> int:
    return shard(single(name, shape, dtype), SPEC, rules).size


@pytest.mark.parametrize(
    ("name", "role", "layer"),
    [
        ("model.layers.7.mlp.experts.31.w1.weight", "model.layers.*.mlp.experts.*.w1.weight", 7),
        ("lm_head.weight", "lm_head.weight", -1),
        ("h.0.mlp.fc1.bias", "h.*.mlp.fc1.bias", 0),
        ("blk.12.attn_q.weight", "blk.*.attn_q.weight", 12),
        ("x.experts.7.y.3.w", "x.experts.*.y.*.w", 3),
        ("7.experts", "*.experts", 7),
        ("a.²", "a.²", -1),
        ("a." + "9" * 5000, "a." + "9" * 5000, -1),
        ("", "", -1),
    ],
)
def test_roles(name: str, role: str, layer: int) -> None:
    assert role_of(name) == (role, layer)


LAYER = "model.layers.0."


@pytest.mark.parametrize(
    ("name", "shape", "whole", "quarter"),
    [
        # name, shape, bytes on one rank of one, of four (KV heads 2: one each, replicated)
        ("model.embed_tokens.weight", (101, 64), 12_928, 26 * 128),  # 101 rows: 26 on the heaviest
        ("lm_head.weight", (101, 64), 12_928, 26 * 128),
        ("transformer.wte.weight", (101, 64), 12_928, 26 * 128),
        ("output.weight", (101, 64), 12_928, 26 * 128),
        (LAYER + "self_attn.q_proj.weight", (64, 64), 8192, 2048),
        (LAYER + "self_attn.q_proj.bias", (64,), 128, 32),
        (LAYER + "self_attn.k_proj.weight", (16, 64), 2048, 1024),
        (LAYER + "self_attn.v_proj.bias", (16,), 32, 16),
        (LAYER + "self_attn.k_proj.weight", (32, 64), 4096, 2048),  # a layer with four KV heads
        (LAYER + "self_attn.o_proj.weight", (64, 64), 8192, 2048),
        (LAYER + "self_attn.o_proj.bias", (64,), 128, 128),  # added once, after the sum
        # (8 + 2 + 2) * 8 rows: a rank has 2 heads, 1 of K, 1 of V
        (LAYER + "self_attn.qkv_proj.weight", (96, 64), 12_288, 4096),
        ("h.0.attn.c_attn.weight", (64, 96), 12_288, 4096),
        ("transformer.h.0.self_attention.query_key_value.bias", (96,), 192, 64),
        (LAYER + "mlp.gate_proj.weight", (96, 64), 12_288, 3072),
        (LAYER + "mlp.gate_up_proj.weight", (192, 64), 24_576, 6144),
        (LAYER + "mlp.down_proj.weight", (64, 96), 12_288, 3072),
        ("transformer.h.0.mlp.dense_4h_to_h.bias", (64,), 128, 128),
        (LAYER + "block_sparse_moe.experts.3.w2.weight", (64, 96), 12_288, 3072),
        (LAYER + "mlp.experts.down_proj", (4, 64, 96), 49_152, 12_288),
        (LAYER + "mlp.experts.down_proj_bias", (4, 64), 512, 512),
        (LAYER + "mlp.experts.gate_up_proj_bias", (4, 192), 1536, 384),
        (LAYER + "mlp.shared_experts.down_proj.weight", (64, 96), 12_288, 3072),
        (LAYER + "block_sparse_moe.gate.weight", (4, 64), 512, 512),
        (LAYER + "mlp.router.weight", (4, 64), 512, 512),
        (LAYER + "mlp.shared_expert_gate.weight", (1, 64), 128, 128),
        (LAYER + "self_attn.q_a_proj.weight", (32, 64), 4096, 4096),
        (LAYER + "self_attn.kv_a_proj_with_mqa.weight", (32, 64), 4096, 4096),
        (LAYER + "self_attn.q_b_proj.weight", (64, 32), 4096, 1024),
        (LAYER + "self_attn.indexer.wq_b.weight", (64, 32), 4096, 4096),
        (LAYER + "self_attn.sinks", (8,), 16, 4),
        (LAYER + "linear_attn.in_proj_qkvz.weight", (64, 64), 8192, 2048),
        (LAYER + "linear_attn.out_proj.weight", (64, 64), 8192, 2048),
        (LAYER + "linear_attn.conv1d.weight", (64, 1, 4), 512, 128),
        (LAYER + "linear_attn.norm.weight", (8,), 16, 16),
        (LAYER + "input_layernorm.weight", (64,), 128, 128),
        (LAYER + "self_attn.k_norm.weight", (8,), 16, 16),
        ("model.norm.weight", (64,), 128, 128),
        ("something.new", (8,), 16, 16),
        ("model.visual.blocks.0.attn.qkv.weight", (96, 64), 12_288, 12_288),
        ("model.vision_tower.encoder.layers.40.mlp.fc1.weight", (96, 64), 12_288, 12_288),
        (LAYER + "self_attn.rotary_emb.inv_freq", (4,), 0, 0),
        ("h.0.attn.bias", (1, 1, 64, 64), 0, 0),  # a mask
        (LAYER + "self_attn.q_proj.lora_A.weight", (8, 64), 0, 0),
        ("talker.model.layers.0.mlp.down_proj.weight", (64, 96), 0, 0),
        ("model.layers.2.mlp.down_proj.weight", (64, 96), 0, 0),  # a draft layer beyond the model's
        ("mtp.layers.0.mlp.down_proj.weight", (64, 96), 0, 0),
    ],
)
def test_rules_by_name(name: str, shape: tuple[int, ...], whole: int, quarter: int) -> None:
    assert held(name, shape, ONE) == whole
    assert held(name, shape, FOUR) == quarter


def test_towers_are_whole_divided_or_left_out() -> None:
    name, shape = "model.visual.blocks.0.attn.qkv.weight", (96, 64)
    assert held(name, shape, replace(FOUR, towers="divided")) == 3072
    assert held(name, shape, replace(FOUR, towers="none")) == 0


def test_draft_layers_are_loaded_with_speculation() -> None:
    for name in ("model.layers.2.mlp.down_proj.weight", "mtp.layers.0.mlp.down_proj.weight"):
        assert held(name, (64, 96), replace(FOUR, draft=True)) == 3072


def test_the_vocabulary_is_padded_before_it_is_divided() -> None:
    assert held("lm_head.weight", (101, 64), replace(ONE, vocab_multiple=64)) == 128 * 128
    assert held("lm_head.weight", (101, 64), replace(FOUR, vocab_multiple=64)) == 32 * 128


@pytest.mark.parametrize(
    ("names", "shape", "expert", "expected"),
    [
        # Four experts of 12,288 bytes on four ranks: divided inside, or one or two whole ones each.
        ([f"{LAYER}mlp.experts.{i}.w1.weight" for i in range(4)], (96, 64), 1, 4 * 3072),
        ([f"{LAYER}mlp.experts.{i}.w1.weight" for i in range(4)], (96, 64), 4, 12_288),
        ([f"{LAYER}mlp.experts.{i}.w1.weight" for i in range(4)], (96, 64), 2, 2 * 6144),
        ([f"{LAYER}mlp.experts.{i}.w1.weight" for i in range(5)], (96, 64), 4, 2 * 12_288),
        ([f"{LAYER}mlp.experts.gate_up_proj"], (4, 96, 64), 1, 4 * 3072),
        ([f"{LAYER}mlp.experts.gate_up_proj"], (4, 96, 64), 4, 12_288),
        ([f"{LAYER}mlp.experts.gate_up_proj"], (5, 96, 64), 4, 2 * 12_288),
    ],
)
def test_whole_experts_are_spread(
    names: list[str], shape: tuple[int, ...], expert: int, expected: int
) -> None:
    manifest = Manifest.of(dict.fromkeys(names, tensor(shape)), "safetensors")
    assert shard(manifest, SPEC, replace(FOUR, expert=expert)).size == expected


def test_floating_point_is_cast_and_quantised_is_not() -> None:
    name = LAYER + "mlp.down_proj.weight"
    assert held(name, (64, 96), ONE, "F32") == 12_288
    assert held(name, (64, 96), replace(ONE, compute="fp32")) == 24_576
    assert held(name, (64, 96), ONE, "F8_E4M3") == 6144
    assert held(LAYER + "mlp.down_proj.qweight", (64, 12), ONE, "I32") == 3072


@pytest.mark.parametrize(
    "name", ["mlp.down_proj.weight_scale_inv", "mlp.gate.e_score_correction_bias", "mamba.A_log"]
)
def test_scales_keep_their_dtype(name: str) -> None:
    assert held(LAYER + name, (4, 4), ONE, "F32") == 64


def test_quantised_parts_follow_their_matrix() -> None:
    for name, shape in (("qweight", (8, 96)), ("scales", (1, 96)), ("qzeros", (1, 12))):
        kind = "F16" if name == "scales" else "I32"
        whole = held(LAYER + "mlp.up_proj." + name, shape, ONE, kind)
        assert held(LAYER + "mlp.up_proj." + name, shape, FOUR, kind) * 4 == whole
    # One scale for each output row: a row-parallel layer has all of them on every rank.
    assert held(LAYER + "mlp.down_proj.weight_scale", (64, 1), FOUR, "F32") == 256
    assert held(LAYER + "mlp.down_proj.input_scale", (1,), FOUR, "F32") == 4


def test_quantising_while_loading() -> None:
    fp8, int4 = replace(ONE, quantize="fp8"), replace(ONE, quantize="int4")
    name, shape = LAYER + "mlp.down_proj.weight", (64, 96)
    assert held(name, shape, fp8) == 64 * 96 + 64 * 4
    assert held(name, shape, int4) == 64 * 48 + 64 * 4
    assert held(LAYER + "mlp.experts.down_proj", (4, 64, 96), fp8) == 4 * (64 * 96 + 64 * 4)
    for other in ("model.embed_tokens.weight", "lm_head.weight", LAYER + "mlp.gate.weight",
                  LAYER + "input_layernorm.weight", "model.visual.blocks.0.mlp.fc1.weight"):  # fmt: skip
        assert held(other, shape, fp8) == 2 * 64 * 96, other


def test_quantising_passes_one_layer_in_sixteen_bits() -> None:
    names = [
        f"model.layers.{i}.mlp.{p}_proj.weight" for i in (0, 1) for p in ("up", "gate", "down")
    ]
    manifest = Manifest.of(dict.fromkeys(names, tensor((64, 64))), "safetensors")
    peak = shard(manifest, SPEC, replace(ONE, quantize="fp8")).load_peak
    assert 3 * 8192 * 0.9 < peak <= 3 * 8192
    assert shard(manifest, SPEC, ONE).load_peak == 8192


def test_the_latent_up_projection_is_kept_a_second_time() -> None:
    spec = replace(SPEC, caches=(CacheGroup(2, 1, 32, 8, latent=True),))
    name = LAYER + "self_attn.kv_b_proj."
    rules = replace(FOUR, latent_split=True)
    assert shard(single(name + "weight", (64, 32)), spec, FOUR).size == 1024
    assert shard(single(name + "weight", (64, 32)), spec, rules).size == 2048
    assert shard(single(name + "weight", (64, 32), "F8_E4M3"), spec, rules).size == 512 + 1024
    assert shard(single(name + "qweight", (32, 8), "I32"), spec, rules).size == 256 + 1024


def test_mxfp4_experts_are_padded_on_both_sides() -> None:
    # GPT-OSS 20B: hidden and intermediate 2880, which Marlin makes 3072 and 2944.
    experts = replace(EXPERTS, count=32, intermediate=2880)
    spec = replace(SPEC, hidden=2880, experts=experts)
    rules = replace(ONE, fp4_padding=(256, 128))
    up = single(LAYER + "mlp.experts.gate_up_proj_blocks", (32, 5760, 90, 16), "U8")
    scales = single(LAYER + "mlp.experts.gate_up_proj_scales", (32, 5760, 90), "U8")
    down = single(LAYER + "mlp.experts.down_proj_blocks", (32, 2880, 90, 16), "U8")
    assert shard(up, spec, ONE).size == 32 * 5760 * 90 * 16
    assert shard(up, spec, rules).size == 32 * 2 * 2944 * 96 * 16
    assert shard(scales, spec, rules).size == 32 * 2 * 2944 * 96
    assert shard(down, spec, rules).size == 32 * 3072 * 92 * 16


def test_mamba_groups_are_replicated_where_they_do_not_divide() -> None:
    # 64 channels of heads, then B and C of 2 groups: 16 channels each.
    state = StateGroup("mamba2", 1, 96, 4, 1024, heads=8, groups=2, group_channels=16)
    spec = replace(SPEC, states=(state,))
    name = LAYER + "mamba.conv1d.weight"
    assert shard(single(name, (96, 1, 4)), spec, replace(FOUR, tensor=2)).size == 48 * 8
    assert shard(single(name, (96, 1, 4)), spec, FOUR).size == (16 + 16) * 8


def test_a_tied_head_is_counted_once_and_a_stored_one_twice() -> None:
    tied = read_spec(SMALL | {"tie_word_embeddings": True})
    implied = computed(tied, "bf16")
    assert not any(part.role == "lm_head.weight" for part in implied.parts)
    head = single("lm_head.weight", (101, 64))
    stored = Manifest({**implied.parts, **head.parts}, "safetensors")
    once = shard(implied, tied, ONE).size
    assert shard(stored, tied, ONE).size - once == 12_928  # LightLLM keeps both
    assert shard(stored, tied, replace(ONE, retie=True)).size == once
    # And a model that is not tied keeps its head whatever the engine does with others.
    assert shard(head, SPEC, replace(ONE, retie=True)).size == 12_928


def test_pipeline_stages() -> None:
    spec = read_spec(SMALL | {"num_hidden_layers": 5})
    manifest = computed(spec, "bf16")
    whole = shard(manifest, spec, ONE)
    assert whole.stages == ()
    split = shard(manifest, spec, replace(ONE, pipeline=2))
    layer = sum(part.kind.size for part in manifest.parts if part.layer == 0)
    # Two stages of five layers: 3 and 2 (the last has fewer), the embedding first, head and norm last.
    assert split.stages == (3 * layer + 12_928, 2 * layer + 12_928 + 128)
    assert split.size == max(split.stages)
    assert sum(split.stages) == whole.size
    tied = read_spec(SMALL | {"num_hidden_layers": 5, "tie_word_embeddings": True})
    again = shard(computed(tied, "bf16"), tied, replace(ONE, pipeline=2))
    assert again.stages == split.stages  # the embedding is at both ends


def test_unknown_names_are_told() -> None:
    manifest = single(LAYER + "mystery", (64, 64))
    assert "mystery" in shard(manifest, SPEC, FOUR).notes[0]
    assert shard(manifest, SPEC, ONE).notes == ()
    assert shard(single(LAYER + "input_layernorm.weight", (64,)), SPEC, FOUR).notes == ()


NAMES = st.sampled_from(
    ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "odd.thing"]
    + [
        f"model.layers.{i}.{part}"
        for i in (0, 1)
        for part in (
            "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.o_proj.weight",
            "self_attn.o_proj.bias", "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight",
            "mlp.down_proj.weight", "mlp.experts.3.w1.weight", "mlp.experts.down_proj",
            "mlp.gate.weight", "mamba.in_proj.weight", "self_attn.kv_a_proj_with_mqa.weight",
        )
    ]
)  # fmt: skip
SHAPES = st.lists(st.integers(1, 70), min_size=1, max_size=3).map(tuple)
MANIFESTS = st.dictionaries(
    NAMES, st.builds(tensor, SHAPES, st.sampled_from(sorted(WIDTHS))), min_size=1
).map(lambda tensors: Manifest.of(tensors, "safetensors"))


@given(MANIFESTS, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_together_the_ranks_hold_everything(manifest: Manifest, expert: int, pipeline: int) -> None:
    sizes = {}
    for ranks in (1, 2, 4, 8):
        rules = ShardRules(
            tensor=ranks,
            rank_kv_heads=max(1, 2 // ranks),
            compute="bf16",
            pipeline=pipeline,
            expert=min(expert, ranks),
            draft=True,
        )
        weights = shard(manifest, SPEC, rules)
        sizes[ranks] = sum(weights.stages) or weights.size
        assert weights.size == max(weights.stages or (weights.size,))
    loaded = sum(
        count * (prod(part.kind.shape) * 2 if part.kind.dtype in {"F32", "F16"} else part.kind.size)
        for part, count in manifest.parts.items()
    )
    if pipeline == 1:
        assert sizes[1] == loaded
    for few, many in ((1, 2), (2, 4), (4, 8)):
        assert sizes[many] <= sizes[few]
        assert sizes[many] * many >= loaded


def test_complete_weights_pass() -> None:
    check_complete(computed(SPEC, "bf16"), SPEC)


def test_a_missing_layer_is_told() -> None:
    whole = computed(SPEC, "bf16").parts
    parts = {part: count for part, count in whole.items() if part.layer != 1}
    with pytest.raises(BadModel) as caught:
        check_complete(Manifest(parts, "safetensors"), SPEC)
    assert "layer 1" in caught.value.message


def test_layers_of_a_tower_are_no_layers_of_the_decoder() -> None:
    whole = computed(SPEC, "bf16").parts
    parts = {part: count for part, count in whole.items() if part.layer != 1}
    tower = single("vision_tower.encoder.layers.1.mlp.fc1.weight", (4, 4)).parts
    with pytest.raises(BadModel):
        check_complete(Manifest({**parts, **tower}, "safetensors"), SPEC)


def test_names_of_gpt_2_are_layers_too() -> None:
    names = {f"h.{i}.ln_1.weight": tensor((64,)) for i in range(2)}
    check_complete(Manifest.of(names, "safetensors"), SPEC)
    with pytest.raises(BadModel):
        check_complete(Manifest.of({"h.0.ln_1.weight": tensor((64,))}, "safetensors"), SPEC)
    # Nothing that is known as a layer: no verdict.
    check_complete(Manifest.of({"foo.0.ln_1.weight": tensor((64,))}, "safetensors"), SPEC)


def test_weights_of_another_model_are_told() -> None:
    other = read_spec(SMALL | {"hidden_size": 128})
    with pytest.raises(BadModel) as caught:
        check_complete(computed(other, "bf16"), SPEC)
    assert caught.value.field == "hidden_size"
