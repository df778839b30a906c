"""A pass that takes out what others added: once, on a fresh view, and not against admission."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.controller.cluster import Conflict, Object, Refused
from plimsoll.controller.reconcile import AFTER_WRITE
from tests.unit.controller.builders import TOKENS
from tests.unit.controller.rig import KEY, Rig
from tests.unit.controller.test_reconcile import settled, tokens

DEPLOYMENT = ("Deployment", *KEY)


def add(obj: Object) -> None:
    pod = obj["spec"]["template"]["spec"]
    pod["hostNetwork"] = True
    pod["containers"].append({"name": "mesh", "image": "localhost/mesh:1"})


def share(obj: Object) -> None:
    obj["spec"]["template"]["spec"]["shareProcessNamespace"] = True


def admit(obj: Object) -> Object:
    if obj["kind"] == "Deployment":
        share(obj)
    return obj


def pod_of(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = rig.cluster.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    return found


def patches(rig: Rig) -> int:
    return sum(write.verb == "patch" for write in rig.cluster.writes)


async def test_what_others_added_is_taken_out_by_one_write() -> None:
    rig = await settled()
    calm = rig.cluster.objects[DEPLOYMENT]["spec"]
    rig.cluster.edit(*DEPLOYMENT, add)
    before = len(rig.cluster.writes)
    await rig.reconcile(KEY)
    assert [w.verb for w in rig.cluster.writes[before:] if w.kind == "Deployment"] == ["patch"]
    assert rig.cluster.objects[DEPLOYMENT]["spec"] == calm
    assert rig.metrics.actions.value(verb="patch", kind="Deployment") == 1
    await rig.settle()
    assert patches(rig) == 1
    assert not stays(rig)


async def test_the_next_pass_does_not_wait_for_the_watch_to_tell_of_the_patch() -> None:
    rig = await settled()
    rig.cluster.edit(*DEPLOYMENT, add)
    rig.deaf = lambda _kind, obj: obj["kind"] == "Deployment"
    await rig.reconcile(KEY)
    assert (rig.store.get(*DEPLOYMENT) or {})["spec"] == rig.cluster.objects[DEPLOYMENT]["spec"]
    assert "hostNetwork" not in pod_of(rig)


async def test_a_patch_that_changed_nothing_is_looked_at_again_at_once() -> None:
    """Another write may have waited behind it."""
    rig = await settled()
    rig.cluster.admit = admit
    rig.cluster.edit(*DEPLOYMENT, share)
    await rig.reconcile(KEY)  # writes the status, too, which is looked at again in any case
    rig.reconcile._actor._kept.clear()
    before = len(rig.cluster.writes)
    assert await rig.reconcile(KEY) == AFTER_WRITE
    assert "status" not in [w.verb for w in rig.cluster.writes[before:]]


async def test_a_patch_planned_on_an_old_view_changes_nothing_and_brings_the_new_one() -> None:
    rig = await settled()
    rig.cluster.edit(*DEPLOYMENT, add)
    rig.deaf = lambda _kind, obj: obj["kind"] == "Deployment"
    unheard = rig.cluster.edit(*DEPLOYMENT, lambda obj: obj["metadata"]["labels"].update(a="b"))
    with pytest.raises(Conflict):
        await rig.reconcile(KEY)
    assert rig.cluster.objects[DEPLOYMENT] == unheard
    await rig.reconcile(KEY)
    assert "hostNetwork" not in pod_of(rig)
    assert rig.cluster.objects[DEPLOYMENT]["metadata"]["labels"]["a"] == "b"


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_deployment_that_went_unheard_is_forgotten(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await settled()
    rig.cluster.edit(*DEPLOYMENT, add)
    rig.deaf = lambda _kind, obj: obj["kind"] == "Deployment"
    if when == "during":  # the patch is answered, and then it goes

        async def conflict(*_: object) -> None:
            rig.cluster.remove(*DEPLOYMENT)
            raise Conflict("it changed")

        monkeypatch.setattr(rig.cluster, "patch", conflict)
    else:
        rig.cluster.remove(*DEPLOYMENT)
    with pytest.raises(Conflict):
        await rig.reconcile(KEY)
    assert rig.store.get(*DEPLOYMENT) is None


def stays(rig: Rig) -> list[str]:
    events = [e for e in rig.cluster.of_kind("Event") if e["reason"] == "ForeignFieldsStay"]
    return [f"{e['type']} {e.get('count', 1)} {e['message']}" for e in events]


async def test_what_admission_adds_again_is_left_and_said_once_and_stops_nothing() -> None:
    rig = await settled()
    rig.cluster.admit = admit
    rig.cluster.edit(*DEPLOYMENT, share)
    await rig.settle()
    assert patches(rig) == 1
    (said,) = stays(rig)
    assert rig.condition("Ready")[0] == "True"
    assert said.startswith(
        "Warning 1 Deployment llama: spec.template.spec.shareProcessNamespace: came back"
    )
    rig.apply(replicas=2)
    await rig.settle()
    assert rig.cluster.objects[DEPLOYMENT]["spec"]["replicas"] == 2
    assert tokens(rig) == [f"--max_total_token_num={TOKENS}"]
    assert patches(rig) == 1
    # Anything else still goes, and what comes back is still known.
    rig.cluster.edit(*DEPLOYMENT, add)
    await rig.settle()
    assert "hostNetwork" not in pod_of(rig)
    assert pod_of(rig)["shareProcessNamespace"] is True
    assert patches(rig) == 2


async def test_once_admission_is_gone_a_new_operator_takes_it_out() -> None:
    rig = await settled()
    rig.cluster.admit = admit
    rig.cluster.edit(*DEPLOYMENT, share)
    await rig.settle()
    rig.cluster.admit = lambda obj: obj
    await rig.boot()
    await rig.settle()
    assert "shareProcessNamespace" not in pod_of(rig)


async def test_a_server_of_the_same_name_inherits_no_leniency() -> None:
    rig = await settled()
    rig.reconcile._actor._kept[KEY] = frozenset({"spec.template.spec.hostNetwork"})
    rig.cluster.remove("InferenceServer", *KEY)
    assert await rig.reconcile(KEY) is None
    assert rig.reconcile._actor._kept == {}


async def test_a_refused_patch_is_told_as_a_refused_apply_is() -> None:
    rig = await settled()
    rig.cluster.edit(*DEPLOYMENT, add)
    no = Refused(403, "Forbidden", "admission webhook says no")
    rig.cluster.refuse = lambda verb, _obj: no if verb == "patch" else None
    await rig.reconcile(KEY)
    assert rig.condition("RolledOut") == ("False", "ApplyRefused")
    assert pod_of(rig)["hostNetwork"] is True
