"""The health server: /livez, /readyz, /metrics.

Ours and not kopf's, which exists only while kopf runs (a standby has none) and answers as long as
the loop turns. A liveness probe that restarts the process during an outage of the API server would
make things worse, so liveness speaks only about faults that a restart cures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from plimsoll.controller import metrics as exposition

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.controller.metrics import Metrics

STUCK_SECONDS = 300.0
"""A pass is at most a few dozen requests of 30 s; one that is older will not end by itself."""


@dataclass(slots=True)
class Health:
    """What the process knows about itself.

    Attributes:
        phase: for people: starting, standby, leading, stopping.
        ready: the process does its duty: it leads with a filled store, or stands by.
        deaf: consecutive resyncs that found the watches silent although objects had changed.
        oldest_busy: seconds that the longest running pass has taken.
    """

    phase: str = "starting"
    ready: bool = False
    deaf: int = 0
    oldest_busy: Callable[[], float] = lambda: 0.0

    def live_problems(self) -> list[str]:
        """Why a restart would help, one sentence each."""
        problems = []
        if (age := self.oldest_busy()) > STUCK_SECONDS:
            problems.append(f"a pass has been running for {age:.0f} s")
        if self.deaf > 1:  # the first time the watches are restarted in process
            problems.append("the watches deliver nothing although objects change")
        return problems

    def ready_problems(self) -> list[str]:
        """Why the process is not ready."""
        return [] if self.ready else [f"the operator is {self.phase}"]


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

    async def _metricsz(self, _: web.Request) -> web.Response:
        body = self._metrics.render().encode()
        return web.Response(body=body, headers={"Content-Type": exposition.CONTENT_TYPE})


def _answer(problems: list[str], phase: str) -> web.Response:
    if problems:
        return web.Response(status=503, text="\n".join(problems) + "\n")
    return web.Response(text=f"ok: {phase}\n")
