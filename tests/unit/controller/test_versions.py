"""Render versions: an upgrade of the operator renders what runs as it was, and says so."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from plimsoll.controller.actions import Patch
from plimsoll.controller.objects import BuildContext, service
from plimsoll.controller.objects.names import INPUTS_HASH, RENDER_VERSION
from plimsoll.controller.objects.versions import LATEST, newest, version_of
from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.plan import Apply, Plan, plan
from tests.unit.controller.builders import NOW, node, server_pod, stored
from tests.unit.controller.fake_cluster import patched
from tests.unit.controller.golden_templates import (
    Golden,
    as_deployed,
    golden,
    render_version,
    rendered,
    server_of,
    stamp_in,
)
from tests.unit.controller.plan_worlds import conditions, text

GOLDEN = golden()
NEWER = BuildContext("ghcr.io/plimsoll-dev/sizer:9.9.9", "Always")
WITH_OPERATOR = {"rollout": {"updatePolicy": "WithOperator"}}

EACH = pytest.mark.parametrize("name", GOLDEN)
FIRST_ONES = pytest.mark.parametrize("name", [n for n in GOLDEN if render_version(n) == 1])


def edited(found: Golden, **changes: Any) -> Golden:
    """The file with parts of its spec merged in."""
    made = copy.deepcopy(found)
    for field, values in changes.items():
        made["resource"]["spec"][field] = {**made["resource"]["spec"].get(field, {}), **values}
    return made


def latest(found: Golden) -> int:
    """The version that a new server like it has."""
    return newest(server_of(found), stamp_in(found))


def test_there_is_a_file_of_every_version() -> None:
    assert {render_version(name) for name in GOLDEN} == {*range(1, LATEST + 1)}


@EACH
def test_what_a_version_renders_never_changes(name: str) -> None:
    """Also for an operator with another sizer: the file is what a running server holds."""
    found = GOLDEN[name]
    assert version_of(found["template"]) == render_version(name)
    assert rendered(found, NEWER) == found["template"]


@EACH
def test_a_change_of_the_inputs_takes_the_latest_version(name: str) -> None:
    found = edited(GOLDEN[name], rollout={"drainSeconds": 33})
    made = rendered(found, NEWER)
    assert version_of(made) == latest(found)
    assert made["spec"]["initContainers"][0]["image"] == NEWER.sizer_image
    assert made["spec"]["terminationGracePeriodSeconds"] == 38


@EACH
def test_who_wants_updates_gets_the_latest_version(name: str) -> None:
    found = edited(GOLDEN[name], **WITH_OPERATOR)
    made = rendered(found, NEWER)
    assert version_of(made) == latest(found)
    assert made["spec"]["initContainers"][0]["image"] == NEWER.sizer_image
    # Asked again beside what it made, it makes the same: one rollout, not one for each pass.
    assert rendered({**found, "template": made}, NEWER) == made


@FIRST_ONES
def test_a_template_of_an_unknown_version_is_rendered_anew(name: str) -> None:
    """After a downgrade: rules that this operator does not know cannot be followed."""
    for unknown in (str(LATEST + 1), "0", "-1", "two", ""):
        found = copy.deepcopy(GOLDEN[name])
        found["template"]["metadata"]["annotations"][RENDER_VERSION] = unknown
        assert version_of(found["template"]) is None
        assert version_of(rendered(found, NEWER)) == latest(found)


@FIRST_ONES
def test_the_versions_differ_in_what_the_map_says(name: str) -> None:
    """The guard of version 1 looks and reports; since version 2 it is told what it may refuse."""
    old, new = GOLDEN[name]["template"], GOLDEN[name.replace("v1", "v2")]["template"]
    told = [{e["name"] for e in made["spec"]["initContainers"][0]["env"]} for made in (old, new)]
    assert told[1] - told[0] == {
        "PLIMSOLL_GUARD",
        "PLIMSOLL_STAMPED_MODEL",
        "PLIMSOLL_STAMPED_CLASS",
    }
    assert told[0] < told[1]
    assert old["metadata"]["annotations"].keys() == new["metadata"]["annotations"].keys() - {
        RENDER_VERSION
    }
    assert (
        old["metadata"]["annotations"][INPUTS_HASH] != new["metadata"]["annotations"][INPUTS_HASH]
    )


# -- version 3: the order of several products ---------------------------------------------------


def preferred(template: dict[str, Any]) -> list[int]:
    affinity = template["spec"]["affinity"]["nodeAffinity"]
    return [t["weight"] for t in affinity["preferredDuringSchedulingIgnoredDuringExecution"]]


def test_version_3_prefers_the_products_in_their_order() -> None:
    old, new = (GOLDEN[f"v{version}-several-kinds"] for version in (2, 3))
    assert old["resource"] == new["resource"]
    assert preferred(old["template"]) == [5]
    assert preferred(new["template"]) == [5, 100, 100, 10, 10]
    required = [
        t["template"]["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        for t in (old, new)
    ]
    assert required[0] == required[1]


@EACH
def test_version_3_is_only_for_who_has_several_products(name: str) -> None:
    """Another version number alone would be an update that says nothing, and a restart for it."""
    found = GOLDEN[name]
    assert latest(found) == (LATEST if name.endswith("several-kinds") else 2)


def test_a_server_of_version_2_is_told_of_the_order() -> None:
    found = GOLDEN["v2-several-kinds"]
    live = stored(as_deployed(found))
    pods = [server_pod(live, 0)]
    seen = observe_from(
        found["resource"], deployment=live, service=stored(service(server_of(found))), pods=pods
    )
    made = plan(seen, BuildContext(**found["context"]), NOW)
    assert made.actions == ()
    assert "render version 2, now 3" in text(made, "UpdateAvailable")


# -- the planner beside what an older operator left ------------------------------------------------


def world(found: Golden) -> Observed:
    """A running server of that template, with the capacity that its own operator stored."""
    server = server_of(found)
    live = stored(as_deployed(found))
    return observe_from(
        {**found["resource"], "status": {"capacity": found["capacity"]}},
        deployment=live,
        service=stored(service(server)),
        pods=[server_pod(live, number) for number in range(server.spec.replicas)],
        node=node(),
    )


def written(made: Plan) -> dict[str, Any]:
    """The template that the plan's one write of the Deployment leaves there."""
    (found,) = (
        patched(action.live, action.ops) if isinstance(action, Patch) else action.obj
        for action in made.actions
        if isinstance(action, Patch)
        or (isinstance(action, Apply) and action.obj["kind"] == "Deployment")
    )
    template: dict[str, Any] = found["spec"]["template"]
    return template


@FIRST_ONES
def test_an_upgrade_writes_nothing_but_the_status(name: str) -> None:
    seen = world(GOLDEN[name])
    made = plan(seen, NEWER, NOW)
    assert made.actions == ()
    found = conditions(made, seen)
    assert found["Ready"] == ("True", "Ready")
    assert found["UpdateAvailable"] == ("True", "OlderRendering")
    said = text(made, "UpdateAvailable")
    assert f"render version 1, now {latest(GOLDEN[name])}" in said
    assert f"sizer {GOLDEN[name]['context']['sizer_image']}, now {NEWER.sizer_image}" in said
    assert made.status is not None
    assert made.status["effective"]["renderVersion"] == 1
    assert made.status["capacity"] == GOLDEN[name]["capacity"]
    # And then there is silence.
    assert plan(replace(seen, raw={**seen.raw, "status": made.status}), NEWER, NOW) == Plan()


@pytest.mark.parametrize("name", ["v2-lightllm", "v2-llamacpp", "v2-tgi"])
def test_the_same_operator_has_no_update(name: str) -> None:
    seen = world(GOLDEN[name])
    made = plan(seen, BuildContext(**GOLDEN[name]["context"]), NOW)
    assert made.actions == ()
    assert "UpdateAvailable" not in conditions(made, seen)


@FIRST_ONES
def test_an_upgrade_restarts_the_servers_of_who_wants_that(name: str) -> None:
    seen = world(edited(GOLDEN[name], **WITH_OPERATOR))
    made = plan(seen, NEWER, NOW)
    assert version_of(written(made)) == latest(GOLDEN[name])
    assert "UpdateAvailable" not in conditions(made, seen)


@FIRST_ONES
def test_an_edit_after_the_upgrade_renders_the_latest(name: str) -> None:
    made = plan(world(edited(GOLDEN[name], rollout={"drainSeconds": 33})), NEWER, NOW)
    template = written(made)
    assert [event.reason for event in made.events if "Deployment" in event.message] == [
        "RolloutStarted"
    ]
    assert version_of(template) == latest(GOLDEN[name])
    # The number that was measured by the older operator goes on being the number.
    env = {e["name"]: e.get("value") for e in template["spec"]["initContainers"][0]["env"]}
    assert env["PLIMSOLL_STAMPED_TOKENS"] == "409600"


@FIRST_ONES
def test_a_template_of_version_1_is_still_put_right(name: str) -> None:
    seen = world(GOLDEN[name])
    assert seen.deployment is not None
    seen.deployment["spec"]["template"]["spec"]["containers"][0]["args"][-1] = "--evil"
    made = plan(seen, NEWER, NOW)
    assert written(made)["spec"]["containers"][0]["args"][-1] != "--evil"
    assert version_of(written(made)) == 1
    assert "PutRight" in {event.reason for event in made.events}
