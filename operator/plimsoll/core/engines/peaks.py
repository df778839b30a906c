"""Peaks of GPU memory that engines do not print, estimated from a model's shape. Bytes.

Start values from the research on engines: activation is the maximum of the logits' peak and the
forward pass's peak, fitted on public vLLM start-up lines; the coefficients of the forward pass for
other engines are those of NVIDIA's aiconfigurator-core 0.12, which calls its corrections unofficial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.units import GIB, ceil_div

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec

_LOGITS_FLOOR: Final = 55 * GIB // 1000
_LOGITS_PERCENT: Final = 362  # copies of one row of fp32 logits per sequence, in percent
_EXPERTS: Final = GIB // 2  # what mixtures showed beyond the dense formula


def logits_peak(spec: ModelSpec, sequences: int) -> int:
    """One fp32 row of logits for each sequence."""
    return 4 * spec.vocab * sequences


def activation(spec: ModelSpec, *, tensor: int, tokens: int, sequences: int) -> int:
    """Peak of one prefill step of ``tokens`` tokens that samples for ``sequences`` sequences.

    ``max(0.055 GiB + 3.62 * logits + 2 * tokens * hidden, 2 * tokens * (4.26 * hidden + 3 * width / tp))``
    """
    width = spec.intermediate
    if spec.experts:
        visited = spec.experts.per_token * spec.experts.intermediate
        width = max(width, visited + spec.experts.shared_intermediate)
    logits = _LOGITS_FLOOR + ceil_div(_LOGITS_PERCENT * logits_peak(spec, sequences), 100)
    logits += 2 * tokens * spec.hidden
    forward = 2 * tokens * ceil_div(426 * spec.hidden + 300 * ceil_div(width, tensor), 100)
    return max(logits, forward) + (_EXPERTS if spec.experts else 0)


def by_ranks(hundredths: tuple[int, int, int], ranks: int) -> int:
    """Bytes for 1, 2, or more ranks, from hundredths of a GiB."""
    return hundredths[0 if ranks == 1 else 1 if ranks == 2 else 2] * GIB // 100  # noqa: PLR2004


def cells_of_heads(heads: int, tensor: int) -> int:
    """Heads of one rank where heads are divided and, when there are too few, replicated."""
    return max(1, heads // tensor)
