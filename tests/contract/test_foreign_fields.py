"""Foreign fields on a real API server: what it fills in, and what a patch takes out again.

The fake's and the unit tests' idea of defaults stands or falls with this.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from plimsoll.controller.cluster import DEPLOYMENTS, Conflict
from plimsoll.controller.kube import KubeCluster, connect
from plimsoll.controller.objects import Stamp, deployment, first_difference
from plimsoll.controller.objects.foreign import cleaning, foreign_additions
from tests.unit.controller.api_defaults import defaulted
from tests.unit.controller.builders import CONTEXT, server
from tests.unit.controller.foreign_changes import ADDITIONS, DAMAGE, Change, widen
from tests.unit.controller.test_foreign import SPECS, STAMP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.cluster_kit import Cluster as LocalCluster

pytestmark = pytest.mark.contract

Object = dict[str, Any]
NAME = "llama"
# The API server fills in the fields again, and says that who removed them wrote the default.
DEFAULTED = {"another termination message", "another scheduler", "name servers"}
# Apply puts one item in place of several of one key, but nothing tells that one is needed. Who
# owned the one owns none of several, and who leaves one of them wrote that.
DOUBLED = {"a second number before ours"}


@pytest.fixture(scope="module")
def namespace(api_cluster: LocalCluster) -> Iterator[str]:
    name = f"foreign-{uuid4().hex[:8]}"
    api_cluster.kubectl("create", "namespace", name)
    yield name
    api_cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def kube(api_cluster: LocalCluster, namespace: str) -> AsyncIterator[KubeCluster]:
    async with await connect(str(api_cluster.kubeconfig)) as kube:
        yield kube
        live = await kube.get(DEPLOYMENTS, namespace, NAME)
        if live is not None:
            await kube.delete(DEPLOYMENTS, namespace, NAME, live["metadata"]["uid"])


def made(namespace: str, spec: str = "defaults", stamp: Stamp = STAMP) -> Object:
    """What we render, with no replicas and no owner: the garbage collector knows that it is gone."""
    found = deployment(server(NAME, replicas=0, **SPECS[spec]), stamp, CONTEXT)
    found["metadata"]["namespace"] = namespace
    del found["metadata"]["ownerReferences"]
    return found


def edit(cluster: LocalCluster, live: Object, change: Change) -> Object:
    """Somebody writes the whole object back, changed; what is stored then."""
    theirs = copy.deepcopy(live)
    change.do(theirs["spec"]["template"]["spec"])
    for field in ("resourceVersion", "managedFields"):
        theirs["metadata"].pop(field)
    command = ("replace", "--field-manager=somebody", "-o", "json", "-f", "-")
    while True:
        done = cluster.kubectl(*command, input=json.dumps(theirs), check=False)
        if done.returncode == 0:
            found: Object = json.loads(done.stdout)
            return found
        # The Deployment's controller may write its status in between.
        assert "(Conflict)" in done.stderr, done.stderr


async def clean(kube: KubeCluster, desired: Object) -> Object:
    """Patch as a pass does it: again on a fresh view after a conflict with the status's writer."""
    while True:
        namespace = desired["metadata"]["namespace"]
        live = await kube.get(DEPLOYMENTS, namespace, NAME)
        assert live is not None
        patch = cleaning(desired, live)
        assert patch is not None
        try:
            after = await kube.patch(patch.live, patch.ops)
        except Conflict:
            continue
        assert after is not None
        return after


def template_owners(live: Object) -> set[str]:
    """The managers that own some field of the pod's spec."""
    return {
        entry["manager"]
        for entry in live["metadata"]["managedFields"]
        if "f:spec" in entry["fieldsV1"].get("f:spec", {}).get("f:template", {})
    }


@pytest.mark.parametrize("spec", SPECS)
async def test_what_we_render_comes_back_with_its_defaults_and_nothing_foreign(
    kube: KubeCluster, namespace: str, spec: str
) -> None:
    desired = made(namespace, spec)
    live = await kube.apply(desired)
    assert live["spec"] == defaulted(desired)["spec"]
    assert foreign_additions(desired, live) == ()


@pytest.mark.parametrize("transport", ["fileKeyRef", "wrapper"])
async def test_templates_that_measure_in_the_pod_have_nothing_foreign(
    kube: KubeCluster, namespace: str, transport: str
) -> None:
    desired = made(namespace, stamp=Stamp(transport=transport, remeasures=True))
    live = await kube.apply(desired)
    assert live["spec"] == defaulted(desired)["spec"]
    assert foreign_additions(desired, live) == ()


async def test_the_defaults_of_other_templates_of_ours(kube: KubeCluster, namespace: str) -> None:
    desired = made(namespace)
    widen(desired["spec"]["template"]["spec"])
    live = await kube.apply(desired)
    assert live["spec"] == defaulted(desired)["spec"]
    assert foreign_additions(desired, live) == ()


@pytest.mark.parametrize("name", ADDITIONS)
async def test_an_addition_is_taken_out_and_nobody_owns_it_any_more(
    api_cluster: LocalCluster, kube: KubeCluster, namespace: str, name: str
) -> None:
    desired, change = made(namespace), ADDITIONS[name]
    before = await kube.apply(desired)
    theirs = edit(api_cluster, before, change)
    assert {found.name for found in foreign_additions(desired, theirs)} == set(change.names)
    if name in DOUBLED:
        assert first_difference(desired, theirs) is None
    else:
        assert foreign_additions(desired, await kube.apply(desired)), "apply alone would do"
    after = await clean(kube, desired)
    assert after["spec"] == before["spec"]
    drift = {"plimsoll-drift"} if name in DEFAULTED | DOUBLED else set()
    assert template_owners(after) == {"plimsoll"} | drift
    again = await kube.apply(desired)
    assert again["metadata"]["generation"] == after["metadata"]["generation"]


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
async def test_damage_is_put_right_by_one_patch_that_the_server_takes(
    api_cluster: LocalCluster, kube: KubeCluster, namespace: str, change: Change
) -> None:
    desired = made(namespace)
    before = await kube.apply(desired)
    theirs = edit(api_cluster, before, change)
    assert set(change.names) <= {found.name for found in foreign_additions(desired, theirs)}
    after = await clean(kube, desired)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == theirs["metadata"]["generation"] + 1
    assert template_owners(after) <= {"plimsoll", "plimsoll-drift"}
    # A later template is ours alone again where it differs, and complete.
    later = copy.deepcopy(desired)
    later["spec"]["template"]["spec"]["containers"][0]["args"] = ["--later"]
    final = await kube.apply(later)
    assert first_difference(later, final) is None
    assert foreign_additions(later, final) == ()


async def test_a_new_template_and_foreign_fields_are_one_change(
    api_cluster: LocalCluster, kube: KubeCluster, namespace: str
) -> None:
    before = await kube.apply(made(namespace))
    theirs = edit(api_cluster, before, ADDITIONS["a sidecar"])
    desired = made(namespace, "rich")
    after = await clean(kube, desired)
    assert after["spec"]["template"] == defaulted(desired)["spec"]["template"]
    assert after["metadata"]["generation"] == theirs["metadata"]["generation"] + 1


ADMISSION = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: {name}}}
spec:
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}
    resourceRules:
    - {{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{{spec: Object.spec{{template: Object.spec.template{{spec: Object.spec.template.spec{{
        shareProcessNamespace: true}}}}}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: {name}}}
spec: {{policyName: {name}}}
"""


async def test_what_admission_adds_comes_back_in_the_answer_and_changes_nothing(
    api_cluster: LocalCluster, kube: KubeCluster, namespace: str
) -> None:
    policy = ADMISSION.format(name=namespace)
    api_cluster.kubectl("apply", "-f", "-", input=policy)
    try:
        desired = made(namespace)
        live = await kube.apply(desired)
        end = time.monotonic() + 30  # until the API server has compiled the policy
        while not foreign_additions(desired, live) and time.monotonic() < end:
            await asyncio.sleep(0.2)
            await kube.delete(DEPLOYMENTS, namespace, NAME, live["metadata"]["uid"])
            live = await kube.apply(desired)
        names = [found.name for found in foreign_additions(desired, live)]
        assert names == ["spec.template.spec.shareProcessNamespace"]
        after = await clean(kube, desired)
        assert [found.name for found in foreign_additions(desired, after)] == names
        assert after["metadata"]["generation"] == live["metadata"]["generation"]
    finally:
        api_cluster.kubectl("delete", "-f", "-", input=policy)
