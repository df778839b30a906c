"""The scale subresource under kubectl, the real autoscaler and the real disruption controller; who wrote what.

The autoscaler's tests are last: its controller asks only every half minute which kinds there are.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cluster.world import wait
from tests.cluster_kit.gpus import A100
from tests.cluster_kit.rest import RestError
from tests.monitoring.promtool import promtool
from tests.scale import metrics_api
from tests.scale.replicas import (
    SCALE,
    await_replicas,
    check_no_fight,
    numbers,
    of,
    template,
    told,
)
from tests.scale.world import NAME, ROOT
from tests.scale.writes import ADMIN, HPA, OPERATOR, writes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.scale.metrics_api import MetricsApi
    from tests.scale.world import Scale, Space

AUTOSCALING = ROOT / "manifests" / "samples" / "autoscaling"
STAMPED = {"mode": "Stamped"}
QUEUE = "requests_waiting"
PER_SERVER = 10
TOO_MANY = 429
# Several looks of the autoscaler, which the kit's controller manager takes once a second.
QUIET = 3.0


pytestmark = pytest.mark.usefixtures("gpus")


@pytest.fixture(scope="module")
def gpus(scale: Scale) -> Iterator[None]:
    """One machine with eight GPUs."""
    names = scale.add_nodes(A100)
    yield
    scale.remove_nodes(names)


@pytest.fixture(scope="module")
def metrics(scale: Scale) -> Iterator[MetricsApi]:
    """The external metrics API, with no number in it, for a controller that has heard of our kind."""
    with metrics_api.serving(scale.cluster, scale.rest) as served:
        nobody = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/nobody"
        target = {
            "apiVersion": "plimsoll.dev/v1alpha1",
            "kind": "InferenceServer",
            "name": "nobody",
        }
        scale.rest.apply(
            nobody,
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "nobody"},
                "spec": {"scaleTargetRef": target, "maxReplicas": 1},
            },
        )
        wait(lambda: "not found" in str(scale.rest.get(nobody).get("status")), 45, "kind known")
        scale.rest.call("DELETE", nobody)
        yield served


def autoscale(space: Space, least: int, most: int = 8, target: str = NAME) -> None:
    """An autoscaler on a queue, which acts at once both ways."""
    quick = {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 8, "periodSeconds": 1}],
    }
    space.rest.apply(
        hpa_path(space),
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": NAME},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "plimsoll.dev/v1alpha1",
                    "kind": "InferenceServer",
                    "name": target,
                },
                "minReplicas": least,
                "maxReplicas": most,
                "metrics": [
                    {
                        "type": "External",
                        "external": {
                            "metric": {"name": QUEUE},
                            "target": {"type": "AverageValue", "averageValue": str(PER_SERVER)},
                        },
                    }
                ],
                "behavior": {"scaleUp": quick, "scaleDown": quick},
            },
        },
    )


def hpa_path(space: Space) -> str:
    """Path of the test's autoscaler."""
    return f"/apis/autoscaling/v2/namespaces/{space.namespace}/horizontalpodautoscalers/{NAME}"


def hpa_says(space: Space, kind: str) -> tuple[str, str]:
    """Status and reason of a condition of the autoscaler; empty where it has none."""
    found = space.rest.get(hpa_path(space)).get("status", {}).get("conditions") or ()
    return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))


def quiet(space: Space) -> None:
    """Check that for a while nobody writes the number of servers, or a pod."""
    before = changes(space)
    time.sleep(QUIET)
    assert changes(space) == before


def changes(space: Space) -> list[str]:
    """The writes of the operator and of the autoscaler; status follows what happens and is none."""
    found = writes(space.scale.cluster, space.namespace)
    return [
        str(w)
        for w in found
        if w.what == SCALE or (w.who == OPERATOR and not w.what.endswith("/status"))
    ]


def test_kubectl_scale_up_down_to_zero_and_back_measures_once(space: Space) -> None:
    space.apply(sizing=STAMPED)
    space.wait_ready()
    stamped, capacity = template(space), space.capacity()
    for count in (3, 2, 0, 2):
        space.scale.cluster.kubectl(
            *("-n", space.namespace, "scale", f"inferenceserver/{NAME}", f"--replicas={count}")
        )
        await_replicas(space, count)
        assert space.condition("Ready")["status"] == "True"
        assert space.capacity() == capacity
    assert template(space) == stamped
    found = check_no_fight(space)
    assert len(of(found, OPERATOR, "pods", "create")) == 1  # the sizing pod
    # Made once, and written once for each of the four numbers.
    assert len(of(found, OPERATOR, "deployments")) == 5, told(space)
    assert len(of(found, ADMIN, SCALE)) == 4


def test_engines_are_found_with_the_labels_that_the_rules_ask_for(space: Space) -> None:
    space.apply(sizing=STAMPED, replicas=2)
    space.wait_ready()
    config = yaml.safe_load((AUTOSCALING / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job["kubernetes_sd_configs"][0] |= {
        "kubeconfig_file": str(space.scale.cluster.kubeconfig),
        "namespaces": {"names": [space.namespace]},
    }
    file = space.scale.cluster.state / "service-discovery.yml"
    file.write_text(yaml.safe_dump(config))
    said = promtool("check", "service-discovery", "--timeout=3s", str(file), job["job_name"])
    found = [target["labels"] for target in json.loads(said) if target.get("labels")]
    assert {(t["namespace"], t["server"], t["pod"]) for t in found} == {
        (space.namespace, NAME, pod["metadata"]["name"]) for pod in space.server_pods()
    }
    assert {t["__metrics_path__"] for t in found} == {"/metrics"}


def test_the_selector_never_counts_a_sizing_pod(space: Space) -> None:
    space.delays = {"size": "60s"}
    space.apply(sizing=STAMPED)
    wait(lambda: bool(space.sizing_pods()), 20, "a sizing pod", space.explain)
    wait(lambda: "selector" in space.server().get("status", {}), 10, "a status")
    scale = space.rest.get(f"{space.servers}/{NAME}/scale")
    assert (scale["spec"], scale["status"].get("replicas", 0)) == ({"replicas": 1}, 0)
    assert space.pods(scale["status"]["selector"]) == []


def test_a_disruption_budget_on_the_selector_is_kept(space: Space) -> None:
    space.apply(sizing=STAMPED, replicas=3)
    space.wait_ready()
    await_replicas(space, 3)
    budget = f"/apis/policy/v1/namespaces/{space.namespace}/poddisruptionbudgets/{NAME}"
    selector = {"matchLabels": {"plimsoll.dev/server": NAME}}
    space.rest.apply(
        budget,
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": NAME},
            # A share of what is expected: the controller must find how many that are.
            "spec": {"maxUnavailable": "34%", "selector": selector},
        },
    )

    def allowed() -> tuple[int, int]:
        status = space.rest.get(budget).get("status", {})
        return status.get("expectedPods", -1), status.get("disruptionsAllowed", -1)

    wait(lambda: allowed() == (3, 2), 15, "2 of 3 may go", allowed)
    space.scale_to(2)  # the expected number follows the resource
    await_replicas(space, 2)
    wait(lambda: allowed() == (2, 1), 15, "1 of 2 may go", allowed)
    one, other = space.server_pods()
    evict(space, one)
    with pytest.raises(RestError, match="disruption budget") as refused:
        evict(space, other)
    assert refused.value.code == TOO_MANY
    wait(lambda: allowed() == (2, 1), 15, "the next may go", allowed)
    assert uid(other) in {uid(p) for p in space.server_pods()}


def test_the_autoscaler_scales_to_zero_and_back_and_a_zero_by_hand_stays(
    space: Space, metrics: MetricsApi
) -> None:
    key = (space.namespace, QUEUE)
    metrics.values[key] = 25
    space.apply(sizing=STAMPED)
    space.wait_ready()
    autoscale(space, least=0)
    await_replicas(space, 3)
    metrics.values[key] = 8
    await_replicas(space, 1)
    metrics.values[key] = 0
    await_replicas(space, 0)
    wait(lambda: hpa_says(space, "ScaledToZero")[0] == "True", 5, "ScaledToZero")
    metrics.values[key] = 15
    await_replicas(space, 2)
    assert hpa_says(space, "ScaledToZero") == ("False", "NotScaledToZero")
    quiet(space)
    found = check_no_fight(space)
    # 1 -> 3 -> 1 -> 0 -> 2: one write of the scale for each step, one of the Deployment for each of those.
    assert len(of(found, HPA, SCALE)) == 4, told(space)
    assert len(of(found, OPERATOR, "deployments")) == 5, told(space)
    assert len(of(found, OPERATOR, "pods", "create")) == 1

    space.scale_to(0)
    await_replicas(space, 0)
    off = ("False", "ScalingDisabled")
    wait(lambda: hpa_says(space, "ScalingActive") == off, 10, "ScalingDisabled")
    quiet(space)
    assert numbers(space) == (0, 0, 0, 0)


def test_an_autoscaler_that_changes_its_mind_disturbs_no_first_start(
    space: Space, metrics: MetricsApi
) -> None:
    key = (space.namespace, QUEUE)
    metrics.values[key] = 30
    space.delays = {"size": "3s", "load": "6s"}
    autoscale(space, least=1)
    space.apply(sizing=STAMPED)
    # While the sizing pod runs: the number of servers is changed, what is measured is not.
    wait(lambda: space.server()["spec"]["replicas"] == 3, 10, "3 asked for")
    assert space.deployment() is None
    wait(lambda: len(loading(space)) == 3, 20, "3 servers loading", space.explain)
    first, stamped = loading(space), template(space)
    wait(lambda: numbers(space) == (3, 3, 3, 0), 5, "3 there, none ready", space.explain)
    scale = space.rest.get(f"{space.servers}/{NAME}/scale")
    assert set(first) == {uid(p) for p in space.pods(scale["status"]["selector"])}

    metrics.values[key] = 5  # before the first is ready
    wait(lambda: len(loading(space)) == 1, 10, "two of them gone", space.explain)
    (last,) = loading(space)
    assert last in first
    await_replicas(space, 1, 20)
    assert [uid(p) for p in space.server_pods()] == [last]
    assert template(space) == stamped
    found = check_no_fight(space)
    assert len(of(found, HPA, SCALE)) == 2, told(space)
    assert len(of(found, OPERATOR, "deployments")) == 2, told(space)
    assert len(of(found, OPERATOR, "pods", "create")) == 1


def loading(space: Space) -> dict[str, dict[str, Any]]:
    """Server pods that have not been asked to go, by uid."""
    pods = space.pods(f"plimsoll.dev/server={NAME}")
    return {uid(p): p for p in pods if "deletionTimestamp" not in p["metadata"]}


def uid(pod: dict[str, Any]) -> str:
    """What no other pod ever has."""
    return str(pod["metadata"]["uid"])


def evict(space: Space, pod: dict[str, Any]) -> None:
    """Ask for an eviction, as a drain does. Raises RestError when the budget refuses."""
    name = pod["metadata"]["name"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": space.namespace},
    }
    space.rest.call("POST", f"{space.core}/pods/{name}/eviction", body)
