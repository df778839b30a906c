"""Vision models whose code is in the checkpoint: InternVL, DeepSeek-VL2, and flat LLaVA-likes.

The text model is read as what it is. An image encoder whose sizes the config does not name leaves a
note, so that the result is an estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.arch.blocks import linear, norm, plain_mlp
from plimsoll.core.arch.classes import type_of
from plimsoll.core.arch.encdec import Stack, or_default
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, Fields
from plimsoll.core.arch.registry import FAMILIES, read_as
from plimsoll.core.arch.spec import ModelSpec, TensorGroup
from plimsoll.core.errors import Unsupported
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Wrapper -> where its text model is, and of what type when that object does not say.
_NESTED: Final[Mapping[str, tuple[str, str]]] = {
    "NVLM_D": ("llm_config", "qwen2"),
    "deepseek_vl_v2": ("language_config", "deepseek_v2"),
    "h2ovl_chat": ("llm_config", "mistral"),
    "internvl_chat": ("llm_config", "internlm2"),
    "kimi_vl": ("text_config", "deepseek_v3"),
    "minimax_vl_01": ("text_config", "minimax_text_01"),
    "skywork_chat": ("llm_config", "qwen2"),
    "step3_vl": ("text_config", "step3_text"),
}
#: Wrappers that add their fields to the text model's -> the type of that.
_FLAT: Final[Mapping[str, str]] = {
    "dots_ocr": "qwen2",
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    "llava_qwen": "qwen2",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
}
#: MiniCPM-V and -o: version -> the type of its text model.
_VERSIONED: Final = frozenset({"minicpmv", "minicpmo"})
_VERSIONS: Final[Mapping[str, str]] = {
    "2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3",
}  # fmt: skip
#: Switches of DeepSeek's text model: it has its output head, or this copy of it is left out.
_HEADS: Final = frozenset({"lm_head", "rm_head"})
#: Class of the text model -> its type, where transformers has no such class.
_CLASSES: Final[Mapping[str, str]] = {
    "InternLM2ForCausalLM": "internlm2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
}


def read(fields: Fields, family: str, architecture: str) -> ModelSpec:
    """Read a wrapper's config.

    Raises:
        Unsupported: The text model inside is of a type that nobody reads.
    """
    flat = _version(fields) if family in _VERSIONED else _FLAT.get(family)
    if flat is not None:
        spec = read_as(flat, fields.values, notes=fields.notes, path=fields.path)
        fields.seen |= set(fields.values)
        fields.notes.append("weights of the image encoder are not computed from the config")
    else:
        key, usual = _NESTED[family]
        values = dict(fields.child(key).values)
        kind = _kind(fields, f"{key}.", values, usual)
        if kind == "deepseek":
            values = _without_latent(values)
        values = {name: value for name, value in values.items() if name not in _HEADS}
        fields.seen.add("select_layer")
        spec = read_as(kind, values, notes=fields.notes, path=f"{fields.path}{key}.")
        tower = _TOWERS.get(family)
        if tower is None or not fields.has("vision_config"):
            fields.notes.append("weights of the image encoder are not computed from the config")
        else:
            spec = replace(spec, tensors=(*spec.tensors, *tower(fields, spec)))
    return replace(
        spec,
        architecture=architecture,
        modalities=spec.modalities | {"vision"},
        dtype=spec.dtype or fields.dtype(),
    )


def _version(fields: Fields) -> str:
    """The text model's type of a MiniCPM-V; the first generation had no version.

    Raises:
        Unsupported: A version that is not known.
    """
    version = fields.get("version")
    if version is None:
        return "minicpm"
    text = f"{version:.1f}" if isinstance(version, int | float) else str(version)
    if text not in _VERSIONS:
        known = ", ".join(_VERSIONS)
        raise Unsupported(
            f"{fields.path}version {text!r:.32} is not supported; known are {known}",
            field=f"{fields.path}version",
            value=version,
        )
    return _VERSIONS[text]


def _kind(fields: Fields, path: str, values: Mapping[str, Any], usual: str) -> str:
    """The text model's type: as stated, by its class, or the usual one."""
    kind = values.get("model_type")
    classes = values.get("architectures")
    if kind in (None, "") and isinstance(classes, list) and classes and isinstance(classes[0], str):
        kind = _CLASSES.get(classes[0]) or type_of(classes[0])
    if kind in (None, ""):
        kind = usual
        fields.notes.append(f"{path}model_type is not stated; {usual} is assumed")
    if kind == "deepseek_v2" and values.get("use_mla") is False:
        kind = "deepseek"
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise Unsupported(
            f"{path}model_type {kind!r:.80} is not supported", field=f"{path}model_type", value=kind
        )
    return kind


def _without_latent(values: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSeek-VL2-Tiny: plain attention; the zeros left in the head sizes mean absent."""
    latent = {"kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"}
    return {key: value for key, value in values.items() if key not in latent | {"use_mla"}}


def _internvit(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """InternViT and the projector behind it (``mlp1``)."""
    vision = fields.child("vision_config")
    hidden = or_default(vision, "hidden_size", MAX_DIM, 3200)
    layers = or_default(vision, "num_hidden_layers", MAX_LAYERS, 48)
    patch = or_default(vision, "patch_size", MAX_DIM, 14)
    size = or_default(vision, "image_size", MAX_CONTEXT, 224)
    channels = or_default(vision, "num_channels", MAX_DIM, 3)
    rms = (vision.text("norm_type") or "rms_norm") == "rms_norm"
    prefix = "vision_tower"
    yield from Stack(
        prefix=f"{prefix}.encoder",
        layers=layers,
        hidden=hidden,
        ffn=or_default(vision, "intermediate_size", MAX_DIM, 12800),
        bias=vision.flag("qkv_bias", default=False),
        out_bias=False,
        norm_bias=not rms,
        norm=False,
    ).tensors()
    every = tuple(range(layers))
    layer = f"{prefix}.encoder.layers.*"
    for name in ("ls1", "ls2", "self_attn.o_proj.bias"):
        yield TensorGroup(f"{layer}.{name}", (hidden,), every)
    if vision.flag("qk_normalization", default=True):
        yield from norm(f"{layer}.self_attn.q_norm", hidden, every)
        yield from norm(f"{layer}.self_attn.k_norm", hidden, every)
    yield TensorGroup(f"{prefix}.embeddings.class_embedding", (1, 1, hidden))
    yield TensorGroup(
        f"{prefix}.embeddings.patch_embedding.weight", (hidden, channels, patch, patch)
    )
    yield TensorGroup(f"{prefix}.embeddings.patch_embedding.bias", (hidden,))
    rows = (size // patch) ** 2 + 1
    yield TensorGroup(f"{prefix}.embeddings.position_embedding", (1, rows, hidden))
    ratio = fields.number("downsample_ratio", 16, default=0.5) or 0.5
    read_width = max(1, round(hidden / ratio**2))
    yield from norm("multi_modal_projector.0", read_width, bias=True)
    yield from linear("multi_modal_projector.1", spec.hidden, read_width, bias=True)
    yield from linear("multi_modal_projector.3", spec.hidden, spec.hidden, bias=True)


def _siglip_timm(fields: Fields, spec: ModelSpec) -> Iterator[TensorGroup]:
    """DeepSeek-VL2: SigLIP in timm's words, with its pooling head, and a projector of two layers."""
    vision = fields.child("vision_config")
    if isinstance(vision.get("width"), dict):  # DeepSeek-OCR: two encoders in one object
        fields.notes.append("weights of the image encoder are not computed from the config")
        return
    hidden = or_default(vision, "width", MAX_DIM, 1152)
    layers = or_default(vision, "layers", MAX_LAYERS, 27)
    patch = or_default(vision, "patch_size", MAX_DIM, 14)
    size = or_default(vision, "image_size", MAX_CONTEXT, 384)
    ffn = int(hidden * vision.number("mlp_ratio", 64, default=3.7362))
    prefix = "vision_tower"
    yield from Stack(prefix=f"{prefix}.blocks", layers=layers, hidden=hidden, ffn=ffn).tensors()
    yield TensorGroup(f"{prefix}.patch_embed.weight", (hidden, 3, patch, patch))
    yield TensorGroup(f"{prefix}.patch_embed.bias", (hidden,))
    yield TensorGroup(f"{prefix}.pos_embed", (1, (size // patch) ** 2, hidden))
    # Its pooling head is in the files, unused.
    yield TensorGroup(f"{prefix}.attn_pool.latent", (1, 1, hidden))
    yield from linear(f"{prefix}.attn_pool.q", hidden, hidden, bias=True)
    yield from linear(f"{prefix}.attn_pool.kv", 2 * hidden, hidden, bias=True)
    yield from linear(f"{prefix}.attn_pool.proj", hidden, hidden, bias=True)
    yield from norm(f"{prefix}.attn_pool.norm", hidden, bias=True)
    yield from plain_mlp(f"{prefix}.attn_pool.mlp", None, hidden=hidden, width=ffn)
    yield from _projector(fields, spec, hidden)


def _projector(fields: Fields, spec: ModelSpec, hidden: int) -> Iterator[TensorGroup]:
    """DeepSeek-VL2's projector: patches are joined in squares, then two layers."""
    projector = fields.child("projector_config")
    made = or_default(projector, "n_embed", MAX_DIM, spec.hidden)
    given = or_default(projector, "input_dim", MAX_DIM, hidden)
    step = or_default(projector, "downsample_ratio", MAX_DIM, 2)
    wide = made * or_default(projector, "mlp_ratio", MAX_DIM, 1)
    depth = or_default(projector, "depth", MAX_LAYERS, 2)
    name = "multi_modal_projector"
    yield from linear(f"{name}.first", wide, given * step * step, bias=True)
    for index in range(1, depth - 1):
        yield from linear(f"{name}.{index}", wide, wide, bias=True)
    yield from linear(f"{name}.last", made, wide, bias=True)
    yield TensorGroup(f"{name}.image_newline", (made,))
    yield TensorGroup(f"{name}.view_seperator", (made,))


_TOWERS: Final = {
    "deepseek_vl_v2": _siglip_timm,
    "internvl_chat": _internvit,
    "skywork_chat": _internvit,
}
