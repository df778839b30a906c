"""A real Prometheus scrapes the installed operator: every panel has data, every rule evaluates.

With PLIMSOLL_DASHBOARD_OUT the story is longer, and a picture of what was scraped is written there.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plimsoll.controller.metrics import Metrics
from tests.cluster.world import NODE_A, NODE_B, Tenant, World, wait
from tests.cluster_kit.fixtures import outside
from tests.cluster_kit.gotools import go_tool
from tests.cluster_kit.progress import Progress
from tests.monitoring import picture
from tests.monitoring.panels import targets
from tests.monitoring.prometheus import Prometheus, running
from tests.monitoring.promtool import promtool

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATOR = "app.kubernetes.io/component=operator"
SPACE = "plimsoll-system"


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Path:
    """Prometheus; with a cold cache it is built here, and promtool with it."""
    with outside(pytestconfig):
        go_tool("promtool", Progress())
        return go_tool("prometheus", Progress())


def operator_pod(world: World) -> dict[str, str]:
    """Name and address of the operator."""
    found = world.rest.items(f"/api/v1/namespaces/{SPACE}/pods", labelSelector=OPERATOR)
    (pod,) = (pod for pod in found if "deletionTimestamp" not in pod["metadata"])
    return {"pod": pod["metadata"]["name"], "ip": pod["status"]["podIP"]}


def fetched(pod: dict[str, str], path: str) -> str:
    """What the operator answers itself."""
    with urllib.request.urlopen(f"http://{pod['ip']}:8080{path}", timeout=10) as response:
        body: bytes = response.read()
    return body.decode()


def told(prometheus: Prometheus, tenant: Tenant, metric: str) -> float | None:
    """A number of the tenant's server."""
    return prometheus.value(f'{metric}{{namespace="{tenant.namespace}",name="smollm2"}}')


def test_dashboard(world: World, tenant: Tenant, program: Path, tmp_path: Path) -> None:
    """Every panel has data, and every rule evaluates."""
    pod = operator_pod(world)
    address = f"{pod['ip']}:8080"
    with running(program, tmp_path, address, namespace=SPACE, pod=pod["pod"]) as prometheus:
        began = time.time()
        before = {
            name: prometheus.value(name) or 0.0
            for name in (
                "plimsoll_sizing_duration_seconds_count",
                'plimsoll_rollouts_total{result="completed"}',
            )
        }
        tenant.apply(node=NODE_A)
        tenant.wait_ready()
        tenant.wait_condition("CapacityVerified", "True", "WithinTolerance")
        out = os.environ.get("PLIMSOLL_DASHBOARD_OUT")
        if out:
            longer_story(tenant)
        time.sleep(3)  # the last of it is scraped
        ended = time.time()

        empty = [
            (target.panel, target.expression)
            for target in targets()
            if not prometheus.series(target.expression, began, ended)
        ]
        assert empty == []

        capacity = tenant.server()["status"]["capacity"]
        assert (
            told(prometheus, tenant, "plimsoll_server_budget_tokens")
            == (capacity["maxTotalTokenNum"])
        )
        assert (
            told(prometheus, tenant, "plimsoll_server_engine_reported_tokens")
            == (capacity["engineReportedTokens"])
        )
        for name, count in before.items():
            now = prometheus.value(name)
            assert now is not None
            assert now >= count + 1, name
        assert prometheus.value("plimsoll_leader") == prometheus.value("plimsoll_ready") == 1
        assert 1 < (prometheus.value("process_resident_memory_bytes") or 0) / 2**20 < 200
        assert list(unhealthy(prometheus)) == []
        assert fetched(pod, "/readyz") == fetched(pod, "/livez") == "ok: leading\n"
        text = fetched(pod, "/metrics")
        assert promtool("check", "metrics", text=text) == ""
        documented = {family.name for family in Metrics().registry}
        assert set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)) == documented
        if out:
            picture.write(Path(out), prometheus, began, ended)


def unhealthy(prometheus: Prometheus) -> Iterator[str]:
    """Rules that do not evaluate, and alerts that say the operator is not well."""
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 20
    for rule in rules:
        if rule["health"] != "ok":
            yield f"{rule['name']}: {rule.get('lastError')}"
        if rule.get("state") in {"pending", "firing"} and "Operator" in rule["name"]:
            yield f"{rule['name']} is {rule['state']}"


def longer_story(tenant: Tenant) -> None:
    """More servers, one that fails, one that waits for a GPU, and a smaller number."""
    tenant.apply("gemma", node=NODE_B)
    tenant.wait_ready("gemma")
    tenant.apply("odd", sub_path="unknown")
    tenant.wait_condition("Accepted", "False", "UnsupportedArchitecture", "odd")
    tenant.apply(node=NODE_A, replicas=2)
    tenant.wait_ready()
    tenant.apply("late", node=NODE_B)
    tenant.wait_condition("CapacityAvailable", "False", "Unschedulable", "late")
    time.sleep(15)
    tenant.world.rest.call("DELETE", f"{tenant.servers}/gemma")
    tenant.wait_ready("late")
    tenant.apply(node=NODE_A, replicas=2, sizing={"maxTotalTokenNum": 16384})
    wait(
        lambda: tenant.server()["status"]["capacity"]["maxTotalTokenNum"] == 16384,
        60,
        "the smaller number",
    )
    tenant.wait_ready()
    time.sleep(10)
