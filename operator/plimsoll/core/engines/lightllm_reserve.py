"""LightLLM's reserve: a sum of named terms, in bytes. No public start-up log calibrates it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.peaks import activation, by_ranks, logits_peak
from plimsoll.core.records import dataclass
from plimsoll.core.units import MIB, ceil_div

if TYPE_CHECKING:
    from plimsoll.core.arch.spec import ModelSpec
    from plimsoll.core.engines.base import Situation
    from plimsoll.core.request import SizingRequest

DEFAULT_REQUESTS: Final = 256
LENGTH_MARGIN: Final = 8  # LightLLM asserts size >= max_req_total_len + 8
_DEFAULT_GRAPH_BATCH: Final = 256


@dataclass(frozen=True, slots=True)
class _Terms:
    """Start values of the reserve: research corpus of vLLM start-up lines and LightLLM's source.

    ``preinit`` and ``non_torch`` by ranks (1, 2, 4 and more), in hundredths of a GiB.
    """

    preinit: tuple[int, int, int]
    non_torch: tuple[int, int, int]
    activation_factor: int  # in tenths
    workspace: int
    graph_bytes_per_row: int
    fragmentation_permille: int


_TABLE: Final = _Terms((51, 153, 155), (25, 208, 217), 10, 512 * MIB, 2 * MIB, 25)
# Upper ends of the ranges seen: a context of 0.9 GiB, mixture-like activation, graphs of 4 MiB a row.
_WIDEST: Final = _Terms((90, 192, 194), (46, 211, 221), 20, 512 * MIB, 4 * MIB, 40)


def reserve_of(s: Situation, requests: int, context: int, prefill: int) -> dict[str, int]:
    """Named terms in bytes. Formulas: activation fitted on vLLM start-up lines, the rest LightLLM's source."""
    terms = _WIDEST if s.wide else _TABLE
    spec = s.spec
    peak = activation(spec, tensor=s.request.tensor, tokens=prefill, sequences=requests)
    graph_rows = graph_batch(s.request, requests) if s.request.cuda_graphs else 0
    return {
        "nonTorch": by_ranks(terms.non_torch, s.request.tensor),
        # The pool exists before the weights are filled, so the load's peak counts too; it is over
        # before the first forward pass, hence the maximum and not the sum.
        "activation": max(peak * terms.activation_factor // 10, s.load_peak),
        "workspace": terms.workspace,
        "requestTables": tables(spec, requests, context, prefill),
        "graphs": graph_rows * terms.graph_bytes_per_row,
        "fragmentation": max(
            ceil_div(s.device_total * terms.fragmentation_permille, 1000),
            logits_peak(spec, requests),
        ),
        "extra": s.request.extra_reserve,
    }


def tables(spec: ModelSpec, requests: int, context: int, prefill: int) -> int:
    """Token positions of each request, and the penalty counter that it keeps on the GPU. Bytes."""
    return (requests + 1) * 4 * (max(prefill, context + LENGTH_MARGIN) + spec.vocab)


def graph_batch(request: SizingRequest, sequences: int | None) -> int:
    """Largest batch of the decode graphs."""
    if request.cuda_graph_max_batch is not None:
        return request.cuda_graph_max_batch
    return min(sequences or DEFAULT_REQUESTS, _DEFAULT_GRAPH_BATCH)


def preinit(tensor: int, *, wide: bool) -> int:
    """Context, NCCL and cuBLAS before anything is loaded."""
    return by_ranks((_WIDEST if wide else _TABLE).preinit, tensor)
