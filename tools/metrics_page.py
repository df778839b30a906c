"""Writes docs/metrics.md from what the operator registers: ``python -m tools.metrics_page``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from plimsoll.controller.metrics import Metrics
from plimsoll.controller.metrics.families import NO_ANSWER, OUTCOMES
from plimsoll.controller.metrics.registry import Histogram
from plimsoll.controller.metrics.servers import SERIES_A_SERVER, TERMS
from plimsoll.controller.metrics.transitions import (
    FAILURE_REASONS,
    REFUSAL_REASONS,
    ROLLOUT_RESULTS,
    SHRINK_CAUSES,
)
from plimsoll.controller.status import ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.metrics.registry import Family

TARGET: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

_UNITS: Final = ("seconds", "bytes", "tokens", "ratio")
_LIFE: Final = (
    "plimsoll_sizing_",
    "plimsoll_rollouts_",
    "plimsoll_pool_",
    "plimsoll_guard_",
    "plimsoll_gpu_",
)
# A heading, what is said below it, and which families it has: the first that fits takes a family.
_GROUPS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    (
        "Servers",
        (
            "Read from `status` when they are scraped. Only the operator that leads has them, and they end with the "
            f"server. A server has {SERIES_A_SERVER} series, however many pods it has."
        ),
        ("plimsoll_server_",),
    ),
    (
        "What happens to servers",
        (
            "Counted as a server's status changes, since the operator started. Every series is there with 0 from the "
            "start."
        ),
        _LIFE,
    ),
    ("The operator", "How it does its work.", ("plimsoll_",)),
    ("The process", "As every Prometheus client names it.", ("process_",)),
)
LABELS: Final[Mapping[str, str]] = {
    "namespace": "of the server (scrape with `honor_labels`, as the chart's monitors do)",
    "name": "of the server",
    "model": "name under which the model is served",
    "engine": "`spec.engine.type`",
    "engine_version": "as the number was made for",
    "gpu": "product of the device",
    "gpus": "devices of one pod",
    "mode": "`status.effective.mode`",
    "source": "`status.capacity.source`: who found the number",
    "confidence": "`status.capacity.confidence`",
    "condition": ", ".join(f"`{kind}`" for kind in ORDER),
    "term": ", ".join(f"`{term}`" for term in TERMS),
    "reason": (
        "of `plimsoll_server_status_info`: any reason of condition Ready; "
        "of `plimsoll_sizing_failures_total`: "
        + ", ".join(f"`{reason}`" for reason in FAILURE_REASONS)
        + "; of `plimsoll_guard_refusals_total`: "
        + ", ".join(f"`{reason}`" for reason in REFUSAL_REASONS)
    ),
    "result": ", ".join(f"`{result}`" for result in ROLLOUT_RESULTS),
    "cause": ", ".join(f"`{cause}`" for cause in SHRINK_CAUSES),
    "version": "of the operator",
    "verb": "of requests: the HTTP method; of writes: `apply`, `create`, `delete`, `patch`",
    "code": f"HTTP code, or `{NO_ANSWER}`",
    "outcome": (
        "of passes: "
        + ", ".join(f"`{outcome}`" for outcome in OUTCOMES)
        + "; of full lists: `same`, `changed`, `failed`; of Events: `posted`, `lost`"
    ),
    "kind": "kind of the Kubernetes object",
    "le": "upper bound of a bucket, in seconds; on every histogram",
}

_HEAD: Final = """\
<!-- Written by tools/metrics_page.py; do not edit. -->
# Metrics

The operator serves these in Prometheus' text format at `:8080/metrics`. How to have them scraped:
[Monitoring](howto/monitoring.md). What to do about the chart's alerts: [Alerts](alerts.md). The chart's dashboard
(`monitoring.dashboards.enabled`) shows all of them:

![The dashboard's queries, drawn from a scraped operator](img/dashboard.svg)
"""


def unit(name: str) -> str:
    """The unit that a name ends in, "" where it has none."""
    words = name.removesuffix("_total").split("_")
    return words[-1] if words[-1] in _UNITS else ""


def render() -> str:
    """The page."""
    left = list(Metrics().registry)
    parts = [_HEAD]
    for title, text, prefixes in _GROUPS:
        mine = [family for family in left if family.name.startswith(prefixes)]
        left = [family for family in left if family not in mine]
        parts.append(f"## {title}\n\n{text}\n\n{_table(mine)}")
    labels = "\n".join(f"| `{label}` | {text} |" for label, text in LABELS.items())
    parts.append(f"## Labels\n\n| label | values |\n|---|---|\n{labels}\n")
    return "\n".join(parts)


def _table(families: Iterable[Family]) -> str:
    lines = ["| name | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(
            f"| `{family.name}` | {family.kind} | {labels} | {unit(family.name)} | {family.help} |"
        )
    return "\n".join(lines) + "\n"


def undocumented() -> set[str]:
    """Labels that the operator uses and `LABELS` does not explain, and the reverse."""
    families = list(Metrics().registry)
    used = {label for family in families for label in family.labels}
    used |= {"le"} if any(isinstance(family, Histogram) for family in families) else set()
    return used ^ LABELS.keys()


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"{TARGET.name}: {len(list(Metrics().registry))} families, {len(LABELS)} labels")
