"""Model readers against the measured cache and parameter sizes, and against broken configs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.arch import FAMILIES, read_spec
from plimsoll.core.arch.gguf_names import ARCHITECTURES
from plimsoll.core.errors import BadModel, PlimsollError, Unsupported
from plimsoll.core.kv import cache_size
from tests.oracle import config as config_of

LLAMA: dict[str, Any] = config_of("released/Llama-3.1-8B")
MISTRAL: dict[str, Any] = config_of("collected/mistralai/Mistral-7B-Instruct-v0.3")
QWEN2: dict[str, Any] = config_of("released/Qwen2.5-7B (window given, not used)")


@pytest.mark.parametrize(
    ("change", "windowed"),
    [
        ({}, 32),  # absent is not null: 4096 on every layer
        ({"sliding_window": None}, 0),
        ({"sliding_window": 0}, 0),
        ({"sliding_window": 1024}, 32),
        ({"sliding_window": 1024, "layer_types": ["full_attention", "sliding_attention"] * 16}, 16),
    ],
)
def test_mistral_windows(change: dict[str, Any], windowed: int) -> None:
    config = {key: value for key, value in MISTRAL.items() if key != "sliding_window"} | change
    spec = read_spec(config)
    assert sum(group.layers for group in spec.windowed) == windowed
    assert spec.attention == ("Window" if windowed else "GQA")


@pytest.mark.parametrize(
    ("change", "windowed"),
    [
        ({"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 0}, 0),
        ({"use_sliding_window": True, "sliding_window": None}, 0),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, 8),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}, 0),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 40}, 0),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 4096,
                "max_window_layers": 28,
                "layer_types": ["sliding_attention"] * 28,
            },
            28,
        ),
    ],
)
def test_qwen2_windows(change: dict[str, Any], windowed: int) -> None:
    spec = read_spec(QWEN2 | change)
    assert sum(group.layers for group in spec.windowed) == windowed


@pytest.mark.parametrize(
    ("heads", "kv_heads", "attention"),
    [(32, 32, "MHA"), (32, 8, "GQA"), (32, 1, "MQA"), (1, 1, "MHA"), (32, None, "MHA")],
)
def test_names_of_attention(heads: int, kv_heads: int | None, attention: str) -> None:
    config = LLAMA | {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    assert read_spec(config).attention == attention


def test_head_size_is_the_stated_one_before_the_computed_one() -> None:
    nemo = MISTRAL | {"hidden_size": 5120, "head_dim": 128, "num_hidden_layers": 40}
    assert read_spec(nemo).key_dim == 128
    assert read_spec(nemo | {"head_dim": None}).key_dim == 160
    assert read_spec(nemo | {"head_dim": 0}).key_dim == 160
    qwen3 = config_of("released/Qwen3-8B") | {"hidden_size": 5120}
    del qwen3["head_dim"]
    assert read_spec(qwen3).key_dim == 128  # this family's default, not 5120 / 32


def test_what_is_missing_is_named_and_never_zero() -> None:
    spec = read_spec({"model_type": "llama"})
    assert (spec.layers, spec.hidden, spec.vocab, spec.context_length) == (32, 4096, 32000, 2048)
    for field in ("num_hidden_layers", "vocab_size", "max_position_embeddings"):
        assert any(field in note for note in spec.notes)
    assert read_spec(LLAMA).notes == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 1025),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 32.0),
        ("num_hidden_layers", "32"),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 64),  # more than query heads
        ("num_key_value_heads", 5),  # does not divide them
        ("num_key_value_heads", -8),
        ("head_dim", 1 << 60),
        ("hidden_size", (1 << 20) + 1),
        ("hidden_size", [4096]),
        ("vocab_size", 1 << 40),
        ("intermediate_size", {}),
        ("max_position_embeddings", 0),
        ("tie_word_embeddings", "yes"),
        ("torch_dtype", "complex128"),
        ("torch_dtype", 16),
        ("architectures", "LlamaForCausalLM"),
    ],
)
def test_a_broken_field_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(LLAMA | {field: value})
    assert caught.value.reason == "ConfigUnreadable"
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["full_attention"]),
        ("layer_types", ["full_attention"] * 27 + ["mamba"]),
        ("layer_types", "full_attention"),
        ("use_sliding_window", 1),
    ],
)
def test_a_broken_pattern_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(QWEN2 | {field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("value", [[0, -1], [0, "1"], 3, [True]])
def test_a_broken_list_of_dense_layers_is_refused(value: object) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(config_of("released/Qwen3-30B-A3B") | {"mlp_only_layers": value})
    assert caught.value.field == "mlp_only_layers"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "nobody_knows"}, "num_hidden_layers"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": {"a": 1}}, "model_type"),
        ({}, "model_type"),
        ({"architectures": ["NobodyForCausalLM"]}, "model_type"),
        ({"general.architecture": 5}, "general.architecture"),
    ],
)
def test_an_unknown_architecture_is_refused_by_the_field_that_names_it(
    config: dict[str, Any], field: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        read_spec(config)
    assert caught.value.reason == "UnsupportedArchitecture"
    assert caught.value.field == field


def test_an_unusual_class_is_named_in_a_note() -> None:
    spec = read_spec(LLAMA | {"architectures": ["LlamaForSequenceClassification"]})
    assert len(spec.notes) == 1
    assert "LlamaForSequenceClassification" in spec.notes[0]


def test_the_class_decides_where_there_is_no_model_type() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert read_spec(config | {"architectures": ["LlamaForCausalLM"]}) == read_spec(LLAMA)


def test_experts_are_only_where_the_config_puts_them() -> None:
    config = config_of("released/Qwen3-30B-A3B")
    some = read_spec(config | {"decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert some.experts is not None
    assert some.experts.layers == frozenset(range(3, 48, 2))


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.context_length": 8192,
    "tokenizer.ggml.tokens#length": 49152,
}


def test_gguf_metadata_reads_as_the_same_model() -> None:
    spec = read_spec(GGUF)
    # Measured on a CPU: 23,040 bytes per token by the formula, about 23,080 resident.
    assert cache_size(spec, "bf16").all_full == 23040
    assert (spec.vocab, spec.context_length, spec.attention) == (49152, 8192, "GQA")
    assert read_spec(GGUF | {"llama.vocab_size": 50000}).vocab == 50000
    without_kv = {k: v for k, v in GGUF.items() if k != "llama.attention.head_count_kv"}
    assert read_spec(without_kv).kv_heads == 9
    assert read_spec(GGUF | {"llama.attention.key_length": 128}).key_dim == 128
    same = GGUF | {"llama.attention.head_count_kv": [3] * 30}
    assert read_spec(same) == spec


def test_gguf_knows_mixtral_by_its_experts() -> None:
    spec = read_spec(GGUF | {"llama.expert_count": 8, "llama.expert_used_count": 2})
    assert spec.family == "mixtral"
    assert spec.experts is not None
    assert (spec.experts.count, spec.experts.per_token) == (8, 2)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_gguf_architecture_is_readable(name: str) -> None:
    config = {key.replace("llama.", f"{name}."): value for key, value in GGUF.items()}
    config["general.architecture"] = name
    config |= {f"{name}.expert_count": 4 if ARCHITECTURES[name][0] is None else 0}
    config |= {f"{name}.expert_used_count": 2}
    spec = read_spec(config)
    assert spec.family in {family for family in ARCHITECTURES[name] if family}
    assert spec.notes == ()
    assert sum(group.layers for group in spec.caches) == (20 if name == "gemma3n" else 30)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("llama.block_count", None),
        ("llama.block_count", 0),
        ("llama.attention.head_count", 1 << 40),
        ("llama.attention.head_count_kv", 2),
        ("llama.attention.head_count_kv", [3] * 29 + [5]),
        ("llama.attention.head_count_kv", [3] * 29),
        ("llama.embedding_length", 4),
    ],
)
def test_broken_gguf_metadata_is_refused_by_key(field: str, value: object) -> None:
    with pytest.raises(BadModel) as caught:
        read_spec(GGUF | {field: value})
    assert caught.value.field == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(
        st.sampled_from(
            [
                "hidden_size",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "num_hidden_layers",
                "layer_types",
                "mlp_only_layers",
                "sliding_window",
                "torch_dtype",
                "architectures",
                "num_experts",
                "decoder_sparse_step",
            ]
        ),
        JSON,
        max_size=4,
    ),
)
def test_no_config_raises_anything_but_our_errors(family: str, changes: dict[str, Any]) -> None:
    try:
        spec = read_spec({"model_type": family} | changes)
    except PlimsollError:
        return
    size = cache_size(spec, "bf16")
    assert size.all_full > 0 or size.state > 0
