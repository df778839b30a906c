"""Fingerprints and the GPU class: what asks anew, what rolls out, where a number holds."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from plimsoll.controller.objects import (
    BuildContext,
    Pin,
    deployment,
    first_difference,
    inputs_hash,
    request_hash,
    sizing_key,
    sizing_pod,
)
from plimsoll.controller.objects.affinity import with_node_requirements
from tests.unit.controller.builders import CONTEXT, GPU_LABEL, PRODUCT, server, stored
from tests.unit.controller.test_objects import STAMP

OTHER_CONTEXT = BuildContext("ghcr.io/plimsoll-dev/sizer:0.2.0", "Always")


def _model(claim: str) -> dict[str, Any]:
    return {"source": {"persistentVolumeClaim": {"claimName": claim, "subPath": "llama-8b"}}}


CHANGES: list[tuple[str, dict[str, Any], bool, bool, bool]] = [
    # what changes, and whether request hash, sizing key, inputs hash change with it
    ("replicas", {"replicas": 3}, False, False, False),
    ("service", {"service": {"port": 8080}}, False, False, False),
    ("drain", {"rollout": {"drainSeconds": 10}}, False, False, True),
    ("probe", {"probes": {"startupSeconds": 99}}, False, False, True),
    ("toleration", {"template": {"tolerations": [{"operator": "Exists"}]}}, True, False, True),
    ("image pull secret", {"template": {"imagePullSecrets": [{"name": "x"}]}}, True, False, True),
    ("node pool", {"template": {"nodeSelector": {"pool": "a100"}}}, True, True, True),
    # A new question, but the template shows the pin: the same answer restarts nothing.
    ("product", {"accelerator": {"products": ["A100"]}}, True, True, False),
    ("class labels", {"accelerator": {"classLabelKeys": ["gpu", GPU_LABEL]}}, False, False, False),
    ("deadline", {"rollout": {"progressDeadlineSeconds": 77}}, False, False, False),
    ("count", {"accelerator": {"count": 2}}, True, True, True),
    ("reserve", {"sizing": {"extraReserve": "1Gi"}}, True, True, True),
    ("argument", {"engine": {"type": "LightLLM", "image": "x:v1.2.0", "args": ["--x"]}}, True, True, True),
    ("another claim", {"model": _model("other")}, True, True, True),
    ("served name", {"model": {**_model("models"), "servedName": "x"}}, False, False, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "request_", "key", "inputs"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_hashes(spec: dict[str, Any], request_: bool, key: bool, inputs: bool) -> None:  # noqa: FBT001 -- table columns
    before, after = server(), server(**spec)
    assert (request_hash(before, CONTEXT) != request_hash(after, CONTEXT)) is request_
    assert (sizing_key(before) != sizing_key(after)) is key
    assert (inputs_hash(before, STAMP) != inputs_hash(after, STAMP)) is inputs


def test_hashes_and_the_operator() -> None:
    """A new sizer image asks anew only where nothing was answered; it starts no rollout."""
    assert request_hash(server(), CONTEXT) != request_hash(server(), OTHER_CONTEXT)
    assert inputs_hash(server(), STAMP) != inputs_hash(
        server(), replace(STAMP, max_total_token_num=1)
    )
    assert inputs_hash(server(), STAMP) != inputs_hash(server(), replace(STAMP, pin=Pin("k", "v")))


def test_fingerprints_of_an_unchanged_resource_never_change() -> None:
    """If this fails, upgrading the operator measures and restarts every server in the world.

    Do not edit the texts; make new fields absent when unset instead (objects/hashes.py, digest).
    """
    assert sizing_key(server()) == "718004ccfd5cb726f62b70e1c47c4246791e0eac"
    assert inputs_hash(server(), STAMP, 1) == "9a5784447c27040453fd0ce21906e3d3d5068854"
    assert inputs_hash(server(), STAMP, 2) == "bb46821db284f7026001e3c467071b45853f24cf"


def test_upgrade_of_the_operator_changes_no_running_server() -> None:
    live = stored(deployment(server(), STAMP, CONTEXT))
    upgraded = deployment(server(), STAMP, OTHER_CONTEXT, live)
    assert first_difference(upgraded, live) is None
    (sizer,) = upgraded["spec"]["template"]["spec"]["initContainers"]
    assert (sizer["image"], sizer["imagePullPolicy"]) == (CONTEXT.sizer_image, "IfNotPresent")
    # Scaling is no reason either, a change of the spec is.
    assert first_difference(deployment(server(replicas=2), STAMP, OTHER_CONTEXT, live), live) == (
        "spec.replicas: 1 is not 2"
    )
    changed = deployment(server(sizing={"extraReserve": "1Gi"}), STAMP, OTHER_CONTEXT, live)
    assert (
        changed["spec"]["template"]["spec"]["initContainers"][0]["image"]
        == OTHER_CONTEXT.sizer_image
    )


def test_a_tampered_sizer_image_is_put_right() -> None:
    live = stored(deployment(server(), STAMP, CONTEXT))
    live["spec"]["template"]["spec"]["initContainers"][0]["image"] = "evil"
    wanted = deployment(server(), STAMP, CONTEXT, live)
    assert first_difference(wanted, live) == (
        f'spec.template.spec.initContainers[sizer].image: "evil" is not "{CONTEXT.sizer_image}"'
    )


# -- the GPU class ------------------------------------------------------------------------------


def _terms(made: dict[str, Any]) -> Any:
    affinity = made["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_stamped_number_stays_on_its_class() -> None:
    made = deployment(server(), STAMP, CONTEXT)["spec"]["template"]["spec"]
    assert _terms(made) == [
        {"matchExpressions": [{"key": GPU_LABEL, "operator": "In", "values": [PRODUCT]}]}
    ]
    assert "affinity" not in sizing_pod(server(), CONTEXT)["spec"]


def test_products_hold_for_the_sizing_pod_under_any_of_the_labels() -> None:
    spec: dict[str, Any] = {
        "accelerator": {"products": ["A", "B"], "classLabelKeys": [GPU_LABEL, "cloud/gpu"]}
    }
    assert _terms(sizing_pod(server(**spec), CONTEXT)["spec"]) == [
        {"matchExpressions": [{"key": GPU_LABEL, "operator": "In", "values": ["A", "B"]}]},
        {"matchExpressions": [{"key": "cloud/gpu", "operator": "In", "values": ["A", "B"]}]},
    ]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OURS = {"key": "gpu", "operator": "In", "values": ["h100"]}
ZONE_A = {"key": "zone", "operator": "In", "values": ["a"]}
ZONE_B = {"key": "zone", "operator": "In", "values": ["b"]}


def test_users_affinity_is_narrowed_in_every_term() -> None:
    user = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
            REQUIRED: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [ZONE_A]},
                    {"matchFields": [ZONE_B]},
                    {},
                ]
            },
        },
    }
    before = copy.deepcopy(user)
    merged = with_node_requirements(user, [OURS])
    assert user == before
    assert merged["podAntiAffinity"] == {"x": 1}
    assert merged["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [
        {"weight": 1}
    ]
    assert merged["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [ZONE_A, OURS]},
        {"matchFields": [ZONE_B], "matchExpressions": [OURS]},
        {},  # an empty term matches no node, and still must not
    ]
    assert with_node_requirements(user, []) == user
