"""SIGKILL right after the sizing pod, the status write, the Deployment: the same end state each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.fault_proxy import OperatorUnderFault, Write
from tests.cluster.world import NODE_A, operator_away, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster.world import Tenant, World

CRASH_POINTS: dict[str, Callable[[Write], bool]] = {
    "never": lambda _: False,
    "after-sizing-pod": lambda w: w.resource == "pods" and w.verb in {"POST", "PATCH"},
    "after-status-with-number": lambda w: (
        w.resource == "inferenceservers"
        and w.subresource == "status"
        and bool(((w.body.get("status") or {}).get("capacity") or {}).get("maxTotalTokenNum"))
    ),
    "after-deployment": lambda w: w.resource == "deployments",
    "after-service": lambda w: w.resource == "services",
    "after-sizing-pod-deleted": lambda w: w.resource == "pods" and w.verb == "DELETE",
}


@pytest.fixture(scope="module")
def alone(world: World) -> Iterator[World]:
    """The installed operator makes room for the one under fault, and returns afterwards."""
    with operator_away(world):
        yield world


@pytest.fixture(scope="module")
def end_states() -> dict[str, Any]:
    """What earlier parameters ended in; all must be equal."""
    return {}


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_same_end_state(
    alone: World, tenant: Tenant, tmp_path: Path, end_states: dict[str, Any], point: str
) -> None:
    def here(write: Write) -> bool:
        return write.namespace == tenant.namespace and CRASH_POINTS[point](write)

    with OperatorUnderFault(alone.rest, tmp_path, here) as operator:
        tenant.apply(node=NODE_A)
        if point != "never":
            wait(operator.killed.is_set, 90, f"the operator dies {point}", lambda: _tail(tmp_path))
            operator.start()
        tenant.wait_ready(seconds=150)
        wait(lambda: not tenant.pods("plimsoll.dev/sizing-for=smollm2"), 60, "sizing pod removed")
        created = [
            w
            for w in operator.writes
            if w.resource == "pods"
            and w.verb in {"POST", "PATCH"}
            and w.namespace == tenant.namespace
        ]
        assert len(created) == 1, "the same question was measured twice"
        end_states[point] = _end_state(tenant)
    first = next(iter(end_states.values()))
    assert end_states[point] == first


def _tail(folder: Path) -> list[str]:
    return (folder / "operator.log").read_text(errors="replace").splitlines()[-30:]


def _end_state(tenant: Tenant) -> dict[str, Any]:
    """Everything that must not depend on where the crash was (namespaces, UIDs, times and addresses aside)."""
    deployment = tenant.deployment()
    assert deployment is not None
    service = tenant.world.rest.get(f"{tenant.core}/services/smollm2")
    status = tenant.server()["status"]
    capacity = {
        k: v
        for k, v in status["capacity"].items()
        if k not in {"measuredAt", "requestHash"}  # a time, and a hash over the owner's UID
    }
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    template = deployment["spec"]["template"]
    template["spec"].pop("nodeName", None)
    for container in template["spec"]["initContainers"]:
        container["env"] = [e for e in container["env"] if e["name"] != "PLIMSOLL_REQUEST_HASH"]
    template["metadata"].pop("annotations", None)
    ports = service["spec"]["ports"]
    return {
        "replicas": deployment["spec"]["replicas"],
        "template": template,
        "ports": [(p["port"], p["targetPort"]) for p in ports],
        "capacity": capacity,
        "conditions": conditions,
        "ready": status["ready"],
        "pods": len(tenant.pods()),
    }
