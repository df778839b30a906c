"""The edge to the cluster: what is run, and what refusals say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.cli.kubectl import SERVERS, ClusterError, Kubectl, refusal
from tests.unit.cli.conftest import server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import FakeKubectl

GONE = 'Error from server (NotFound): inferenceservers.plimsoll.dev "x" not found'


def test_the_users_own_flags_are_handed_on(kubectl: FakeKubectl, plimsoll: Any) -> None:
    kubectl.answers("get", SERVERS, out=server())
    where = ("-n", "team", "--context", "prod", "--kubeconfig", "/k")
    assert plimsoll("explain", "smollm2", *where).code == 0
    (call,) = kubectl.calls()
    assert call[:3] == ["--context=prod", "--kubeconfig=/k", "--request-timeout=15s"]
    assert "--namespace=team" in call
    assert call[-2:] == ["--", "smollm2"]


def test_a_wrong_name_lists_those_that_exist(kubectl: FakeKubectl, plimsoll: Any) -> None:
    kubectl.answers("get", "--", "smolm", err=GONE)
    kubectl.answers("get", SERVERS, out={"items": [server(), server("chat-vllm")]})
    outcome = plimsoll("explain", "smolm", "-n", "demo", "-o", "json")
    assert outcome.code == 2
    assert (
        "no InferenceServer 'smolm' in namespace demo; there are smollm2, chat-vllm" in outcome.err
    )
    document = outcome.json()
    assert document["schema"] == "plimsoll.dev/explain.v1"
    assert document["error"]["reason"] == "ServerNotFound"


def test_without_kubectl_it_says_where_to_get_it(
    plimsoll: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = plimsoll("top")
    assert outcome.code == 5
    assert "KubectlNotFound" in outcome.err
    assert "https://kubernetes.io/docs/tasks/tools/" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("said", "code", "reason", "words"),
    [
        (GONE, 2, "NotFound", "not found"),
        (
            'error: the server doesn\'t have a resource type "inferenceservers"',
            5,
            "NotInstalled",
            "helm install plimsoll",
        ),
        (
            (
                'Error from server (Forbidden): pods "a" is forbidden: User "u" cannot get resource "pods/proxy" '
                'in API group "" in the namespace "n"'
            ),
            5,
            "Forbidden",
            "you may not get pods/proxy; ask for a Role with verbs [get] on resources [pods/proxy]",
        ),
        (
            (
                'Error from server (Forbidden): x is forbidden: User "u" cannot list resource "inferenceservers" '
                'in API group "plimsoll.dev" at the cluster scope'
            ),
            5,
            "Forbidden",
            "you may not list inferenceservers.plimsoll.dev",
        ),
        (
            (
                "E1203 05:15:33.032437 1 memcache.go:381] noise\nThe connection to the server localhost:8080 was "
                "refused - did you specify the right host or port?"
            ),
            5,
            "ClusterUnreachable",
            "kubectl config current-context",
        ),
        ("error: You must be logged in to the server (Unauthorized)", 5, "Unauthorized", "log in"),
        ('error: context "x" does not exist', 5, "KubectlFailed", 'context "x" does not exist'),
        ("", 5, "KubectlFailed", "without a word"),
    ],
)
def test_refusals_say_what_to_do(said: str, code: int, reason: str, words: str) -> None:
    found = refusal(said)
    assert (found.exit_code, found.reason) == (code, reason)
    assert words in found.message
    assert "memcache" not in found.message


def test_what_is_no_json_is_refused(kubectl: FakeKubectl) -> None:
    kubectl.answers("get", out="[]")
    with pytest.raises(ClusterError, match="no JSON object"):
        Kubectl().servers()


def test_a_kubectl_that_hangs_is_given_up(
    kubectl: FakeKubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "kubectl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("plimsoll.cli.kubectl._GRACE", 0)
    with pytest.raises(ClusterError, match="no answer in 1 s"):
        Kubectl(seconds=1).servers()
    assert kubectl.calls() == []
