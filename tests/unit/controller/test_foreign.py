"""What others add to a Deployment is found, named and taken out; the rest of it stays."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.objects import Pin, Stamp, deployment, first_difference
from plimsoll.controller.objects.context import RECREATE_ALL
from plimsoll.controller.objects.foreign import cleaning, foreign_additions, said
from tests.unit.controller.api_defaults import defaulted
from tests.unit.controller.builders import CONTEXT, GPU_LABEL, server
from tests.unit.controller.fake_cluster import patched
from tests.unit.controller.foreign_changes import (
    ADDITIONS,
    DAMAGE,
    POD,
    SECRET,
    Change,
    container,
    widen,
)
from tests.unit.controller.test_objects import BUSY

STAMP = Stamp(409600, 256, 131072, 8192, 16 * 10**9, None, Pin(GPU_LABEL, "H100"))
RICH: dict[str, Any] = {
    **BUSY,
    "engine": {
        "type": "LightLLM",
        "image": "ghcr.io/modeltc/lightllm:v1.2.0",
        "env": [
            {"name": "EMPTY", "value": ""},
            {"name": "PLAIN", "value": "1"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
    },
}
SPECS = {"defaults": {}, "rich": RICH}
Object = dict[str, Any]


def made(spec: str = "defaults") -> Object:
    return deployment(server(**SPECS[spec]), STAMP, CONTEXT)


def pod_of(obj: Object) -> Object:
    found: Object = obj["spec"]["template"]["spec"]
    return found


def changed(desired: Object, change: Change) -> Object:
    """The stored Deployment after what somebody did to its pod template."""
    live = defaulted(desired)
    change.do(pod_of(live))
    return live


def cleaned(desired: Object, live: Object) -> Object:
    """What the API server holds once the patch is done, which must be needed."""
    patch = cleaning(desired, live)
    assert patch is not None
    assert patch.live == live
    return defaulted(patched(live, patch.ops))


@pytest.mark.parametrize("spec", SPECS)
def test_what_the_api_server_fills_in_is_not_foreign(spec: str) -> None:
    assert foreign_additions(made(spec), defaulted(made(spec))) == ()
    assert cleaning(made(spec), defaulted(made(spec))) is None


def test_what_it_would_fill_in_beside_other_templates_of_ours_is_not_foreign() -> None:
    desired = made()
    widen(pod_of(desired))
    assert foreign_additions(desired, defaulted(desired)) == ()


@pytest.mark.parametrize("change", ADDITIONS.values(), ids=ADDITIONS)
def test_an_addition_is_found_named_and_removed_by_itself(change: Change) -> None:
    desired = made()
    live = changed(desired, change)
    assert {found.name for found in foreign_additions(desired, live)} == set(change.names)
    patch = cleaning(desired, live)
    assert patch is not None
    assert {op["op"] for op in patch.ops} == {"remove"}
    assert cleaned(desired, live) == defaulted(desired)
    assert SECRET not in json.dumps([patch.ops, patch.why])


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_where_ours_is_broken_too_the_pod_is_put_right_in_one_patch(change: Change) -> None:
    desired = made()
    live = changed(desired, change)
    assert set(change.names) <= {found.name for found in foreign_additions(desired, live)}
    patch = cleaning(desired, live)
    assert patch is not None
    assert cleaned(desired, live) == defaulted(desired)
    assert SECRET not in json.dumps([patch.ops, patch.why])


def test_a_new_template_over_foreign_fields_is_one_change_with_its_own_annotations() -> None:
    """Two template changes would be two rollouts, and the first with an old hash on new arguments."""
    old = made()
    live = changed(old, ADDITIONS["a sidecar"])
    live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "x"
    live["spec"]["template"]["metadata"]["labels"]["theirs"] = "y"
    live["spec"]["strategy"] = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    desired = deployment(server(), Stamp(7, pin=STAMP.pin), CONTEXT, turns=RECREATE_ALL)
    after = cleaned(desired, live)
    metadata = after["spec"]["template"]["metadata"]
    assert metadata["annotations"].pop("kubectl.kubernetes.io/restartedAt") == "x"
    assert metadata["labels"].pop("theirs") == "y"
    assert after["spec"]["template"] == defaulted(desired)["spec"]["template"]
    assert after["spec"]["strategy"] == {"type": "Recreate"}


def test_our_annotations_come_back_where_all_were_taken() -> None:
    desired = made()
    live = changed(desired, ADDITIONS["a sidecar"])
    del live["spec"]["template"]["metadata"]["annotations"]
    assert cleaned(desired, live) == defaulted(desired)


@pytest.mark.parametrize("field", ["finalizers", "ownerReferences"])
@pytest.mark.parametrize("also", [None, "another probe"])
def test_metadata_of_the_template_that_pods_would_take_over_goes(
    field: str, also: str | None
) -> None:
    desired = made()
    live = defaulted(desired) if also is None else changed(desired, DAMAGE[also])
    live["spec"]["template"]["metadata"][field] = ["example.com/x"]
    names = {found.name for found in foreign_additions(desired, live)}
    assert f"spec.template.metadata.{field}" in names
    assert cleaned(desired, live) == defaulted(desired)


def test_what_people_write_stays() -> None:
    desired = made()
    live = defaulted(desired)
    live["metadata"]["annotations"] = {"a": "b"}
    live["spec"] |= {"paused": True, "revisionHistoryLimit": 2}
    live["spec"]["template"]["metadata"]["labels"]["theirs"] = "y"
    live["spec"]["template"]["metadata"]["annotations"]["theirs"] = "y"
    live["spec"]["template"]["metadata"]["creationTimestamp"] = None
    assert foreign_additions(desired, live) == ()


def test_a_delay_of_readiness_goes() -> None:
    desired = made()
    live = defaulted(desired)
    live["spec"]["minReadySeconds"] = 600
    assert [found.name for found in foreign_additions(desired, live)] == ["spec.minReadySeconds"]
    assert cleaned(desired, live) == defaulted(desired)
    assert (
        foreign_additions({**desired, "spec": {**desired["spec"], "minReadySeconds": 1}}, live)
        == ()
    )


def _longer_args(pod: Object) -> None:
    container(pod, "server")["args"].append("--x")


def _longer_tolerations(pod: Object) -> None:
    pod["tolerations"].insert(0, {"key": "a", "operator": "Equal", "value": "b"})


def _other_values(pod: Object) -> None:
    container(pod, "server")["image"] = "localhost/theirs:1"
    container(pod, "server")["env"][1]["value"] = "2"
    pod["volumes"].reverse()


@pytest.mark.parametrize("do", [_longer_args, _longer_tolerations, _other_values])
def test_what_the_next_apply_puts_right_is_no_addition(do: Any) -> None:
    desired = made("rich")
    live = defaulted(desired)
    do(pod_of(live))
    assert first_difference(desired, live) is not None
    assert foreign_additions(desired, live) == ()


def test_a_field_inside_an_item_of_a_list_without_names_is_found() -> None:
    """An apply would write it, and nothing else tells that one is needed."""
    desired = made("rich")
    live = defaulted(desired)
    pod_of(live)["tolerations"][0]["tolerationSeconds"] = 5
    assert first_difference(desired, live) is None
    assert [found.name for found in foreign_additions(desired, live)] == [
        f"{POD}.tolerations[0].tolerationSeconds"
    ]
    assert cleaned(desired, live) == defaulted(desired)


def test_a_value_where_we_render_an_empty_text_is_found() -> None:
    desired = made("rich")
    live = defaulted(desired)
    container(pod_of(live), "server")["env"][0]["value"] = SECRET
    patch = cleaning(desired, live)
    assert patch is not None
    assert patch.why == f"others added {POD}.containers[server].env[EMPTY].value"
    assert cleaned(desired, live) == defaulted(desired)


def test_a_constraint_beside_the_user_s_own_is_removed() -> None:
    """Apply would leave it, and the difference in length would be applied for ever."""
    desired = made("rich")
    live = defaulted(desired)
    theirs = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    pod_of(live)["topologySpreadConstraints"].insert(0, theirs)
    assert [found.name for found in foreign_additions(desired, live)] == [
        f"{POD}.topologySpreadConstraints[zone]"
    ]
    assert cleaned(desired, live) == defaulted(desired)


def test_what_came_back_before_is_left() -> None:
    desired = made()
    live = changed(desired, ADDITIONS["sidecars around ours"])
    kept = {f"{POD}.containers[one]"}
    assert [found.name for found in foreign_additions(desired, live, kept)] == [
        f"{POD}.containers[two]"
    ]
    patch = cleaning(desired, live, kept)
    assert patch is not None
    assert [c["name"] for c in pod_of(patched(live, patch.ops))["containers"]] == ["one", "server"]
    assert cleaning(desired, live, {*kept, f"{POD}.containers[two]"}) is None


def test_a_sentence_names_three_and_is_short() -> None:
    desired = made()
    live = defaulted(desired)
    extra = [{"name": f"{i}{'x' * 200}", "value": SECRET} for i in range(5)]
    container(pod_of(live), "sizer")["env"] += extra
    text = said(foreign_additions(desired, live))
    assert text.endswith(" and 2 more")
    assert text.count(", ") == 2
    assert len(text) < 400
    assert SECRET not in text


JSON = st.recursive(
    st.booleans() | st.integers(1, 9) | st.text("ab/~", min_size=1, max_size=3),
    lambda inner: st.lists(inner, min_size=1, max_size=2)
    | st.dictionaries(st.text("xyz/~.", min_size=1, max_size=3), inner, min_size=1, max_size=2),
    max_leaves=3,
)  # fmt: skip
LISTS: dict[str, str] = {
    "containers": "name", "initContainers": "name", "volumes": "name", "env": "name",
    "volumeMounts": "mountPath", "ports": "containerPort",
}  # fmt: skip


def _somewhere(data: st.DataObject, pod: Object) -> None:
    """Add one unheard-of field to some object, or one item to some list, of the pod's spec."""
    place: Any = pod
    while True:
        below: list[Any] = [v for v in place.values() if isinstance(v, dict)]
        below += [i for k, v in place.items() if k in LISTS for i in v if isinstance(i, dict)]
        if not below or data.draw(st.booleans()):
            break
        place = data.draw(st.sampled_from(below))
    lists = [key for key in LISTS if isinstance(place.get(key), list)]
    if data.draw(st.booleans()) and lists:
        key = data.draw(st.sampled_from(lists))
        item = {LISTS[key]: f"new-{len(place[key])}", "protocol": "TCP", "more": data.draw(JSON)}
        place[key].insert(data.draw(st.integers(0, len(place[key]))), item)
    else:
        place[f"new/{data.draw(st.text('ab~', max_size=2))}"] = data.draw(JSON)


@given(st.data(), st.sampled_from(sorted(SPECS)))
def test_any_additions_are_taken_out_and_nothing_else(data: st.DataObject, spec: str) -> None:
    desired = made(spec)
    live = defaulted(desired)
    for _ in range(data.draw(st.integers(1, 4))):
        _somewhere(data, pod_of(live))
    kinds = st.lists(st.sampled_from(sorted(ADDITIONS)), max_size=2, unique=True)
    if spec == "defaults":
        for name in data.draw(kinds):
            ADDITIONS[name].do(pod_of(live))
    before = copy.deepcopy(live)
    assert cleaned(desired, live) == defaulted(desired)
    assert live == before


@given(st.lists(st.sampled_from(sorted({**ADDITIONS, **DAMAGE})), min_size=1, unique=True))
def test_any_mixture_of_changes_is_put_right_in_one_patch(names: list[str]) -> None:
    desired = made()
    live = defaulted(desired)
    for name in names:
        # Where another change took away what this one changes.
        with contextlib.suppress(LookupError, ValueError, TypeError):
            {**ADDITIONS, **DAMAGE}[name].do(pod_of(live))
    assert cleaned(desired, live) == defaulted(desired)
