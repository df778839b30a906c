"""What SGLang decides by itself, by release, card and model: data and the formulas that read it.

Sources: ``srt/arg_groups/memory_hook.py``, ``srt/configs/model_config.py`` and ``srt/arg_groups`` of
0.5.23; ``srt/server_args.py`` of 0.4.6, 0.5.2, 0.5.6 and 0.5.10. Memory is in MiB here, as there.
A row holds from the release it was read in until the next row; releases between two rows were not read.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.flags import words
from plimsoll.core.engines.versions import parse_release
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.core.arch.spec import ModelSpec

_GIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Release:
    """How one range of releases behaves.

    Attributes:
        since: First release of the range.
        heuristic: Which formula chooses the fraction: table, steps or reserve.
        features: windows (windowed layers get a pool of their own), prefillGraphs (captured by
            default), fp4Scales (FP4 caches count their scales).
        multimodal: MiB kept back for the embedding cache of models that see or hear.
        graph_flag: Flag for the largest decode graph; None where it is not known.
        cards: Below so many MiB: prefill chunk, largest decode graph, the same at tensor 4 or more.
    """

    since: tuple[int, int, int]
    heuristic: str
    features: frozenset[str]
    multimodal: int
    graph_flag: str | None
    cards: tuple[tuple[int, int, int, int], ...]


_UNBOUNDED: Final = 1 << 40
_CARDS_STEPS: Final = (
    (35 * _GIB, 2048, 8, 8), (90 * _GIB, 8192, 160, 160), (160 * _GIB, 8192, 256, 256),
    (_UNBOUNDED, 16384, 512, 512),
)  # fmt: skip
_CARDS_056: Final = (
    (20 * _GIB, 2048, 8, 8), (35 * _GIB, 2048, 24, 80), (60 * _GIB, 4096, 32, 160),
    (160 * _GIB, 8192, 256, 512), (_UNBOUNDED, 16384, 512, 512),
)  # fmt: skip
_CARDS_0523: Final = (
    (20 * _GIB, 2048, 8, 8), (35 * _GIB, 4096, 48, 160), (60 * _GIB, 4096, 32, 160),
    (160 * _GIB, 8192, 256, 512), (_UNBOUNDED, 16384, 512, 512),
)  # fmt: skip
_OLD_GRAPHS: Final = "cuda-graph-max-bs"
_NEW_GRAPHS: Final = "cuda-graph-max-bs-decode"

RELEASES: Final = (
    Release((0, 4, 0), "table", words(""), 0, _OLD_GRAPHS, _CARDS_STEPS),
    Release((0, 5, 0), "steps", words("windows"), 0, _OLD_GRAPHS, _CARDS_STEPS),
    Release((0, 5, 6), "reserve", words("windows fp4Scales"), 0, _OLD_GRAPHS, _CARDS_056),
    Release(
        (0, 5, 10), "reserve", words("windows fp4Scales prefillGraphs"), 0, _OLD_GRAPHS, _CARDS_056
    ),
    # The flag was split in two somewhere after 0.5.12; the old name is ambiguous afterwards.
    Release((0, 5, 13), "reserve", words("windows fp4Scales prefillGraphs"), 0, None, _CARDS_056),
    Release(
        (0, 5, 23),
        "reserve",
        words("windows fp4Scales prefillGraphs"),
        100,
        _NEW_GRAPHS,
        _CARDS_0523,
    ),
)
#: Releases whose source or flags were read. Others: the widest reserve.
KNOWN: Final = frozenset({(0, 4, 6), (0, 5, 2), (0, 5, 6), (0, 5, 10), (0, 5, 12), (0, 5, 23)})
OLDEST: Final = (0, 4, 0)

#: Post-0.5.12 multimodal transports hold this much more, in MiB (SGLANG_MM_FEATURE_CACHE_MB).
FEATURE_CACHE: Final = 1024

#: Classes whose windowed layers get a pool of their own (``is_hybrid_swa_model`` of 0.5.23); all
#: other windowed models keep every token in every layer.
WINDOW_POOLS: Final = frozenset({
    "BeamForCausalLM", "Llama4ForConditionalGeneration", "DeepseekV4ForCausalLM",
    "GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM", "IQuestQ1ForCausalLM",
    "MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
    "EmbeddingGemma2Model", "Gemma4UnifiedForConditionalGeneration",
    "DiffusionGemmaForBlockDiffusion", "LagunaForCausalLM", "MellumForCausalLM",
    "MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration",
    "InklingForConditionalGeneration", "UnlimitedOCRForCausalLM",
})  # fmt: skip
#: Where SGLang's own ratio of windowed to full tokens is not 0.8.
WINDOW_RATIO: Final = Fraction(8, 10)
WINDOW_RATIOS: Final[Mapping[str, Fraction]] = {
    "DeepseekV4ForCausalLM": Fraction(1, 10),
    "InklingForConditionalGeneration": Fraction(1, 10),
}

#: Attention backend -> pages it accepts; the default is the last one that is named.
BACKEND_PAGES: Final[Mapping[str, tuple[int, ...]]] = {
    "flashmla": (64,), "trtllm_mla": (32, 64), "cutedsl_mla": (32, 64),
    "trtllm_mha": (16, 32, 128, 64), "hpc_ops": (64,), "ascend": (128,),
}  # fmt: skip
#: Names of cards of compute capability 10 and more, where sparse latent caches default to FP8.
_BLACKWELL: Final = ("B100", "B200", "B300", "GB200", "GB300")

# 0.4: the share by ranks; above 96 GB 13 GiB stay free.
_TABLE: Final = ((16, 79), (8, 81), (4, 85), (2, 87), (1, 88))
_TABLE_LIMIT: Final = 96 * _GIB
_TABLE_LARGE: Final = 13 * _GIB
# 0.5.0 to 0.5.5: below so many MiB, tenths of a GiB, tenths of a GiB per rank.
_STEPS: Final = ((40 * _GIB, 28, 1), (90 * _GIB, 95, 5), (160 * _GIB, 120, 5), (_UNBOUNDED, 320, 0))
_LARGE: Final = 60 * _GIB
_LARGE_LEAST: Final = 10 * _GIB
_LEAST_TOKENS: Final = 2048
_UNCHUNKED: Final = 16384  # --max-prefill-tokens
_MLA_PREFILL: Final = 8192
_DP_LARGE: Final = 300
# One ViT-L/14: layers * width^2, and the parameters that a layer of width w has (12 w^2).
_VIT_L: Final = 24 * 1024**2
_VIT_LAYER: Final = 12


def release_of(version: str | None) -> Release:
    """The row of a version; the newest where it is unknown."""
    parsed = parse_release(version)
    if parsed is None:
        return RELEASES[-1]
    return max((row for row in RELEASES if row.since <= parsed), default=RELEASES[0], key=_since)


def _since(row: Release) -> tuple[int, int, int]:
    return row.since


def card_defaults(release: Release, memory: int, tensor: int) -> tuple[int, int]:
    """Prefill chunk and largest decode graph that SGLang chooses on a card of so many MiB."""
    for limit, chunk, graphs, wide in release.cards:
        if memory < limit:
            return chunk, wide if tensor >= 4 else graphs  # noqa: PLR2004 - SGLang's own limit
    raise AssertionError("the table is open-ended")  # pragma: no cover


def prefill_graph_sizes(largest: int) -> int:
    """How many prefill graphs are captured up to that many tokens."""
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256))
    counted = sum(len(range(low, min(high, largest) + 1, step)) for low, high, step in steps)
    return counted + len(range(4608, largest + 1, 512))


@dataclass(frozen=True, slots=True)
class Load:
    """What the automatic fraction depends on beside the card.

    Attributes:
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline stages.
        chunk: Tokens of a prefill chunk; None when prefill is not chunked.
        graphs: Largest decode graph; 0 without decode graphs.
        latent: Whether the model keeps a latent cache.
        attention_groups: Groups of data-parallel attention; 1 without.
        speculative: Whether a draft is used.
    """

    tensor: int
    pipeline: int
    chunk: int | None
    graphs: int
    latent: bool
    attention_groups: int = 1
    speculative: bool = False


def automatic_fraction(release: Release, memory: int, load: Load, spec: ModelSpec) -> Fraction:
    """``mem_fraction_static`` as SGLang would choose it on a card of so many MiB.

    The share is rounded to three decimals, then lowered for models with a vision tower.
    """
    match release.heuristic:
        case "table":
            share = _by_table(memory, load)
        case "steps":
            share = _by_steps(memory, load)
        case _:
            share = _rounded(memory, _reserved(release, memory, load))
    if "vision" in spec.modalities:
        share *= _vision_factor(spec)
    return max(share, Fraction(0))


def _by_table(memory: int, load: Load) -> Fraction:
    if memory > _TABLE_LIMIT:
        return _rounded(memory, Fraction(_TABLE_LARGE))
    percent = next(p for ranks, p in _TABLE if load.tensor >= ranks)
    return Fraction(percent, 100)


def _by_steps(memory: int, load: Load) -> Fraction:
    ranks = load.tensor * load.pipeline
    base, each = next((b, e) for limit, b, e in _STEPS if memory < limit)
    reserved = Fraction(base + each * ranks, 10) * _GIB
    reserved += 2 * _GIB * load.speculative + 4 * _GIB * (load.attention_groups > 1)
    return _rounded(memory, reserved)


def _reserved(release: Release, memory: int, load: Load) -> Fraction:
    """MiB that the current formula leaves for activations and graphs."""
    tokens = max(load.chunk if load.chunk is not None else _UNCHUNKED, _LEAST_TOKENS)
    reserved = 512 + Fraction(3, 2) * tokens + Fraction(_GIB * load.tensor * load.pipeline, 8)
    reserved += 2 * load.graphs
    if load.attention_groups > 1:
        each = 3 if load.graphs <= _DP_LARGE else Fraction(9, 2)
        reserved += each * load.graphs * load.attention_groups
    if "prefillGraphs" in release.features and load.chunk is not None:
        reserved += 1536 if load.latent else 8 * prefill_graph_sizes(load.chunk)
    return max(reserved, Fraction(_LARGE_LEAST)) if memory > _LARGE else reserved


def _rounded(memory: int, reserved: Fraction) -> Fraction:
    return Fraction(round((memory - reserved) * 1000 / memory), 1000)


def _vision_factor(spec: ModelSpec) -> Fraction:
    """0.95, and up to a fifth less for towers larger than ViT-L/14."""
    tower = sum(
        prod(group.shape) * group.count
        for group in spec.tensors
        if "vision" in group.name or group.name.startswith(("visual.", "model.visual."))
    )
    if not tower:
        return Fraction(95, 100)
    excess = Fraction(tower // _VIT_LAYER, _VIT_L) - 1
    factor = min(max(1 - excess / 10, Fraction(8, 10)), Fraction(105, 100))
    return Fraction(95, 100) * factor.limit_denominator(10_000)


def is_blackwell(product: str) -> bool:
    """Whether the card's name says compute capability 10."""
    return any(name in product.upper() for name in _BLACKWELL)


def page_tokens(
    spec: ModelSpec, stated: int | None, backends: tuple[str, ...], product: str
) -> int:
    """Tokens per page: as stated, as the model's kernels demand, or 1."""
    if any(group.latent and group.index_dim for group in spec.caches):
        return 64
    for backend in backends:
        pages = BACKEND_PAGES.get(backend)
        if pages is not None:
            return stated if stated in pages or (stated and backend == "ascend") else pages[-1]
    if stated is not None:
        return stated
    return 64 if spec.latent and not spec.states and is_blackwell(product) else 1
