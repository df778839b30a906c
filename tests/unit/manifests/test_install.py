"""install.yaml, as the chart renders it: the same as its parts, with the least rights and a hardened pod."""

from __future__ import annotations

import tomllib
from typing import Any

import yaml

from plimsoll.controller.objects.learned_map import LEARNED_MAP
from plimsoll.controller.settings import Settings
from tests.unit.manifests.samples import MANIFESTS, crd

OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((MANIFESTS / "operator.yaml").read_text()))
VERSION = tomllib.loads((MANIFESTS.parent / "pyproject.toml").read_text())["project"]["version"]
# What each right is for; a right that is not in this table is one too many.
RIGHTS = {
    ("plimsoll.dev", "inferenceservers"): {"get", "list", "watch"},
    ("plimsoll.dev", "inferenceservers/status"): {"patch"},
    ("plimsoll.dev", "inferenceservers/finalizers"): {"update"},
    ("apps", "deployments"): {"get", "list", "watch", "create", "patch"},
    ("", "services"): {"get", "list", "watch", "create", "patch"},
    ("", "pods"): {"get", "list", "watch", "create", "delete"},
    ("", "pods/log"): {"get"},
    ("", "nodes"): {"get", "list"},
    ("apps", "replicasets"): {"list"},
    ("", "events"): {"create", "patch", "list"},
    ("", "configmaps"): {"get", "patch", "create"},
}


def of(kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in OBJECTS if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def rights(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_install_yaml_is_made_of_its_parts() -> None:
    parts = [(MANIFESTS / name).read_text() for name in ("crd.yaml", "operator.yaml")]
    made = "---\n".join(parts)
    assert (MANIFESTS / "install.yaml").read_text() == made, "render it again: make manifests"
    first, *rest = yaml.safe_load_all(made)
    assert (first, rest) == (crd(), OBJECTS)


def test_kustomization_names_the_parts() -> None:
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["crd.yaml", "operator.yaml"]


def test_the_operator_has_the_rights_it_needs_and_no_other() -> None:
    assert rights(of("ClusterRole", "plimsoll-operator")) == RIGHTS


def test_of_config_maps_only_the_learned_reserves_are_read_or_changed() -> None:
    rules = [
        r for r in of("ClusterRole", "plimsoll-operator")["rules"] if "configmaps" in r["resources"]
    ]
    named = {verb for rule in rules if "resourceNames" in rule for verb in rule["verbs"]}
    names = {name for rule in rules for name in rule.get("resourceNames", ())}
    unnamed = [verb for rule in rules if "resourceNames" not in rule for verb in rule["verbs"]]
    assert (named, names, unnamed) == ({"get", "patch"}, {LEARNED_MAP}, ["create"])


def test_leases_are_the_only_right_in_the_own_namespace() -> None:
    role = of("Role", "plimsoll-operator")
    assert rights(role) == {("coordination.k8s.io", "leases"): {"get", "update", "create"}}
    unnamed = [
        verb for rule in role["rules"] if "resourceNames" not in rule for verb in rule["verbs"]
    ]
    assert unnamed == ["create"]


def test_no_secret_no_wildcard_no_escalation_in_any_role() -> None:
    roles = [o for o in OBJECTS if o["kind"] in {"Role", "ClusterRole"}]
    assert len(roles) == 4
    for role in roles:
        for (group, resource), verbs in rights(role).items():
            assert "*" not in {group, resource, *verbs}
            assert resource.partition("/")[0] != "secrets"
            assert not verbs & {"escalate", "bind", "impersonate"}
            assert group != "rbac.authorization.k8s.io"


def test_nobody_but_the_operator_may_write_status() -> None:
    edit = rights(of("ClusterRole", "plimsoll-edit"))
    assert ("plimsoll.dev", "inferenceservers/status") not in edit
    assert edit["plimsoll.dev", "inferenceservers"] == {
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    }
    view = rights(of("ClusterRole", "plimsoll-view"))
    assert set.union(*view.values()) == {"get", "list", "watch"}


def test_roles_are_bound_to_the_operator_alone() -> None:
    bindings = [o for o in OBJECTS if o["kind"] in {"RoleBinding", "ClusterRoleBinding"}]
    account = {
        "kind": "ServiceAccount",
        "name": "plimsoll-operator",
        "namespace": "plimsoll-system",
    }
    assert len(bindings) == 2
    for binding in bindings:
        assert (binding["subjects"], binding["roleRef"]["name"]) == ([account], "plimsoll-operator")


def test_the_pod_is_hardened() -> None:
    deployment = of("Deployment", "plimsoll-operator")["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"]["memory"] == "128Mi"
    assert container["resources"]["limits"]["memory"] == "384Mi"
    assert of("ServiceAccount", "plimsoll-operator")["automountServiceAccountToken"] is False
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}


def test_images_carry_the_version_and_are_pulled_if_absent() -> None:
    (container,) = of("Deployment", "plimsoll-operator")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"ghcr.io/plimsoll-dev/operator:{VERSION}"
    assert container["imagePullPolicy"] == "IfNotPresent"


def test_the_environment_is_what_the_settings_read() -> None:
    (container,) = of("Deployment", "plimsoll-operator")["spec"]["template"]["spec"]["containers"]
    given = {
        e["name"]: e.get("value") or e["valueFrom"]["fieldRef"]["fieldPath"]
        for e in container["env"]
    }
    settings = Settings.from_env({**given, "POD_NAMESPACE": "plimsoll-system"})
    assert settings.learn
    assert settings.sizer_image == f"ghcr.io/plimsoll-dev/sizer:{VERSION}"
    assert (given["POD_NAME"], given["POD_NAMESPACE"]) == ("metadata.name", "metadata.namespace")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.health_port == ports["health"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


def test_selectors_find_the_pod() -> None:
    labels = of("Deployment", "plimsoll-operator")["spec"]["template"]["metadata"]["labels"]
    assert (
        of("Deployment", "plimsoll-operator")["spec"]["selector"]["matchLabels"].items()
        <= labels.items()
    )
    assert of("Service", "plimsoll-operator-metrics")["spec"]["selector"].items() <= labels.items()


def test_namespace_enforces_restricted_and_nothing_reaches_it_uninvited() -> None:
    namespace = of("Namespace", "plimsoll-system")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    policy = of("NetworkPolicy", "plimsoll-operator")["spec"]
    labels = of("Deployment", "plimsoll-operator")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert rule["from"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
