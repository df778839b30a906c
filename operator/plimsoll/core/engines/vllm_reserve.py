"""What vLLM measures, or should, beside weights and pool: a sum of named terms. Bytes.

The activation peak is the larger of two, never their sum: the sampler on one row of logits for each
sequence, and the forward pass of one batch. Experts keep a workspace, pictures their pixels and
embeddings, through both::

    sampler = floor + copies * S * V * 4 + T * h * e
    forward = T * e * (4.26 h + 3 I / tp)  (+ T * (h + I / tp) where activations are 8 bit)
    peak    = max(sampler, forward) + T * k * (max(w, h) + max(w / 2, h)) * e + pictures

with S sequences, T tokens of a batch, V vocabulary, h hidden, I feed-forward width, e bytes of an
element, k experts visited by a token, w = 2 * width of an expert / tp. The workspace's shape is vLLM's own
(``fused_moe/experts``); up to 0.16 it was freed before the sampler ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core import dtypes
from plimsoll.core.engines import vllm_constants as constants
from plimsoll.core.engines import vllm_releases as releases
from plimsoll.core.records import dataclass
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.vllm_releases import Release

_WORKSPACE_KEPT_SINCE: Final = (0, 13)  # 0.12 still frees it; 0.17 keeps it; between, the safe side
#: Pixels per token of a picture, times three colours in 16 bit: 28 x 28, and 56 x 56 for Gemma.
_PIXELS: Final = 28 * 28 * 3 * 2
_PIXELS_GEMMA: Final = 56 * 56 * 3 * 2
#: Gemma 3 from 4B on sees pictures, also where only the text model's config is at hand.
_GEMMA_SEES: Final = 2560
#: Elements per patch that the tower's forward pass holds at once, and patches per token.
_TOWER_ELEMENTS: Final = 1280 * 14
_PATCHES: Final = 4
_QUANTIZED_BELOW: Final = (3, 4)  # of the size in 16 bit
_DRAFT_SHARE: Final = (
    10  # a draft model's weights and peak, as a part of the weights: one in so many
)


@dataclass(frozen=True, slots=True)
class Load:
    """What the server is started for.

    Attributes:
        tensor: Tensor-parallel ranks.
        sequences: Rows of logits at once; 0 for a model that pools.
        tokens: Tokens per batch.
        element: Bytes of one activation.
        graph: Largest captured batch; 0 without graphs.
        pictures: Whether pictures are profiled.
        quantized: The weights are smaller than 16 bit, so that activations may be quantised too.
    """

    tensor: int
    sequences: int
    tokens: int
    element: int
    graph: int
    pictures: bool
    quantized: bool = False


def activation(spec: ModelSpec, load: Load, release: Release) -> int:
    """The peak that vLLM's profiling run measures."""
    sampler, forward, kept = peaks(spec, load, release)
    return int(max(sampler, forward)) + kept + pictures(spec, load)


def peaks(spec: ModelSpec, load: Load, release: Release) -> tuple[float, float, int]:
    """The sampler's peak, the forward pass's, and what experts keep through both."""
    element, tokens = load.element, load.tokens
    copies = constants.LOGITS_COPIES[release.era] + (element / 4 - 0.5)  # fp32 keeps fp32 logits
    sampler = 0.0
    if load.sequences:
        sampler = constants.LOGITS_FLOOR * GIB + copies * load.sequences * spec.vocab * 4
        sampler += tokens * spec.hidden * element
    width = _dense_width(spec) / load.tensor
    elements = constants.FORWARD_HIDDEN * spec.hidden + constants.FORWARD_WIDTH * width
    forward = tokens * element * elements
    if load.quantized or _eight_bit(spec):
        forward += tokens * (spec.hidden + width)
    experts = workspace(spec, load)
    if release.since >= _WORKSPACE_KEPT_SINCE:
        return sampler, forward, experts
    return sampler, forward + experts, 0


def _dense_width(spec: ModelSpec) -> int:
    """Width of the widest part that every token visits."""
    if spec.experts is None:
        return spec.intermediate
    if len(spec.experts.layers) < spec.layers:
        return max(spec.intermediate, spec.experts.shared_intermediate)
    return spec.experts.shared_intermediate


def _eight_bit(spec: ModelSpec) -> bool:
    """Whether activations are quantised to 8 bit beside their 16-bit copy."""
    block = spec.quantization or {}
    method = str(block.get("quant_method") or "").lower()
    if method in {"fp8", "fbgemm_fp8", "modelopt"}:
        return True
    groups = block.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    inputs = first.get("input_activations") if isinstance(first, dict) else None
    return isinstance(inputs, dict) and inputs.get("num_bits") == 8  # noqa: PLR2004


def workspace(spec: ModelSpec, load: Load) -> int:
    """Two buffers of the fused experts, for one batch."""
    if spec.experts is None:
        return 0
    both = 2 * spec.experts.intermediate // load.tensor
    rows = load.tokens * spec.experts.per_token
    return rows * (max(both // 2, spec.hidden) + max(both, spec.hidden)) * load.element


def pictures(spec: ModelSpec, load: Load) -> int:
    """Embeddings and pixels of one batch of pictures, which are held during the text model's run."""
    gemma = spec.family.startswith("gemma3") and spec.hidden >= _GEMMA_SEES
    if not load.pictures or not (spec.modalities or gemma):
        return 0
    tokens = max(load.tokens, releases.largest_item(spec))
    sees = gemma or "vision" in spec.modalities
    pixels = (_PIXELS_GEMMA if spec.family.startswith("gemma") else _PIXELS) if sees else 0
    return tokens * (spec.hidden * load.element + pixels)


def tower(spec: ModelSpec, load: Load) -> int:
    """Peak of the vision tower on the largest picture of models that take pictures of any size."""
    if not load.pictures or "vision" not in spec.modalities:
        return 0
    return releases.largest_item(spec) * _PATCHES * _TOWER_ELEMENTS * load.element


def non_torch(spec: ModelSpec, release: Release, tensor: int) -> int:
    """What grows outside PyTorch after the first measurement: NCCL's buffers, modules, cuBLAS.

    A head of an odd number of rows runs through other kernels, which are loaded as well.
    """
    size = _by_ranks(constants.NON_TORCH[release.era], tensor)
    return size + (int(constants.ODD_VOCAB * GIB) if spec.vocab % 2 and tensor == 1 else 0)


def quantized(spec: ModelSpec, weights: int, ranks: int) -> bool:
    """Whether weights of that many bytes per rank are far below 16 bit per parameter."""
    return weights * ranks * _QUANTIZED_BELOW[1] < 2 * spec.parameters * _QUANTIZED_BELOW[0]


def non_torch_most(tensor: int) -> int:
    """The most that was seen, whatever the release."""
    return _by_ranks(constants.NON_TORCH_MOST, tensor)


def preinit(ranks: int) -> int:
    """Context, NCCL and cuBLAS before the first measurement."""
    return _by_ranks(constants.PREINIT, ranks)


def graphs(spec: ModelSpec, load: Load) -> int:
    """Pool of the captured graphs, in proportion to the largest one."""
    if not load.graph:
        return 0
    base, layer, experts, latent = constants.GRAPHS
    size = base + layer * spec.layers
    size += (experts if spec.experts else 0) + (latent if spec.latent else 0)
    return int(size * GIB * load.graph / releases.MOST_GRAPHS)


def element_bytes(dtype: str) -> int:
    """Bytes of one activation of a canonical compute dtype."""
    return dtypes.bytes_of(1, dtype)


def draft(weights: int) -> int:
    """A draft model that nobody described."""
    return max(GIB, weights // _DRAFT_SHARE)


def margin(load: Load) -> int:
    """What every prediction stays below the fit."""
    return int((constants.MARGIN + (constants.MARGIN_QUANTIZED if load.quantized else 0)) * GIB)


def _by_ranks(values: tuple[float, ...], ranks: int) -> int:
    """Bytes for 1, 2, up to 4, or more ranks."""
    index = 0 if ranks == 1 else 1 if ranks == 2 else 2 if ranks <= 4 else 3  # noqa: PLR2004
    return int(values[min(index, len(values) - 1)] * GIB)
