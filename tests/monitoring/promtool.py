"""Prometheus' own judge of rules and expositions."""

from __future__ import annotations

import subprocess

from tests.cluster_kit.gotools import go_tool


def promtool(*arguments: str, text: str | None = None) -> str:
    """Run it; its output where it fails is the test's."""
    done = subprocess.run(
        [go_tool("promtool"), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
