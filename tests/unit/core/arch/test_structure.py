"""Models of unknown type, and fields that nobody has read."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.errors import BadModel, Unsupported

PLAIN: dict[str, Any] = {
    "model_type": "brand_new",
    "architectures": ["BrandNewForCausalLM"],
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 96,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "output_hidden_states": False,
    "num_labels": 2,
}


def test_a_config_that_names_every_size_is_read_and_marked() -> None:
    spec = read_spec(PLAIN)
    (group,) = spec.caches
    assert (group.layers, group.kv_heads, group.key_dim, group.window) == (8, 2, 96, None)
    assert spec.architecture == "BrandNewForCausalLM"
    assert len(spec.notes) == 1
    assert "brand_new is not known" in spec.notes[0]


def test_what_is_usual_may_be_left_out() -> None:
    left_out = {"num_key_value_heads", "head_dim"}
    spec = read_spec({key: value for key, value in PLAIN.items() if key not in left_out})
    assert (spec.kv_heads, spec.key_dim) == (8, 64)
    assert any("head_dim" in note for note in spec.notes)


@pytest.mark.parametrize("size", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_a_missing_size_is_refused_by_name(size: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read_spec({key: value for key, value in PLAIN.items() if key != size})
    assert caught.value.field == size
    assert size in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_lora_rank", 512),
        ("mamba_d_state", 128),
        ("ssm_cfg", {"layer": "Mamba2"}),
        ("conv_L_cache", 3),
        ("hybrid_override_pattern", "M*M*"),
        ("layers_block_type", ["mamba", "attention"] * 4),
        ("attn_type_list", [0, 1] * 4),
        ("full_attention_interval_pattern", 4),
        ("linear_attn_config", {"full_attn_layers": [4]}),
        ("num_kv_shared_layers", 4),
        ("cla_share_factor", 2),
        ("use_cla", True),
        ("index_topk", 2048),
        ("indexer_types", ["full"]),
        ("attn_layer_list", [3]),
        ("swa_window", 128),
        ("compress_ratios", [4]),
        ("n_recurrent_layers", 2),
        ("attention_chunk_size", 8192),
        ("multi_query", True),
        ("num_kv_heads", 2),
        ("v_head_dim", 64),
        ("block_configs", [{"attention": {"no_op": True}}]),
        ("encoder_layers", 6),
        ("is_encoder_decoder", True),
        ("layer_types", ["linear_attention"] * 7 + ["full_attention"]),
    ],
)
def test_a_field_that_speaks_of_another_memory_is_refused_by_name(
    field: str, value: object
) -> None:
    if field == "cla_share_factor":  # alone it is a leftover: use_cla decides
        assert read_spec(PLAIN | {field: value}).notes
        return
    with pytest.raises(Unsupported) as caught:
        read_spec(PLAIN | {field: value})
    assert caught.value.field == field


def test_such_a_field_that_is_off_says_nothing() -> None:
    off: dict[str, Any] = {
        "kv_lora_rank": None,
        "use_cla": False,
        "num_kv_shared_layers": 0,
        "block_configs": [],
    }
    assert len(read_spec(PLAIN | off).notes) == 1


@pytest.mark.parametrize(
    ("change", "windowed"),
    [
        ({"sliding_window": 128, "sliding_window_pattern": 4}, 6),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 4}, 4),
        ({"sliding_window": 128, "use_sliding_window": False, "sliding_window_pattern": 4}, 0),
        ({"sliding_window": None, "sliding_window_pattern": 4}, 0),
        ({"sliding_window": 128}, 0),  # which layers have it is not said: the safe side
    ],
)
def test_windows_are_read_where_they_are_spelled_in_a_known_way(
    change: dict[str, Any], windowed: int
) -> None:
    spec = read_spec(PLAIN | change)
    assert sum(group.layers for group in spec.windowed) == windowed
    assert ("counted in full" in " ".join(spec.notes)) == (
        windowed == 0 and bool(change["sliding_window"])
    )


def test_experts_do_not_change_the_cache() -> None:
    spec = read_spec(PLAIN | {"num_experts": 8, "num_experts_per_tok": 2, "expert_groups": 4})
    assert spec.experts is not None
    assert spec.caches == read_spec(PLAIN).caches
    assert any("expert_groups" in note for note in spec.notes)


def test_a_wrong_type_is_an_error_here_too() -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(PLAIN | {"num_hidden_layers": "8"})
    assert caught.value.field == "num_hidden_layers"


LLAMA = {key: value for key, value in PLAIN.items() if key != "architectures"} | {
    "model_type": "llama"
}


@pytest.mark.parametrize(
    "keys",
    [
        ["text_config"],
        ["llm_config"],
        ["language_config"],
        ["thinker_config", "text_config"],
        ["decoder"],
    ],
)
def test_a_wrapper_of_unknown_type_is_read_by_its_text_model(keys: list[str]) -> None:
    config: dict[str, Any] = LLAMA
    for key in reversed(keys):
        config = {key: config}
    spec = read_spec({"model_type": "brand_new_vl", "vision_config": {"depth": 4}, **config})
    assert (spec.family, spec.layers, spec.kv_heads) == ("llama", 8, 2)
    assert ".".join(keys) in spec.notes[-1]


def test_a_wrapper_around_an_unknown_model_is_told_by_the_structure_inside() -> None:
    spec = read_spec({"model_type": "brand_new_vl", "text_config": PLAIN})
    assert spec.caches == read_spec(PLAIN).caches
    with pytest.raises(Unsupported) as caught:
        read_spec({"model_type": "brand_new_vl", "text_config": PLAIN | {"kv_lora_rank": 64}})
    assert caught.value.field == "text_config.kv_lora_rank"


@pytest.mark.parametrize(
    ("field", "value", "noted"),
    [
        ("attention_memory_tokens", 64, True),
        ("kv_compression", "topk", True),
        ("num_kv_shared_layers", 4, True),
        ("cross_layer_cache", True, True),
        ("mtp_depth", 1, True),
        ("mtp_depth", 0, False),
        ("num_kv_shared_layers", None, False),
        ("use_cache", True, False),
        ("cache_implementation", "hybrid", False),
        ("layer_norm_eps", 1e-5, False),
        ("image_token_index", 7, False),
        ("expert_dropout", 0.1, False),
        ("router_aux_loss_coef", 0.1, False),
        ("output_hidden_states", True, False),
        ("num_labels", 3, False),
    ],
)
def test_a_field_that_looks_like_memory_and_is_not_understood_is_named(
    field: str, value: object, *, noted: bool
) -> None:
    notes = read_spec(LLAMA | {field: value}).notes
    assert any(f"field {field}," in note for note in notes) == noted
    assert len(notes) == noted
