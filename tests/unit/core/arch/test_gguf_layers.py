"""GGUF metadata of models whose layers differ."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.core.arch import CacheGroup, read_spec
from plimsoll.core.errors import BadModel, Unsupported
from plimsoll.core.kv import cache_size


def metadata(name: str, **more: Any) -> dict[str, Any]:
    """A small model; keys of ``more`` have ``__`` for the dots behind the architecture's name."""
    sizes = {
        "block_count": 12,
        "embedding_length": 512,
        "feed_forward_length": 1024,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "context_length": 4096,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return {
        "general.architecture": name,
        "tokenizer.ggml.tokens#length": 1000,
        **{f"{name}.{key}": value for key, value in sizes.items()},
    }


@pytest.mark.parametrize(
    ("name", "more", "full"),
    [
        ("gemma2", {}, 6),
        ("gemma2", {"attention__sliding_window": 64}, 6),
        ("gemma3", {"attention__sliding_window": 64}, 2),
        ("gemma3", {"attention__sliding_window": 64, "attention__sliding_window_pattern": 3}, 4),
        (
            "gpt-oss",
            {"attention__sliding_window": 64, "expert_count": 4, "expert_used_count": 2},
            6,
        ),
        ("cohere2", {"attention__sliding_window": 64}, 3),
        ("llama4", {}, 3),
        ("llama4", {"attention__sliding_window": 0}, 12),  # a stated 0 switches them off
        ("olmo2", {}, 12),
        ("olmo2", {"attention__sliding_window": 64}, 3),
        ("phi3", {"attention__sliding_window": 64}, 12),  # llama.cpp keeps every token all the same
        ("llama", {"attention__sliding_window": 64}, 12),
        ("qwen2", {"attention__sliding_window": 64}, 12),
    ],
)
def test_windows_follow_the_architectures_name(name: str, more: dict[str, Any], full: int) -> None:
    spec = read_spec(metadata(name, **more))
    assert sum(group.layers for group in spec.caches if group.window is None) == full
    assert sum(group.layers for group in spec.windowed) == 12 - full


def test_a_window_without_a_known_pattern_is_counted_in_full_and_named() -> None:
    spec = read_spec(metadata("qwen2", attention__sliding_window=64))
    assert spec.windowed == ()
    assert any("sliding_window" in note for note in spec.notes)


def test_flags_by_layer_and_other_heads_in_windowed_layers() -> None:
    pattern = [True, True, False] * 4
    more = {
        "attention__sliding_window": 64,
        "attention__sliding_window_pattern": pattern,
        "attention__head_count_kv": [2 if local else 1 for local in pattern],
        "attention__key_length": 128,
        "attention__value_length": 128,
        "attention__key_length_swa": 64,
        "attention__value_length_swa": 64,
        "attention__shared_kv_layers": 3,
    }
    spec = read_spec(metadata("gemma4", **more))
    assert set(spec.caches) == {CacheGroup(6, 2, 64, 64, window=64), CacheGroup(3, 1, 128, 128)}


def test_layers_without_kv_heads_keep_nothing() -> None:
    heads = [8, 8, 0] * 4
    spec = read_spec(
        metadata("deci", attention__head_count=heads, attention__head_count_kv=[2, 4, 0] * 4)
    )
    assert sorted((group.layers, group.kv_heads) for group in spec.caches) == [(4, 2), (4, 4)]
    assert spec.layers == 12


def test_the_first_gemma_3n_files_do_not_say_how_many_layers_share() -> None:
    spec = read_spec(metadata("gemma3n", block_count=35, attention__sliding_window=64))
    assert sum(group.layers for group in spec.caches) == 20


def test_latent_rows_where_the_file_is_made_for_them() -> None:
    more = {
        "attention__kv_lora_rank": 512,
        "attention__key_length": 576,
        "attention__value_length": 512,
        "attention__key_length_mla": 192,
        "attention__head_count_kv": 1,
        "rope__dimension_count": 64,
    }
    spec = read_spec(metadata("deepseek2", **more))
    assert spec.latent
    assert cache_size(spec, "bf16").all_full == 12 * 576 * 2
    # An older file holds full heads, and so does llama.cpp's cache.
    old = more | {
        "attention__key_length": 192,
        "attention__value_length": 128,
        "attention__head_count_kv": 8,
    }
    del old["attention__key_length_mla"]
    assert cache_size(read_spec(metadata("deepseek2", **old)), "bf16").all_full == 12 * 8 * 320 * 2


def test_blocks_for_prediction_are_told_apart() -> None:
    more = {"nextn_predict_layers": 1, "expert_count": 8, "expert_used_count": 2,
            "leading_dense_block_count": 1, "expert_shared_count": 1,
            "expert_feed_forward_length": 256}  # fmt: skip
    spec = read_spec(metadata("glm4moe", **more))
    assert (spec.layers, spec.draft_layers) == (11, 1)
    assert spec.experts is not None
    assert spec.experts.layers == frozenset(range(1, 11))
    assert (spec.experts.intermediate, spec.experts.shared_intermediate) == (256, 256)


@pytest.mark.parametrize(
    ("name", "more", "key"),
    [
        ("mamba", {"ssm__conv_kernel": 4}, "mamba.ssm.conv_kernel"),
        ("jamba", {"ssm__state_size": 16}, "jamba.ssm.state_size"),
        ("rwkv7", {"wkv__head_size": 64}, "rwkv7.wkv.head_size"),
        ("lfm2", {"shortconv__l_cache": 3}, "lfm2.shortconv.l_cache"),
        ("t5", {"decoder_block_count": 12}, "t5.decoder_block_count"),
        ("bert", {"attention__causal": False}, "bert.attention.causal"),
    ],
)
def test_other_kinds_are_refused_by_the_key_that_tells_them(
    name: str, more: dict[str, Any], key: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        read_spec(metadata(name, **more))
    assert caught.value.field == key


def test_an_unknown_architecture_with_all_sizes_is_read_and_marked() -> None:
    spec = read_spec(metadata("brandnew"))
    assert cache_size(spec, "bf16").all_full == 12 * 2 * 2 * 64 * 2
    assert any("brandnew is not known" in note for note in spec.notes)
    assert read_spec(metadata("llama")).notes == ()


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"attention__head_count_kv": [2] * 11}, "gemma4.attention.head_count_kv"),
        ({"attention__head_count_kv": [0] * 12}, "gemma4.attention.head_count_kv"),
        ({"attention__head_count": [0] * 12, "attention__head_count_kv": [0] * 12},
         "gemma4.embedding_length"),
        ({"attention__sliding_window": 64, "attention__sliding_window_pattern": [True] * 11},
         "gemma4.attention.sliding_window_pattern"),
        ({"attention__sliding_window": 64, "attention__sliding_window_pattern": [2] * 12},
         "gemma4.attention.sliding_window_pattern"),
        ({"nextn_predict_layers": 12}, "gemma4.nextn_predict_layers"),
        ({"feed_forward_length": "wide"}, "gemma4.feed_forward_length"),
    ],
)  # fmt: skip
def test_broken_lists_are_refused_by_key(more: dict[str, Any], key: str) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(metadata("gemma4", **more))
    assert caught.value.field == key
