"""The table of commands: dispatch, help, versions."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.cli.__main__ import main
from plimsoll.cli.commands import COMMANDS

if TYPE_CHECKING:
    from tests.unit.cli.conftest import FakeKubectl

ROOT = Path(__file__).resolve().parents[3]


def test_an_unknown_command_suggests_the_nearest(plimsoll: Any) -> None:
    outcome = plimsoll("statsu")
    assert (outcome.code, outcome.out) == (2, "")
    assert "did you mean `plimsoll status`?" in outcome.err
    assert "see plimsoll help" in plimsoll("quite-different").err


def test_help_lists_every_command(plimsoll: Any) -> None:
    text = plimsoll("help").out
    assert plimsoll("--help").out == text
    for name, row in COMMANDS.items():
        assert f"  {name} " in text
        assert row.summary in text
    assert plimsoll("help", "nonsense").code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(
    name: str, plimsoll: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"usage: plimsoll {name}" in text
    assert f"example:\n  plimsoll {name}" in text
    if name != "fit":
        assert plimsoll("help", name).out.strip() == text.strip()


def test_kubectl_finds_the_plugin_and_its_completion() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("plimsoll", "kubectl-plimsoll", "kubectl_complete-plimsoll"):
        module, _, function = scripts[name].partition(":")
        assert callable(getattr(import_module(module), function))


def test_as_a_plugin_it_calls_itself_so(plimsoll: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/kubectl-plimsoll"])
    assert plimsoll("help").out.startswith("usage: kubectl plimsoll COMMAND")
    assert "see kubectl plimsoll explain --help" in plimsoll("explain").err


def test_version(plimsoll: Any, kubectl: FakeKubectl) -> None:
    assert plimsoll("version", "--client").out.startswith("plimsoll 0.")
    assert kubectl.calls() == []
    crd = {"spec": {"versions": [{"name": "v1alpha1", "served": True}]}}
    container = {"image": "ghcr.io/plimsoll-dev/operator:0.1.0"}
    operator = {"spec": {"template": {"spec": {"containers": [container]}}}}
    kubectl.answers("customresourcedefinitions.apiextensions.k8s.io", out={"items": [crd]})
    kubectl.answers("deployments.apps", "--all-namespaces", out={"items": [operator]})
    document = plimsoll("version", "-o", "json").json()
    assert document["schema"] == "plimsoll.dev/version.v1"
    assert (document["crd"], document["operators"]) == (["v1alpha1"], [container["image"]])
    assert f"operator {container['image']}" in plimsoll("version").out


def test_a_cluster_that_is_away_does_not_hide_the_version(
    plimsoll: Any, kubectl: FakeKubectl
) -> None:
    kubectl.answers("get", err="Unable to connect to the server: no route")
    outcome = plimsoll("version")
    assert outcome.code == 0
    assert "cluster: the cluster does not answer" in outcome.out
