"""The real API server takes what the operator makes of the samples, every field of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.objects import service, sizing_pod
from tests.render_samples import CONTEXT, RENDERED, SAMPLES, render, servers

if TYPE_CHECKING:
    from tests.cluster_kit import Cluster

pytestmark = pytest.mark.contract

NAMES = sorted(path.stem for path in SAMPLES.glob("*.yaml"))


def _taken(cluster: Cluster, obj: dict[str, Any]) -> None:
    """Server-side, strict: an unknown field is an error; nothing is stored."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in {"uid", "ownerReferences"}}
    here = {**obj, "metadata": {**metadata, "namespace": "default"}}
    done = cluster.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", "-", input=json.dumps(here)
    )
    assert "created" in done.stdout
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("name", RENDERED)
def test_rendered_deployments_are_taken(api_cluster: Cluster, name: str) -> None:
    _taken(api_cluster, render(name))


@pytest.mark.parametrize("name", NAMES)
def test_services_and_sizing_pods_of_every_sample_are_taken(
    api_cluster: Cluster, name: str
) -> None:
    account = ("create", "serviceaccount", "default", "-n", "default")
    api_cluster.kubectl(*account, check=False)  # the controller that makes it may be late
    for server in servers(name):
        _taken(api_cluster, service(server))
        _taken(api_cluster, sizing_pod(server, CONTEXT))
