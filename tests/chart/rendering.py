"""Rendering of charts/plimsoll by the real Helm, without a cluster."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster_kit.gotools import go_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "plimsoll"
PROGRAMS = ("helm4", "helm3")
NAMESPACE = "plimsoll-system"

Values = dict[str, Any]
Object = dict[str, Any]


class HelmRefusedError(Exception):
    """Helm ended with an error; the text is what it printed."""


@dataclass(frozen=True)
class Rendered:
    """What the chart renders to."""

    text: str

    @property
    def objects(self) -> list[Object]:
        """Every object; not to be changed."""
        return _parsed(self.text)

    def all(self, kind: str) -> dict[str, Object]:
        """Objects of one kind by name, or by namespace/name where that is not the release's."""
        found = {}
        for obj in self.objects:
            metadata = obj["metadata"]
            other = metadata.get("namespace", NAMESPACE) != NAMESPACE
            name = f"{metadata['namespace']}/{metadata['name']}" if other else metadata["name"]
            if obj["kind"] == kind:
                assert name not in found, f"{kind} {name} twice"
                found[name] = obj
        return found

    def one(self, kind: str) -> Object:
        """The only object of its kind."""
        (found,) = self.all(kind).values()
        return found


@functools.cache
def _parsed(text: str) -> list[Object]:
    # The definition takes the loader in Python half a second.
    return [o for o in yaml.load_all(text, Loader=yaml.CSafeLoader) if o]


def helm(program: str, *arguments: str | Path) -> str:
    """Run Helm with a home of its own; returns its standard output. Raises HelmRefusedError."""
    with tempfile.TemporaryDirectory() as home:
        homes = {f"HELM_{kind}_HOME": f"{home}/{kind}" for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [go_tool(program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": home, "KUBECONFIG": "/dev/null", **homes},
        )
    if done.returncode:
        raise HelmRefusedError(f"{done.stdout}{done.stderr}".strip())
    return done.stdout


def template(
    values: Mapping[str, Any] | None = None, program: str = "helm4", *, release: str = "plimsoll"
) -> Rendered:
    """Render the chart for namespace plimsoll-system.

    Args:
        values: given over the chart's own.
        program: helm4 or helm3.
        release: its name.

    Raises:
        HelmRefusedError: the values are refused.
    """
    return _template(json.dumps(dict(values or {}), sort_keys=True), program, release)


@functools.cache
def _template(values: str, program: str, release: str) -> Rendered:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(values)
        file.flush()
        return Rendered(helm(program, "template", release, CHART, "-n", NAMESPACE, "-f", file.name))
