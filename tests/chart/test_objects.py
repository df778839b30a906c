"""What the chart renders: availability, images, hardening, policies, monitoring, notes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from plimsoll.controller.cluster import MANAGED_SELECTOR
from plimsoll.controller.runtime import LEASE_NAME
from plimsoll.controller.settings import Settings
from tests.chart.cases import ALLOWED, DIGEST, EGRESS, EVERYTHING, MODES, NAMESPACED, merged
from tests.chart.rendering import (
    CHART,
    NAMESPACE,
    PROGRAMS,
    HelmRefusedError,
    Object,
    helm,
    template,
)
from tests.render_manifests import MANIFESTS, render

SELECTOR = {"app.kubernetes.io/name": "plimsoll", "app.kubernetes.io/component": "operator"}
ONE_BY_ONE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
BUDGET = {
    "maxUnavailable": 1,
    "unhealthyPodEvictionPolicy": "AlwaysAllow",
    "selector": {"matchLabels": SELECTOR},
}


def pod(values: dict[str, Any] | None = None) -> Object:
    spec: Object = template(values).one("Deployment")["spec"]["template"]["spec"]
    return spec


def env(values: dict[str, Any] | None = None) -> dict[str, str]:
    (container,) = pod(values)["containers"]
    return {e["name"]: e.get("value", "") for e in container["env"]}


def images(text: str) -> set[str]:
    """Everything in a rendering that reads like an image."""
    return set(re.findall(r"[\w.:-]+(?:/[\w.-]+)+[:@][\w.:@-]+", text))


# Availability: one table for what follows from the number of replicas.


@pytest.mark.parametrize(
    ("replicas", "strategy", "budget"),
    [
        (0, {"type": "Recreate"}, None),
        (1, {"type": "Recreate"}, None),
        (2, ONE_BY_ONE, BUDGET),
        (5, ONE_BY_ONE, BUDGET),
    ],
)
def test_strategy_and_budget_follow_from_replicas(
    replicas: int, strategy: Object, budget: Object | None
) -> None:
    rendered = template({"replicas": replicas})
    spec = rendered.one("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (replicas, strategy)
    budgets = [found["spec"] for found in rendered.all("PodDisruptionBudget").values()]
    assert budgets == ([budget] if budget else [])
    spread = spec["template"]["spec"].get("topologySpreadConstraints", [])
    assert [(s["whenUnsatisfiable"], s["labelSelector"]) for s in spread] == [
        ("ScheduleAnyway", {"matchLabels": SELECTOR})
    ] * (2 if budget else 0)


@pytest.mark.parametrize("replicas", range(10))
def test_no_number_of_replicas_can_block_an_update_or_a_drain(replicas: int) -> None:
    """Without room for one more pod an old one may go; with all pods ready one may be evicted."""
    rendered = template({"replicas": replicas})
    strategy = rendered.one("Deployment")["spec"]["strategy"]
    if strategy["type"] == "RollingUpdate":
        assert strategy["rollingUpdate"]["maxUnavailable"] >= 1
        assert replicas - strategy["rollingUpdate"]["maxUnavailable"] >= 1, "one stays"
    for budget in rendered.all("PodDisruptionBudget").values():
        assert 1 <= budget["spec"]["maxUnavailable"] < replicas


def test_no_value_sets_what_follows() -> None:
    names = set(re.findall(r"(?m)^ *([A-Za-z]+):", (CHART / "values.yaml").read_text()))
    assert not names & {"strategy", "podDisruptionBudget", "maxUnavailable", "leaderElection"}


# The pod.


@pytest.mark.parametrize("mode", MODES)
def test_the_pod_passes_pod_security_restricted(mode: str) -> None:
    spec = pod(MODES[mode])
    (container,) = spec["containers"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [set(volume) - {"name"} for volume in spec["volumes"]] == [{"emptyDir"}]
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    assert not any("hostPort" in port for port in container["ports"])


def test_the_platform_may_choose_the_user() -> None:
    assert pod({"runAsUser": None})["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize("mode", MODES)
def test_the_operator_reads_what_it_is_given(mode: str) -> None:
    given = env(MODES[mode])
    settings = Settings.from_env({**given, "POD_NAMESPACE": NAMESPACE})
    assert settings == Settings.from_env(
        {
            "PLIMSOLL_SIZER_IMAGE": given["PLIMSOLL_SIZER_IMAGE"],
            "PLIMSOLL_NAMESPACES": ",".join(MODES[mode].get("watch", {}).get("namespaces", [])),
            "POD_NAMESPACE": NAMESPACE,
        }
    )


def test_settings_reach_the_operator() -> None:
    values = {"logLevel": "WARNING", "logFormat": "text", "learn": False, "resyncSeconds": 1000000}
    given = env({"settings": values, "image": {"pullPolicy": "Always"}, **NAMESPACED})
    settings = Settings.from_env(given)
    assert (settings.log_level, settings.log_format, settings.learn) == (30, "text", False)
    assert (settings.resync_seconds, settings.sizer_pull_policy) == (1000000, "Always")
    assert settings.namespaces == ("team-a", "team-b")


def test_a_digest_is_insisted_on() -> None:
    values = {"image": {"operator": {"digest": DIGEST}, "sizer": {"digest": DIGEST, "tag": "1"}}}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    (container,) = pod(values)["containers"]
    assert container["image"] == f"ghcr.io/plimsoll-dev/operator:{version}@{DIGEST}"
    assert env(values)["PLIMSOLL_SIZER_IMAGE"] == f"ghcr.io/plimsoll-dev/sizer:1@{DIGEST}"


@pytest.mark.parametrize("mode", MODES)
def test_no_image_is_from_elsewhere_than_the_registry(mode: str) -> None:
    registry = "registry.internal:5000/mirror"
    values = merged(MODES[mode], {"image": {"registry": registry}, "crds": {"enabled": False}})
    found = {text for text in images(template(values).text) if "plimsoll-dev" in text}
    assert {text.rpartition(":")[0] for text in found} == {
        f"{registry}/plimsoll-dev/operator",
        f"{registry}/plimsoll-dev/sizer",
    }
    without = merged(values, {"admission": {"engineImages": {"enabled": False}}})
    assert "ghcr.io" not in template(without).text


def test_the_lease_has_its_fixed_name_in_the_releases_namespace() -> None:
    for mode in MODES.values():
        role = template(mode).all("Role")["plimsoll-operator"]
        assert [rule.get("resourceNames") for rule in role["rules"]] == [[LEASE_NAME], None]
        assert role["metadata"]["namespace"] == NAMESPACE


# Names and labels.


@pytest.mark.parametrize("mode", MODES)
def test_every_object_is_labelled_and_selectors_find_the_pod(mode: str) -> None:
    rendered = template(MODES[mode])
    labels = rendered.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert SELECTOR.items() <= labels.items()
    for obj in rendered.objects:
        given = obj["metadata"]["labels"]
        assert given["app.kubernetes.io/name"] == "plimsoll", obj["metadata"]["name"]
        assert given["app.kubernetes.io/part-of"] == "plimsoll"
        assert given.get("team") == MODES[mode].get("commonLabels", {}).get("team")
        # The operator takes what is managed by plimsoll for its own children.
        assert "app.kubernetes.io/managed-by" not in given
    assert rendered.one("Deployment")["spec"]["selector"]["matchLabels"] == SELECTOR
    assert rendered.one("Service")["spec"]["selector"] == SELECTOR
    assert rendered.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == SELECTOR


def test_two_releases_for_namespaces_share_no_name_in_the_cluster() -> None:
    """Beside what the second leaves to the first."""
    mode = merged(MODES["namespaced-everything"], {"crds": {"enabled": False}})
    rendered = template(merged(mode, {"rbac": {"aggregate": False}}))
    clusterwide = [o for o in rendered.objects if "namespace" not in o["metadata"]]
    assert len(clusterwide) == 6
    assert all(o["metadata"]["name"].endswith(f"-{NAMESPACE}") for o in clusterwide)


# The definition.


def test_the_definition_is_kept_unless_it_is_not_to_be() -> None:
    kept = template().one("CustomResourceDefinition")["metadata"]
    assert kept["annotations"] == {"helm.sh/resource-policy": "keep"}
    loose = template({"crds": {"keep": False}}).one("CustomResourceDefinition")["metadata"]
    assert "annotations" not in loose
    assert not template({"crds": {"enabled": False}}).all("CustomResourceDefinition")


def test_the_definition_is_the_charts_file() -> None:
    source = yaml.safe_load((CHART / "crd.yaml").read_text())
    rendered = template(EVERYTHING).one("CustomResourceDefinition")
    assert rendered["spec"] == source["spec"]
    assert rendered["metadata"]["labels"] == {**source["metadata"]["labels"], "team": "serving"}
    assert not (CHART / "crds").exists(), "Helm never upgrades what is in crds/"


def test_manifests_are_what_the_chart_renders() -> None:
    for name, text in render().items():
        assert (MANIFESTS / name).read_text() == text, f"manifests/{name}: run make manifests"


# Network, policies, monitoring.


def test_egress_reaches_the_api_server_and_engines_only() -> None:
    spec = template(EGRESS).one("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    api, engines = spec["egress"]
    assert [peer["ipBlock"]["cidr"] for peer in api["to"]] == ["0.0.0.0/0", "::/0"]
    assert [port["port"] for port in api["ports"]] == [443, 6443]
    (peer,) = engines["to"]
    key, _, value = MANAGED_SELECTOR.partition("=")
    assert peer == {"namespaceSelector": {}, "podSelector": {"matchLabels": {key: value}}}
    (_, engines) = template(merged(EGRESS, NAMESPACED)).one("NetworkPolicy")["spec"]["egress"]
    (expression,) = engines["to"][0]["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["team-a", "team-b"]


def test_nobody_scrapes_where_nobody_may() -> None:
    spec = template({"networkPolicy": {"ingress": {"from": []}}}).one("NetworkPolicy")["spec"]
    assert (spec["policyTypes"], spec["ingress"]) == (["Ingress"], [])


def test_policies_hold_where_the_release_does() -> None:
    for values, selector in ((EVERYTHING, None), (MODES["namespaced-everything"], "team-a")):
        rendered = template(values)
        bindings = rendered.all("ValidatingAdmissionPolicyBinding")
        assert bindings.keys() == rendered.all("ValidatingAdmissionPolicy").keys()
        assert len(bindings) == 2
        for name, binding in bindings.items():
            assert binding["spec"]["policyName"] == name
            assert binding["spec"]["validationActions"] == ["Deny"]
            assert ("matchResources" in binding["spec"]) is (selector is not None)
            assert selector is None or selector in json.dumps(binding["spec"]["matchResources"])


def test_the_status_is_the_operators_own() -> None:
    values = {
        "serviceAccount": {"name": "mine"},
        "admission": {"statusWriters": {"enabled": True, "extraUsers": ["velero"]}},
    }
    policy = template(values).one("ValidatingAdmissionPolicy")["spec"]
    (validation,) = policy["validations"]
    wanted = f'["system:serviceaccount:{NAMESPACE}:mine","velero"]'
    assert validation["expression"] == f"request.userInfo.username in {wanted}"
    assert policy["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("kind", "value", "endpoints", "port"),
    [
        ("ServiceMonitor", "serviceMonitor", "endpoints", "metrics"),
        ("PodMonitor", "podMonitor", "podMetricsEndpoints", "health"),
    ],
)
def test_monitors_name_a_port_that_is_there(
    kind: str, value: str, endpoints: str, port: str
) -> None:
    labels = {"release": "prometheus", "team": "mine"}
    given = {value: {"enabled": True, "labels": labels}}
    values = {"monitoring": given, "commonLabels": {"team": "serving"}}
    rendered = template(values)
    monitor = rendered.one(kind)
    assert monitor["metadata"]["labels"].items() >= labels.items()
    (endpoint,) = monitor["spec"][endpoints]
    assert endpoint == {
        "port": port,
        "path": "/metrics",
        "interval": "30s",
        "honorLabels": True,
    }
    assert monitor["spec"]["selector"]["matchLabels"] == SELECTOR
    (container,) = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"]
    ports = [*rendered.one("Service")["spec"]["ports"], *container["ports"]]
    assert port in {p["name"] for p in ports}


def test_rules_and_dashboards_arrive_as_they_are_tested() -> None:
    rendered = template(EVERYTHING)
    files = CHART / "files"
    rule = rendered.one("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((files / "rules.yaml").read_text())
    boards = {path.name: path.read_text() for path in (files / "dashboards").glob("*.json")}
    assert boards
    maps = rendered.all("ConfigMap").values()
    found = {name: text for one in maps for name, text in one["data"].items()}
    assert {name: json.loads(text) for name, text in found.items()} == {
        name: json.loads(text) for name, text in boards.items()
    }
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in maps)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_older_kubernetes_is_refused(program: str) -> None:
    old = ("template", "p", CHART, "--kube-version")
    with pytest.raises(HelmRefusedError, match=r"requires kubeVersion: >=1\.30\.0-0"):
        helm(program, *old, "1.29.9")
    assert "kind: Deployment" in helm(program, *old, "v1.30.2-eks-1234567")


# Notes.


def notes(values: dict[str, Any]) -> str:
    """What Helm prints after an install."""
    given = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    install = ("install", "p", CHART, "-n", NAMESPACE, "--dry-run=client")
    return helm("helm4", *install, *given).partition("NOTES:\n")[2]


@pytest.mark.parametrize(
    ("values", "says", "says_not"),
    [
        ({}, ["all namespaces", "nobody was told to scrape", "keeps every InferenceServer"],
         ["rbac.nodes is off", "replicas is 0", "manifests/crd.yaml"]),
        (NAMESPACED, ["InferenceServers of team-a, team-b", "kubectl -n team-a apply -f -", "Rollouts do not"], []),
        ({"rbac": {"nodes": False}}, ["numbers are pinned to a host"], ["Rollouts do not know"]),
        ({"crds": {"enabled": False, "keep": False}},
         ["kubectl apply --server-side -f manifests/crd.yaml", "keeps every InferenceServer"], []),
        ({"crds": {"keep": False}}, ["Uninstalling deletes every InferenceServer"], ["keeps every"]),
        ({"monitoring": {"podMonitor": {"enabled": True}}}, ["your Prometheus> metrics=enabled"], ["nobody was told"]),
        ({"monitoring": {"podMonitor": {"enabled": True}}, "networkPolicy": {"enabled": False}},
         [], ["metrics=enabled", "nobody was told"]),
        ({"replicas": 0}, ["replicas is 0"], []),
        (ALLOWED, ["Watch it"], []),
    ],
)  # fmt: skip
def test_notes_say_what_to_do_next(
    values: dict[str, Any], says: list[str], says_not: list[str]
) -> None:
    text = notes(values)
    assert "kubectl -n plimsoll-system rollout status deployment/plimsoll-operator" in text
    assert [words for words in says if words not in text] == []
    assert [words for words in says_not if words in text] == []


def test_the_sample_in_the_notes_is_a_server() -> None:
    text = notes({})
    sample = text.partition("<<EOF\n")[2].partition("\nEOF\n")[0]
    server = yaml.safe_load(sample)
    assert (server["kind"], server["spec"]["engine"]["type"]) == ("InferenceServer", "LightLLM")
