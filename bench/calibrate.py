"""Rebuild the constants of vLLM's reserve from the corpus, and say how well they predict.

``make calibrate`` prints the table (as in core/engines/vllm_constants.py), the fit, and the errors of
cross-validation: each line is predicted by constants that were fitted without its geometry, or without
its source.

What this does not cover: ``CHOSEN`` constants, which are the same in every fold and were chosen with all
lines in view; values of the table that stand in where a fold has no line for them (one era and number of
ranks, latent graphs); and the form of the terms, also found on these lines. ``bench.accuracy_capacity``
scores without the margins and without each source as well, to show what hangs on that.
"""

from __future__ import annotations

import json
from collections import defaultdict
from math import ceil
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from bench.corpus import observations
from plimsoll.core.engines import vllm_constants as table
from plimsoll.core.engines import vllm_releases as releases
from plimsoll.core.engines import vllm_reserve as reserve
from plimsoll.core.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bench.corpus import Observation

#: Tables whose version nobody wrote down; their logits peak is the one of 0.10 to 0.16.
_UNDATED: Final = "docs/empirical-vllm-memory-results.md"
_RANKS: Final = (1, 2, 4, 8)
#: Not fitted: copied from the table into every fold.
CHOSEN: Final = ("NON_TORCH_MOST", "MARGIN", "MARGIN_QUANTIZED", "FORWARD_WIDTH")
_LEAN: Final = ("0.17", "0.18")
_SETTLED: Final = 16 * 1.5  # GiB; cards below run other defaults


def era_of(line: Observation) -> str | None:
    """Era of the constants that this line belongs to."""
    release = releases.release_of(line.engine_version)
    if release is not None:
        return release.era
    return "0.11" if _UNDATED in line.source else None


def load_of(line: Observation) -> reserve.Load:
    """Batch and sequences: as stated, else the default of that card."""
    spec = line.spec()
    assert spec is not None
    tokens, sequences = releases.card_defaults(
        line.engine_version, str(line.gpu or ""), line.total or 0, line.tensor
    )
    return reserve.Load(
        tensor=line.tensor,
        sequences=line.max_num_seqs or sequences,
        tokens=max(line.max_num_batched_tokens or tokens, releases.whole_item(spec)),
        element=4 if line.dtype == "float32" else 2,
        graph=releases.MOST_GRAPHS,
        pictures=True,
        quantized=reserve.quantized(spec, int(line.weights_gib_per_gpu * GIB), line.tensor),
    )


def usable(line: Observation) -> bool:
    """Lines of one pipeline stage whose model and card are known, in 16 bit."""
    known = line.spec() is not None and line.total is not None and line.weights_gib_per_gpu
    return bool(
        known
        and line.stages == 1
        and line.status == "ok"
        and line.dtype != "float32"
        and era_of(line)
    )


def derived(line: Observation, outside: float) -> float | None:
    """Activation in GiB: printed, else what utilization, weights and pool leave beside non-torch."""
    if line.activation_gib is not None:
        return float(line.activation_gib)
    release = releases.release_of(line.engine_version)
    inside = release is not None and "graphsInside" in release.features
    if (
        line.gpu_memory_utilization is None
        or line.kv_gib_per_gpu is None
        or inside
        or not line.total
    ):
        return None
    requested = ceil(line.total * line.gpu_memory_utilization) / GIB
    return float(requested - line.weights_gib_per_gpu - line.kv_gib_per_gpu - outside)


def by_geometry(pairs: Iterable[tuple[Observation, float]]) -> list[float]:
    """One value for each geometry and number of ranks, so that repeated starts weigh once."""
    found: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for line, value in pairs:
        found[(*line.geometry(), line.tensor)].append(value)
    return [median(values) for values in found.values()]


def straight(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: intercept and slope."""
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    spread = sum((p[0] - x) ** 2 for p in points)
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0
    return y - slope * x, slope


def fitted(lines: Sequence[Observation]) -> SimpleNamespace:
    """All constants from these lines alone; what they do not hold is taken from a neighbour.

    Returns:
        The names of ``vllm_constants``.
    """
    lines = [line for line in lines if usable(line)]
    outside, odd = _non_torch(lines)
    result = SimpleNamespace(
        NON_TORCH=outside,
        ODD_VOCAB=odd,
        **{name: getattr(table, name) for name in CHOSEN},
        PREINIT=_preinit(lines),
        FORWARD_HIDDEN=table.FORWARD_HIDDEN,
        LOGITS_FLOOR=table.LOGITS_FLOOR,
        LOGITS_COPIES=dict(table.LOGITS_COPIES),
        GRAPHS=_graphs(lines),
    )
    result.FORWARD_HIDDEN = _forward(lines, result)
    result.LOGITS_FLOOR, copies = _logits(lines, result)
    result.LOGITS_COPIES = copies
    return result


def _non_torch(lines: Sequence[Observation]) -> tuple[dict[str, tuple[float, ...]], float]:
    """Medians of what is printed, by era and ranks."""
    seen: dict[tuple[str, int], list[tuple[Observation, float]]] = defaultdict(list)
    odd = []
    for line in lines:
        spec, era = line.spec(), era_of(line)
        if (
            line.non_torch_gib is None
            or spec is None
            or era is None
            or (line.total or 0) < _SETTLED * GIB
        ):
            continue
        if spec.vocab % 2 and line.tensor == 1:
            odd.append((line, float(line.non_torch_gib)))
        else:
            seen[era, line.tensor].append((line, float(line.non_torch_gib)))
    found = {key: median(by_geometry(pairs)) for key, pairs in seen.items()}
    # Not printed, and not to be had from these lines: as in the table, see there.
    result = {
        era: tuple(
            found.get((era, ranks), value)
            for ranks, value in zip(_RANKS, table.NON_TORCH[era], strict=True)
        )
        for era in table.NON_TORCH
    }
    base = result["0.18"][0]
    return result, max(0.0, median(by_geometry(odd)) - base) if odd else 0.0


def _preinit(lines: Sequence[Observation]) -> tuple[float, ...]:
    seen: dict[int, list[tuple[Observation, float]]] = defaultdict(list)
    for line in lines:
        if line.free_gib_before_load and line.gpu_memory_gib and era_of(line) == "0.18":
            seen[line.tensor].append((line, line.gpu_memory_gib - line.free_gib_before_load))
    return tuple(
        median(by_geometry(seen[ranks])) if seen[ranks] else value
        for ranks, value in zip(_RANKS, table.PREINIT, strict=True)
    )


def _outside(line: Observation, result: SimpleNamespace) -> float:
    spec, era = line.spec(), era_of(line)
    assert spec is not None
    assert era is not None
    odd = result.ODD_VOCAB if spec.vocab % 2 and line.tensor == 1 else 0.0
    return float(result.NON_TORCH[era][_RANKS.index(line.tensor)]) + odd


def _bare(line: Observation, result: SimpleNamespace) -> tuple[float, float, float] | None:
    """Activation without experts and pictures, and the two peaks under the constants so far; GiB."""
    measured = derived(line, _outside(line, result))
    spec, release = line.spec(), releases.release_of(line.engine_version)
    if measured is None or spec is None:
        return None
    release = release or releases.RELEASES[3]
    load = load_of(line)
    with patch.object(reserve, "constants", result):
        sampler, forward, kept = reserve.peaks(spec, load, release)
    kept += reserve.pictures(spec, load)
    return measured - kept / GIB, sampler / GIB, forward / GIB


def _forward(lines: Sequence[Observation], result: SimpleNamespace) -> float:
    """Elements of the residual stream, from lines where the forward pass is the larger peak."""
    found = []
    for line in lines:
        bare, spec = _bare(line, result), line.spec()
        if bare is None or spec is None or line.activation_gib is None or bare[2] <= bare[1]:
            continue
        load = load_of(line)
        if load.quantized or spec.experts or load.tokens < 8192:
            continue
        elements = bare[0] * GIB / load.tokens / load.element
        found.append(
            (
                line,
                (elements - result.FORWARD_WIDTH * spec.intermediate / load.tensor) / spec.hidden,
            )
        )
    return median(by_geometry(found)) if found else result.FORWARD_HIDDEN


def _logits(
    lines: Sequence[Observation], result: SimpleNamespace
) -> tuple[float, dict[str, float]]:
    """Copies of the logits, and what is beside them, from lines where the sampler is the larger peak."""
    points: dict[str, dict[tuple[object, ...], list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line in lines:
        bare, spec, era = _bare(line, result), line.spec(), era_of(line)
        if bare is None or spec is None or era is None or bare[1] <= bare[2]:
            continue
        load = load_of(line)
        rows = load.sequences * spec.vocab * 4 / GIB
        if rows < 0.1:
            continue
        beside = load.tokens * spec.hidden * load.element / GIB
        key = (*line.geometry(), line.tensor)
        points["lean" if era in _LEAN else "old"][key].append((rows, bare[0] - beside))
    lean = [(median(x for x, _ in p), median(y for _, y in p)) for p in points["lean"].values()]
    old = [(median(x for x, _ in p), median(y for _, y in p)) for p in points["old"].values()]
    floor, slope = straight(lean) if len(lean) > 2 else (result.LOGITS_FLOOR, 0.0)
    copies_old = median((y - floor) / x for x, y in old) if old else slope
    slope = slope or copies_old
    return floor, {era: slope if era in _LEAN else copies_old for era in table.LOGITS_COPIES}


def _graphs(lines: Sequence[Observation]) -> tuple[float, ...]:
    """Graphs of default settings: a straight line in the layers, and what experts and latent caches add."""
    plain: list[tuple[Observation, int, float]] = []
    experts: list[tuple[Observation, int, float]] = []
    latent: list[tuple[Observation, int, float]] = []
    for line in lines:
        spec = line.spec()
        default = (
            line.max_num_seqs is None and era_of(line) in _LEAN and line.activation_gib is not None
        )
        if spec is None or not default or not line.cuda_graph_gib or line.cuda_graph_gib < 0:
            continue
        kind = latent if spec.latent else experts if spec.experts else plain
        kind.append((line, spec.layers, float(line.cuda_graph_gib)))
    keys: dict[tuple[object, ...], tuple[float, float]] = {}
    for line, layers, size in plain:
        keys[(*line.geometry(), line.tensor)] = (layers, size)
    base, slope = straight(list(keys.values())) if len(keys) > 2 else table.GRAPHS[:2]
    with_experts = [(line, size - base - slope * layers) for line, layers, size in experts]
    more = median(by_geometry(with_experts)) if experts else table.GRAPHS[2]
    with_latent = [(line, size - base - slope * layers - more) for line, layers, size in latent]
    return base, slope, more, median(by_geometry(with_latent)) if latent else table.GRAPHS[3]


Scored = tuple["Observation", float]


def cross_validated(
    side: Callable[[Observation], object], changes: Mapping[str, float] | None = None
) -> list[Scored]:
    """Each line's pool less the engine's own, in GiB, by constants fitted without its side.

    Args:
        side: What must not be on both sides of the fit.
        changes: Constants to set in every fold after fitting.
    """
    lines = observations()
    scored: list[Scored] = []
    for key in dict.fromkeys(side(line) for line in lines):
        constants = fitted([line for line in lines if side(line) != key])
        vars(constants).update(changes or {})
        with patch.object(reserve, "constants", constants):
            for line in (line for line in lines if side(line) == key):
                if line.kv_gib_per_gpu is None or line.gpu_memory_utilization is None:
                    continue
                answer = line.ask("Engine")
                if answer is not None and answer.budget is not None:
                    scored.append((line, answer.budget.kv / GIB - line.kv_gib_per_gpu))
    return scored


def main() -> None:
    """Print the table and its errors as JSON."""
    constants = vars(fitted(observations()))
    errors: dict[str, Any] = {}
    for name, side in {
        "geometry": lambda line: line.geometry(),
        "source": lambda line: line.repository,
    }.items():
        scored = cross_validated(side)
        relative = sorted(100 * error / abs(line.kv_gib_per_gpu) for line, error in scored)
        errors[name] = {
            "lines": len(scored),
            "percentMinimum": round(relative[0], 2),
            "percentMedian": round(median(relative), 3),
            "percentMaximum": round(relative[-1], 2),
            "withinHalfPercent": sum(abs(e) <= 0.5 for e in relative),
        }
    document = {"constants": constants, "chosenNotFitted": CHOSEN, "crossValidated": errors}
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
