"""Every suite with its sizes, in the order of `make bench`; results are kept as JSON, one file a suite."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.operator import fairness, flow, scale, stamped, startup
from bench.operator.contenders import NAMES
from bench.operator.lab import ROOT, Lab, say
from tests.cluster_kit.cache import cache_root

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS: Final = cache_root() / "bench" / "results"
PROFILE: Final = ROOT / "docs" / "profiles" / "operator-burst.txt"


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    Attributes:
        who: the operators of the suites that compare.
        rounds: of the burst, interleaved.
        burst: servers at once.
        per_second: servers a second of the open loop.
        seconds: its length.
        lives: of the Stamped suite.
        scales: numbers of servers over which restarts and memory are measured.
        cold: servers that are there before the operator.
    """

    who: tuple[str, ...] = NAMES
    rounds: int = 3
    burst: int = 1000
    per_second: float = 10.0
    seconds: float = 30.0
    lives: int = 150
    scales: tuple[int, ...] = (0, 1000, 5000, 10000)
    cold: int = 1000


def burst(lab: Lab, sizes: Sizes) -> Any:  # noqa: ANN401
    return [flow.burst(lab, who, sizes.burst) for _ in range(sizes.rounds) for who in sizes.who]


def rate(lab: Lab, sizes: Sizes) -> Any:  # noqa: ANN401
    return [flow.rate(lab, who, sizes.per_second, sizes.seconds) for who in sizes.who]


def lives(lab: Lab, sizes: Sizes) -> Any:  # noqa: ANN401
    return stamped.stamped(lab, sizes.lives)


def fair(lab: Lab, sizes: Sizes) -> Any:  # noqa: ANN401
    return [fairness.fairness(lab, who, sizes.burst) for who in sizes.who]


def start(lab: Lab, _: Sizes) -> Any:  # noqa: ANN401
    return startup.startup(lab)


def images(_: Lab, __: Sizes) -> Any:  # noqa: ANN401
    return startup.images()


def cold(lab: Lab, sizes: Sizes) -> Any:  # noqa: ANN401
    return [scale.cold(lab, who, sizes.cold) for who in sizes.who if who != "stock"]


def restart(lab: Lab, sizes: Sizes) -> Any:  # noqa: ANN401
    """In a cluster of its own, which is removed with its thousands of servers."""
    own = Lab(f"{lab.cluster.name}-n")
    lab.down()  # two control planes would share the cores
    try:
        own.up()
        return scale.scale(own, sizes.scales, beside="floor" in sizes.who)
    finally:
        own.down()
        lab.up()


def profile(lab: Lab, sizes: Sizes) -> Any:  # noqa: ANN401
    """A burst under cProfile; the text goes to docs/profiles."""
    PROFILE.parent.mkdir(parents=True, exist_ok=True)
    target = lab.folder / "profile.txt"
    argv = [sys.executable, "-m", "bench.operator.profiled", str(target)]
    result = flow.burst(lab, "plimsoll", sizes.burst, argv)
    PROFILE.write_text(target.read_text())
    say(f"the profile is in {PROFILE}")
    return result


def sizer(_: Lab, __: Sizes) -> Any:  # noqa: ANN401
    """bench/sizer.py as it is."""
    return json.loads(_run("-m", "bench.sizer"))


SUITES: Final[dict[str, Callable[[Lab, Sizes], Any]]] = {
    "burst": burst,
    "rate": rate,
    "stamped": lives,
    "fairness": fair,
    "cold": cold,
    "startup": start,
    "restart": restart,
    "profile": profile,
    "images": images,
    "sizer": sizer,
}


def run(lab: Lab, names: list[str], sizes: Sizes, *, resume: bool, folder: Path = RESULTS) -> None:
    """Run suites one after the other and keep the result of each at once.

    Args:
        lab: started on first use.
        names: keys of `SUITES`.
        sizes: of them.
        resume: leave out those whose result is there.
        folder: of the results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    up = False
    for name in names:
        target = folder / f"{name}.json"
        if resume and target.exists():
            say(f"{name}: there already")
            continue
        if not up:
            lab.up()
            lab.clean()
            up = True
        say(f"suite {name}")
        began, machine = time.monotonic(), _machine()
        result = SUITES[name](lab, sizes)
        seconds = round(time.monotonic() - began, 1)
        kept = {"suite": name, "machine": machine, "seconds": seconds, "result": result}
        target.write_text(json.dumps(kept, indent=1) + "\n")
        say(f"suite {name} took {seconds} s")


def _machine() -> dict[str, Any]:
    """Where and when, and how busy it was before."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}",
        "cores": os.cpu_count(),
        "cpu": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "loadBefore": round(os.getloadavg()[0], 2),
        "commit": _commit(),
    }


def _commit() -> str:
    argv = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def _run(*arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=env,
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
