"""The whole life of a server in mode Stamped: sizing pod, result, stamped template, serving, deletion."""

from __future__ import annotations

import copy
import http.client
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from bench.operator import objects
from bench.operator.contenders import running
from bench.operator.kubelet import NODE, TOKENS, Kubelet
from bench.operator.lab import TENANTS, Lab, LabError, say, stamp
from tests.cluster_kit.rest import ISRV, RestError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 300.0
_AGAIN_SECONDS = 0.2


def stamped(lab: Lab, number: int, per_second: float = 3) -> dict[str, Any]:
    """So many lives: milliseconds from a result to its template, and requests for each life."""
    body = copy.deepcopy(objects.server(replicas=1, sizing={"mode": "Stamped"}))
    path = lab.folder / "stamped.json"
    path.write_text(json.dumps(body))
    with lab.cluster.enter_network():
        moments = _Moments(lab)
    try:
        with running(lab, "plimsoll") as one:
            since, revision, cpu = stamp(), lab.revision(), one.cpu()
            streams = [(TENANTS[0], number, per_second)]
            lab.load(streams, server=path, settle=True, prefix="life", limit=_SECONDS)
            moments.wait_ready(number)
            one.quiet(2.0)
            until, served, cpu_served = stamp(), lab.revision(), one.cpu() - cpu
            lab.clean()
            _no_pods(lab)
            one.quiet()
            time.sleep(0.3)
            result: dict[str, Any] = {
                "n": number,
                "resultToTemplateMs": quantiles(moments.lags()),
                "calls": one.calls(since, number, until),
                "callsWithDeletion": one.calls(since, number),
                "etcdRevisionsEach": round((served - revision) / number, 2),
                "cpuMsEach": {
                    "toServing": round(1000 * cpu_served / number, 2),
                    "lifecycle": round(1000 * (one.cpu() - cpu) / number, 2),
                },
            }
    finally:
        moments.stop()
        lab.call("DELETE", f"/api/v1/nodes/{NODE}")
    calls = result["callsWithDeletion"]
    say(
        f"stamped n {number}: result to template p50 {result['resultToTemplateMs']['p50']} "
        f"p99 {result['resultToTemplateMs']['p99']} ms; writes {calls['writesEach']} reads {calls['readsEach']} "
        f"events {calls['eventsEach']} each; CPU {result['cpuMsEach']['lifecycle']} ms each"
    )
    return result


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and the largest, in the unit of the values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[int(q * (len(ordered) - 1))], 1) for name, q in at.items()}


class _Moments:
    """When each report was written, its template seen, and its server told to be ready."""

    def __init__(self, lab: Lab) -> None:
        self._rest = lab.rest
        self._reported: dict[str, float] = {}
        self._stamped: dict[str, float] = {}
        self._ready: set[str] = set()
        self._stopped = threading.Event()
        self._kubelet = Kubelet(
            lab.rest, lab.cluster.state / "pki", TENANTS[0], self._reported.__setitem__
        )
        tenant = f"namespaces/{TENANTS[0]}"
        for path, see in (
            (f"/apis/apps/v1/{tenant}/deployments", self._deployment),
            (f"{ISRV}/{tenant}/inferenceservers", self._server),
        ):
            threading.Thread(target=self._follow, args=(path, see), daemon=True).start()

    def _follow(self, path: str, see: Any) -> None:  # noqa: ANN401
        while not self._stopped.is_set():
            try:
                for event in self._rest.watch(path, seconds=1800):
                    if self._stopped.is_set():
                        return
                    see(event["object"])
            except (OSError, http.client.HTTPException, RestError, ValueError):
                # "429 storage is (re)initializing" just after the definition came; a new watch begins with
                # everything that is there.
                time.sleep(_AGAIN_SECONDS)

    def _deployment(self, live: dict[str, Any]) -> None:
        if str(TOKENS) in json.dumps(live["spec"]["template"]["spec"]["containers"]):
            self._stamped.setdefault(live["metadata"]["name"], time.monotonic())

    def _server(self, live: dict[str, Any]) -> None:
        for condition in live.get("status", {}).get("conditions", ()):
            if (condition["type"], condition["status"]) == ("Ready", "True"):
                self._ready.add(live["metadata"]["name"])

    def wait_ready(self, number: int) -> None:
        """Wait until all serve."""
        end = time.monotonic() + _SECONDS
        while len(self._ready) < number:
            if time.monotonic() > end:
                words = f"{len(self._reported)} reports, {len(self._stamped)} templates"
                raise LabError(
                    f"{len(self._ready)} of {number} serve; {words}; {self._kubelet.errors[:3]}"
                )
            time.sleep(0.1)

    def lags(self) -> list[float]:
        """Milliseconds from each report to its template."""
        return [1000 * (at - self._reported[name]) for name, at in self._stamped.items()]

    def stop(self) -> None:
        """End the watches with their next event."""
        self._stopped.set()
        self._kubelet.stop()


def _no_pods(lab: Lab) -> None:
    end = time.monotonic() + _SECONDS
    while lab.count(f"/api/v1/namespaces/{TENANTS[0]}/pods"):
        if time.monotonic() > end:
            raise LabError("pods stay")
        time.sleep(0.3)
