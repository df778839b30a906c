"""What the operator asked of the API server in the whole session, from the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cluster.world import NODE_A

if TYPE_CHECKING:
    from tests.cluster.world import Tenant

OPERATOR = "system:serviceaccount:plimsoll-system:plimsoll-operator"
KINDS = {
    "inferenceservers",
    "deployments",
    "replicasets",
    "services",
    "pods",
    "nodes",
    "events",
    "leases",
    "configmaps",
}


def user_of(event: dict[str, Any]) -> str:
    """The user's name; "" for a request that was refused before anyone was known (401)."""
    name: str = event["user"].get("username", "")
    return name


def test_the_operator_reads_no_secret_and_writes_no_more_than_it_must(tenant: Tenant) -> None:
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    server = tenant.server()
    assert "finalizers" not in server["metadata"]
    assert not [a for a in server["metadata"].get("annotations", {}) if "kopf" in a]
    refs = [
        (event["objectRef"], event["verb"])
        for event in tenant.world.cluster.audit_events()
        if user_of(event) == OPERATOR and "objectRef" in event
        if event["objectRef"].get("resource")
    ]
    asked = {(ref["resource"], verb) for ref, verb in refs}
    assert {resource for resource, _ in asked} <= KINDS
    assert {verb for resource, verb in asked if resource == "nodes"} <= {"get", "list"}
    # One map by name, and no other of the namespace.
    maps = {(ref.get("name"), verb) for ref, verb in refs if ref["resource"] == "configmaps"}
    assert maps <= {("plimsoll-learned", "get"), ("plimsoll-learned", "patch")}
    assert {v for r, v in asked if r == "inferenceservers"} <= {"get", "list", "watch", "patch"}


def test_pods_hold_no_credentials_and_ask_nothing(tenant: Tenant) -> None:
    """No request of any pod's service account in this namespace reached the API server."""
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    prefix = f"system:serviceaccount:{tenant.namespace}:"
    users = {user_of(event) for event in tenant.world.cluster.audit_events()}
    assert OPERATOR in users
    assert not [user for user in users if user.startswith(prefix)]
