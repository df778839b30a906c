"""Helm 4 and 3 on real nodes: install, upgrade from the first chart, rollback, uninstall, beside running servers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.cluster.chart import newcomer
from tests.cluster.chart.helm import HelmError
from tests.cluster.chart.story import CHART, RELEASE, SPACE, answers, running, touch
from tests.cluster.world import GGUF, NODE_A, NODE_B, Tenant, wait
from tests.demo import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster.chart.first import FirstRelease
    from tests.cluster.chart.story import Release, Steps
    from tests.cluster.world import World

# Both with `make chart-cluster`; the other one installs, serves and uninstalls in every run (below).
HELMS = ("helm4", "helm3") if os.environ.get("PLIMSOLL_CHART_ALL") == "1" else ("helm4",)
# Without any right outside of the namespace; and with all that there is to read.
ROLES_ONLY = {"rbac.nodes": "false"}
READERS = {"rbac.nodes": "true", "rbac.podsOfAllNamespaces": "true"}
WATCHED = [ROLES_ONLY, READERS] if len(HELMS) > 1 else [ROLES_ONLY]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferenceservers.plimsoll.dev"
REFUSAL = (
    f"release plimsoll in namespace {SPACE} already runs the servers of all namespaces; two operators would undo "
    "each other's work. Upgrade that release, or give it watch.namespaces first."
)
OPERATOR_USER = f"system:serviceaccount:{SPACE}:"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("program", HELMS)
def test_a_release_comes_and_goes_and_servers_stay(
    program: str,
    release: Callable[[str], Release],
    first: FirstRelease,
    tenant: Tenant,
    steps: Steps,
) -> None:
    """First chart, upgrade, rollback, uninstall, install: no server pod restarts, no template changes."""
    plimsoll = release(program)
    for archive in first.images.values():
        tenant.world.cluster.load_image(archive)
    with steps("install the first chart"):
        plimsoll.install_first(first)
    assert plimsoll.image().endswith(":first")
    with steps("two servers Ready"):
        tenant.apply(node=NODE_A, replicas=2)
        tenant.apply("in-pod", node=NODE_B, file=GGUF, sizing={"mode": "InPod"})
        tenant.wait_ready()
        tenant.wait_ready("in-pod")
    before = running(tenant)
    assert len(before["pods"]) == 3
    assert len(before["hashes"]) == 2

    def unchanged(after: str) -> None:
        assert running(tenant) == before, after
        assert answers(tenant, "smollm2"), after

    with steps("upgrade"):
        plimsoll.upgrade()
    assert plimsoll.image().endswith(":0.1.0")
    touch(tenant, "smollm2", "in-pod")
    unchanged("upgrade")
    with steps("rollback"):
        plimsoll.rollback(1)
    assert plimsoll.image().endswith(":first")
    touch(tenant, "smollm2", "in-pod")
    unchanged("rollback")
    with steps("uninstall"):
        plimsoll.uninstall()
    unchanged("uninstall")
    assert tenant.world.rest.get(CRD), "the CRD stays, and with it every server"
    with steps("install again"):
        plimsoll.install()
    touch(tenant, "smollm2", "in-pod")
    unchanged("install again")
    tenant.apply(node=NODE_A, replicas=1)
    wait(lambda: len(running(tenant)["pods"]) == 2, 60, "the adopted server is scaled")


def test_helm_3_installs_serves_and_leaves_the_server(
    release: Callable[[str], Release], tenant: Tenant, steps: Steps
) -> None:
    plimsoll = release("helm3")
    with steps("install"):
        plimsoll.install()
    with steps("a server Ready"):
        tenant.apply(node=NODE_A)
        tenant.wait_ready()
    before = running(tenant)
    with steps("uninstall"):
        plimsoll.uninstall()
    assert running(tenant) == before
    assert answers(tenant, "smollm2")


def test_a_second_release_is_refused(
    release: Callable[[str], Release], tenant: Tenant, steps: Steps
) -> None:
    plimsoll = release("helm4")
    plimsoll.install()
    with steps("refusal"), pytest.raises(HelmError) as refused:
        plimsoll.helm("install", "second", CHART, namespace=tenant.namespace)
    assert REFUSAL in str(refused.value)
    assert [found["name"] for found in plimsoll.helm.releases()] == [RELEASE]


@pytest.mark.parametrize("values", WATCHED)
def test_watched_namespaces_only(
    values: dict[str, str],
    release: Callable[[str], Release],
    tenant: Tenant,
    other: Tenant,
    steps: Steps,
) -> None:
    """With Roles, a server in a watched namespace serves, and one in another is not looked at."""
    audit = tenant.world.cluster.audit_log
    begin = audit.stat().st_size
    plimsoll = release("helm4")
    with steps("install"):
        plimsoll.install(values={"watch.namespaces[0]": tenant.namespace} | values)
    other.apply(node=NODE_A)
    with steps("a server Ready"):
        tenant.apply(node=NODE_A)
        tenant.wait_ready()
    assert not other.server().get("status")
    assert other.deployment() is None
    rights = {"nodes: get list", "pods: list"} if values["rbac.nodes"] == "true" else set()
    assert cluster_rights(tenant) == rights
    with audit.open() as file:
        file.seek(begin)
        events = [json.loads(line) for line in file]
    own = [e for e in events if e["user"].get("username", "").startswith(OPERATOR_USER)]
    refused = [urlsplit(e["requestURI"]).path for e in own if e["responseStatus"]["code"] == 403]
    # The list for the picture of the whole cluster, and the node of the sizing pod: each once in five minutes.
    assert sorted(refused) == ([] if rights else ["/api/v1/nodes", f"/api/v1/nodes/{NODE_A}"])
    log = tenant.world.cluster.kubectl("-n", SPACE, "logs", "deployment/plimsoll-operator").stdout
    assert log.count("forbidden") == len(refused)


def test_two_operators_take_turns(
    release: Callable[[str], Release], tenant: Tenant, steps: Steps
) -> None:
    """With two replicas an update ends, an eviction of the leader is allowed, and the other one goes on."""
    plimsoll = release("helm4")
    two = {"replicas": "2"}
    with steps("install"):
        plimsoll.install(values=two)
    with steps("update"):
        plimsoll.upgrade(values=two | {"podAnnotations.example\\.com/update": "one"})
    with steps("a server Ready"):
        tenant.apply(node=NODE_A)
        tenant.wait_ready()
    leader = leads(tenant)
    rest, pod = tenant.world.rest, f"/api/v1/namespaces/{SPACE}/pods/{leader}"
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": leader, "namespace": SPACE},
    }
    rest.call("POST", f"{pod}/eviction", eviction)
    with steps("another leads"):
        wait(lambda: leads(tenant) not in {"", leader}, 60, "another leader")
    with steps("scaled by it"):
        tenant.apply(node=NODE_A, replicas=2)
        tenant.wait_ready()


def leads(tenant: Tenant) -> str:
    """The pod that holds the Lease, or nothing."""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/plimsoll-operator"
    found = tenant.world.rest.get(lease) or {"spec": {}}
    return str(found["spec"].get("holderIdentity") or "").split("_")[0]


@pytest.mark.usefixtures("default")
def test_a_newcomer_needs_five_commands(
    release: Callable[[str], Release], tmp_path: Path, steps: Steps
) -> None:
    plimsoll = release("helm4")  # and uninstalls what the script installs
    assert len(newcomer.commands(newcomer.SCRIPT.read_text())) <= 5
    with steps("docs/newcomer.sh"):
        answer, seconds = newcomer.run(plimsoll.helm, tmp_path)
    steps.seconds.update(seconds)
    assert "Paris" in answer["content"]


def cluster_rights(tenant: Tenant) -> set[str]:
    """What the operator may do in every namespace, and with what is in none."""
    api = "/apis/rbac.authorization.k8s.io/v1"
    bindings = tenant.world.rest.items(f"{api}/clusterrolebindings")
    names = [
        binding["roleRef"]["name"]
        for binding in bindings
        if any(subject.get("namespace") == SPACE for subject in binding.get("subjects", []))
    ]
    roles = [tenant.world.rest.get(f"{api}/clusterroles/{name}") for name in names]
    return {
        f"{resource}: {' '.join(rule['verbs'])}"
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
    }


@pytest.fixture
def other(tenant: Tenant) -> Iterator[Tenant]:
    """A second namespace with its own claim."""
    second = Tenant(tenant.world, f"{tenant.namespace}-not")
    second.create()
    yield second
    second.delete()


@pytest.fixture
def default(cleared: World) -> Iterator[World]:
    """The namespace `default` with a volume for the sample's claim, and without all that afterwards."""
    install.provide_models(cleared.cluster, cleared.models, "default")
    yield cleared
    kubectl = cleared.cluster.kubectl
    kubectl("delete", "--ignore-not-found", "isrv/smollm2", "--timeout=60s")
    kubectl("delete", "pods", "-l", "plimsoll.dev/server=smollm2", "--grace-period=1")
    kubectl("delete", "--ignore-not-found", "pvc/models", "pv/default-models", "--timeout=60s")
