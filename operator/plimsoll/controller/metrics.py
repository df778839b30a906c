"""A few counters and gauges in Prometheus' text format, without a dependency.

Only the event loop touches them, so there are no locks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Counter:
    """A number that only grows, per set of labels."""

    name: str
    help: str
    values: dict[Labels, float] = field(default_factory=dict)

    def inc(self, amount: float = 1.0, **labels: str) -> None:
        """Add to the series of these labels."""
        key = tuple(sorted(labels.items()))
        self.values[key] = self.values.get(key, 0.0) + amount

    def value(self, **labels: str) -> float:
        """The current value, 0 where nothing was counted."""
        return self.values.get(tuple(sorted(labels.items())), 0.0)

    def lines(self) -> list[str]:
        """The exposition of this counter."""
        series = self.values or {(): 0.0}
        return [
            *_head(self.name, self.help, "counter"),
            *(_line(self.name, k, v) for k, v in sorted(series.items())),
        ]


@dataclass(slots=True)
class Histogram:
    """Seconds, in fixed buckets."""

    name: str
    help: str
    bounds: Sequence[float] = _BUCKETS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        index = next(
            (i for i, bound in enumerate(self.bounds) if seconds <= bound), len(self.bounds)
        )
        self.counts[index] += 1
        self.total += seconds

    def lines(self) -> list[str]:
        """The exposition of this histogram: buckets are cumulative."""
        counts = self.counts or [0] * (len(self.bounds) + 1)
        lines = _head(self.name, self.help, "histogram")
        below = 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], counts, strict=True):
            below += count
            lines.append(_line(f"{self.name}_bucket", (("le", bound),), below))
        return [
            *lines,
            _line(f"{self.name}_sum", (), self.total),
            _line(f"{self.name}_count", (), below),
        ]


class Metrics:
    """Everything the operator counts."""

    def __init__(self) -> None:
        self.reconciles = Counter(
            "plimsoll_reconciles_total", "Passes over one server, by outcome."
        )
        self.seconds = Histogram("plimsoll_reconcile_seconds", "Duration of a pass.")
        self.actions = Counter("plimsoll_actions_total", "Writes to children, by verb and kind.")
        self.status_writes = Counter(
            "plimsoll_status_writes_total", "Status writes that were needed."
        )
        self.events = Counter("plimsoll_events_total", "Kubernetes Events, by outcome.")
        self.watch_events = Counter("plimsoll_watch_events_total", "Objects delivered, by kind.")
        self.watch_restarts = Counter(
            "plimsoll_watch_restarts_total", "Times the watches were started again."
        )
        self.resyncs = Counter(
            "plimsoll_resyncs_total", "Full lists compared with the store, by outcome."
        )
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Register a number that is read when asked for."""
        self._gauges.append((name, text, read))

    def render(self) -> str:
        """The whole exposition."""
        lines: list[str] = []
        for metric in vars(self).values():
            if isinstance(metric, Counter | Histogram):
                lines += metric.lines()
        for name, text, read in self._gauges:
            lines += [*_head(name, text, "gauge"), _line(name, (), read())]
        return "\n".join(lines) + "\n"


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{k}="{_escape(v)}"' for k, v in labels)
    number = f"{value:.0f}" if float(value).is_integer() else repr(float(value))
    return f"{name}{{{inner}}} {number}" if inner else f"{name} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
