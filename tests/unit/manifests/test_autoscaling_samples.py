"""The samples for autoscalers fit their server, the recording rules, and the time that a server needs to load."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from plimsoll.controller.objects.labels import SERVER_LABEL
from plimsoll.controller.objects.names import HTTP_PORT
from plimsoll.controller.objects.workload import startup_seconds
from tests.monitoring.promql import metrics_in
from tests.render_samples import SAMPLES, servers

FOLDER = SAMPLES / "autoscaling"
(SERVER,) = servers("autoscaled-qwen3-8b")
# Nothing is known of the weights before they are measured.
LOAD = startup_seconds(SERVER, None)
GATEWAY = "gateway_requests_waiting"
USAGE = "plimsoll_pod_token_usage_ratio"
META = "__meta_kubernetes_pod_label_" + SERVER_LABEL.replace(".", "_").replace("/", "_")


def sample(name: str) -> dict[str, Any]:
    """The one object of a file."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


SCALERS = {"hpa": sample("hpa.yaml"), "keda": sample("keda.yaml")}
BEHAVIORS = {
    "hpa": SCALERS["hpa"]["spec"]["behavior"],
    "keda": SCALERS["keda"]["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
}


def test_the_page_of_samples_names_each() -> None:
    page = (SAMPLES / "README.md").read_text()
    names = [path.name for path in FOLDER.iterdir()]
    assert [name for name in names if f"(autoscaling/{name})" not in page] == []


def test_a_server_for_autoscalers_says_nothing_of_replicas() -> None:
    assert (
        "replicas" not in yaml.safe_load((SAMPLES / "autoscaled-qwen3-8b.yaml").read_text())["spec"]
    )


@pytest.mark.parametrize("name", SCALERS)
def test_it_scales_the_server_and_not_its_deployment(name: str) -> None:
    assert SCALERS[name]["spec"]["scaleTargetRef"] == {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "InferenceServer",
        "name": SERVER.name,
    }


@pytest.mark.parametrize("name", BEHAVIORS)
def test_it_gives_a_server_the_time_to_load(name: str) -> None:
    up, down = BEHAVIORS[name]["scaleUp"], BEHAVIORS[name]["scaleDown"]
    assert up["stabilizationWindowSeconds"] == 0
    (policy,) = up["policies"]
    assert (policy["type"], policy["value"]) == ("Pods", 1)
    assert down["stabilizationWindowSeconds"] >= LOAD


def test_keda_puts_no_server_to_sleep_that_still_loads() -> None:
    spec = SCALERS["keda"]["spec"]
    assert spec["minReplicaCount"] == 0
    assert min(spec["cooldownPeriod"], spec["initialCooldownPeriod"]) >= LOAD


def test_each_asks_for_the_caches_and_for_the_gateway_s_queue() -> None:
    asked = [metric["external"] for metric in SCALERS["hpa"]["spec"]["metrics"]]
    assert [one["metric"]["name"] for one in asked] == [USAGE, GATEWAY]
    assert {one["target"]["type"] for one in asked} == {"AverageValue"}
    triggers = SCALERS["keda"]["spec"]["triggers"]
    queries = [trigger["metadata"]["query"] for trigger in triggers]
    assert [metrics_in(query) for query in queries] == [{USAGE}, set()]
    assert queries[1].startswith(f"sum({GATEWAY}{{")
    labels = f'{{namespace="default",server="{SERVER.name}"}}'
    assert all(labels in query for query in queries)
    assert "activationThreshold" in triggers[1]["metadata"]


def test_the_pod_monitor_names_the_server_and_the_port() -> None:
    spec = sample("pod-monitor.yaml")["spec"]
    (chosen,) = spec["selector"]["matchExpressions"]
    assert (chosen["key"], chosen["operator"]) == (SERVER_LABEL, "Exists")
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] == HTTP_PORT
    assert endpoint["relabelings"] == [{"sourceLabels": [META], "targetLabel": "server"}]
