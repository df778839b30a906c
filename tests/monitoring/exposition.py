"""Every family with a sample, without a cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from plimsoll.controller.metrics import Metrics
from plimsoll.controller.metrics.registry import Family, Gauge, Histogram

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
SERVER: dict[str, Any] = {
    "metadata": {"namespace": "team-a", "name": "llama"},
    "spec": {"replicas": 1, "engine": {"type": "VLLM"}},
    "status": {
        "readyReplicas": 1,
        "capacity": {
            "maxTotalTokenNum": 900,
            "predictedTokens": 1000,
            "engineReportedTokens": 900,
            "driftPercent": "0.00",
            "kvCacheBytes": 90_000,
            "bytesPerToken": 100,
            "breakdown": {
                "deviceTotal": 200_000,
                "freeAfterInit": 190_000,
                "weights": 80_000,
                "reserve": {"activation": 15_000},
                "safety": 5_000,
                "kv": 90_000,
            },
        },
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}],
    },
}


def full() -> Metrics:
    """What a leader exposes that has one server."""
    metrics = Metrics()
    metrics.read_servers(lambda: (SERVER,), lambda: NOW)
    for family in metrics.registry:
        if (
            isinstance(family, Gauge)
            and not family.labels
            and not family.name.startswith("process")
        ):
            family.show(lambda: 1.0)
    return metrics


def names_of(metrics: Metrics) -> set[str]:
    """The names that a query may use: a histogram has three."""
    return {name for family in metrics.registry for name in _series(family)}


def _series(family: Family) -> tuple[str, ...]:
    if isinstance(family, Histogram):
        return tuple(f"{family.name}_{part}" for part in ("bucket", "sum", "count"))
    return (family.name,)
