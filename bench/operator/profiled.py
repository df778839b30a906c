"""Runs the operator under cProfile: ``python -m bench.operator.profiled FILE``.

The work happens in two threads, the loop of the passes and kopf's loop of the watches; each has a profile of its
own. Both are written to FILE as text when the operator ends. Times are CPU times of the thread, so what waits for the
network or for the interpreter's lock costs nothing here. Profiled code runs at about half speed.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import sys
import threading
import time
from pathlib import Path

from plimsoll.controller.__main__ import main

LINES = 30


def profile(target: Path) -> int:
    """Run until a signal; returns the operator's exit code."""
    profiles: dict[str, cProfile.Profile] = {"passes": cProfile.Profile(time.thread_time)}
    plain = threading.Thread.run

    def run(self: threading.Thread) -> None:
        if self.name != "watches":
            plain(self)
            return
        profiles["watches"] = cProfile.Profile(time.thread_time)
        profiles["watches"].runcall(plain, self)

    threading.Thread.run = run  # type: ignore[method-assign]
    try:
        return int(profiles["passes"].runcall(main, []))
    finally:
        target.write_text("\n".join(text(name, found) for name, found in profiles.items()))


def text(name: str, found: cProfile.Profile) -> str:
    """The functions that cost most, by their own time and with what they call."""
    out = io.StringIO()
    stats = pstats.Stats(found, stream=out).strip_dirs()
    for order in ("tottime", "cumulative"):
        out.write(f"== thread of the {name}, by {order}\n")
        stats.sort_stats(order).print_stats(LINES)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(profile(Path(sys.argv[1])))
