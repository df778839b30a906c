"""What others do to a server's children, names and status: put right, or left alone and said."""

import copy
from datetime import timedelta

import pytest

from plimsoll.controller.cluster import Conflict, Object
from tests.unit.controller.builders import NAMESPACE, TOKENS
from tests.unit.controller.rig import KEY, Rig
from tests.unit.controller.test_reconcile import settled, tokens


async def test_a_changed_argument_is_put_right() -> None:
    rig = await settled()

    def tamper(obj: Object) -> None:
        obj["spec"]["template"]["spec"]["containers"][0]["args"] = ["--max_total_token_num=7"]

    rig.cluster.edit("Deployment", *KEY, tamper)
    await rig.settle()
    assert tokens(rig) == [f"--max_total_token_num={TOKENS}"]


async def test_a_foreign_deployment_of_that_name_is_left_alone() -> None:
    rig = Rig()
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llama", "namespace": NAMESPACE},
        "spec": {"replicas": 1, "template": {"metadata": {}, "spec": {"containers": []}}},
    }
    rig.deaf = lambda _kind, obj: obj["kind"] == "Deployment"  # no label: never streamed
    rig.cluster.put(foreign)
    rig.apply()
    for _ in range(20):
        await rig.operate()
    assert rig.cluster.objects["Deployment", *KEY]["spec"] == foreign["spec"]
    assert "Deployment llama exists" in str(rig.status()["conditions"])


async def test_a_deployment_that_a_stranger_put_in_place_of_ours_is_left_alone() -> None:
    """The watch has not told yet: the pass still believes in the old one."""
    rig = await settled()
    rig.deaf = lambda _kind, obj: obj["kind"] == "Deployment"
    old = copy.deepcopy(rig.cluster.objects["Deployment", *KEY])
    rig.cluster.remove("Deployment", *KEY)
    metadata = {"name": "llama", "namespace": NAMESPACE}
    foreign = rig.cluster.put({**old, "metadata": metadata})
    rig.apply(replicas=2)
    with pytest.raises(Conflict):
        await rig.reconcile(KEY)
    assert rig.cluster.objects["Deployment", *KEY] == foreign
    rig.deaf = lambda _kind, obj: obj["metadata"].get("uid") == foreign["metadata"]["uid"]
    await rig.boot()
    rig.store._drop(("Deployment", *KEY)) if rig.store.get("Deployment", *KEY) else None
    assert await rig.operate()  # the API server says that the name is taken
    await rig.operate()
    assert rig.cluster.objects["Deployment", *KEY] == foreign
    assert rig.condition("Ready") == ("False", "Conflict")


async def test_a_stranger_s_pod_under_the_name_becomes_a_condition_and_is_spared() -> None:
    """Without our labels no watch shows it; only the create finds it."""
    rig = Rig()
    rig.apply()
    await rig.boot()
    await rig.operate()
    (pod,) = rig.cluster.of_kind("Pod")
    where = ("Pod", NAMESPACE, pod["metadata"]["name"])
    rig.cluster.remove(*where)
    rig.deaf = lambda _kind, obj: obj["kind"] == "Pod"
    rig.cluster.put({**pod, "metadata": {"name": where[2], "namespace": NAMESPACE, "labels": {}}})
    rig.now += timedelta(seconds=60)
    for _ in range(6):
        await rig.operate()
    assert rig.condition("Ready") == ("False", "Conflict")
    assert rig.requeue
    assert where in rig.cluster.objects
    rig.cluster.remove(*where)
    rig.deaf = lambda _kind, _obj: False
    rig.now += timedelta(seconds=60)
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"


async def test_a_wiped_status_is_found_again_without_touching_the_server() -> None:
    rig = await settled()
    calm = rig.end_state()
    pods = rig.cluster.of_kind("Pod")

    def wipe(obj: Object) -> None:
        obj["status"] = {}

    rig.cluster.edit("InferenceServer", *KEY, wipe)
    await rig.settle()
    assert rig.end_state() == calm
    assert rig.cluster.of_kind("Pod") == pods
    assert len(rig.created()) == 2


async def test_what_others_wrote_into_the_status_goes_but_their_conditions_stay() -> None:
    rig = await settled()
    calm = rig.status()
    foreign = {
        "type": "Audited",
        "status": "True",
        "reason": "R",
        "message": "M.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }

    def forge(obj: Object) -> None:
        stale = {**foreign, "type": "Reconciling"}
        obj["status"]["conditions"] += [stale, foreign]
        obj["status"]["sizing"] = {"attempts": 7}
        obj["status"]["ready"] = "9/9"

    rig.cluster.edit("InferenceServer", *KEY, forge)
    await rig.settle()
    found = rig.status()
    assert foreign in found["conditions"]
    assert "Reconciling" not in {c["type"] for c in found["conditions"]}
    assert "sizing" not in found
    assert found["ready"] == calm["ready"]
    quiet = len(rig.cluster.writes)
    for _ in range(3):
        await rig.operate()
    assert len(rig.cluster.writes) == quiet


async def test_replicas_changed_by_hand_are_put_back_and_a_restart_is_not_fought() -> None:
    rig = await settled()

    def change(obj: Object) -> None:
        obj["spec"]["replicas"] = 3
        annotations = obj["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations["kubectl.kubernetes.io/restartedAt"] = "2026-12-01T12:00:00Z"

    before = {p["metadata"]["name"] for p in rig.cluster.of_kind("Pod")}
    rig.cluster.edit("Deployment", *KEY, change)
    await rig.settle()
    live = rig.cluster.objects["Deployment", *KEY]
    assert live["spec"]["replicas"] == 1
    assert (
        "kubectl.kubernetes.io/restartedAt" in live["spec"]["template"]["metadata"]["annotations"]
    )
    assert {p["metadata"]["name"] for p in rig.cluster.of_kind("Pod")}.isdisjoint(before)
    assert rig.condition("Ready")[0] == "True"
    assert len(rig.created()) == 1


async def test_a_sizing_pod_deleted_by_hand_is_made_again() -> None:
    rig = Rig()
    rig.apply()
    await rig.operate()
    await rig.operate()
    (pod,) = rig.cluster.of_kind("Pod")
    rig.cluster.remove("Pod", NAMESPACE, pod["metadata"]["name"])
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"
    assert len(rig.created()) == 2
