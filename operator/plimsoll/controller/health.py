"""The health server: /livez, /readyz, /metrics.

Ours and not kopf's, which exists only while kopf runs (a standby has none) and answers as long as
the loop turns.

/livez speaks only of faults that a restart cures. A probe that restarts the process during an outage
of the API server would make things worse. A loop that is stuck answers nothing, which is the answer.

/readyz says whether the process does its duty now. While a leader fills its store it does not. A
standby does, by standing by: were it not ready, a Deployment of two would never be available, and a
rollout that waits for the new pod would wait for a lease that the old pod holds. But it must be able
to take over, so one whose questions about the Lease are not answered is not ready. A leader that gets
no answers loses its lease within seconds and ends; one whose watches or lists fail while the lease is
renewed (rights that were taken away) goes on with what it knows, and is not ready.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiohttp import web

from plimsoll.controller.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.controller.metrics import Metrics

STUCK_SECONDS = 300.0
"""A pass is at most a few dozen requests of 30 s; one that is older will not end by itself."""

SILENT_SECONDS = 15.0
"""The duration of the lease: whoever hears nothing of it for so long could not take it over."""

TOO_OFTEN = 3
"""Watches that end soon, or lists that fail, so often in a row are no hiccup: seconds at the least."""

STARTING: Final = "starting"
STANDBY: Final = "standby"
FILLING: Final = "filling its store"
LEADING: Final = "leading"
STOPPING: Final = "stopping"


@dataclass(slots=True)
class Health:
    """What the process knows about itself.

    Attributes:
        phase: one of the five above.
        deaf: consecutive resyncs that found the watches silent although objects had changed.
        lists_failed: full lists in a row that failed.
        oldest_busy: seconds that the longest running pass has taken.
        lease_silence: seconds since the API server last answered about the Lease.
        watching: whether the thread of the watches is alive.
        short_watches: how many runs of the watches in a row ended soon.
    """

    phase: str = STARTING
    deaf: int = 0
    lists_failed: int = 0
    oldest_busy: Callable[[], float] = lambda: 0.0
    lease_silence: Callable[[], float] = lambda: 0.0
    watching: Callable[[], bool] = lambda: True
    short_watches: Callable[[], int] = lambda: 0

    def live_problems(self) -> list[str]:
        """Why a restart would help, one sentence each."""
        problems = []
        if (age := self.oldest_busy()) > STUCK_SECONDS:
            problems.append(f"a pass has been running for {age:.0f} s")
        if self.deaf > 1:  # the first time the watches are restarted in process
            problems.append("the watches deliver nothing although objects change")
        if self.phase == LEADING and not self.watching():
            problems.append("the thread of the watches has ended")
        return problems

    def ready_problems(self) -> list[str]:
        """Why the process does not do its duty, one sentence each."""
        if self.phase not in {STANDBY, LEADING}:
            return [f"the operator is {self.phase}"]
        problems = []
        if (silence := self.lease_silence()) > SILENT_SECONDS:
            problems.append(f"the API server has not answered about the Lease for {silence:.0f} s")
        if self.phase == STANDBY:
            return problems
        if self.deaf:
            problems.append("the watches deliver nothing although objects change")
        if (short := self.short_watches()) >= TOO_OFTEN:
            problems.append(f"the watches ended at once {short} times in a row")
        if self.lists_failed >= TOO_OFTEN:
            problems.append(f"full lists failed {self.lists_failed} times in a row")
        return problems


class HealthServer:
    """Serves `Health` and `Metrics` over HTTP until closed."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self._health = health
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chose where ``port`` is 0.

        Args:
            host: an address; "" for all.
            port: TCP port.

        Raises:
            OSError: the port is taken.
        """
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metricsz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host or None, port)
        await site.start()
        address = self._runner.addresses[0]
        return int(address[1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        return _answer(self._health.live_problems(), self._health.phase)

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._health.ready_problems(), self._health.phase)

    async def _metricsz(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await response.prepare(request)
        for chunk in self._metrics.registry.chunks():
            await response.write(chunk.encode())
            await asyncio.sleep(0)  # thousands of servers are megabytes: passes go on in between
        await response.write_eof()
        return response


def _answer(problems: list[str], phase: str) -> web.Response:
    if problems:
        return web.Response(status=503, text="\n".join(problems) + "\n")
    return web.Response(text=f"ok: {phase}\n")
