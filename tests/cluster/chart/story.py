"""The life of a release on a cluster: its steps, each timed, and what must not change under running servers."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.cluster.chart.first import TAG, FirstRelease
from tests.cluster.chart.helm import flags
from tests.cluster.world import wait
from tests.demo.install import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.cluster.chart.helm import Helm
    from tests.cluster.world import Tenant

RELEASE = "plimsoll"
SPACE = "plimsoll-system"
CHART = ROOT / "charts" / "plimsoll"
TIMEOUT = "--timeout=120s"
OPERATOR = f"/apis/apps/v1/namespaces/{SPACE}/deployments/plimsoll-operator"
FIRST_VALUES = {"image.operator.tag": TAG, "image.sizer.tag": TAG}


@dataclass
class Steps:
    """Seconds by step, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block."""
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 2)


@dataclass(frozen=True)
class Release:
    """The release `plimsoll` of one Helm on one cluster."""

    helm: Helm

    def install(self, chart: Path = CHART, values: Mapping[str, str] | None = None) -> None:
        """Install, and wait until the operator is ready."""
        given = flags(values or {})
        self.helm("install", RELEASE, chart, "--create-namespace", "--wait", TIMEOUT, *given)

    def upgrade(self, chart: Path = CHART, values: Mapping[str, str] | None = None) -> None:
        """Upgrade with these values and no earlier ones, and wait until the operator is ready."""
        given = flags(values or {})
        self.helm("upgrade", RELEASE, chart, "--reset-values", "--wait", TIMEOUT, *given)

    def rollback(self, revision: int) -> None:
        """Go back to a revision, and wait until the operator is ready."""
        self.helm("rollback", RELEASE, str(revision), "--wait", TIMEOUT)

    def uninstall(self) -> None:
        """Uninstall, and wait until the operator is gone."""
        self.helm.uninstall(RELEASE)
        rest = f"/api/v1/namespaces/{SPACE}/pods"
        cluster = self.helm.cluster
        wait(lambda: not cluster.get(rest)[1]["items"], 60, "operator gone")

    def image(self) -> str:
        """The operator's image that runs now."""
        _, deployment = self.helm.cluster.get(OPERATOR)
        found: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        return found

    def install_first(self, first: FirstRelease) -> None:
        """Install the first chart with its own images."""
        self.install(first.chart, FIRST_VALUES)


def running(tenant: Tenant) -> dict[str, Any]:
    """What an upgrade may not touch, as one comparable picture.

    The pods with their containers' restarts, the ReplicaSets (one for each pod template), the templates and the
    resources. Not the status, the Service or a Deployment's metadata: these the operator keeps up to date.
    """
    rest = tenant.world.rest
    deployments = rest.items(f"{tenant.apps}/deployments")
    sets = rest.items(f"{tenant.apps}/replicasets")
    return {
        "servers": {s["metadata"]["uid"]: s["spec"] for s in rest.items(tenant.servers)},
        "templates": {d["metadata"]["uid"]: _text(d["spec"]["template"]) for d in deployments},
        "hashes": {s["metadata"]["uid"]: s["metadata"]["name"] for s in sets},
        "pods": {p["metadata"]["uid"]: _restarts(p) for p in tenant.pods("plimsoll.dev/server")},
    }


def _restarts(pod: Mapping[str, Any]) -> dict[str, int]:
    status = pod["status"]
    every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return {c["name"]: c["restartCount"] for c in every}


def _text(template: Mapping[str, Any]) -> str:
    return json.dumps(template, sort_keys=True)


def touch(tenant: Tenant, *names: str) -> None:
    """Delete each server's Service and wait until it is back: the operator that runs now has looked at the server."""
    for name in names:
        tenant.world.rest.call("DELETE", f"{tenant.core}/services/{name}")
    services = f"{tenant.core}/services"
    wait(lambda: set(names) <= _names(tenant, services), 30, f"the Services of {names} are back")


def _names(tenant: Tenant, path: str) -> set[str]:
    return {item["metadata"]["name"] for item in tenant.world.rest.items(path)}


def answers(tenant: Tenant, name: str) -> bool:
    """Whether the server completes a sentence."""
    answer = tenant.world.rest.call(
        "POST",
        f"{tenant.core}/services/{name}:80/proxy/completion",
        {"prompt": "The capital of France is", "n_predict": 8, "temperature": 0},
    )
    return "Paris" in answer["content"]
