"""Encoder-decoders: whose layers are cached, how wide, and all their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.core.arch import read_spec
from plimsoll.core.errors import BadModel, Unsupported
from plimsoll.core.kv import CacheSize, cache_size

RECORDS: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "data" / "encdec_parameters.json").read_text()
)["records"]


def cached(config: dict[str, Any]) -> CacheSize:
    return cache_size(read_spec(config), "bf16")


@pytest.mark.parametrize("name", RECORDS)
def test_parameters_equal_those_of_the_class(name: str) -> None:
    record = RECORDS[name]
    spec = read_spec(record["config"])
    assert spec.parameters == record["parameters"]
    assert spec.architecture == record["config"]["architectures"][0]
    assert not [note for note in spec.notes if "read as" in note]


@pytest.mark.parametrize(
    ("change", "full"),
    [
        ({}, 2 * 6 * 512 * 2),  # no decoder layers stated: as many as the encoder has
        ({"num_decoder_layers": None}, 2 * 6 * 512 * 2),
        ({"num_decoder_layers": 2}, 2 * 2 * 512 * 2),
        ({"d_kv": 128}, 2 * 6 * 1024 * 2),  # heads times d_kv, whatever the width of the model
        ({"num_heads": 128, "d_kv": 128, "d_model": 1024}, 2 * 6 * 128 * 128 * 2),
    ],
)
def test_t5(change: dict[str, Any], full: int) -> None:
    config = {"model_type": "t5", "num_layers": 6, "num_heads": 8, "d_kv": 64, "d_model": 512}
    size = cached(config | change)
    assert (size.all_full, size.cross, size.state) == (full, full, 0)


def test_t5_ties_its_head_whatever_the_file_says() -> None:
    tied = read_spec({"model_type": "t5"})
    untied = read_spec({"model_type": "t5", "tie_word_embeddings": False})
    assert tied.parameters == untied.parameters
    assert tied.tied
    assert untied.tied


def test_bart_hangs_on_its_decoder() -> None:
    config = {
        "model_type": "bart", "d_model": 1024, "num_hidden_layers": 12, "encoder_layers": 12,
        "decoder_layers": 3, "encoder_attention_heads": 16, "decoder_attention_heads": 8,
    }  # fmt: skip
    spec = read_spec(config)
    assert (spec.layers, spec.heads, spec.key_dim) == (3, 8, 128)
    assert cached(config) == CacheSize(12288, 12288, 0, 0, 12288)
    assert spec.attention == "EncoderDecoder"


@pytest.mark.parametrize(
    "alone", [{"architectures": ["BartForCausalLM"]}, {"is_encoder_decoder": False}]
)
def test_a_decoder_alone_caches_no_encoder(alone: dict[str, Any]) -> None:
    spec = read_spec({"model_type": "bart", "decoder_layers": 3} | alone)
    assert spec.encoder is None
    assert spec.architecture == "BartForCausalLM"
    assert not any("encoder.layers" in group.name for group in spec.tensors)


def test_whispers_encoder_is_part_of_each_sequence() -> None:
    size = cached({"model_type": "whisper", "d_model": 1280, "decoder_layers": 32,
                   "decoder_attention_heads": 20})  # fmt: skip
    assert size == CacheSize(163840, 163840, 0, 1500 * 163840, 0)
    assert cached({"model_type": "whisper", "max_source_positions": 100}).state == 100 * 6144


def test_speech_frames_are_counted_before_the_convolutions() -> None:
    size = cached({"model_type": "speech_to_text"})
    assert (size.all_full, size.cross) == (6144, 1536)
    assert cached({"model_type": "speech_to_text", "num_conv_layers": 3}).cross == 768


def test_t5gemma_has_windows_in_its_own_cache_only() -> None:
    size = cached({"model_type": "t5gemma"})
    assert size == CacheSize(106496, 53248, 4095 * 53248, 0, 106496)
    # The second generation: every sixth layer is full.
    size = cached({"model_type": "t5gemma2"})
    assert size == CacheSize(106496, 4 * 4096, 4095 * 22 * 4096, 0, 106496)


def test_cross_attention_may_have_other_heads() -> None:
    size = cached({"model_type": "dia"})
    assert (size.all_full, size.cross) == (2 * 18 * 4 * 128 * 2, 2 * 18 * 16 * 128 * 2)


def test_wrappers_read_the_decoder_as_what_it_is() -> None:
    decoder = {
        "model_type": "trocr",
        "d_model": 256,
        "decoder_layers": 6,
        "decoder_attention_heads": 8,
    }
    spec = read_spec(
        {
            "model_type": "vision-encoder-decoder",
            "encoder": {"model_type": "vit"},
            "decoder": decoder,
        }
    )
    assert (spec.family, spec.architecture) == ("trocr", "VisionEncoderDecoderModel")
    assert spec.modalities == {"vision"}
    size = cache_size(spec, "bf16")
    assert (size.all_full, size.cross) == (6144, 6144)


def test_florence_in_the_spelling_of_its_files() -> None:
    config = {
        "model_type": "florence2",
        "text_config": {
            "model_type": "florence2_language", "vocab_size": 51289, "max_position_embeddings": 4096,
            "d_model": 1024, "decoder_layers": 12,
        },
        "vision_config": {"model_type": "davit", "dim_embed": [256, 512, 1024, 2048]},
    }  # fmt: skip
    spec = read_spec(config)
    assert (spec.family, spec.architecture) == ("bart", "Florence2ForConditionalGeneration")
    assert spec.parameters == 776_465_408  # by transformers 5.24.0 on the meta device


def test_an_unknown_encoder_makes_an_estimate_an_unknown_decoder_none() -> None:
    wrapper = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "new_vision"}}
    spec = read_spec(wrapper | {"decoder": {"model_type": "trocr"}})
    assert any("new_vision" in note for note in spec.notes)
    with pytest.raises(Unsupported, match="new_text"):
        read_spec(wrapper | {"decoder": {"model_type": "new_text"}})
    with pytest.raises(Unsupported):  # no wrapper inside a wrapper
        read_spec(wrapper | {"decoder": {"model_type": "vision-encoder-decoder"}})


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "bart", "decoder_layers": 0}, "decoder_layers"),
        ({"model_type": "bart", "decoder_attention_heads": 7}, "decoder_attention_heads"),
        ({"model_type": "t5", "num_heads": "8"}, "num_heads"),
        ({"model_type": "t5", "num_decoder_layers": 10**9}, "num_decoder_layers"),
        ({"model_type": "whisper", "max_source_positions": -1}, "max_source_positions"),
        ({"model_type": "t5gemma", "decoder": 7}, "decoder"),
        ({"model_type": "t5gemma", "decoder": {"num_hidden_layers": 2.5}}, "decoder.num_hidden_layers"),
        ({"model_type": "t5gemma", "decoder": {"layer_types": ["full"]}}, "decoder.layer_types"),
        ({"model_type": "switch_transformers", "num_experts": 10**6}, "num_experts"),
        ({"model_type": "encoder-decoder", "decoder": []}, "decoder"),
    ],
)  # fmt: skip
def test_broken_fields_are_named(config: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(config)
    assert caught.value.field == field
