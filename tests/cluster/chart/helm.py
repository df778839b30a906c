"""Helm beside a local cluster: the real program, with its caches and settings in a scratch folder."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.cluster_kit import network

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.cluster_kit import Cluster


class HelmError(Exception):
    """Helm ended with an error; the text is what it printed."""


@dataclass(frozen=True)
class Helm:
    """One Helm program for one cluster."""

    cluster: Cluster
    program: Path
    home: Path

    def __call__(self, *arguments: str | Path, namespace: str = "plimsoll-system") -> str:
        """Run one command in `namespace` and return its standard output. Raises HelmError."""
        command = [self.program, *arguments, "--namespace", namespace]
        done = subprocess.run(
            network.inside(self.cluster.netns, *command),
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
        )
        if done.returncode:
            raise HelmError(f"{done.stdout}{done.stderr}".strip())
        return done.stdout

    def environment(self) -> dict[str, str]:
        """The cluster's environment, with a home for Helm."""
        homes = {f"HELM_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        return self.cluster.environment() | homes

    def releases(self) -> list[dict[str, Any]]:
        """Every release of the cluster, in any state."""
        found: list[dict[str, Any]] = json.loads(self("list", "--all-namespaces", "-o", "json"))
        return found

    def uninstall(self, name: str = "plimsoll", namespace: str = "plimsoll-system") -> str:
        """Uninstall and wait for it."""
        return self("uninstall", name, "--wait", namespace=namespace)


def flags(values: Mapping[str, str]) -> list[str]:
    """`--set` arguments from values by path."""
    return [word for path, value in values.items() for word in ("--set", f"{path}={value}")]
