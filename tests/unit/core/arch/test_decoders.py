"""Decoders against what transformers measures: default configs, varied ones, and published spellings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.errors import BadModel
from plimsoll.core.kv import cache_size

DATA = Path(__file__).parents[3] / "data" / "decoders.jsonl"
RECORDS = [json.loads(line) for line in DATA.read_text().splitlines()]
SMALL: dict[str, Any] = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_cache_and_parameters_equal_the_measured_ones(record: dict[str, Any]) -> None:
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


@pytest.mark.parametrize(
    "record", [r for r in RECORDS if r["published"]], ids=lambda record: record["name"]
)
def test_a_published_config_is_understood_as_a_whole(record: dict[str, Any]) -> None:
    notes = [note for note in read_spec(record["config"]).notes if "is assumed" not in note]
    assert notes == []


def windowed(config: dict[str, Any]) -> list[tuple[int, int | None]]:
    return [(group.layers, group.window) for group in read_spec(config).caches]


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [
        ("LLLG", [(2, None), (6, 64)]),
        ("LLLLG", [(2, None), (6, 64)]),  # the last layer is full whatever the letters say
        ("L", [(1, None), (7, 64)]),
        ("G", [(8, None)]),
        (2, [(4, None), (4, 64)]),
        (None, [(2, None), (6, 64)]),
    ],
)
def test_exaone_writes_its_pattern_as_a_number_or_letters(
    pattern: object, groups: list[tuple[int, int | None]]
) -> None:
    config = SMALL | {"model_type": "exaone4", "sliding_window": 64}
    assert windowed(config | {"sliding_window_pattern": pattern}) == groups


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "exaone4", "sliding_window_pattern": "LXG"}, "sliding_window_pattern"),
        ({"model_type": "exaone4", "sliding_window_pattern": ""}, "sliding_window_pattern"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": -1}, "sliding_window_pattern"),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [1]}, "hybrid_layer_pattern"),
        ({"model_type": "laguna", "num_attention_heads_per_layer": [8] * 7 + [0]},
         "num_attention_heads_per_layer"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 2, "intermediate_size": [8] * 7},
         "intermediate_size"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 8}, "num_kv_shared_layers"),
        ({"model_type": "minimax_m2", "attn_type_list": [1] * 7 + [0]}, "attn_type_list"),
        ({"model_type": "reformer", "attn_layers": []}, "attn_layers"),
        ({"model_type": "xmod", "languages": "en_XX"}, "languages"),
        ({"model_type": "mpt", "attn_config": [1]}, "attn_config"),
        ({"model_type": "mpt", "attn_config": {"kv_n_heads": "8"}}, "attn_config.kv_n_heads"),
        ({"model_type": "glm4_moe", "mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"model_type": "ernie4_5_moe", "moe_layer_end_index": -2}, "moe_layer_end_index"),
    ],
)  # fmt: skip
def test_a_broken_field_is_refused_by_name(config: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(SMALL | config)
    assert caught.value.field == field


def test_the_last_layers_of_gemma_4_share_caches_and_full_ones_have_other_heads() -> None:
    config = SMALL | {
        "model_type": "gemma4_text",
        "head_dim": 64,
        "global_head_dim": 128,
        "sliding_window": 64,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
    }
    full, local = read_spec(config).caches
    assert (full.layers, full.kv_heads, full.key_dim, full.window) == (3, 1, 128, None)
    assert (local.layers, local.kv_heads, local.key_dim, local.window) == (3, 2, 64, 64)
    # As transformers writes it back out: exceptions by the layer's index.
    saved = {key: value for key, value in config.items() if "global" not in key}
    saved["per_layer_config"] = {
        f"{index:02}": {"head_dim": 128, "num_key_value_heads": 1} for index in (1, 3, 5, 7)
    }
    assert read_spec(saved).caches == read_spec(config).caches


def test_windowed_layers_of_mimo_have_their_own_heads() -> None:
    config = SMALL | {
        "model_type": "mimo_v2_flash",
        "head_dim": 192,
        "v_head_dim": 128,
        "swa_num_key_value_heads": 8,
        "hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1, 1],
        "sliding_window": 128,
    }
    full, local = read_spec(config).caches
    assert (full.layers, full.kv_heads, full.key_dim, full.value_dim) == (2, 2, 192, 128)
    assert (local.layers, local.kv_heads, local.window) == (6, 8, 128)
    # The other spelling counts previous tokens only.
    assert read_spec(config | {"sliding_window_size": 128}).caches[1].window == 129


@pytest.mark.parametrize(
    ("config", "kv_heads"),
    [
        ({"multi_query": True}, 1),
        ({"multi_query": False}, 8),
        ({"new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 2}, 2),
        ({"new_decoder_architecture": True, "multi_query": True, "n_head_kv": 2}, 2),
        ({"new_decoder_architecture": True, "multi_query": True}, 8),
    ],
)
def test_falcon_has_one_kv_head_or_groups(config: dict[str, Any], kv_heads: int) -> None:
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
    assert read_spec({"model_type": "falcon", **sizes, **config}).kv_heads == kv_heads


def test_bloom_says_its_width_twice_and_one_wins() -> None:
    config = {"model_type": "bloom", "hidden_size": 64, "n_embed": 512, "n_head": 8, "n_layer": 2}
    assert read_spec(config).hidden == 512


def test_the_first_falcons_say_other_words() -> None:
    old = {"model_type": "RefinedWeb", "hidden_size": 8192, "n_head": 128, "n_head_kv": 8,
           "n_layer": 60, "vocab_size": 65024, "bias": False}  # fmt: skip
    spec = read_spec(old)
    assert (spec.family, spec.layers, spec.kv_heads, spec.key_dim) == ("falcon", 60, 8, 64)
    assert cache_size(spec, "bf16").all_full == 122_880


def test_a_frequency_or_flags_say_which_layers_have_experts() -> None:
    config = SMALL | {"model_type": "glm4_moe", "first_k_dense_replace": 2, "n_routed_experts": 4}
    for change, layers in (
        ({}, {2, 3, 4, 5, 6, 7}),
        ({"moe_layer_freq": 3}, {3, 6}),
        ({"moe_layer_freq": [0, 1, 0, 0, 0, 0, 0, 1]}, {1, 7}),
        ({"mlp_layer_types": ["sparse"] + ["dense"] * 7}, {0}),
    ):
        mixture = read_spec(config | change).experts
        assert mixture is not None
        assert mixture.layers == layers


def test_draft_layers_are_told_apart() -> None:
    config = SMALL | {"model_type": "glm4_moe", "num_nextn_predict_layers": 2}
    assert read_spec(config).draft_layers == 2
    assert read_spec(config).layers == 8
    assert read_spec(SMALL | {"model_type": "minimax_m2", "num_mtp_modules": 3}).draft_layers == 3
