"""Encoders that read text, images or audio for a decoder: their tensors. None of them is cached.

Used where an encoder hangs in a wrapper (``encoder-decoder`` and its like), Florence 2, T5Gemma 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.blocks import linear, norm
from plimsoll.core.arch.encdec import Stack, or_default
from plimsoll.core.arch.fields import MAX_CONTEXT, MAX_DIM, MAX_LAYERS, MAX_VOCAB
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.arch.whisper import convolution, waveform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields

#: Sizes of BERT base and ViT base, the defaults of nearly all encoders' classes.
_BASE: Final[Mapping[str, int]] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "max_position_embeddings": 512, "type_vocab_size": 2, "image_size": 224, "patch_size": 16,
    "num_channels": 3,
}  # fmt: skip

#: Types of text encoders -> rows of their embedding by default.
TEXT: Final[Mapping[str, int]] = {
    "bert": 30522, "roberta": 50265, "xlm-roberta": 30522, "camembert": 30522, "electra": 30522,
}  # fmt: skip
IMAGE: Final = frozenset({"vit", "deit", "beit"})
SWIN: Final = frozenset({"swin", "donut-swin"})
AUDIO: Final = frozenset({"wav2vec2", "hubert"})
SUPPORTED: Final = frozenset({*TEXT, *IMAGE, *SWIN, *AUDIO})


def base(fields: Fields, key: str) -> int:
    """A size, by default that of a base model."""
    most = MAX_LAYERS if key == "num_hidden_layers" else MAX_CONTEXT
    return or_default(fields, key, most, _BASE[key])


def width(fields: Fields, kind: str) -> int:
    """Width of what the encoder makes."""
    if kind in SWIN:
        stages = fields.integers("depths", MAX_LAYERS) or (2, 2, 6, 2)
        return or_default(fields, "embed_dim", MAX_DIM, 96) << min(len(stages) - 1, 16)
    return base(fields, "hidden_size")


def tensors(fields: Fields, kind: str, prefix: str) -> Iterator[TensorGroup]:
    """The tensors of an encoder of a known kind."""
    if kind in SWIN:
        yield from swin(fields, kind, prefix)
        return
    hidden = base(fields, "hidden_size")
    before = kind in IMAGE
    yield from Stack(
        prefix=f"{prefix}.encoder",
        layers=base(fields, "num_hidden_layers"),
        hidden=hidden,
        ffn=base(fields, "intermediate_size"),
        bias=fields.flag("qkv_bias", default=True) or kind not in IMAGE,
        key_bias=kind != "beit",
        norm=before or kind in AUDIO,
    ).tensors()
    if before and not fields.flag("qkv_bias", default=True):
        every = tuple(range(base(fields, "num_hidden_layers")))
        yield TensorGroup(f"{prefix}.encoder.layers.*.self_attn.o_proj.bias", (hidden,), every)
    if kind in AUDIO:
        yield from waveform(fields, prefix, hidden)
        yield from _adapter(fields, prefix, hidden)
        return
    if kind in TEXT:
        yield from _words(fields, kind, prefix, hidden)
    else:
        yield from _patches(fields, kind, prefix, hidden)
    if kind != "beit":
        yield from linear(f"{prefix}.pooler.dense", hidden, hidden, bias=True)


def _words(fields: Fields, kind: str, prefix: str, hidden: int) -> Iterator[TensorGroup]:
    rows = {
        "word": or_default(fields, "vocab_size", MAX_VOCAB, TEXT[kind]),
        "position": base(fields, "max_position_embeddings"),
        "token_type": base(fields, "type_vocab_size"),
    }
    for name, count in rows.items():
        yield TensorGroup(f"{prefix}.embeddings.{name}_embeddings.weight", (count, hidden))
    yield from norm(f"{prefix}.embeddings.LayerNorm", hidden, bias=True)


def _patches(fields: Fields, kind: str, prefix: str, hidden: int) -> Iterator[TensorGroup]:
    patch = base(fields, "patch_size")
    shape = (hidden, base(fields, "num_channels"), patch, patch)
    yield from convolution(f"{prefix}.embeddings.patch_embeddings", shape)
    yield TensorGroup(f"{prefix}.embeddings.cls_token", (1, 1, hidden))
    extra = 2 if kind == "deit" else 1  # DeiT has a token for its teacher too
    if extra > 1:
        yield TensorGroup(f"{prefix}.embeddings.distillation_token", (1, 1, hidden))
    if kind == "beit":
        every = tuple(range(base(fields, "num_hidden_layers")))
        for name in ("lambda_1", "lambda_2"):
            yield TensorGroup(f"{prefix}.encoder.layers.*.{name}", (hidden,), every)
        return
    rows = (base(fields, "image_size") // patch) ** 2 + extra
    yield TensorGroup(f"{prefix}.embeddings.position_embeddings", (1, rows, hidden))


def _adapter(fields: Fields, prefix: str, hidden: int) -> Iterator[TensorGroup]:
    if not fields.flag("add_adapter", default=False):
        return
    out = or_default(fields, "output_hidden_size", MAX_DIM, hidden)
    if out != hidden:
        yield from linear(f"{prefix}.adapter.proj", out, hidden, bias=True)
        yield from norm(f"{prefix}.adapter.proj_layer_norm", out, bias=True)
    kernel = or_default(fields, "adapter_kernel_size", MAX_DIM, 3)
    for index in range(or_default(fields, "num_adapter_layers", MAX_LAYERS, 3)):
        yield from convolution(f"{prefix}.adapter.layers.{index}.conv", (2 * out, out, kernel))


def swin(fields: Fields, kind: str, prefix: str) -> Iterator[TensorGroup]:
    """Swin: stages of windowed attention, the width doubling from one to the next."""
    size = or_default(fields, "embed_dim", MAX_DIM, 96)
    patch = or_default(fields, "patch_size", MAX_DIM, 4)
    channels = base(fields, "num_channels")
    yield from convolution(f"{prefix}.embeddings.patch_embeddings", (size, channels, patch, patch))
    yield from norm(f"{prefix}.embeddings.norm", size, bias=True)
    stages = (fields.integers("depths", MAX_LAYERS) or (2, 2, 6, 2))[:16]
    heads = fields.integers("num_heads", MAX_DIM) or (3, 6, 12, 24)
    window = or_default(fields, "window_size", MAX_DIM, 7)
    ratio = fields.number("mlp_ratio", 1024, default=4.0)
    for stage, depth in enumerate(stages):
        yield from Stack(
            prefix=f"{prefix}.stage_{stage}",
            layers=depth,
            hidden=size,
            ffn=int(size * ratio),
            norm=False,
        ).tensors()
        if stage < len(heads):
            name = f"{prefix}.stage_{stage}.layers.*.self_attn.relative_position_bias_table"
            yield TensorGroup(name, ((2 * window - 1) ** 2, heads[stage]), tuple(range(depth)))
        if stage < len(stages) - 1:
            yield from linear(f"{prefix}.stage_{stage}.reduction", 2 * size, 4 * size)
            yield from norm(f"{prefix}.stage_{stage}.norm", 4 * size, bias=True)
            size *= 2
    if kind == "swin":
        yield from norm(f"{prefix}.layernorm", size, bias=True)


def siglip(fields: Fields, prefix: str) -> Iterator[TensorGroup]:
    """SigLIP's image encoder with its pooling head."""
    hidden = base(fields, "hidden_size")
    ffn = base(fields, "intermediate_size")
    patch = base(fields, "patch_size")
    yield from Stack(
        prefix=f"{prefix}.encoder", layers=base(fields, "num_hidden_layers"), hidden=hidden, ffn=ffn
    ).tensors()
    shape = (hidden, base(fields, "num_channels"), patch, patch)
    yield from convolution(f"{prefix}.embeddings.patch_embedding", shape)
    rows = (base(fields, "image_size") // patch) ** 2
    yield TensorGroup(f"{prefix}.embeddings.position_embedding.weight", (rows, hidden))
    if not fields.flag("vision_use_head", default=True):
        return
    yield TensorGroup(f"{prefix}.head.probe", (1, 1, hidden))
    yield from linear(f"{prefix}.head.attention.in_proj", 3 * hidden, hidden, bias=True)
    yield from linear(f"{prefix}.head.attention.out_proj", hidden, hidden, bias=True)
    yield from norm(f"{prefix}.head.layernorm", hidden, bias=True)
    yield from linear(f"{prefix}.head.mlp.fc1", ffn, hidden, bias=True)
    yield from linear(f"{prefix}.head.mlp.fc2", hidden, ffn, bias=True)


def davit_widths(fields: Fields) -> tuple[int, ...]:
    """Widths of its stages; the files with code of their own say ``dim_embed``."""
    stated = fields.integers("dim_embed", MAX_DIM)
    return stated or fields.integers("embed_dim", MAX_DIM) or (128, 256, 512, 1024)


def davit(fields: Fields, prefix: str) -> Iterator[TensorGroup]:
    """Florence 2's image encoder: each block attends over windows, then over channels."""
    widths = davit_widths(fields)
    depths = fields.integers("depths", MAX_LAYERS) or (1, 1, 9, 1)
    kernels = fields.integers("patch_size", MAX_DIM) or (7, 3, 3, 3)
    before = fields.get("patch_prenorm")
    if not isinstance(before, list):
        before = [False, True, True, True]
    ratio = fields.number("mlp_ratio", 1024, default=4.0)
    read = or_default(fields, "in_channels", MAX_DIM, 3)
    for stage, (size, depth, kernel) in enumerate(zip(widths, depths, kernels, strict=False)):
        name = f"{prefix}.convs.{stage}"
        yield from convolution(f"{name}.conv", (size, read, kernel, kernel))
        first = bool(before[stage]) if stage < len(before) else True
        yield from norm(f"{name}.norm", read if first else size, bias=True)
        every = tuple(range(depth))
        for kind in ("spatial_block", "channel_block"):
            block = f"{prefix}.blocks.{stage}.*.{kind}"
            for index in (1, 2):
                yield TensorGroup(f"{block}.conv{index}.weight", (size, 1, 3, 3), every)
                yield TensorGroup(f"{block}.conv{index}.bias", (size,), every)
                yield from norm(f"{block}.norm{index}", size, every, bias=True)
            bias = fields.flag("qkv_bias", default=True)
            yield from linear(f"{block}.attn.qkv", 3 * size, size, every, bias=bias)
            yield from linear(f"{block}.attn.proj", size, size, every, bias=True)
            yield from linear(f"{block}.ffn.fc1", int(size * ratio), size, every, bias=True)
            yield from linear(f"{block}.ffn.fc2", size, int(size * ratio), every, bias=True)
        read = size


def sam(fields: Fields, prefix: str) -> Iterator[TensorGroup]:
    """The image encoder of Segment Anything, with relative positions and a neck of convolutions."""
    hidden = base(fields, "hidden_size")
    layers = base(fields, "num_hidden_layers")
    patch = base(fields, "patch_size")
    grid = or_default(fields, "image_size", MAX_CONTEXT, 512) // patch
    ffn = or_default(fields, "mlp_dim", MAX_DIM, 4 * hidden)
    yield from Stack(prefix=prefix, layers=layers, hidden=hidden, ffn=ffn, norm=False).tensors()
    yield from convolution(
        f"{prefix}.patch_embed", (hidden, base(fields, "num_channels"), patch, patch)
    )
    if fields.flag("use_abs_pos", default=True):
        yield TensorGroup(f"{prefix}.pos_embed", (1, grid, grid, hidden))
    if fields.flag("use_rel_pos", default=True):
        size = hidden // base(fields, "num_attention_heads")
        everywhere = set(fields.integers("global_attn_indexes", MAX_LAYERS))
        window = or_default(fields, "window_size", MAX_DIM, 14)
        for axis in "hw":
            for name, rows, chosen in (
                ("window", window, [i for i in range(layers) if i not in everywhere]),
                ("global", grid, [i for i in range(layers) if i in everywhere]),
            ):
                if chosen:
                    yield TensorGroup(
                        f"{prefix}.layers.*.self_attn.{name}_rel_pos_{axis}",
                        (max(1, 2 * rows - 1), size),
                        tuple(chosen),
                    )
    out = or_default(fields, "output_channels", MAX_DIM, 256)
    yield TensorGroup(f"{prefix}.neck.conv1.weight", (out, hidden, 1, 1))
    yield TensorGroup(f"{prefix}.neck.conv2.weight", (out, out, 3, 3))
    yield from norm(f"{prefix}.neck.layer_norm1", out, bias=True)
    yield from norm(f"{prefix}.neck.layer_norm2", out, bias=True)
