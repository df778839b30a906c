"""Rights in both modes: the table of tests/unit/manifests for the cluster, the same in each namespace, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.cases import EVERYTHING, MODES, NAMESPACED, merged
from tests.chart.rendering import NAMESPACE, Object, template
from tests.unit.manifests.test_install import RIGHTS, rights

NODES = {("", "nodes"): {"get", "list"}}
IN_NAMESPACES = {what: verbs for what, verbs in RIGHTS.items() if what not in NODES}
LEASES = {("coordination.k8s.io", "leases"): {"get", "update", "create"}}
READS = {"get", "list", "watch"}
USERS = {"plimsoll-view", "plimsoll-edit"}
EVERY_MODE = {
    **MODES,
    "without-nodes": {"rbac": {"nodes": False}},
    "namespaced-without-nodes": {**NAMESPACED, "rbac": {"nodes": False}},
}


def roles(values: dict[str, Any]) -> tuple[dict[str, Object], dict[str, Object]]:
    """The operator's own: ClusterRoles and Roles."""
    rendered = template(values)
    clusterwide = {n: r for n, r in rendered.all("ClusterRole").items() if n not in USERS}
    return clusterwide, rendered.all("Role")


def test_for_the_whole_cluster() -> None:
    clusterwide, namespaced = roles({})
    assert {name: rights(role) for name, role in clusterwide.items()} == {
        "plimsoll-operator": RIGHTS
    }
    assert {name: rights(role) for name, role in namespaced.items()} == {
        "plimsoll-operator": LEASES
    }


def test_for_the_whole_cluster_without_nodes() -> None:
    clusterwide, _ = roles({"rbac": {"nodes": False}})
    assert rights(clusterwide["plimsoll-operator"]) == IN_NAMESPACES


def test_for_some_namespaces_the_cluster_role_reads_nodes_only() -> None:
    clusterwide, namespaced = roles(NAMESPACED)
    assert {name: rights(role) for name, role in clusterwide.items()} == {
        f"plimsoll-nodes-{NAMESPACE}": NODES
    }
    assert {name: rights(role) for name, role in namespaced.items()} == {
        "plimsoll-operator": LEASES,
        "team-a/plimsoll-servers": IN_NAMESPACES,
        "team-b/plimsoll-servers": IN_NAMESPACES,
    }


def test_for_some_namespaces_without_any_cluster_role() -> None:
    values = {**NAMESPACED, "rbac": {"nodes": False, "aggregate": False}}
    rendered = template({**values, "crds": {"enabled": False}})
    assert {o["kind"] for o in rendered.objects if "namespace" not in o["metadata"]} == set()


def test_pods_of_all_namespaces_are_listed_only_where_asked_for() -> None:
    clusterwide, _ = roles({**NAMESPACED, "rbac": {"podsOfAllNamespaces": True}})
    assert rights(clusterwide[f"plimsoll-nodes-{NAMESPACE}"]) == {**NODES, ("", "pods"): {"list"}}


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_no_secret_no_wildcard_no_escalation(mode: str) -> None:
    rendered = template(EVERY_MODE[mode])
    for role in [*rendered.all("ClusterRole").values(), *rendered.all("Role").values()]:
        for (group, resource), verbs in rights(role).items():
            assert "*" not in {group, resource, *verbs}
            assert resource.partition("/")[0] != "secrets"
            assert not verbs & {"escalate", "bind", "impersonate"}
            assert group != "rbac.authorization.k8s.io"


@pytest.mark.parametrize("mode", [m for m in EVERY_MODE if m.startswith("namespaced")])
def test_in_some_namespaces_nothing_is_written_cluster_wide(mode: str) -> None:
    clusterwide, _ = roles(EVERY_MODE[mode])
    for role in clusterwide.values():
        assert set().union(*rights(role).values()) <= READS


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_each_role_is_bound_to_the_operator_alone(mode: str) -> None:
    rendered = template(merged(EVERY_MODE[mode], {"serviceAccount": {"name": "mine"}}))
    account = {"kind": "ServiceAccount", "name": "mine", "namespace": NAMESPACE}
    bound = set()
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in rendered.all(kind).values():
            assert binding["subjects"] == [account]
            namespace = binding["metadata"].get("namespace")
            bound.add((binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]))
    wanted = {
        (role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"])
        for role in [*rendered.all("ClusterRole").values(), *rendered.all("Role").values()]
        if role["metadata"]["name"] not in USERS
    }
    assert bound == wanted
    assert rendered.one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert rendered.one("ServiceAccount")["metadata"]["name"] == "mine"


def test_users_get_no_right_to_write_status() -> None:
    for values in ({}, EVERYTHING, NAMESPACED):
        found = template(values).all("ClusterRole")
        assert rights(found["plimsoll-view"]).keys() >= {("plimsoll.dev", "inferenceservers")}
        assert set().union(*rights(found["plimsoll-view"]).values()) <= READS
        assert ("plimsoll.dev", "inferenceservers/status") not in rights(found["plimsoll-edit"])
    assert not USERS & template({"rbac": {"aggregate": False}}).all("ClusterRole").keys()
