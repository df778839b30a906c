"""The control plane alone is a real one: the admission that the other contract tests rely on is switched on."""

import json
import ssl
import threading
import urllib.request

import pytest

from tests.cluster_kit import Cluster

pytestmark = pytest.mark.contract

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "localhost/none:1"}]},
}


def test_the_version_is_the_pinned_one(api_cluster: Cluster) -> None:
    version = json.loads(api_cluster.kubectl("get", "--raw", "/version").stdout)
    assert (version["gitVersion"], version["minor"]) == ("v1.37.2", "37")


def test_quota_refuses_a_pod(api_cluster: Cluster) -> None:
    api_cluster.kubectl("create", "namespace", "kit-quota")
    try:
        api_cluster.kubectl("create", "quota", "none", "--hard=pods=0", "-n", "kit-quota")
        done = api_cluster.kubectl(
            "apply", "-n", "kit-quota", "-f", "-", input=json.dumps(POD), check=False
        )
        assert "exceeded quota: none" in done.stderr
    finally:
        api_cluster.kubectl("delete", "namespace", "kit-quota", "--wait=false")


def test_pod_security_refuses_a_pod(api_cluster: Cluster) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": "kit-restricted",
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    api_cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    try:
        done = api_cluster.kubectl(
            "apply", "-n", "kit-restricted", "-f", "-", input=json.dumps(POD), check=False
        )
        assert 'violates PodSecurity "restricted' in done.stderr
    finally:
        api_cluster.kubectl("delete", "namespace", "kit-restricted", "--wait=false")


def test_the_pytest_process_and_its_threads_stand_in_the_network(api_cluster: Cluster) -> None:
    server = json.loads(api_cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    context = ssl.create_default_context(cafile=str(api_cluster.state / "pki" / "ca.crt"))
    answers: list[str] = []

    def ask() -> None:
        # The certificate is checked against this cluster's own authority: no other server can answer.
        with urllib.request.urlopen(f"{server}/livez", timeout=5, context=context) as answer:
            answers.append(answer.read().decode())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    ask()
    assert answers == ["ok", "ok"]


def test_the_audit_log_says_who_read_what(api_cluster: Cluster) -> None:
    api_cluster.kubectl("get", "configmap", "kube-root-ca.crt", "-n", "kube-public")
    events = api_cluster.audit_events()
    seen = {
        (e["user"]["username"], e["verb"], e["objectRef"]["resource"], e["objectRef"].get("name"))
        for e in events
        if "objectRef" in e
    }
    assert ("admin", "get", "configmaps", "kube-root-ca.crt") in seen
    assert not any("requestObject" in event or "responseObject" in event for event in events)
