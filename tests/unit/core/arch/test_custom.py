"""Families whose code is in the checkpoint. The totals are those of the published weights."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.core.arch import FAMILIES, bart, custom, custom_wrappers, read_spec
from plimsoll.core.errors import BadModel, Unsupported
from plimsoll.core.kv import CacheSize, cache_size

CHATGLM: dict[str, Any] = {
    "model_type": "chatglm", "architectures": ["ChatGLMModel"], "add_bias_linear": False,
    "add_qkv_bias": True, "apply_query_key_layer_scaling": True, "ffn_hidden_size": 13696,
    "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
    "num_attention_heads": 32, "num_layers": 28, "padded_vocab_size": 65024, "seq_length": 8192,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen", "architectures": ["QWenLMHeadModel"], "hidden_size": 4096,
    "intermediate_size": 22016, "kv_channels": 128, "num_attention_heads": 32, "num_hidden_layers": 32,
    "seq_length": 8192, "vocab_size": 151936,
}  # fmt: skip
INTERNLM2: dict[str, Any] = {
    "model_type": "internlm2", "bias": False, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 92544,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek", "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "num_attention_heads": 16,
    "num_key_value_heads": 16, "num_hidden_layers": 28, "vocab_size": 102400,
}  # fmt: skip
OLMO: dict[str, Any] = {
    "model_type": "hf_olmo", "d_model": 4096, "n_layers": 32, "n_heads": 32, "mlp_hidden_size": 22016,
    "embedding_size": 50304, "vocab_size": 50280, "weight_tying": False,
}  # fmt: skip
MINICPM: dict[str, Any] = {
    "model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36,
    "num_hidden_layers": 40, "num_key_value_heads": 36, "vocab_size": 122753,
}  # fmt: skip
BAICHUAN: dict[str, Any] = {
    "model_type": "baichuan", "hidden_size": 5120, "intermediate_size": 13696, "num_attention_heads": 40,
    "num_hidden_layers": 40, "vocab_size": 125696, "model_max_length": 4096,
}  # fmt: skip
OPENELM: dict[str, Any] = {
    "model_type": "openelm", "ffn_dim_divisor": 256, "ffn_with_glu": True, "head_dim": 64,
    "ffn_multipliers": [
        0.5, 0.63, 0.76, 0.89, 1.02, 1.15, 1.28, 1.41, 1.54, 1.67, 1.8, 1.93, 2.06, 2.19, 2.31, 2.44, 2.57,
        2.7, 2.83, 2.96, 3.09, 3.22, 3.35, 3.48, 3.61, 3.74, 3.87, 4.0,
    ],
    "model_dim": 2048, "num_transformer_layers": 28, "normalize_qk_projections": True,
    "num_kv_heads": [4] * 3 + [5] * 7 + [6] * 8 + [7] * 6 + [8] * 4,
    "num_query_heads": [16] * 3 + [20] * 7 + [24] * 8 + [28] * 6 + [32] * 4,
    "share_input_output_layers": True, "vocab_size": 32000,
}  # fmt: skip
INTERNVIT: dict[str, Any] = {
    "hidden_size": 1024, "image_size": 448, "intermediate_size": 4096, "norm_type": "layer_norm",
    "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "qk_normalization": False,
    "qkv_bias": True,
}  # fmt: skip
INTERNVL2_8B: dict[str, Any] = {
    "model_type": "internvl_chat", "downsample_ratio": 0.5, "vision_config": INTERNVIT,
    "llm_config": INTERNLM2 | {"vocab_size": 92553},
}  # fmt: skip
INTERNVL2_26B: dict[str, Any] = {
    "model_type": "internvl_chat", "downsample_ratio": 0.5,
    "llm_config": INTERNLM2 | {
        "hidden_size": 6144, "intermediate_size": 16384, "num_attention_heads": 48,
        "num_hidden_layers": 48, "vocab_size": 92553,
    },
    "vision_config": INTERNVIT | {
        "hidden_size": 3200, "intermediate_size": 12800, "norm_type": "rms_norm",
        "num_attention_heads": 25, "num_hidden_layers": 45, "qk_normalization": True, "qkv_bias": False,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters", "full"),
    [
        (CHATGLM, 6_243_584_000, 28 * 2 * 2 * 128 * 2),
        (CHATGLM | {"num_layers": 40, "padded_vocab_size": 151552}, 9_399_951_360, 40_960),
        (QWEN, 7_721_324_544, 524_288),
        (INTERNLM2, 7_737_708_544, 131_072),
        (DEEPSEEK, 16_375_728_128, 229_376),
        (OLMO, 6_888_095_744, 524_288),
        (MINICPM, 2_724_880_896, 368_640),
        (BAICHUAN, 13_896_668_160, 819_200),
        (OPENELM, 1_079_891_456, 2 * 64 * 169 * 2),
        (INTERNVL2_8B, 8_075_365_376, 131_072),
        (INTERNVL2_26B, 25_514_186_112, 196_608),
    ],
)  # fmt: skip
def test_published_models(config: dict[str, Any], parameters: int, full: int) -> None:
    spec = read_spec(config)
    assert spec.parameters == parameters
    assert cache_size(spec, "bf16") == CacheSize(full, full, 0)
    assert not [note for note in spec.notes if "assumed" not in note]


def test_every_type_of_the_table_has_a_row_and_every_row_a_type() -> None:
    wrappers = {*custom_wrappers._NESTED, *custom_wrappers._FLAT, *custom_wrappers._VERSIONED}
    rows = {"custom": {*custom._ROWS, *custom._ALIASES}, "custom_wrappers": wrappers,
            "bart": {*bart._SHAPES}}  # fmt: skip
    for module, expected in rows.items():
        assert {kind for kind, reader in FAMILIES.items() if reader == module} == expected


def test_chatglms_groups_count_only_with_their_switch() -> None:
    size = cache_size(read_spec(CHATGLM | {"multi_query_attention": False}), "bf16")
    assert size.all_full == 28 * 2 * 32 * 128 * 2


def test_a_missing_vocabulary_is_the_published_one_and_named() -> None:
    spec = read_spec({key: value for key, value in QWEN.items() if key != "vocab_size"})
    assert spec.vocab == 151936
    assert "config names no vocab_size; 151936 is assumed" in spec.notes


def test_the_class_alone_tells_the_family() -> None:
    spec = read_spec({key: value for key, value in QWEN.items() if key != "model_type"})
    assert (spec.family, spec.architecture) == ("qwen", "QWenLMHeadModel")


def test_grok_2_says_git_and_is_none() -> None:
    config = {
        "architectures": ["Grok1ForCausalLM"], "model_type": "git", "hidden_size": 8192,
        "intermediate_size": 32768, "moe_intermediate_size": 16384, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 64, "num_local_experts": 8,
        "num_experts_per_tok": 2, "residual_moe": True, "sliding_window_size": -1, "vocab_size": 131072,
        "tie_word_embeddings": False,
    }  # fmt: skip
    spec = read_spec(config)
    assert spec.family == "grok-1"
    assert cache_size(spec, "bf16").all_full == 262_144
    assert 269e9 < spec.parameters < 270e9


def test_minimax_text_keeps_a_matrix_per_head_where_it_does_not_attend() -> None:
    config = {
        "model_type": "minimax_text_01", "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 6144,
        "attn_type_list": ([0] * 7 + [1]) * 10,
    }  # fmt: skip
    spec = read_spec(config)
    assert cache_size(spec, "bf16") == CacheSize(40_960, 40_960, 0, 146_800_640)
    assert spec.attention == "Hybrid"
    with pytest.raises(BadModel, match="attn_type_list"):
        read_spec(config | {"attn_type_list": [0, 1]})


def test_ring_linear_attends_at_each_groups_end() -> None:
    config = {
        "model_type": "bailing_moe_linear", "hidden_size": 2048, "num_hidden_layers": 20,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "layer_group_size": 5,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "num_shared_experts": 1, "first_k_dense_replace": 1, "intermediate_size": 5120,
    }  # fmt: skip
    spec = read_spec(config)
    row = 2 * 4 * 128 * 2
    assert cache_size(spec, "bf16") == CacheSize(4 * row, 4 * row, 0, 16 * 16 * 128 * 128 * 4)
    assert 16.2e9 < spec.parameters < 16.6e9  # published as 16B
    with pytest.raises(BadModel, match="layer_group_size"):
        read_spec(config | {"layer_group_size": 6})


def test_hunyuans_sharing_layers_have_buffers_but_no_projections() -> None:
    config = {
        "model_type": "hunyuan", "num_hidden_layers": 64, "num_attention_heads": 80,
        "num_key_value_heads": 8, "hidden_size": 6400, "attention_head_dim": 128,
    }  # fmt: skip
    own = read_spec(config)
    shared = read_spec(config | {"use_cla": True, "cla_share_factor": 2})
    assert cache_size(shared, "bf16") == cache_size(own, "bf16") == CacheSize(262_144, 262_144, 0)
    assert own.parameters - shared.parameters == 32 * (2 * 1024 * 6400 + 128)
    assert any("cla_share_factor" in note for note in shared.notes)


NAS: dict[str, Any] = {
    "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 3,
    "num_key_value_heads": None, "vocab_size": 128256,
    "block_configs": [
        {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.3125}},
        {"attention": {"n_heads_in_group": 16, "window_length": 2048}, "ffn": {"no_op": True}},
    ],
}  # fmt: skip


def test_nemotron_nas_is_read_block_by_block() -> None:
    spec = read_spec(NAS)
    assert cache_size(spec, "bf16") == CacheSize(6144, 4096, 2047 * 2048)
    widths = {g.shape[0]: g.indices for g in spec.tensors if g.name.endswith("up_proj.weight")}
    assert widths == {28672: (0,), 7168: (1,)}
    blocks = NAS["block_configs"]
    with pytest.raises(BadModel, match="block_configs"):
        read_spec(NAS | {"block_configs": blocks[:2]})
    with pytest.raises(BadModel) as caught:
        read_spec(NAS | {"block_configs": [*blocks[:2], {"attention": {"n_heads_in_group": 7}}]})
    assert caught.value.field == "block_configs[2].attention.n_heads_in_group"


def test_step_3_5_windows_have_heads_of_their_own() -> None:
    config = {
        "model_type": "step3p5", "hidden_size": 4096, "intermediate_size": 11264, "vocab_size": 128896,
        "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "num_hidden_layers": 45,
        "sliding_window": 512, "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12,
        "num_nextn_predict_layers": 3, "moe_layers_enum": ",".join(map(str, range(3, 45))),
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 4},
    }  # fmt: skip
    spec = read_spec(config)
    # Three further entries of the list are the draft layers'.
    assert (spec.layers, spec.draft_layers) == (45, 3)
    assert cache_size(spec, "bf16") == CacheSize(12 * 4096 + 33 * 2048, 12 * 4096, 511 * 33 * 2048)
    assert spec.experts is not None
    assert spec.experts.layers == frozenset(range(3, 45))


def test_deepseek_vl2_tiny_has_no_latent_cache() -> None:
    language = {
        "model_type": "deepseek_v2", "use_mla": False, "num_hidden_layers": 12, "hidden_size": 1280,
        "num_attention_heads": 10, "num_key_value_heads": 10, "kv_lora_rank": None, "q_lora_rank": None,
        "qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "v_head_dim": 0, "intermediate_size": 6848,
        "moe_intermediate_size": 896, "first_k_dense_replace": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "vocab_size": 129280, "lm_head": True,
    }  # fmt: skip
    config = {
        "model_type": "deepseek_vl_v2", "language_config": language,
        "vision_config": {"layers": 27, "mlp_ratio": 3.7362, "patch_size": 14, "width": 1152},
        "projector_config": {"n_embed": 1280},
    }  # fmt: skip
    spec = read_spec(config)
    assert not spec.latent
    assert cache_size(spec, "bf16").all_full == 61_440
    assert spec.parameters == 3_370_501_440


def test_internvls_text_model_is_told_by_its_class() -> None:
    text = {key: value for key, value in INTERNLM2.items() if key != "model_type"}
    spec = read_spec(
        {
            "model_type": "internvl_chat",
            "llm_config": text | {"architectures": ["InternLM2ForCausalLM"]},
        }
    )
    assert (spec.family, spec.architecture) == ("internlm2", "InternVLChatModel")
    assert any("image encoder" in note for note in spec.notes)
    with pytest.raises(Unsupported, match="llm_config"):
        read_spec({"model_type": "internvl_chat", "llm_config": {"model_type": "new_text"}})


@pytest.mark.parametrize(
    ("version", "family"),
    [(None, "minicpm"), (2.5, "llama"), (2.6, "qwen2"), ("4.5", "qwen3"), (4, "llama")],
)
def test_minicpm_v_is_told_by_its_version(version: object, family: str) -> None:
    config = {
        "model_type": "minicpmv", "version": version, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    }  # fmt: skip
    assert read_spec(config).family == family


def test_a_new_minicpm_v_is_refused() -> None:
    with pytest.raises(Unsupported, match="version"):
        read_spec({"model_type": "minicpmv", "version": 9.9})


def test_hymba_shares_caches_between_neighbours() -> None:
    config = {
        "model_type": "hymba", "hidden_size": 1600, "num_attention_heads": 25, "num_key_value_heads": 5,
        "num_hidden_layers": 4, "vocab_size": 32001, "attn_window_size": 1024, "global_attn_idx": [0],
        "kv_reuse_group": [[1, 2]], "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2,
    }  # fmt: skip
    row = 2 * 5 * 64 * 2
    state = 4 * 3200 * (4 * 2 + 16 * 4)
    spec = read_spec(config)
    assert cache_size(spec, "bf16") == CacheSize(3 * row, row, 1023 * 2 * row, state)
    with pytest.raises(BadModel, match="kv_reuse_group"):
        read_spec(config | {"kv_reuse_group": [[1, 9]]})


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (CHATGLM | {"multi_query_group_num": "2"}, "multi_query_group_num"),
        (CHATGLM | {"padded_vocab_size": 0}, "padded_vocab_size"),
        (QWEN | {"kv_channels": -1}, "kv_channels"),
        (QWEN | {"intermediate_size": True}, "intermediate_size"),
        (OPENELM | {"num_kv_heads": [4]}, "num_kv_heads"),
        (OPENELM | {"ffn_multipliers": ["x"] * 28}, "ffn_multipliers"),
        ({"model_type": "step3p5", "moe_layers_enum": "3;4"}, "moe_layers_enum"),
        ({"model_type": "internvl_chat", "llm_config": []}, "llm_config"),
    ],
)
def test_broken_fields_are_named(config: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(config)
    assert caught.value.field == field
