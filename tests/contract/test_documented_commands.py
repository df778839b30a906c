"""The kubectl commands of the documentation, as they are written there, on a real API server."""

from __future__ import annotations

import json
import secrets
import shlex
from typing import TYPE_CHECKING

import pytest

from tests.render_samples import SAMPLES
from tests.unit.controller.plan_worlds import sized_status
from tests.unit.docs.commands import ROOT, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_kit import Cluster

pytestmark = pytest.mark.contract

SERVERS = {
    "lightllm-llama-8b": "llama-8b",
    "vllm-qwen3-8b": "qwen3-8b",
    "fixed-llama-8b": "llama-8b-fixed",
}
READING = frozenset({"get", "describe", "explain"})
# Only tried: the API server is shared, and what "-A" means is everybody's.
CHANGING = frozenset({"apply", "patch", "scale", "delete"})


def _words(line: str) -> list[str]:
    return shlex.split(line)[1:]


def _verb(words: list[str]) -> str:
    return next((word for word in words if word in READING | CHANGING), "")


# Of kinds that others define: tests/scale/test_keda.py has KEDA's, the Prometheus operator's are read in tests/unit.
FOREIGN = frozenset(
    f"manifests/samples/autoscaling/{name}.yaml" for name in ("keda", "pod-monitor")
)

# The plugin's page holds screens of another cluster.
COMMANDS = [
    (page, line)
    for page, line in shown("kubectl")
    if page != "docs/cli.md" and not FOREIGN & set(_words(line))
    if _verb(_words(line)) and not {"-w", "──>", "plimsoll-system", "namespace"} & set(_words(line))
]


@pytest.fixture(scope="module")
def namespace(api_cluster: Cluster) -> Iterator[str]:
    """A namespace with the servers that the pages speak of, and a status."""
    name = f"commands-{secrets.token_hex(3)}"
    crd = ROOT / "manifests" / "crd.yaml"
    api_cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", crd)
    kind = "crd/inferenceservers.plimsoll.dev"
    api_cluster.kubectl("wait", kind, "--for=condition=Established", "--timeout=30s")
    api_cluster.kubectl("create", "namespace", name)
    status = json.dumps({"status": sized_status()})
    for sample, server in SERVERS.items():
        api_cluster.kubectl("apply", "-n", name, "-f", SAMPLES / f"{sample}.yaml")
        patch = ("--subresource=status", "--type=merge", "-p", status)
        api_cluster.kubectl("patch", "isrv", server, "-n", name, *patch)
    yield name
    api_cluster.kubectl("delete", "namespace", name, "--wait=false")


def test_there_are_such_commands() -> None:
    assert len(COMMANDS) > 12
    assert {_verb(_words(line)) for _, line in COMMANDS} >= {
        "get",
        "describe",
        "patch",
        "scale",
        "delete",
    }


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_command_works(api_cluster: Cluster, namespace: str, page: str, line: str) -> None:
    words = [{"NAME": "llama-8b", "NAMESPACE": namespace}.get(word, word) for word in _words(line)]
    words = [str(ROOT / word) if word.startswith("manifests/") else word for word in words]
    verb = _verb(words)
    if verb in CHANGING:
        words.append("--dry-run=server")
    if not {"-A", "-n", "crd"} & set(words):
        words += ["-n", namespace]
    done = api_cluster.kubectl(*words)
    if verb == "get" and not {"deploy", "events"} & set(words):
        expects = "classes" not in line and "driftPercent" not in line and "==" not in line
        assert done.stdout.strip() or not expects, f"{page}: prints nothing"
