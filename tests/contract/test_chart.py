"""The chart on a real API server: schemas, policies, releases that refuse each other, an operator with Roles only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.chart.cases import ALLOWED, MODES, NAMESPACED, merged
from tests.chart.rendering import CHART, PROGRAMS, ROOT, template
from tests.cluster.chart.helm import Helm, HelmError
from tests.cluster_kit import Cluster, network
from tests.cluster_kit.gotools import go_tool
from tests.contract import kubeconform
from tests.unit.manifests.samples import MANIFESTS, minimal, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.contract

# Releases are things of a whole cluster, and other tests install the operator into theirs.
NAME = f"{os.environ.get('PLIMSOLL_TEST_PREFIX', 't')}-chart"
OURS = "plimsoll-system"
ISRV = "inferenceservers.plimsoll.dev"
# No API server knows them by itself.
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
FORGERY = '{"status":{"capacity":{"maxTotalTokenNum":1}}}'
GUARDED = "the status of an InferenceServer is written by the Plimsoll operator alone"
POLICIES = merged(ALLOWED, {"admission": {"statusWriters": {"enabled": True}}})
SECONDS = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane of this module's own."""
    cluster = Cluster(NAME)
    cluster.up(wait=True)
    for namespace in ("team-a", "team-b", "team-c"):
        cluster.kubectl("create", "namespace", namespace)
    yield cluster
    if os.environ.get("PLIMSOLL_KEEP") != "1":
        cluster.down(wait=True)


@pytest.fixture
def helm(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Helm]:
    """Helm 4, or the one that a test names; every release is uninstalled afterwards, and the definition is gone."""
    found = Helm(cluster, go_tool(getattr(request, "param", "helm4")), tmp_path)
    yield found
    for release in found.releases():
        found("uninstall", release["name"], "--wait", namespace=release["namespace"])
    cluster.kubectl("delete", "crd", ISRV, "--ignore-not-found")


def install(helm: Helm, name: str, namespace: str, values: dict[str, Any]) -> str:
    given = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    return helm("install", name, CHART, "--create-namespace", *given, namespace=namespace)


def refusal(helm: Helm, name: str, namespace: str, values: dict[str, Any]) -> str:
    with pytest.raises(HelmError) as refused:
        install(helm, name, namespace, values)
    return str(refused.value)


def server(name: str = "llama-8b", image: str = "ghcr.io/modeltc/lightllm:v1.2.0") -> str:
    wanted = put(minimal(), "spec.engine.image", image)
    wanted["metadata"] = {"name": name}
    return json.dumps(wanted)


# What is rendered.


@pytest.fixture(scope="module")
def schemas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    status, openapi = cluster.get("/openapi/v2")
    assert status == 200
    assert kubeconform.write_schemas(openapi, folder) > 100
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_kubeconform_finds_nothing(mode: str, schemas: Path) -> None:
    rendered = template(MODES[mode])
    foreign = sum(obj["kind"] in FOREIGN for obj in rendered.objects)
    assert kubeconform.check(rendered.text, schemas, FOREIGN) == (
        len(rendered.objects) - foreign,
        [],
    )


def test_kubeconform_finds_nothing_in_the_manifests(schemas: Path) -> None:
    assert kubeconform.check((MANIFESTS / "install.yaml").read_text(), schemas) == (12, [])


def test_kubeconform_would_find_something(schemas: Path) -> None:
    broken = template().text.replace("revisionHistoryLimit", "revisionHistory")
    valid, wrong = kubeconform.check(broken, schemas)
    assert (valid, len(wrong)) == (10, 1)
    assert "additional properties 'revisionHistory' not allowed" in wrong[0]


# Policies.


def test_policies_refuse_in_words_and_spare_what_was_there_before(
    helm: Helm, cluster: Cluster
) -> None:
    image = "docker.io/other/engine:1"
    install(helm, "plimsoll", OURS, {})
    cluster.kubectl("wait", f"crd/{ISRV}", "--for=condition=Established", "--timeout=30s")
    cluster.kubectl("apply", "-n", "team-a", "-f", "-", input=server(image=image))
    given = [f"--set-json={key}={json.dumps(value)}" for key, value in POLICIES.items()]
    helm("upgrade", "plimsoll", CHART, *given)
    assert GUARDED in eventually(cluster, *forge("team-a"))
    other = server("another", image)
    assert (
        "spec.engine.image: docker.io/other/engine:1 is not from an allowed registry"
        in eventually(cluster, "create", "-n", "team-a", "--dry-run=server", "-f", "-", given=other)
    )
    # What was there before may still be changed, scaled and deleted; not given another such image.
    cluster.kubectl("label", "isrv/llama-8b", "-n", "team-a", "kept=yes")
    cluster.kubectl("scale", "isrv/llama-8b", "-n", "team-a", "--replicas=3")
    another = '{"spec":{"engine":{"image":"docker.io/other/engine:2"}}}'
    done = cluster.kubectl(
        "patch", "isrv", "llama-8b", "-n", "team-a", "--type=merge", "-p", another, check=False
    )
    assert "is not from an allowed registry; allowed are ghcr.io/" in done.stderr
    status, listed = cluster.get(
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    )
    assert (status, len(listed["items"])) == (200, 2)
    assert [policy["status"]["typeChecking"] for policy in listed["items"]] == [{}, {}]
    cluster.kubectl("delete", "isrv", "--all", "-n", "team-a")


def forge(namespace: str) -> tuple[str, ...]:
    """A patch of a server's status, as somebody who has every right."""
    where = ("isrv", "llama-8b", "-n", namespace, "--subresource=status")
    return ("patch", *where, "--type=merge", "-p", FORGERY)


def eventually(cluster: Cluster, *arguments: str, given: str | None = None) -> str:
    """The refusal of what a new policy refuses: the API server takes it up within seconds."""
    deadline = time.monotonic() + SECONDS
    while True:
        done = cluster.kubectl(*arguments, input=given, check=False)
        if done.returncode:
            return done.stderr
        assert time.monotonic() < deadline, "the policy refuses nothing"
        time.sleep(0.2)


# Several releases.


@pytest.mark.parametrize("helm", PROGRAMS, indirect=True)
def test_a_second_release_is_refused_with_the_name_of_the_first(helm: Helm) -> None:
    install(helm, "first", OURS, {})
    said = refusal(helm, "second", OURS, {})
    assert (
        f"namespace {OURS} already holds an operator, of release first in namespace {OURS}" in said
    )
    for values in ({}, NAMESPACED):
        said = refusal(helm, "second", "elsewhere", values)
        assert (
            f"release first in namespace {OURS} already runs the servers of all namespaces" in said
        )


def test_releases_for_different_namespaces_live_side_by_side(helm: Helm) -> None:
    install(helm, "a", "ops-a", {"watch.namespaces": ["team-a", "team-b"]})
    second: dict[str, Any] = {"watch.namespaces": ["team-c"]}
    assert f"{ISRV} belongs to release a in namespace ops-a" in refusal(helm, "c", "ops-c", second)
    second["crds.enabled"] = False
    assert "rbac.aggregate=false" in refusal(helm, "c", "ops-c", second)
    second["rbac.aggregate"] = False
    both = {**second, "watch.namespaces": ["team-c", "team-b"]}
    said = refusal(helm, "c", "ops-c", both)
    assert "release a in namespace ops-a already runs the servers of namespace team-b" in said
    install(helm, "c", "ops-c", second)
    assert {one["name"] for one in helm.releases()} == {"a", "c"}
    said = refusal(helm, "all", "ops", {})
    assert "release a in namespace ops-a already runs the servers of namespace team-a" in said
    with pytest.raises(HelmError, match="release c in namespace ops-c already runs"):
        helm("upgrade", "a", CHART, "--reset-values", namespace="ops-a")


def test_a_kept_definition_is_taken_up_by_its_release_and_others_are_told_how(
    helm: Helm, cluster: Cluster
) -> None:
    install(helm, "plimsoll", OURS, {})
    cluster.kubectl("wait", f"crd/{ISRV}", "--for=condition=Established", "--timeout=30s")
    cluster.kubectl("apply", "-n", "team-a", "-f", "-", input=server())
    helm("uninstall", "plimsoll", "--wait")
    cluster.kubectl("get", "isrv/llama-8b", "-n", "team-a")
    said = refusal(helm, "other", OURS, {})
    assert (
        f"was left by release plimsoll in namespace {OURS}, which is gone. Take it over: " in said
    )
    advice = said.partition("Take it over: kubectl ")[2].splitlines()[0]
    install(helm, "plimsoll", OURS, {})
    helm("uninstall", "plimsoll", "--wait")
    cluster.kubectl(*advice.split())
    install(helm, "other", OURS, {})
    cluster.kubectl("delete", "isrv/llama-8b", "-n", "team-a")


@pytest.mark.parametrize("helm", PROGRAMS, indirect=True)
def test_an_upgrade_upgrades_the_definition_and_a_rollback_takes_it_back(
    helm: Helm, cluster: Cluster, tmp_path: Path
) -> None:
    older = tmp_path / "plimsoll"
    shutil.copytree(CHART, older)
    text = (older / "crd.yaml").read_text()
    (older / "crd.yaml").write_text(text.replace("shortNames: [isrv]", "shortNames: [old]"))
    names = ("get", "crd", ISRV, "-o", "jsonpath={.spec.names.shortNames}")
    seen = []
    for step in (
        ("install", "plimsoll", older, "--create-namespace"),
        ("upgrade", "plimsoll", CHART),
        ("rollback", "plimsoll", "1"),
    ):
        helm(*step)
        seen.append(cluster.kubectl(*names).stdout)
    assert seen == ['["old"]', '["isrv"]', '["old"]']


@pytest.mark.parametrize("helm", PROGRAMS, indirect=True)
def test_from_the_manifests_to_helm(helm: Helm, cluster: Cluster) -> None:
    """As charts/plimsoll/README.md says."""
    cluster.kubectl("apply", "--server-side", "-f", MANIFESTS / "install.yaml")
    said = refusal(helm, "plimsoll", OURS, {})
    assert "cannot be imported into the current release" in said
    beside = {"watch.namespaces": ["team-a"], "crds.enabled": False, "rbac.aggregate": False}
    said = refusal(helm, "beside", "ops", beside)
    assert "an operator that Helm did not install (manifests/install.yaml) already runs" in said
    flags = ["--take-ownership"] + (["--force-conflicts"] if helm.program.name == "helm4" else [])
    helm("install", "plimsoll", CHART, *flags)
    for replicas in (2, 1):
        helm("upgrade", "plimsoll", CHART, *flags[1:], "--set", f"replicas={replicas}")
    live = json.loads(
        cluster.kubectl("get", "deploy/plimsoll-operator", "-n", OURS, "-o", "json").stdout
    )
    assert (live["spec"]["replicas"], live["spec"]["strategy"]) == (1, {"type": "Recreate"})


# An operator for some namespaces.


@contextlib.contextmanager
def operator(cluster: Cluster, folder: Path, namespaces: str) -> Iterator[Path]:
    """The operator's process with the rights of its service account; its log."""
    config = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", "plimsoll-operator", "-n", OURS).stdout.strip()
    config["users"][0]["user"] = {"token": token}
    (folder / "kubeconfig").write_text(json.dumps(config))
    env = {
        "PYTHONPATH": str(ROOT / "operator"),
        "KUBECONFIG": str(folder / "kubeconfig"),
        "PLIMSOLL_NAMESPACES": namespaces,
        "PLIMSOLL_SIZER_IMAGE": "sizer:1",
        "PLIMSOLL_LOG_FORMAT": "text",
        "PLIMSOLL_HEALTH_PORT": "0",
        "POD_NAMESPACE": OURS,
    }
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            network.inside(cluster.netns, sys.executable, "-m", "plimsoll.controller"),
            env=env,
            stderr=file,
        )
        try:
            yield log
        finally:
            process.terminate()
            assert process.wait(20) == 0, log.read_text()


def reason(cluster: Cluster, namespace: str) -> str:
    path = '-o=jsonpath={.status.conditions[?(@.type=="Ready")].reason}'
    return cluster.kubectl("get", "isrv/llama-8b", "-n", namespace, path).stdout


@pytest.mark.timeout(120)
def test_an_operator_with_roles_only_does_its_work_there_and_nowhere_else(
    cluster: Cluster, tmp_path: Path
) -> None:
    helm = Helm(cluster, go_tool("helm4"), tmp_path)
    values = {
        "watch.namespaces": ["team-a", "team-b"],
        "rbac.nodes": False,
        "admission.statusWriters.enabled": True,
    }
    install(helm, "plimsoll", OURS, values)
    cluster.kubectl("wait", f"crd/{ISRV}", "--for=condition=Established", "--timeout=30s")
    for namespace in ("team-a", "team-c"):
        cluster.kubectl("apply", "-n", namespace, "-f", "-", input=server())
    # The policy is in force, here and not elsewhere, and what follows passes it.
    assert GUARDED in eventually(cluster, *forge("team-a"))
    cluster.kubectl(*forge("team-c"))
    # As where somebody deleted a namespace: the Role in it is gone, the others go on.
    cluster.kubectl("delete", "role/plimsoll-servers", "-n", "team-b")
    deadline = time.monotonic() + SECONDS
    with operator(cluster, tmp_path, "team-a,team-b") as log:
        while reason(cluster, "team-a") != "Unschedulable":  # there is no node
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
    said = log.read_text()
    assert "namespace team-b is set aside: inferenceservers.plimsoll.dev is forbidden" in said
    assert "free accelerators stay unknown" in said
    assert "Traceback" not in said
    assert "llama-8b-sz-" in cluster.kubectl("get", "pods", "-n", "team-a", "-o", "name").stdout
    assert reason(cluster, "team-c") == ""
    assert cluster.kubectl("get", "pods", "-n", "team-c", "-o", "name").stdout == ""
    helm("uninstall", "plimsoll", "--wait")
