"""What each kind of model needs to be built at its default config and to be run on the meta device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_outputs import BaseModelOutput

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 10_000_000

#: What a default config lacks to be runnable: the values of the models published first.
VISION = {
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "intermediate_size": 4304,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MROPE = ROPE | {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
KINDS = {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}}
RECIPES: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model"} | VISION},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "cohere_compass": {"text_config": KINDS},
    "cohere_compass_text": KINDS,
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "emu3": {"vocabulary_map": {"<image>": 151643, "<|extra_200|>": 151846}},
    "deepseek_ocr2": {"text_config": {"num_hidden_layers": 12, "mlp_layer_types": ["dense"] + ["sparse"] * 11}},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "hunyuan_vl": {"text_config": {"head_dim": 128, "rope_parameters": ROPE | {"mrope_section": [16, 16, 16, 16]}}},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 500000.0, "clip_qkv": 8}},
    "glm4v": {"text_config": {"rope_parameters": MROPE}},
    "glm46v": {"text_config": {"rope_parameters": MROPE}},
    "glm4v_moe": {"text_config": {"rope_parameters": MROPE, "head_dim": 128}},
    "glmga": {"text_config": {"rope_parameters": MROPE}},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe_thinker": {"text_config": {"head_dim": 128}},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "xmod": {"default_language": "en_XX"},
    "qwen4_exp_text": {
        "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 2048,
        "indexer_compress_ratio": 4, "rope_parameters": ROPE | {"partial_rotary_factor": 0.25},
    },
}  # fmt: skip


def _items(tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
    return 1.0 if tensor.is_floating_point() else 1


def _nonzero(tensor: torch.Tensor, *_: Any, as_tuple: bool = False, **__: Any) -> Any:
    if as_tuple:
        return tuple(tensor.new_empty(0, dtype=torch.long) for _ in tensor.shape)
    return tensor.new_empty((0, tensor.dim()), dtype=torch.long)


def _counts(tensor: torch.Tensor, *_: Any, **kwargs: Any) -> Any:
    return tensor.new_empty(int(kwargs.get("minlength") or kwargs.get("bins") or 1))


def ones(shape: Any) -> Any:
    """Nested lists of ones."""
    return 1 if not shape else [ones(shape[1:]) for _ in range(shape[0])]


def _list(tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
    return ones(tensor.shape)


#: Operation -> the answer for a prompt of valid tokens of which none is routed to an expert.
ANSWERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("item", "__int__", "__index__", "__float__"), _items),
    **dict.fromkeys(("__bool__", "equal"), lambda *_, **__: True),
    **dict.fromkeys(("tolist", "numpy"), _list),
    **dict.fromkeys(("bincount", "histc"), _counts),
    "nonzero": _nonzero,
    "unique_consecutive": lambda tensor, *_, **__: tensor[:1],
    "__setitem__": lambda *_, **__: None,
}


class PromptMode(TorchFunctionMode):
    """Answers what only real values could: every token valid, no expert chosen."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the few operations that read values."""
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, torch.Tensor) and first.is_meta:
            name = getattr(func, "__name__", "")
            if name in ANSWERS:
                return ANSWERS[name](*args, **kwargs)
            if name == "where" and len(args) == 1:
                return _nonzero(first, as_tuple=True)
            if name == "repeat_interleave" and isinstance(args[1], torch.Tensor):
                return first
            if name == "__getitem__":
                args = (first, drop_masks(args[1]))
        return func(*args, **kwargs)


class ScalarMode(TorchDispatchMode):
    """The same for reads that happen inside of other operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace reads of one value and searches."""
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001
                return _items(args[0])
            if func is torch.ops.aten.equal.default:
                return True
            if func is torch.ops.aten.nonzero.default:
                return _nonzero(args[0])
        return func(*args, **(kwargs or {}))


def drop_masks(index: Any) -> Any:
    """An index in which a boolean mask on the meta device selects everything that it covers."""
    if isinstance(index, tuple):
        return tuple(drop_masks(item) for item in index)
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.is_meta:
        return (
            torch.ones(tuple(index.shape), dtype=torch.bool)
            if index.numel() < MANY
            else slice(None)
        )
    return index


def ids(count: int) -> torch.Tensor:
    """A prompt of that many tokens."""
    return torch.ones((1, count), dtype=torch.long, device="meta")


def hidden(*shape: int) -> torch.Tensor:
    """Activations of that shape."""
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def _whisper(config: Any, length: int, _: int) -> dict[str, Any]:
    features = hidden(1, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": features, "decoder_input_ids": ids(length)}


def _encoded(config: Any, length: int, encoder: int) -> dict[str, Any]:
    part = getattr(config, "encoder_config", None) or getattr(config, "encoder", None) or config
    output = BaseModelOutput(last_hidden_state=hidden(1, encoder, part.hidden_size))
    output.attention_mask = None
    return {"encoder_outputs": output, "decoder_input_ids": ids(length)}


def _box(_: Any, length: int, encoder: int) -> dict[str, Any]:
    return {
        "input_ids": ids(encoder),
        "bbox": hidden(1, encoder, 4),
        "decoder_input_ids": ids(length),
    }


#: Speech models are given the encoder's output: their encoders want real audio.
INPUTS: dict[str, Callable[[Any, int, int], dict[str, Any]]] = {
    **dict.fromkeys(("moonshine", "moonshine_streaming", "canary", "cohere_asr", "led", "speecht5"), _encoded),
    "whisper": _whisper,
    "mllama": lambda config, length, encoder: {
        "input_ids": ids(length), "cross_attention_states": hidden(1, encoder, config.text_config.hidden_size),
    },
    "speech_to_text": lambda config, length, encoder: {
        "input_features": hidden(1, encoder, config.input_feat_per_channel), "decoder_input_ids": ids(length),
    },
    "pix2struct": lambda _, length, encoder: {
        "flattened_patches": hidden(1, encoder, 770), "decoder_input_ids": ids(length),
    },
    "udop": _box,
    "voxtral_realtime": lambda config, length, _: {
        "input_ids": ids(length), "encoder_inputs_embeds": hidden(1, 4 * length, config.audio_config.hidden_size),
    },
}  # fmt: skip


def inputs_for(config: Any, length: int, encoder: int) -> dict[str, Any]:
    """The smallest prompt that the model accepts: tokens of the decoder, positions of the encoder."""
    given = INPUTS.get(config.model_type)
    if given is not None:
        inputs = given(config, length, encoder)
    elif getattr(config, "is_encoder_decoder", False):
        inputs = {"input_ids": ids(encoder), "decoder_input_ids": ids(length)}
    else:
        inputs = {"input_ids": ids(length)}
    # Switch hands use_cache on to its encoder, which refuses it.
    caching = {} if config.model_type == "switch_transformers" else {"use_cache": True}
    return inputs | caching | {"return_dict": True}
