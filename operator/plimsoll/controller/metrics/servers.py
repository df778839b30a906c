"""What is known of each server, read from its stored status when it is asked for.

The labels are the server's namespace and name and, where named, one word of a fixed set: never a
pod, a node or a message. A server therefore has a fixed number of series (`SERIES_A_SERVER`), and
they end with the server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.metrics.registry import Gauge, Values
from plimsoll.controller.status import (
    CAPACITY_AVAILABLE,
    FALSE,
    ORDER,
    READY,
    TRUE,
    previous,
    seconds_since,
)

if TYPE_CHECKING:
    from datetime import datetime

Server = Mapping[str, Any]
Facts = Iterable[tuple[Values, float | None]]

_IDENTITY: Final = ("namespace", "name")
TERMS: Final = ("before_load", "weights", "reserve", "safety", "kv_cache")


@dataclass(frozen=True, slots=True)
class ServerGauge:
    """One family: how it is called, and what it says of one server at one time.

    Attributes:
        name: of the family.
        help: one sentence.
        labels: those beside namespace and name.
        read: values of these labels, and the number; None: there is none.
    """

    name: str
    help: str
    read: Callable[[Server, datetime], Facts]
    labels: tuple[str, ...] = ()


def server_families() -> tuple[Gauge, ...]:
    """The families of `SERVER_GAUGES`; they show nothing until `read_by`."""
    return tuple(Gauge(spec.name, spec.help, (*_IDENTITY, *spec.labels)) for spec in SERVER_GAUGES)


def read_by(
    families: Iterable[Gauge],
    servers: Callable[[], Iterable[Server]],
    now: Callable[[], datetime],
) -> None:
    """Say where the servers are.

    Args:
        families: those of `server_families`.
        servers: the servers as they are now.
        now: wall time in UTC.
    """
    scrape = _Scrape(servers, now)
    for gauge, spec in zip(families, SERVER_GAUGES, strict=True):
        gauge.read_by(functools.partial(_samples, spec, scrape))


class _Scrape:
    """The servers of one scrape, looked at once for all families.

    They are kept compressed, and a family is written as a whole: without it each would be unpacked once
    for each family. Only what the families read is kept, from the first family to the last.
    """

    def __init__(
        self, servers: Callable[[], Iterable[Server]], now: Callable[[], datetime]
    ) -> None:
        self._servers = servers
        self._now = now
        self._kept: list[Server] | None = None

    def read(self, spec: ServerGauge) -> tuple[list[Server], datetime]:
        """The servers, and the time."""
        if self._kept is None or spec is SERVER_GAUGES[0]:
            self._kept = [_read_part(server) for server in self._servers()]
        found = self._kept
        if spec is SERVER_GAUGES[-1]:
            self._kept = None
        return found, self._now()


_READ_OF_STATUS: Final = ("capacity", "effective", "readyReplicas")
_READ_OF_CONDITION: Final = ("type", "status", "reason", "lastTransitionTime")


def _read_part(server: Server) -> Server:
    """What the families read of a server."""
    spec, status, metadata = server.get("spec") or {}, _status(server), server["metadata"]
    kept = {key: status[key] for key in _READ_OF_STATUS if key in status}
    kept["conditions"] = [
        {key: condition.get(key) for key in _READ_OF_CONDITION}
        for condition in status.get("conditions") or ()
    ]
    return {
        "metadata": {"namespace": metadata["namespace"], "name": metadata["name"]},
        "spec": {key: spec[key] for key in ("replicas", "engine") if key in spec},
        "status": kept,
    }


def _samples(spec: ServerGauge, scrape: _Scrape) -> Iterator[tuple[Values, float]]:
    servers, moment = scrape.read(spec)
    for server in servers:
        metadata = server["metadata"]
        whose = (str(metadata["namespace"]), str(metadata["name"]))
        for values, number in spec.read(server, moment):
            if number is not None:
                yield (*whose, *values), number


def _status(server: Server) -> Mapping[str, Any]:
    return server.get("status") or {}


def _capacity(server: Server) -> Mapping[str, Any]:
    return _status(server).get("capacity") or {}


def _number(value: object) -> float | None:
    """A number of the status, which others may have written; anything else is none."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _of_capacity(key: str, otherwise: float | None = None) -> Callable[[Server, datetime], Facts]:
    def read(server: Server, _: datetime) -> Facts:
        capacity = _capacity(server)
        yield (), _number(capacity.get(key, otherwise)) if capacity else None

    return read


def _of_status(key: str) -> Callable[[Server, datetime], Facts]:
    def read(server: Server, _: datetime) -> Facts:
        yield (), _number(_status(server).get(key, 0))

    return read


def _desired(server: Server, _: datetime) -> Facts:
    yield (), _number((server.get("spec") or {}).get("replicas", 1))


def _drift(server: Server, _: datetime) -> Facts:
    percent = _number(_capacity(server).get("driftPercent"))
    yield (), None if percent is None else percent / 100


def _memory(server: Server, _: datetime) -> Facts:
    found = _capacity(server).get("breakdown") or {}
    if not found:
        return
    total, free = _number(found.get("deviceTotal")), _number(found.get("freeAfterInit"))
    reserve = [_number(part) or 0.0 for part in (found.get("reserve") or {}).values()]
    sizes = {
        "before_load": None if total is None or free is None else total - free,
        "weights": _number(found.get("weights")),
        "reserve": sum(reserve),
        "safety": _number(found.get("safety")),
        "kv_cache": _number(found.get("kv")),
    }
    for term in TERMS:
        yield (term,), sizes[term]


def _conditions(server: Server, _: datetime) -> Facts:
    states = {c.get("type"): c.get("status") for c in _status(server).get("conditions") or ()}
    for kind in ORDER:
        yield (kind,), float(states.get(kind) == TRUE)


def _reason(server: Server, _: datetime) -> Facts:
    ready = previous(_status(server), READY)
    if ready:
        yield (str(ready.get("reason")),), 1.0


def _info(server: Server, _: datetime) -> Facts:
    spec, status, capacity = server.get("spec") or {}, _status(server), _capacity(server)
    effective = status.get("effective") or {}
    gpu = capacity.get("gpu") or {}
    facts = (
        effective.get("servedName"),
        (spec.get("engine") or {}).get("type"),
        effective.get("engineVersion"),
        gpu.get("product"),
        gpu.get("count"),
        effective.get("mode"),
        capacity.get("source"),
        capacity.get("confidence"),
    )
    yield tuple("" if fact is None else str(fact) for fact in facts), 1.0


def _gpu_wait(server: Server, now: datetime) -> Facts:
    waits = previous(_status(server), CAPACITY_AVAILABLE)
    since = waits.get("lastTransitionTime")
    if waits.get("status") != FALSE or not since:
        yield (), 0.0
    else:
        yield (), _seconds(str(since), now)


def _seconds(since: str, now: datetime) -> float | None:
    try:
        return seconds_since(since, now)
    except (ValueError, TypeError):  # not a time, or one without a zone: not written by us
        return None


SERVER_GAUGES: Final = (
    ServerGauge(
        "plimsoll_server_info",
        "What is served, with what, on what; always 1. GPU, source and confidence are those of the "
        "number of tokens.",
        _info,
        ("model", "engine", "engine_version", "gpu", "gpus", "mode", "source", "confidence"),
    ),
    ServerGauge(
        "plimsoll_server_status_info",
        "The reason of condition Ready, as in column STATUS of kubectl get isrv; always 1.",
        _reason,
        ("reason",),
    ),
    ServerGauge(
        "plimsoll_server_condition",
        "Whether a condition of the server is True; 0 where it is False, Unknown or absent.",
        _conditions,
        ("condition",),
    ),
    ServerGauge("plimsoll_server_desired_replicas", "Server pods that are wanted.", _desired),
    ServerGauge(
        "plimsoll_server_ready_replicas",
        "Server pods that are ready.",
        _of_status("readyReplicas"),
    ),
    ServerGauge(
        "plimsoll_server_budget_tokens",
        "KV-cache tokens that one server pod is told to hold.",
        _of_capacity("maxTotalTokenNum"),
    ),
    ServerGauge(
        "plimsoll_server_predicted_tokens",
        "The number of tokens as it was first computed, before any correction.",
        _of_capacity("predictedTokens"),
    ),
    ServerGauge(
        "plimsoll_server_engine_reported_tokens",
        "The smallest number of tokens that an engine of the server reports of itself.",
        _of_capacity("engineReportedTokens"),
    ),
    ServerGauge(
        "plimsoll_server_capacity_drift_ratio",
        "By which part the engine reports more (above 0) or less (below 0) than it was told.",
        _drift,
    ),
    ServerGauge(
        "plimsoll_server_kv_cache_bytes",
        "Bytes of the KV-cache pool on each rank.",
        _of_capacity("kvCacheBytes"),
    ),
    ServerGauge(
        "plimsoll_server_token_bytes",
        "KV-cache bytes of one token on each rank.",
        _of_capacity("bytesPerToken"),
    ),
    ServerGauge(
        "plimsoll_server_memory_bytes",
        "The memory of one device by what it is for; the terms add up to the device. before_load is "
        "what was taken before the model was loaded.",
        _memory,
        ("term",),
    ),
    ServerGauge(
        "plimsoll_server_shrink_steps",
        "How often the pool was made smaller since it was measured.",
        _of_capacity("shrinkSteps", 0.0),
    ),
    ServerGauge(
        "plimsoll_server_gpu_wait_seconds",
        "For how long condition CapacityAvailable has been False; 0 where it is not.",
        _gpu_wait,
    ),
)

SERIES_A_SERVER: Final = sum(
    {"condition": len(ORDER), "term": len(TERMS)}.get((*spec.labels, "")[0], 1)
    for spec in SERVER_GAUGES
)
