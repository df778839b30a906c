"""Everything that the operator exposes, by name. docs/metrics.md is written from this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll import __version__
from plimsoll.controller.metrics import transitions as life
from plimsoll.controller.metrics.process import process_families
from plimsoll.controller.metrics.registry import Counter, Gauge, Histogram, Registry
from plimsoll.controller.metrics.servers import read_by, server_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from typing import Any

# Seconds. A pass is milliseconds, its requests tens of them; a sizing is a matter of a minute.
_PASS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUEST: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAG: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_SIZING: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_WAIT: Final = (5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0, 86400.0)

OUTCOMES: Final = ("ok", "retry", "refused", "error")
NO_ANSWER: Final = "none"
# What succeeds; other codes appear as they are answered.
_CALLS: Final = (
    ("GET", "200"),
    ("POST", "201"),
    ("PUT", "200"),
    ("PATCH", "200"),
    ("DELETE", "200"),
)
_ACTIONS: Final = (
    *(("apply", kind) for kind in ("Deployment", "Service", "ConfigMap")),
    ("create", "Pod"),
    ("delete", "Pod"),
    ("patch", "Deployment"),
)


def _one_each(values: Iterable[str]) -> tuple[tuple[str], ...]:
    return tuple((value,) for value in values)


class Metrics:
    """The families of one operator process, and the registry that exposes them.

    What is counted has a method or is a `Counter` or `Histogram` of its own; what is read when it
    is asked for is a `Gauge` that shows nothing until `runtime` has told it where to look.
    """

    def __init__(self) -> None:
        self.registry = Registry()
        self._operator()
        self._work()
        self._watching()
        self._life()
        for family in vars(self).values():
            if isinstance(family, Counter | Gauge | Histogram):
                self.registry.add(family)
        self._servers = server_families()
        self.registry.add(*self._servers)
        self.registry.add(*process_families())

    def _operator(self) -> None:
        self.build_info = Gauge(
            "plimsoll_build_info", "The operator's version; always 1.", ("version",)
        )
        self.build_info.read_by(lambda: (((__version__,), 1.0),))
        self.leader = Gauge("plimsoll_leader", "1 where this process leads, 0 where it stands by.")
        self.ready = Gauge("plimsoll_ready", "1 where /readyz answers 200.")
        self.loop_lag = Histogram(
            "plimsoll_event_loop_lag_seconds",
            "How late the event loop woke a task, measured twice a second.",
            _LAG,
        )
        self.api_requests = Counter(
            "plimsoll_api_requests_total",
            f"Requests to the API server by HTTP method and code; {NO_ANSWER} where no answer came. "
            "Without those of the watches.",
            ("verb", "code"),
            _CALLS,
        )
        self.api_seconds = Histogram(
            "plimsoll_api_request_duration_seconds",
            "Duration of requests to the API server, without those of the watches.",
            _REQUEST,
            ("verb",),
            _one_each(verb for verb, _ in _CALLS),
        )

    def _work(self) -> None:
        self.reconciles = Counter(
            "plimsoll_reconciles_total",
            "Passes over one server by outcome: ok; retry (the API server had no answer, or a newer "
            "object); refused (it said no); error (a defect, see the log).",
            ("outcome",),
            _one_each(OUTCOMES),
        )
        self.seconds = Histogram(
            "plimsoll_reconcile_duration_seconds",
            "Duration of a pass by outcome.",
            _PASS,
            ("outcome",),
            _one_each(OUTCOMES),
        )
        self.oldest_pass = Gauge(
            "plimsoll_reconcile_longest_running_seconds",
            "For how long the oldest pass has been running; 0 where none runs.",
        )
        self.queue_depth = Gauge("plimsoll_queue_depth", "Servers that wait for a worker.")
        self.queue_age = Gauge(
            "plimsoll_queue_oldest_item_seconds",
            "For how long the first of them has been waiting.",
        )
        self.queue_wait = Histogram(
            "plimsoll_queue_wait_duration_seconds",
            "From an event, or a time that was agreed on, to the beginning of the pass.",
            _PASS,
        )
        self.actions = Counter(
            "plimsoll_actions_total",
            "Writes to the children of servers, and to the map of learned reserves.",
            ("verb", "kind"),
            _ACTIONS,
        )
        self.status_writes = Counter(
            "plimsoll_status_writes_total", "Writes of a server's status, each because it changed."
        )
        self.events = Counter(
            "plimsoll_events_total",
            "Kubernetes Events: posted, or lost because the API server did not take them.",
            ("outcome",),
            _one_each(("posted", "lost")),
        )

    def _watching(self) -> None:
        self.watch_events = Counter(
            "plimsoll_watch_events_total",
            "Objects that the watches delivered.",
            ("kind",),
            _one_each(("InferenceServer", "Deployment", "Service", "Pod")),
        )
        self.watch_restarts = Counter(
            "plimsoll_watch_restarts_total", "How often the watches were started again."
        )
        self.watch_deaf = Gauge(
            "plimsoll_watch_deaf_resyncs",
            "Full lists in a row that found changes of which the watches had said nothing.",
        )
        self.resyncs = Counter(
            "plimsoll_resyncs_total",
            "Full lists compared with what is known: same, changed, or failed.",
            ("outcome",),
            _one_each(("same", "changed", "failed")),
        )
        self.namespaces_set_aside = Gauge(
            "plimsoll_namespaces_set_aside",
            "Namespaces of PLIMSOLL_NAMESPACES that may not be read now and are left alone.",
        )
        self.store_objects = Gauge(
            "plimsoll_store_objects", "Objects that the operator keeps in memory."
        )

    def _life(self) -> None:
        self.sizing_seconds = Histogram(
            "plimsoll_sizing_duration_seconds",
            "From the creation of a sizing pod to its result, in whole seconds, with the wait for a "
            "GPU and the pull of the image. Servers that measure in their own pods are not in it.",
            _SIZING,
        )
        self.sizing_failures = Counter(
            "plimsoll_sizing_failures_total",
            "Failed sizing pods by reason, as in the conditions.",
            ("reason",),
            _one_each(life.FAILURE_REASONS),
        )
        self.rollouts = Counter(
            "plimsoll_rollouts_total",
            "Rollouts and scalings by result: completed; deadline_exceeded (no progress in time); "
            "given_up (the template starts no more servers until the resource changes).",
            ("result",),
            _one_each(life.ROLLOUT_RESULTS),
        )
        self.shrinks = Counter(
            "plimsoll_pool_shrinks_total",
            "Steps by which a pool was made smaller: out_of_memory (its engine ran out of device "
            "memory); guard (the guard measured less free memory).",
            ("cause",),
            _one_each(life.SHRINK_CAUSES),
        )
        self.guard_refusals = Counter(
            "plimsoll_guard_refusals_total",
            "How often guards began to refuse their device, by the reason of condition Degraded.",
            ("reason",),
            _one_each(life.REFUSAL_REASONS),
        )
        self.gpu_wait_seconds = Histogram(
            "plimsoll_gpu_wait_duration_seconds",
            "For how long condition CapacityAvailable was False before a GPU was found, in whole "
            "seconds.",
            _WAIT,
        )

    def read_servers(
        self, servers: Callable[[], Iterable[Mapping[str, Any]]], now: Callable[[], datetime]
    ) -> None:
        """Say where the servers are read from when they are asked for.

        Args:
            servers: the resources as they are known now.
            now: wall time in UTC.
        """
        read_by(self._servers, servers, now)

    def api_call(self, verb: str, code: int | None, seconds: float) -> None:
        """Count one request to the API server.

        Args:
            verb: the HTTP method.
            code: the HTTP code, None where no answer came.
            seconds: until the answer was read.
        """
        self.api_requests.inc(verb=verb, code=NO_ANSWER if code is None else str(code))
        self.api_seconds.observe(seconds, verb=verb)

    def count(self, turns: Iterable[life.Turn]) -> None:
        """Count what happened to a server."""
        for turn in turns:
            match turn.what:
                case life.SIZING_FAILURES:
                    self.sizing_failures.inc(turn.amount, reason=turn.label)
                case life.ROLLOUTS:
                    self.rollouts.inc(turn.amount, result=turn.label)
                case life.SHRINKS:
                    self.shrinks.inc(turn.amount, cause=turn.label)
                case life.GUARD_REFUSALS:
                    self.guard_refusals.inc(turn.amount, reason=turn.label)
                case life.SIZING_SECONDS:
                    self.sizing_seconds.observe(turn.amount)
                case life.GPU_WAIT_SECONDS:
                    self.gpu_wait_seconds.observe(turn.amount)
