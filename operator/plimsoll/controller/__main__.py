"""``python -m plimsoll.controller``: the operator.

Exit codes: 0 stopped by a signal, 1 leadership lost, 2 bad settings, 3 the CRD is not installed,
4 anything else. The kubelet restarts the container after each but a requested stop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import random
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from plimsoll import __version__
from plimsoll.controller import handlers, kube, logs, plan
from plimsoll.controller.fetch import fetch
from plimsoll.controller.landscape import LandscapeReader
from plimsoll.controller.metrics import Metrics
from plimsoll.controller.objects.context import BuildContext
from plimsoll.controller.pod_events import PodEvents
from plimsoll.controller.readings import EngineReader
from plimsoll.controller.runtime import EXIT_FAILED, Edges, Operator
from plimsoll.controller.senses import Senses
from plimsoll.controller.settings import Settings, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_BAD_SETTINGS = 2

logger = logging.getLogger("plimsoll.controller")  # __name__ would be "__main__"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments, read settings, run."""
    parser = argparse.ArgumentParser(
        prog="plimsoll-operator",
        description="Sizes and runs LLM servers. It is configured by environment variables.",
    )
    parser.add_argument("--version", action="version", version=f"plimsoll {__version__}")
    parser.parse_args(argv)
    try:
        settings = Settings.from_env(os.environ, socket.gethostname())
    except SettingsError as error:
        sys.stderr.write(f"plimsoll-operator: {error}\n")
        return EXIT_BAD_SETTINGS
    logs.configure(settings.log_level, settings.log_format)
    logger.info("plimsoll %s", __version__)
    # Modules stay for ever, and JSON makes no cycles: the collector need not look at them all the time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        return asyncio.run(serve(settings))
    except Exception:
        logger.exception("the operator failed")
        return EXIT_FAILED


async def serve(settings: Settings) -> int:
    """Connect, and live until SIGTERM, SIGINT or the loss of the lease."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def now() -> datetime:
        return datetime.now(UTC)

    metrics = Metrics()
    async with await kube.connect(meter=metrics.api_call) as cluster:
        nodes = LandscapeReader(cluster, time.monotonic, now)
        engines = EngineReader(cluster, fetch, time.monotonic)
        events = PodEvents(cluster, time.monotonic)
        edges = Edges(
            cluster=cluster,
            watch=handlers.watch,
            planner=plan,
            context=BuildContext(settings.sizer_image, settings.sizer_pull_policy),
            clock=time.monotonic,
            now=now,
            rng=random.SystemRandom(),
            metrics=metrics,
            senses=Senses(cluster, nodes, engines, events, learn=settings.learn),
        )
        return await Operator(settings, edges).run(stop)


if __name__ == "__main__":
    sys.exit(main())
