"""`make demo`, interrupted: nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.cluster_kit import leftovers
from tests.demo.install import ROOT

# What the demo has just printed when it is interrupted.
HALF_WAY = ["waiting for 2 nodes", "loading", "conditions have begun"]


@pytest.mark.parametrize("moment", HALF_WAY)
def test_interrupted_demo_leaves_nothing(moment: str) -> None:
    name = f"t-demo{HALF_WAY.index(moment)}"
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.demo", "--name", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the whole process group of a terminal
    )
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if moment in line or (moment == HALF_WAY[2] and "SizingPending" in line):
            os.killpg(process.pid, signal.SIGINT)
            break
    else:
        pytest.fail(f"the demo ended before {moment!r}:\n{''.join(seen)}")
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    assert leftovers(name) == []
