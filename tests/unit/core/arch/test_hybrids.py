"""Latent attention, states, hybrids and loops: varied configs as measured, spellings and traps by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.errors import BadModel
from plimsoll.core.kv import cache_size

DATA = Path(__file__).parents[3] / "data" / "hybrids.jsonl"
RECORDS = [json.loads(line) for line in DATA.read_text().splitlines()]
KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_cache_states_and_parameters_equal_the_measured_ones(record: dict[str, Any]) -> None:
    spec = read_spec(record["config"])
    assert spec.parameters == record["params"]
    if "all_full" in record:
        size = cache_size(spec, "bf16")
        assert (size.all_full, size.windows_honoured, size.window, size.state) == (
            record["all_full"],
            record["windows_honoured"],
            record["window"],
            record["state"],
        )


def test_latent_rows_have_no_heads_and_no_factor_two() -> None:
    spec = read_spec({"model_type": "kimi_k2", "num_nextn_predict_layers": 0})
    assert cache_size(spec, "bf16").all_full == 61 * (512 + 64) * 2
    assert (spec.draft_layers, spec.heads, spec.kv_heads, spec.key_dim) == (0, 128, 128, 192)


def test_without_mla_deepseek_v2_has_full_heads() -> None:
    config = {
        "model_type": "deepseek_v2",
        "use_mla": False,
        "hidden_size": 1280,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "num_hidden_layers": 12,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "kv_lora_rank": None,
    }
    spec = read_spec(config)
    assert not spec.latent
    assert cache_size(spec, "bf16").all_full == 61440


@pytest.mark.parametrize(
    ("stated", "layers"),
    [
        ({}, 78),
        ({"indexer_types": ["full", "shared", "shared"] * 26}, 26),
        ({"index_topk_pattern": "FSSSSS" * 13}, 13),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 21),
    ],
)
def test_layers_that_reuse_picks_hold_no_index_keys(stated: dict[str, Any], layers: int) -> None:
    spec = read_spec({"model_type": "glm_moe_dsa"} | stated)
    assert [(group.index_dim, group.index_layers) for group in spec.caches] == [(128, layers)]
    assert spec.attention == "SparseMLA"


def test_lists_of_kimi_linear_count_from_one() -> None:
    lists = {
        "full_attn_layers": KIMI_FULL,
        "kda_layers": [index for index in range(1, 28) if index not in KIMI_FULL],
    }
    config = {"model_type": "kimi_linear", "linear_attn_config": lists | {"head_dim": 128}}
    spec = read_spec(config)
    assert [group.layers for group in spec.caches] == [7]
    assert [group.layers for group in spec.states] == [20]
    assert cache_size(spec, "bf16").all_full == 7 * 576 * 2
    with pytest.raises(BadModel, match="kda_layers"):
        read_spec(config | {"linear_attn_config": lists | {"kda_layers": [0]}})


def test_letters_decide_nemotrons_layers() -> None:
    config = {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*-ME",
        "num_hidden_layers": 52,
        "mamba_n_groups": 4,
        "mamba_ssm_cache_dtype": "float32",
    }
    spec = read_spec(config)
    assert (spec.layers, spec.caches[0].layers, spec.states[0].layers) == (7, 1, 3)
    state = spec.states[0]
    assert (state.groups, state.group_channels, state.heads) == (4, 256, 128)
    assert state.conv_channels == 128 * 64 + 2 * 4 * 128
    assert state.stated_dtype == "fp32"
    with pytest.raises(BadModel, match="hybrid_override_pattern"):
        read_spec(config | {"hybrid_override_pattern": "MXM"})


@pytest.mark.parametrize(
    ("config", "attending"),
    [
        ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 1}, 8),
        ({"model_type": "bamba", "attn_layer_indices": [1, 5]}, 2),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 16}, 16),
        ({"model_type": "granitemoehybrid", "layers_block_type": ["mamba", "attention"] * 16}, 16),
        ({"model_type": "falcon_h1"}, 32),
        ({"model_type": "lfm2", "full_attn_idxs": [0, 9], "num_hidden_layers": 16}, 2),
        ({"model_type": "qwen3_next", "full_attention_interval": 8}, 6),
        ({"model_type": "minimax", "attn_type_list": [0, 0, 0, 1] * 8}, 8),
        ({"model_type": "zamba2"}, 9),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"]}, 13),
        ({"model_type": "bailing_hybrid", "layer_group_size": 8}, 5),
        ({"model_type": "glm5_next_text"}, 11),
    ],
)
def test_every_spelling_of_the_pattern(config: dict[str, Any], attending: int) -> None:
    assert sum(group.layers for group in read_spec(config).caches) == attending


def test_compressed_rows_are_shared_by_their_group_of_tokens() -> None:
    size = cache_size(read_spec({"model_type": "deepseek_v4"}), "bf16")
    assert size.windows_honoured == 6584
    assert size.window == 43 * 127 * 512 * 2
    ratios = {"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0]}
    spec = read_spec({"model_type": "deepseek_v4"} | ratios)
    assert [(group.layers, group.stride) for group in spec.caches] == [(4, 1), (2, 4), (1, 128)]


def test_loops_keep_a_cache_for_each_pass() -> None:
    dory = {"model_type": "dory", "num_hidden_layers": 36, "n_recurrent_loops": 3}
    assert sum(group.layers for group in read_spec(dory).caches) == 36 + 2 * 20
    last = read_spec(dory | {"recurrent_kv_cache_mode": "last_loop"})
    assert sum(group.layers for group in last.caches) == 36
    hrm = read_spec({"model_type": "hrm_text", "H_cycles": 2, "L_cycles": 3})
    assert hrm.caches[0].layers == 16 * 2 * 4
    saved = {"model_type": "hrm_text", "num_hidden_layers": 128, "num_layers_per_stack": 16}
    assert read_spec(saved).caches == hrm.caches


def test_a_stated_inner_width_wins_over_the_multiple() -> None:
    config = {"model_type": "falcon_mamba", "hidden_size": 4096, "expand": 16}
    assert read_spec(config).states[0].conv_channels == 16 * 4096
    assert read_spec(config | {"intermediate_size": 8192}).states[0].conv_channels == 8192


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": "512"}, "kv_lora_rank"),
        ({"model_type": "deepseek_v3", "qk_rope_head_dim": -1}, "qk_rope_head_dim"),
        ({"model_type": "jamba", "attn_layer_period": 0}, "attn_layer_period"),
        ({"model_type": "zamba2", "layers_block_type": ["mamba"]}, "layers_block_type"),
        ({"model_type": "recurrent_gemma", "block_types": []}, "block_types"),
        ({"model_type": "mamba", "expand": 1e9}, "expand"),
        ({"model_type": "dory", "n_input_layers": 99}, "n_recurrent_layers"),
        ({"model_type": "mamba2", "time_step_rank": "auto", "n_groups": True}, "n_groups"),
    ],
)
def test_broken_fields_are_named(config: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel) as raised:
        read_spec(config)
    assert raised.value.field == field
