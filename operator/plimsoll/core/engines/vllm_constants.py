"""Constants of vLLM's reserve. `make calibrate` rebuilds them from tests/data; a test compares.

All are fitted on start-up logs in public repositories and issues (tests/data/capacity_observations.jsonl,
each line with its source), except where ``SOURCES`` says otherwise.
"""

from __future__ import annotations

from typing import Final

#: Bytes per byte of one fp32 row of logits for each sequence, of a 16-bit model, by era.
LOGITS_COPIES: Final = {
    "0.0": 9.54, "0.10": 9.54, "0.11": 9.54, "0.17": 3.668, "0.18": 3.668,
}  # fmt: skip
#: GiB that the sampler's peak has beside it.
LOGITS_FLOOR: Final = 0.026
#: Elements per token of the forward pass: of the residual stream, and of the feed-forward width.
FORWARD_HIDDEN: Final = 4.241
FORWARD_WIDTH: Final = 3.0
#: GiB that are not PyTorch's, by era: at 1, 2, 4, 8 ranks.
NON_TORCH: Final = {
    "0.0": (0.35, 0.35, 0.35, 0.35),
    "0.10": (0.07, 0.54, 1.43, 2.32),
    "0.11": (0.135, 0.545, 0.54, 0.54),
    "0.17": (0.13, 0.54, 0.54, 0.54),
    "0.18": (0.25, 2.07, 2.13, 2.30),
}
#: GiB beside it at one rank where the vocabulary is odd.
ODD_VOCAB: Final = 0.21
#: The most that was seen at 1, 2, 4, 8 ranks, for numbers that must be safe.
NON_TORCH_MOST: Final = (0.46, 2.11, 2.21, 2.50)
#: GiB of graphs up to the size of 512: at all, per layer, with experts, with a latent cache.
GRAPHS: Final = (0.135, 0.021, 0.123, 0.745)
#: GiB that every prediction stays below the fit, so that it is not above the engine's number.
MARGIN: Final = 0.04
#: The same, further, where weights are quantised: their kernels keep buffers that no term describes.
MARGIN_QUANTIZED: Final = 0.06
#: GiB of context, NCCL and cuBLAS before the first measurement, at 1, 2, 4 and more ranks.
PREINIT: Final = (0.51, 1.53, 1.55, 1.70)
