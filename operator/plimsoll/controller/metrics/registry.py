"""Counters, gauges and histograms in Prometheus' text format, without a dependency.

The format is three kinds of lines; a client library would cost 2 MiB of memory and bring global
state. Only the event loop touches these objects, so there are no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Values = tuple[str, ...]
"""The values of a family's labels, in the order of their names."""

Samples = Iterable[tuple[Values, float]]

_LINES_A_CHUNK: Final = 500


class Family:
    """One name with its help text and labels.

    Attributes:
        kind: counter, gauge or histogram.
        name: by Prometheus' conventions: base units, ``_total`` for counters.
        help: one sentence.
        labels: names of labels, in the order in which they are written.
    """

    kind = "untyped"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = text
        self.labels = tuple(labels)

    def lines(self) -> Iterator[str]:
        """The exposition of this family."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self._samples()

    def _samples(self) -> Iterator[str]:
        raise NotImplementedError

    def _key(self, given: dict[str, str]) -> Values:
        """The values in the declared order; a label too many or too few is a defect."""
        if given.keys() != set(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(given)}")
        return tuple(given[label] for label in self.labels)


class Counter(Family):
    """A number that only grows, per set of labels.

    Args:
        name: see `Family`.
        text: see `Family`.
        labels: see `Family`.
        known: series that exist from the start with 0, so that the first increase is seen as one:
            a series that appears with 1 has no rate.
    """

    kind = "counter"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), known: Iterable[Values] = ()
    ) -> None:
        super().__init__(name, text, labels)
        self._series: dict[Values, float] = dict.fromkeys(known or (() if labels else ((),)), 0.0)

    def inc(self, amount: float = 1.0, **labels: str) -> None:
        """Add to the series of these labels."""
        key = self._key(labels)
        self._series[key] = self._series.get(key, 0.0) + amount

    def value(self, **labels: str) -> float:
        """The current value, 0 where nothing was counted."""
        return self._series.get(self._key(labels), 0.0)

    def _samples(self) -> Iterator[str]:
        for values, number in sorted(self._series.items()):
            yield _line(self.name, self.labels, values, number)


class Gauge(Family):
    """A number that is read when it is asked for; without a reader the family has no samples."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._read: Callable[[], Samples] = tuple

    def read_by(self, read: Callable[[], Samples]) -> None:
        """Set what answers with the samples."""
        self._read = read

    def show(self, read: Callable[[], float]) -> None:
        """Set what answers with the one sample of a family without labels."""
        self._read = lambda: (((), read()),)

    def _samples(self) -> Iterator[str]:
        for values, number in self._read():
            yield _line(self.name, self.labels, values, number)


class ReadCounter(Gauge):
    """A counter that somebody else keeps: the kernel."""

    kind = "counter"


class Histogram(Family):
    """Seconds in fixed buckets, per set of labels.

    Args:
        name: see `Family`.
        text: see `Family`.
        bounds: upper bounds of the buckets, ascending, without infinity.
        labels: see `Family`.
        known: see `Counter`.
    """

    kind = "histogram"

    def __init__(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        labels: Sequence[str] = (),
        known: Iterable[Values] = (),
    ) -> None:
        super().__init__(name, text, labels)
        self.bounds = tuple(bounds)
        self._counts: dict[Values, list[int]] = {}
        self._sums: dict[Values, float] = {}
        for values in known or (() if labels else ((),)):
            self._series(values)

    def observe(self, seconds: float, **labels: str) -> None:
        """Count one duration."""
        key = self._key(labels)
        counts = self._series(key)
        index = next((i for i, b in enumerate(self.bounds) if seconds <= b), len(self.bounds))
        counts[index] += 1
        self._sums[key] += seconds

    def count(self, **labels: str) -> int:
        """How many were observed with these labels."""
        return sum(self._counts.get(self._key(labels), ()))

    def _series(self, key: Values) -> list[int]:
        if key not in self._counts:
            self._counts[key] = [0] * (len(self.bounds) + 1)
            self._sums[key] = 0.0
        return self._counts[key]

    def _samples(self) -> Iterator[str]:
        bounds = [*map(_number, self.bounds), "+Inf"]
        for values, counts in sorted(self._counts.items()):
            below = 0
            for bound, count in zip(bounds, counts, strict=True):
                below += count
                labels = (*self.labels, "le")
                yield _line(f"{self.name}_bucket", labels, (*values, bound), below)
            yield _line(f"{self.name}_sum", self.labels, values, self._sums[values])
            yield _line(f"{self.name}_count", self.labels, values, below)


class Registry:
    """The families of one process, in the order in which they were added."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(tuple(self._families.values()))

    def add(self, *families: Family) -> None:
        """Register families.

        Raises:
            ValueError: the name is taken.
        """
        for family in families:
            if family.name in self._families:
                raise ValueError(f"{family.name} is registered twice")
            self._families[family.name] = family

    def chunks(self) -> Iterator[str]:
        """The exposition in parts of some ten kilobytes.

        With thousands of servers the whole is megabytes: it is never in memory at once, and who
        sends it lets others run between two parts.
        """
        lines: list[str] = []
        for family in self:
            for line in family.lines():
                lines.append(line)
                if len(lines) >= _LINES_A_CHUNK:
                    yield _joined(lines)
                    lines = []
        if lines:
            yield _joined(lines)

    def render(self) -> str:
        """The whole exposition."""
        return "".join(self.chunks())


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _line(name: str, labels: Values, values: Values, number: float) -> str:
    inner = ",".join(f'{k}="{_escape(v)}"' for k, v in zip(labels, values, strict=True))
    return f"{name}{{{inner}}} {_number(number)}" if inner else f"{name} {_number(number)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
