"""Models that see or hear: published spellings, varied towers, and configs that leave things out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.arch.classes import defaults_of
from plimsoll.core.arch.fields import Fields
from plimsoll.core.arch.registry import FAMILIES
from plimsoll.core.arch.towers import Scope
from plimsoll.core.arch.towers_own import inkling
from plimsoll.core.errors import BadModel, Unsupported
from plimsoll.core.kv import cache_size

DATA = Path(__file__).parents[3] / "data" / "wrappers.jsonl"
RECORDS = [json.loads(line) for line in DATA.read_text().splitlines()]
TEXT: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
LLAVA: dict[str, Any] = {"model_type": "llava", "text_config": TEXT, "vision_config": {}}


def doubts(config: dict[str, Any]) -> list[str]:
    return [note for note in read_spec(config).notes if "is assumed" not in note]


def weights(config: dict[str, Any], part: str) -> int:
    spec = read_spec(config)
    return sum(
        group.count * (group.shape[0] if len(group.shape) == 1 else group.shape[0] * group.shape[1])
        for group in spec.tensors
        if part in group.name
    )


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_parameters_and_cache_equal_the_measured_ones(record: dict[str, Any]) -> None:
    spec = read_spec(record["config"])
    assert spec.parameters == record["params"]
    if "all_full" in record:
        size = cache_size(spec, "bf16")
        assert (size.all_full, size.window, size.cross) == (
            record["all_full"],
            record["window"],
            record["cross"],
        )


@pytest.mark.parametrize(
    "record", [r for r in RECORDS if r["published"]], ids=lambda record: record["name"]
)
def test_a_published_config_is_understood_as_a_whole(record: dict[str, Any]) -> None:
    assert doubts(record["config"]) == []


def test_the_family_is_the_text_models_and_the_class_the_wrappers() -> None:
    spec = read_spec(LLAVA)
    assert (spec.family, spec.architecture) == ("llama", "LlavaForConditionalGeneration")
    assert spec.modalities == {"vision"}


def test_a_wrapper_without_any_nested_config_has_its_classes_defaults() -> None:
    spec = read_spec({"model_type": "llava"})
    assert (spec.layers, spec.hidden, spec.kv_heads) == (32, 4096, 32)
    assert spec.parameters == 7_062_902_784


def test_a_nested_config_that_states_a_few_sizes_gets_the_others_from_its_class() -> None:
    # The wrapper's own default for the part (hidden 1024, 24 layers) does not fill it in.
    tower = weights({**LLAVA, "vision_config": {"hidden_size": 64}}, "vision_tower.pre_layernorm")
    assert tower == 2 * 64
    spec = read_spec({**LLAVA, "vision_config": {"hidden_size": 64}})
    layers = {group.count for group in spec.tensors if group.name.endswith("layer_norm1.weight")}
    assert layers == {12}


def test_some_wrappers_fill_a_partial_nested_config_from_their_own_default() -> None:
    spec = read_spec({"model_type": "voxtral", "text_config": {"model_type": "llama"}})
    assert (spec.layers, spec.hidden, spec.kv_heads) == (30, 3072, 8)


def test_the_type_of_a_nested_config_decides_where_the_class_leaves_it_open() -> None:
    siglip = {**LLAVA, "vision_config": {"model_type": "siglip_vision_model"}}
    assert read_spec(siglip).parameters != read_spec(LLAVA).parameters
    # Files of Qwen 3 VL call the tower's config by the wrapper's name; the class knows better.
    named = {"model_type": "qwen3_vl", "vision_config": {"model_type": "qwen3_vl"}}
    assert read_spec(named).parameters == read_spec({"model_type": "qwen3_vl"}).parameters


def test_flat_files_are_read_as_nested_ones() -> None:
    text = {key: value for key, value in TEXT.items() if key != "model_type"}
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 256}
    flat = {**text, "model_type": "qwen2_vl", "vision_config": vision}
    nested = {"model_type": "qwen2_vl", "text_config": text, "vision_config": vision}
    assert read_spec(flat).caches == read_spec(nested).caches
    assert read_spec(flat).tensors == read_spec(nested).tensors
    assert (read_spec(flat).layers, read_spec(flat).family) == (4, "qwen2_vl_text")


@pytest.mark.parametrize(
    ("wrapper", "text", "tied"),
    [
        ({"tie_word_embeddings": True}, {}, True),
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, True),  # LLaVA's class
        ({}, {}, False),
    ],
)
def test_the_wrapper_says_whether_the_head_is_the_embedding(
    wrapper: dict[str, Any], text: dict[str, Any], *, tied: bool
) -> None:
    spec = read_spec({**LLAVA, **wrapper, "text_config": {**TEXT, **text}})
    heads = [group for group in spec.tensors if group.name == "lm_head.weight"]
    assert (spec.tied, len(heads)) == (tied, 0 if tied else 1)


def test_most_wrappers_do_not_ask_the_text_config_about_the_head() -> None:
    config = {"model_type": "qwen2_audio", "text_config": {"tie_word_embeddings": True}}
    assert not read_spec(config).tied


def test_a_whole_text_model_inside_decides_alone_about_its_head() -> None:
    untied = {"model_type": "kosmos-2.5", "text_config": {"tie_word_embeddings": False}}
    assert not read_spec(untied).tied
    assert read_spec({"model_type": "kosmos-2.5"}).tied


def test_the_dtype_may_stand_beside_the_text_config_or_in_it() -> None:
    assert read_spec({**LLAVA, "torch_dtype": "float16"}).dtype == "fp16"
    inner = {**LLAVA, "text_config": {**TEXT, "dtype": "bfloat16"}}
    assert read_spec({**inner, "dtype": "float32"}).dtype == "bf16"


def test_layers_that_look_at_the_image_cache_it_and_not_the_text() -> None:
    text = {**TEXT, "model_type": "mllama_text_model", "num_hidden_layers": 10}
    spec = read_spec({"model_type": "mllama", "text_config": text})
    size = cache_size(spec, "bf16")
    row = 2 * 2 * 32 * 2
    assert (size.all_full, size.cross) == (8 * row, 2 * row)  # layers 3 and 8
    stated = {"model_type": "mllama", "text_config": {**text, "cross_attention_layers": [1]}}
    assert cache_size(read_spec(stated), "bf16").all_full == 9 * row


def test_two_levels_down_in_an_omni_model() -> None:
    text = {key: value for key, value in TEXT.items() if key != "model_type"}
    thinker = {"text_config": text}
    spec = read_spec({"model_type": "qwen2_5_omni", "thinker_config": thinker})
    assert (spec.layers, spec.family) == (4, "qwen2_5_omni_text")
    assert spec.architecture == "Qwen2_5OmniForConditionalGeneration"
    assert spec.modalities == {"vision", "audio"}


def test_gemma_3n_has_its_published_size() -> None:
    # The published 7,849,978,192 include keys and values of the 15 layers that share a cache, which
    # transformers does not build: 15 * (2 * 512 * 2048 + 256).
    spec = read_spec({"model_type": "gemma3n"})
    assert spec.parameters == 7_849_978_192 - 15 * (2 * 512 * 2048 + 256)


def test_a_tower_of_an_unknown_kind_is_named_and_not_counted() -> None:
    config = {**LLAVA, "vision_config": {"model_type": "convnext"}}
    assert any("'convnext': its weights are not counted" in note for note in doubts(config))
    assert read_spec(config).caches == read_spec(LLAVA).caches


def test_a_tokenizer_of_an_unusual_size_is_named() -> None:
    assert doubts({"model_type": "janus", "vq_config": {"embed_dim": 8}}) == []
    assert doubts({"model_type": "janus", "vq_config": {"embed_dim": 16}}) == [
        "vq_config.embed_dim is unusual; the usual weights are counted"
    ]


def test_a_text_model_without_a_reader_is_refused_by_name() -> None:
    for inner in ("nosuch", "llava", "qwen2_vl"):  # a wrapper inside a wrapper neither
        with pytest.raises(Unsupported, match=f"text_config.model_type '{inner}'"):
            read_spec({"model_type": "llava", "text_config": {**TEXT, "model_type": inner}})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"text_config": []}, "text_config"),
        ({"text_config": {**TEXT, "model_type": 5}}, "text_config.model_type"),
        ({"text_config": {**TEXT, "num_hidden_layers": -1}}, "text_config.num_hidden_layers"),
        ({"vision_config": "clip"}, "vision_config"),
        ({"vision_config": {"hidden_size": "64"}}, "vision_config.hidden_size"),
        ({"vision_config": {"hidden_size": -64}}, "vision_config.hidden_size"),
        ({"vision_config": {"hidden_size": [[64]]}}, "vision_config.hidden_size"),
        ({"vision_config": {"num_hidden_layers": 10**9}}, "vision_config.num_hidden_layers"),
        ({"vision_config": {"intermediate_size": 1e400}}, "vision_config.intermediate_size"),
        ({"vision_config": {"patch_size": 0}}, "vision_config.patch_size"),
        ({"vision_config": {"model_type": ["clip"]}}, "vision_config.model_type"),
        ({"vision_config": {"model_type": "timm_wrapper", "architecture": [1]}}, "vision_config.architecture"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec({**LLAVA, **change})
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "vibevoice_asr", "acoustic_tokenizer_encoder_config": {"depths": [3]}}, "depths"),
        ({"model_type": "ovis2", "vision_config": {"vocab_size": 2}}, "vision_config.vocab_size"),
        ({"model_type": "internvl", "downsample_ratio": 0}, "downsample_ratio"),
        ({"model_type": "qwen2_5_vl", "vision_config": {"num_heads": 0}}, "num_attention_heads"),
        ({"model_type": "dots3_note", "vision_config": {"pyramid_num_routed": [4]}}, "pyramid_num_routed"),
        ({"model_type": "dots3_note", "vision_config": {"pyramid_num_routed": [True] * 42}}, "pyramid_num_routed"),
        ({"model_type": "dots3_note", "vision_config": {"num_hidden_layers": 43}}, "pyramid_num_routed"),
        ({"model_type": "dots3_note", "vision_config": {"mlp_layer_types": "dense"}}, "mlp_layer_types"),
        ({"model_type": "dots3_note", "vision_config": {"num_heads": 0}}, "vision_config.num_heads"),
        ({"model_type": "dots3_note", "vision_config": {"mlp_layer_types": ["sparse"], "per_layer_config": {"0": 4}}},
         "config.0"),
    ],
)  # fmt: skip
def test_nonsense_in_an_unusual_tower_is_refused(config: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel, match=field):
        read_spec(config)


def test_an_ocr_text_model_ignores_a_stated_head_and_layers_that_it_does_not_have() -> None:
    text = {"num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8}
    text["num_experts_per_tok"] = 1
    kinds = ["dense", "sparse"]
    left_over = {**text, "head_dim": 32, "mlp_layer_types": [*kinds, "sparse"]}
    plain = read_spec(
        {"model_type": "deepseek_ocr2", "text_config": {**text, "mlp_layer_types": kinds}}
    )
    spec = read_spec({"model_type": "deepseek_ocr2", "text_config": left_over})
    assert (spec.key_dim, spec.tensors) == (64, plain.tensors)
    with pytest.raises(BadModel, match="mlp_layer_types"):
        read_spec(
            {"model_type": "deepseek_ocr2", "text_config": {**text, "mlp_layer_types": ["dense"]}}
        )


def test_a_patch_of_a_billion_dots_is_refused_at_once() -> None:
    vision = Fields({"patch_size": 1 << 30}, defaults=defaults_of("inkling_vision"))
    with pytest.raises(BadModel, match="patch_size"):
        inkling(Scope(vision))


WRAPPERS = sorted(name for name, module in FAMILIES.items() if module == "wrappers")


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("value", [None, {}, 0, "", [], {"model_type": None}])
def test_every_wrapper_bears_odd_parts(name: str, value: object) -> None:
    for key in ("text_config", "vision_config", "audio_config", "perceiver_config"):
        try:
            spec = read_spec({"model_type": name, key: value})
        except (BadModel, Unsupported):
            continue
        assert spec.parameters > 0
