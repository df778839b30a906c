"""What a start costs before any work: imports, memory, the first watch; and the sizes of the images."""

from __future__ import annotations

import compileall
import os
import re
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from bench.lifecycle import image_sizes
from bench.operator.contenders import NAMES, running
from bench.operator.lab import ROOT, Lab, say
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.images import build_images

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPERATOR: Final = "import plimsoll.controller.__main__"
_MEASURE: Final = f"""
import sys, time
began = time.perf_counter()
{_OPERATOR}
seconds = time.perf_counter() - began
rss = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(seconds, len(sys.modules), int(rss) / 1024)
"""
_LINE: Final = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")
_TOP: Final = 15


def startup(lab: Lab, rounds: int = 5) -> dict[str, Any]:
    """Seconds from each process's start to its watch, and the budget of Plimsoll's imports."""
    compileall.compile_dir(ROOT / "operator", quiet=1)
    watch: dict[str, list[float]] = {who: [] for who in NAMES}
    idle: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for who in NAMES:
            with running(lab, who) as one:
                watch[who].append(one.watch_seconds)
                idle[who] = one.memory()
    seconds = {who: round(statistics.median(found), 3) for who, found in watch.items()}
    say(f"start to first watch: {seconds}")
    return {"watchSeconds": seconds, "idleMiB": idle, "imports": imports()}


def imports(rounds: int = 5) -> dict[str, Any]:
    """Seconds, modules and MiB of the operator's imports, and the packages that they are spent on."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(ROOT / "operator")
    taken = [_output([sys.executable, "-c", _MEASURE], env).split() for _ in range(rounds)]
    trace = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", _OPERATOR],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    return {
        "seconds": round(statistics.median(float(one[0]) for one in taken), 3),
        "modules": int(taken[0][1]),
        "rssMiB": round(statistics.median(float(one[2]) for one in taken), 1),
        "selfMsByPackage": by_package(trace),
    }


def by_package(trace: str) -> dict[str, float]:
    """Own milliseconds of the modules of each top-level package, the largest first."""
    found: dict[str, float] = {}
    for own, _, _, module in _LINE.findall(trace):
        package = module.split(".")[0]
        found[package] = found.get(package, 0.0) + int(own) / 1000
    largest = sorted(found.items(), key=lambda item: -item[1])[:_TOP]
    return {package: round(ms, 1) for package, ms in largest}


def images() -> dict[str, dict[str, int]]:
    """Bytes of each image as an archive and compressed as a registry keeps it."""
    return {name: image_sizes(path) for name, path in build_images(cache_root(), log=say).items()}


def _output(argv: list[str], env: Mapping[str, str]) -> str:
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
