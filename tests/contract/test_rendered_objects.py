"""What the real API server makes of the objects that the builders render.

It must take them as they are (Pod Security included), and what it stores must show no difference:
a difference would be applied again on every pass, for ever.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.objects import (
    Pin,
    Stamp,
    deployment,
    first_difference,
    scaled,
    service,
    sizing_pod,
)
from plimsoll.controller.objects.foreign import foreign_additions
from tests.unit.controller.builders import CONTEXT, GPU_LABEL, LLAMACPP, NAMESPACE, server
from tests.unit.controller.golden_templates import as_deployed, golden
from tests.unit.controller.test_objects import BUSY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_kit import Cluster

pytestmark = pytest.mark.contract

STAMP = Stamp(409600, 256, 131072, 8192, 16 * 10**9, "a.gguf", Pin(GPU_LABEL, "H100"))
# The scheduling objects that the busy spec names are not there, and their absence is refused.
ABSENT = ("runtimeClassName", "priorityClassName")
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
            ]
        }
    }
}
RICH: dict[str, Any] = {
    "engine": {
        **LLAMACPP,
        "command": ["run", "$(X)"],
        "env": [
            {"name": "EMPTY", "value": ""},
            {"name": "PLAIN", "value": "1"},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    },
    "accelerator": {"products": ["H100"]},
    "template": {
        **{k: v for k, v in BUSY["template"].items() if k not in ABSENT},
        "affinity": AFFINITY,
        "resources": {"requests": {"cpu": "0.5"}, "limits": {"memory": "1024Mi"}},
    },
    "service": {"annotations": {"a": "b"}, "labels": {"c": "d"}},
}
SPECS = pytest.mark.parametrize("spec", [{}, RICH], ids=["defaults", "rich"])


@pytest.fixture(params=["baseline", "restricted"])
def level(api_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace at this Pod Security level."""
    labels = {"pod-security.kubernetes.io/enforce": request.param}
    name = f"rendered-{request.param}-{secrets.token_hex(3)}"
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }
    api_cluster.kubectl("apply", "-f", "-", input=json.dumps(namespace))
    account = ("create", "serviceaccount", "default", "-n", name)
    api_cluster.kubectl(*account, check=False)  # the controller that makes it may be late
    yield name
    api_cluster.kubectl("delete", "namespace", name, "--wait=false")


def _apply(cluster: Cluster, namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
    """Server-side apply as the operator does it; the stored object.

    Its owner is one that exists: the garbage collector deletes what an absent object owns.
    """
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    made = cluster.kubectl(
        "apply", "-n", namespace, "-o", "json", "-f", "-", input=json.dumps(owner)
    )
    uid = json.loads(made.stdout)["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    metadata = {**obj["metadata"], "namespace": namespace, "ownerReferences": [reference]}
    here = {**obj, "metadata": metadata}
    done = cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=plimsoll",
        "-o", "json", "-f", "-", input=json.dumps(here),
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    found["metadata"]["namespace"] = NAMESPACE
    found["metadata"]["ownerReferences"] = obj["metadata"]["ownerReferences"]
    return found


@SPECS
def test_stored_children_show_no_difference(
    api_cluster: Cluster, level: str, spec: dict[str, Any]
) -> None:
    wanted = server(**spec)
    for made in (deployment(wanted, STAMP, CONTEXT), service(wanted)):
        live = _apply(api_cluster, level, made)
        assert first_difference(made, live) is None
        again = _apply(api_cluster, level, made)
        assert again["spec"] == live["spec"]
        assert again["metadata"].get("generation") == live["metadata"].get("generation")


@SPECS
def test_sizing_pods_are_taken_at_every_level(
    api_cluster: Cluster, level: str, spec: dict[str, Any]
) -> None:
    live = _apply(api_cluster, level, sizing_pod(server(**spec), CONTEXT))
    assert [c["name"] for c in live["spec"]["initContainers"]] == ["sizer"]
    assert "serviceAccountToken" not in json.dumps(live["spec"]["volumes"])
    api_cluster.kubectl("delete", "pods", "--all", "-n", level, "--now")


@SPECS
def test_server_pods_pass_the_level_that_the_condition_names(
    api_cluster: Cluster, level: str, spec: dict[str, Any]
) -> None:
    """Without a user's uid baseline, with one restricted (the sizing pod passes both, above)."""
    template = deployment(server(**spec), STAMP, CONTEXT)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "name": "server", "namespace": level}
    done = api_cluster.kubectl(
        "create", "--dry-run=server", "-f", "-", input=json.dumps(pod), check=False
    )
    refused = "restricted" in level and "securityContext" not in spec.get("template", {})
    assert ("violates PodSecurity" in done.stderr) is refused, done.stderr
    assert (done.returncode == 0) is not refused, done.stderr


@pytest.mark.parametrize("name", golden())
def test_templates_of_every_version_are_stored_as_rendered(
    api_cluster: Cluster, level: str, name: str
) -> None:
    """Also where numbers come from a file and an engine is measured again (fileKeyRef, its rules)."""
    made = as_deployed(golden()[name])
    made["metadata"]["name"] = name
    live = _apply(api_cluster, level, made)
    assert first_difference(made, live) is None
    assert foreign_additions(made, live) == ()
    for field in ("fileKeyRef", "restartPolicyRules", "RestartAllContainers"):
        assert json.dumps(live).count(f'"{field}"') == json.dumps(made).count(f'"{field}"')
    again = _apply(api_cluster, level, made)
    assert again["spec"] == live["spec"]
    assert again["metadata"].get("generation") == live["metadata"].get("generation")


def test_the_golden_templates_hold_what_is_asked_about() -> None:
    found = json.dumps(golden()["v2-inpod-file-key-ref"]["template"])
    for field in ("fileKeyRef", "restartPolicyRules", "RestartAllContainers"):
        assert f'"{field}"' in found


def test_scaling_the_live_object_changes_nothing_else(api_cluster: Cluster, level: str) -> None:
    """Also when the rendered object is applied afterwards: no field is left over or lost."""
    made = deployment(server(**RICH), STAMP, CONTEXT)
    before = _apply(api_cluster, level, made)
    after = _apply(api_cluster, level, scaled(before, 3))
    assert first_difference({**before["spec"], "replicas": 3}, after["spec"]) is None
    assert after["spec"]["template"] == before["spec"]["template"]
    assert _apply(api_cluster, level, made)["spec"] == before["spec"]
