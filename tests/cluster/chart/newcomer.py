"""Runs docs/newcomer.sh against a local cluster, as it stands there, and says how long each command took."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.cluster_kit import network
from tests.demo.install import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.chart.helm import Helm

SCRIPT = ROOT / "docs" / "newcomer.sh"
# Bash prints the time before each command. Set in the shell: as root it takes no PS4 from the environment.
TRACE = f"PS4='+ $EPOCHREALTIME '; set -x; source {SCRIPT}"
_TRACED = re.compile(r"^\++ (\d+\.\d+) (\S+)(.*)", re.MULTILINE)
# Of bash itself; whatever else the script says is a command of the reader.
_BUILT_IN = {"set", "source", "trap", "kill", "jobs", "true"}


def commands(text: str) -> list[str]:
    """The script's commands, one string each, without bash's own."""
    joined = text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    return [x for x in lines if x and x[0] != "#" and x.split()[0] not in _BUILT_IN]


def run(helm: Helm, folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Run the script; returns the engine's answer, and seconds by command.

    Args:
        helm: becomes the `helm` of the script.
        folder: a scratch folder for its PATH.

    Raises:
        AssertionError: a command failed; with everything that was printed.
    """
    (folder / "helm").symlink_to(helm.program)
    env = helm.environment()
    done = subprocess.run(
        network.inside(helm.cluster.netns, "bash", "-c", TRACE),
        cwd=ROOT,
        env=env | {"PATH": f"{folder}:{env['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer, seconds_by_command(done.stderr)


def seconds_by_command(trace: str) -> dict[str, float]:
    """Seconds by command, from the begin of each to the begin of the next; what runs beside them has none."""
    traced = [(float(at), name, rest) for at, name, rest in _TRACED.findall(trace)]
    begun = [one for one in traced if "port-forward" not in one[2]]
    found = {}
    for (at, name, rest), (after, *_) in pairwise(begun):
        if name not in _BUILT_IN:
            found[f"{name}{rest}".split(" --")[0][:60]] = round(after - at, 2)
    return found
