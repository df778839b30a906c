"""Towers that no list of lines describes: counted by their own rule, or as their published size.

Source: the shapes of transformers 5.24.0's models on the meta device.
"""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.towers import Missing, count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    "dots3_note_vision_encoder": 6_871_277_312,
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
    "inkling_vision": inkling,
    "vibevoice_acoustic_tokenizer_encoder": vibevoice_encoder,
    "vibevoice_acoustic_tokenizer": vibevoice_both,
}
