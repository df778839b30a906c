"""Constants of vLLM's reserve. `make calibrate` rebuilds them from tests/data; a test compares.

Fitted ones come from start-up logs in public repositories and issues
(tests/data/capacity_observations.jsonl, each line with its source), nearly all of them one sweep on H100 with
vLLM 0.15 to 0.19. The others say below where they come from. Eras are those of ``vllm_releases``.
"""

from __future__ import annotations

from typing import Final

#: Fitted (era 0.0 has no line and takes its neighbour's). Bytes per byte of one fp32 row of logits for
#: each sequence, of a 16-bit model, by era.
LOGITS_COPIES: Final = {
    "0.0": 9.54, "0.10": 9.54, "0.11": 9.54, "0.17": 3.668, "0.18": 3.668,
}  # fmt: skip
#: Fitted. GiB that the sampler's peak has beside it.
LOGITS_FLOOR: Final = 0.026
#: Elements per token of the forward pass: of the residual stream (fitted), and of the feed-forward
#: width (by arithmetic: gate and up, and their product).
FORWARD_HIDDEN: Final = 4.241
FORWARD_WIDTH: Final = 3.0
#: GiB that are not PyTorch's, by era: at 1, 2, 4, 8 ranks. Medians of what is printed, except: era 0.0
#: from issue 10517; 0.10 at 8 from two logs that print no utilization, at 2 and 4 between its
#: neighbours; 0.11 at 4 and 8 and 0.17 beyond 1 as 0.11 at 2; 0.17 at 1 from what its one log leaves;
#: 0.18 at 8 a guess above 4.
NON_TORCH: Final = {
    "0.0": (0.35, 0.35, 0.35, 0.35),
    "0.10": (0.07, 0.54, 1.43, 2.32),
    "0.11": (0.135, 0.545, 0.54, 0.54),
    "0.17": (0.13, 0.54, 0.54, 0.54),
    "0.18": (0.25, 2.07, 2.13, 2.30),
}
#: Fitted on one family (Granite). GiB beside it at one rank where the vocabulary is odd.
ODD_VOCAB: Final = 0.21
#: Chosen: the most that was seen at 1, 2, 4 ranks, and a guess for 8, for numbers that must be safe.
NON_TORCH_MOST: Final = (0.46, 2.11, 2.21, 2.50)
#: Fitted on what 0.19 captured. GiB of graphs up to the size of 512: at all, per layer, with experts,
#: with a latent cache.
GRAPHS: Final = (0.135, 0.021, 0.123, 0.745)
#: Chosen with the lines in view, not fitted. GiB that every prediction stays below the fit, so that it
#: is not above the engine's number.
MARGIN: Final = 0.04
#: Chosen likewise, further, where weights are quantised: their kernels keep buffers that no term
#: describes.
MARGIN_QUANTIZED: Final = 0.06
#: Medians of total less free at the start, H100 with 0.19; beyond 4 ranks a guess. GiB of context,
#: NCCL and cuBLAS before the first measurement, at 1, 2, 4 and more ranks.
PREINIT: Final = (0.51, 1.53, 1.55, 1.70)
