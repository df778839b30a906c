"""Towers that no list of lines describes: counted by their own rule, or as their published size.

Source: the shapes of transformers 5.24.0's models on the meta device.
"""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_DIM, MAX_EXPERTS, MAX_LAYERS
from plimsoll.core.arch.towers import Missing, count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.core.arch.fields import Fields
    from plimsoll.core.arch.towers import Scope

#: Elements of towers made of convolutions in many sizes, with their class's default sizes. Image
#: and audio tokenizers are published in one size each.
PUBLISHED: Final[Mapping[str, int]] = {
    "apertus1p5_vision_tokenizer": 218_153_984,
    "wavtokenizer_encoder": 8_303_104,
    "janus_vqgan": 71_883_403,
    "chameleon_vqgan": 29_423_616,
    "gemma3n_vision": 294_126_912,
    "emu3_vqgan": 270_740_287,
    "mimi": 79_308_609,
    "muse_spark_audio": 117_840_384,
}
#: The same by the name of an architecture, for towers that the library timm builds.
TIMM: Final[Mapping[str, int]] = {"fastvit_mci3": 122_714_208}

#: Fields that would change those numbers.
DECISIVE: Final = (
    "base_channels", "codebook_size", "depths", "embed_dim", "hidden_size", "hidden_sizes", "intermediate_size",
    "latent_channels", "num_embeddings", "num_filters", "num_hidden_layers", "num_res_blocks",
)  # fmt: skip


def _factors(number: int) -> list[int]:
    """Prime factors, the largest first."""
    found = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return [*([number] if number > 1 else []), *reversed(found)]


def inkling(scope: Scope) -> str:
    """Layers that fold a patch into channels, step by step.

    Every layer takes the scale that is nearest to an even progression of sizes.
    """
    side, depth = int(scope.number("p")), int(scope.number("temporal_patch_size"))
    colours, layers = int(scope.number("c")), len(count("L", scope))
    if side > 1 << 12 or depth > 1 << 12 or not side * depth * colours:
        raise scope.own.wrong("patch_size", "the side of a patch of an image")
    scales = [(1, 1, colours)]
    across = 1
    for factor in _factors(side):
        across *= factor
        scales.append((1, across, -(-across * across * colours // 64) * 64))
    along = 1
    for factor in _factors(depth):
        along *= factor
        scales.append((along, across, side * side * colours * along * 64))
    if layers < len(scales):
        raise Missing(f"{scope.own.path}num_hidden_layers of at least {len(scales)}")
    whole = log(side * side * depth * colours)
    sizes = [log(time * width * width) for time, width, _ in scales]
    # Source: plan_out_scales, which compares without the channels.
    steps = [whole * index / layers for index in range(layers + 1)]
    picked = [min(range(len(scales)), key=lambda at: abs(step - sizes[at])) for step in steps]
    picked[0], picked[-1] = 0, len(scales) - 1
    lines = []
    for index, (start, end) in enumerate(pairwise(picked)):
        before, after = scales[start], scales[end]
        folded = (after[0] // before[0]) * (after[1] // before[1]) ** 2
        last = index == layers - 1
        out = "text.d" if last else str(after[2])
        lines.append(f"encoder_layers.{index}.projection {out} {before[2] * folded}")
        if not last:
            lines.append(f"encoder_layers.{index}.layer_norm {out}")
    return "\n".join([*lines, "final_norm text.d"])


#: Experts of each layer of dots3's tower where the file does not say: 25 dense layers, then more and more.
_PYRAMID: Final = (*(0,) * 25, *range(4, 65, 4), 64)
_DOTS3: Final = """
patch_embed.proj d c p p +b
patch_embed.norm d
@L blocks.*.{norm1,norm2} d
@L blocks.*.attn.{q_norm,k_norm} d/H
@L blocks.*.attn.qkv 3*d d +b?bias
@L blocks.*.attn.proj d d +b?bias
merger.ln_q adapter_in_dim +b
merger.mlp.0 wide wide +b
merger.mlp.2 adapter_out_dim wide +b
norm d
"""


def dots3(scope: Scope) -> str:
    """A vision transformer whose last layers are mixtures, each with its own number of experts."""
    fields = scope.own
    # Source: Dots3NoteVisionConfig, where the published words win over its own.
    width = fields.either("embed_dim", "hidden_size", most=MAX_DIM)
    heads = fields.either("num_heads", "num_attention_heads", most=MAX_DIM)
    if width is None or heads is None:
        raise Missing(f"{fields.path}hidden_size")
    flag = "use_bias" if fields.has("use_bias") else "attention_bias"
    merged = int(scope.number("adapter_merge_size"))
    scope.named.update(
        d=width,
        H=heads,
        bias=fields.flag(flag, default=False),
        wide=scope.number("adapter_in_dim") * merged * merged,
    )
    lines = [_DOTS3]
    for index, experts in enumerate(_experts(fields, len(count("L", scope)))):
        mlp = f"blocks.{index}.mlp"
        if experts:
            lines += [
                f"{mlp}.gate {experts} d",
                f"={mlp}.experts.gate_up_proj {experts} 2*moe_intermediate_size d",
                f"={mlp}.experts.down_proj {experts} d moe_intermediate_size",
            ]
        else:
            lines += [
                f"{mlp}.{{gate,up}}_proj w d +b?mlp_bias",
                f"{mlp}.down_proj d w +b?mlp_bias",
            ]
    return "\n".join(lines)


def _experts(fields: Fields, layers: int) -> tuple[int, ...]:
    """Experts of each layer of dots3's tower, 0 where it is dense.

    Raises:
        BadModel: A list that is too short, or not of numbers or kinds of layers.
    """
    key = "pyramid_num_routed"
    counts = fields.get(key)
    if counts is None and fields.has("mlp_layer_types"):
        key = "mlp_layer_types"
        stated = fields.integer("num_local_experts", MAX_EXPERTS, default=_PYRAMID[-1])
        own = fields.child("per_layer_config")
        kinds = fields.get(key)
        if not isinstance(kinds, list) or len(kinds) > MAX_LAYERS:
            raise fields.wrong(key, f"a list of {layers} entries")
        counts = [
            (own.child(str(i)).either("num_local_experts", most=MAX_EXPERTS) or stated)
            if kind == "sparse"
            else 0
            for i, kind in enumerate(kinds)
        ]
    counts = list(_PYRAMID) if counts is None else counts
    if not isinstance(counts, list) or not layers <= len(counts) <= MAX_LAYERS:
        raise fields.wrong(key, f"a list of {layers} entries")
    for number in counts:
        if not isinstance(number, int) or isinstance(number, bool) or number > MAX_EXPERTS:
            raise fields.wrong(key, f"a list of integers up to {MAX_EXPERTS}")
    return tuple(max(number, 0) for number in counts[:layers])


def _stages(scope: Scope) -> list[tuple[int, int, int]]:
    """Channels, depth and the ratio that leads to each stage of a VibeVoice tokenizer."""
    depths = scope.own.integers("depths", 64)
    ratios = scope.own.integers("downsampling_ratios", 64)
    if len(depths) != len(ratios) + 1 or len(ratios) > 16:  # noqa: PLR2004 - widths double each time
        raise scope.own.wrong(
            "depths", "one entry more than downsampling_ratios, which has at most 16"
        )
    return [
        (int(scope.number("num_filters")) << index, depth, (1, *ratios)[index])
        for index, depth in enumerate(depths)
    ]


def _blocks(name: str, width: int, depth: int) -> list[str]:
    wide = f"ffn_expansion:4*{width}"
    return [
        f"@{depth} =stage.{name}.*.{{gamma,ffn_gamma,norm,ffn_norm}} {width}",
        f"@{depth} stage.{name}.*.ffn.linear1 {wide} {width} +b",
        f"@{depth} stage.{name}.*.ffn.linear2 {width} {wide} +b",
        f"@{depth} stage.{name}.*.mixer {width} 1 kernel_size:7 +b",
    ]


def vibevoice_encoder(scope: Scope) -> str:
    """From samples to latents: stages of convolutions that double their channels."""
    lines = []
    stages = _stages(scope)
    for index, (width, depth, ratio) in enumerate(stages):
        before, kernel = (
            ("channels:1", "kernel_size:7") if not index else (str(width // 2), f"2*{ratio}")
        )
        lines.append(f"encoder.conv.{index} {width} {before} {kernel} +b")
        lines += _blocks(f"encoder.{index}", width, depth)
    lines.append(f"encoder.head d {stages[-1][0]} kernel_size:7 +b")
    return "\n".join(lines)


def vibevoice_both(scope: Scope) -> str:
    """The same, and back."""
    stages = _stages(scope)
    lines = [vibevoice_encoder(scope), f"decoder.conv.0 {stages[-1][0]} d kernel_size:7 +b"]
    for index, (width, depth, ratio) in enumerate(reversed(stages)):
        lines += _blocks(f"decoder.{index}", width, depth)
        if index < len(stages) - 1:
            lines.append(f"decoder.conv.{index + 1} {width} {width // 2} 2*{ratio}")
            lines.append(f"=decoder.conv.{index + 1}.bias {width // 2}")
    lines.append(f"decoder.head channels:1 {stages[0][0]} kernel_size:7 +b")
    return "\n".join(lines)


OWN: Final[Mapping[str, Callable[[Scope], str]]] = {
    "dots3_note_vision_encoder": dots3,
    "inkling_vision": inkling,
    "vibevoice_acoustic_tokenizer_encoder": vibevoice_encoder,
    "vibevoice_acoustic_tokenizer": vibevoice_both,
}
