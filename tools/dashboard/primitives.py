"""A panel as a few facts, and the queries that recur."""

from __future__ import annotations

from dataclasses import dataclass

WHICH = 'namespace=~"$namespace", name=~"$server"'
OURS = "and on (instance, job) plimsoll_build_info"
RATE = "[$__rate_interval]"

Query = tuple[str, str]
"""The expression and the legend."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        kind: Grafana's type: stat, timeseries, table, bargauge, heatmap, state-timeline.
        title: a few words.
        text: what it shows and what is normal.
        queries: expressions with legends.
        unit: Grafana's name of the unit.
        width: of 24 columns.
        height: in Grafana's rows.
        stacked: whether series add up.
        bad: the value from which a stat is red; below it is green.
    """

    kind: str
    title: str
    text: str
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 8
    height: int = 7
    stacked: bool = False
    bad: float | None = None


def quantiles(metric: str, by: str = "", *shares: float) -> tuple[Query, ...]:
    """Quantiles of a histogram; ``by`` is a label that stays."""
    kept = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({kept}) (rate({metric}_bucket{RATE})))",
            f"{legend}p{round(share * 100)}",
        )
        for share in shares or (0.5, 0.99)
    )


def stat(
    title: str, text: str, *queries: Query, unit: str = "short", bad: float | None = None
) -> Panel:
    """A number."""
    return Panel("stat", title, text, queries, unit, width=3, height=4, bad=bad)


def rates(title: str, text: str, metric: str, *labels: str, unit: str = "ops") -> Panel:
    """A counter by its labels, a second."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    query = f"sum by ({', '.join(labels)}) (rate({metric}{RATE}))"
    return Panel("timeseries", title, text, ((query, legend),), unit)


def counts(title: str, text: str, metric: str, label: str) -> Panel:
    """How often something rare happened, by a label."""
    query = f"sum by ({label}) (increase({metric}{RATE}))"
    return Panel("timeseries", title, text, ((query, f"{{{{{label}}}}}"),), stacked=True)


def of(metric: str) -> str:
    """A number of each chosen server."""
    return f"max by (namespace, name) ({metric}{{{WHICH}}})"
