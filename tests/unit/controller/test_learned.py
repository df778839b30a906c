"""A server that ran out of device memory teaches its namespace, and nobody crashes so again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.actions import Apply, Remember
from plimsoll.controller.cluster import Object, Refused, Retry
from plimsoll.controller.objects import Stamp
from plimsoll.controller.objects.learned_map import (
    LEARNED_MAP,
    Case,
    Entry,
    Malformed,
    learned_map,
    manager_of,
    read_entry,
)
from plimsoll.controller.observed import Observed, observe_from
from plimsoll.controller.plan import plan
from plimsoll.controller.senses import Senses
from plimsoll.controller.steps import learned, shrink
from plimsoll.controller.steps.sizing import Sizing
from plimsoll.controller.steps.survey import Survey
from plimsoll.core.units import GIB
from tests.unit.controller.builders import (
    BUDGET,
    CONTEXT,
    DEVICE,
    NAMESPACE,
    NOW,
    PRODUCT,
    REPORT,
    TOKENS,
    body,
    ended,
    node,
    server,
    server_pod,
)
from tests.unit.controller.plan_worlds import after, child, serving, sizing, text
from tests.unit.controller.rig import KEY, Rig

if TYPE_CHECKING:
    from plimsoll.controller.actions import Plan
    from plimsoll.core.report import Report

CASE = Case(
    "LightLLM", "1.2.0", REPORT.model_digest, PRODUCT, DEVICE.total_bytes, None, None, DEVICE.count
)
ENTRY = Entry(CASE, GIB, "other", "2026-11-30T08:00:00Z", "it ran out of memory")
TEXT = learned_map(NAMESPACE, ENTRY)["data"][CASE.key]
CELL = REPORT.kv_bytes_per_rank


def measured(entries: dict[str, str] | None, **spec: Any) -> tuple[Plan, dict[str, Any]]:
    """The pass that reads a sizing pod's result with these entries, and its capacity."""
    pod = ended(sizing(**spec))
    world = observe_from(body(**spec), pods=[pod], node=node())
    made = plan(replace(world, learned=entries), CONTEXT, NOW)
    assert made.status is not None
    return made, made.status["capacity"]


# -- the entry ------------------------------------------------------------------------------------


def test_an_entry_says_what_it_is_and_comes_back_as_it_was() -> None:
    made = learned_map(NAMESPACE, ENTRY)
    assert made["metadata"] == {
        "name": "plimsoll-learned",
        "namespace": NAMESPACE,
        "labels": {"app.kubernetes.io/managed-by": "plimsoll"},
    }
    ((key, value),) = made["data"].items()
    assert key.startswith("LightLLM.1.2.0.NVIDIA-H100-80GB-HBM3.")
    assert json.loads(value) == {
        "engine": "LightLLM", "version": "1.2.0", "modelDigest": REPORT.model_digest,
        "product": PRODUCT, "totalBytes": 80 * GIB, "count": 1, "extraBytes": GIB,
        "learnedFrom": "other", "at": "2026-11-30T08:00:00Z", "why": "it ran out of memory",
    }  # fmt: skip
    assert read_entry(value, CASE) == ENTRY


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "VLLM"}, {"version": "1.2.1"}, {"model_digest": "sha256:00"},
        {"product": "L4"}, {"total_bytes": 1}, {"mig": "1g"}, {"sharing": "mps"}, {"count": 2},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_every_part_of_a_case_counts(change: dict[str, Any]) -> None:
    other = replace(CASE, **change)
    assert other.key != CASE.key
    with pytest.raises(Malformed, match="is not"):
        read_entry(TEXT, other)
    entry = replace(ENTRY, case=other, extra_bytes=1)
    assert manager_of(entry) != manager_of(ENTRY)
    assert read_entry(learned_map(NAMESPACE, entry)["data"][other.key], other) == entry


def test_keys_are_keys_whatever_a_device_is_called() -> None:
    case = replace(CASE, product="Ünïcode / " + "x" * 300, version="registry/x@sha256:" + "0" * 64)
    assert len(case.key) <= 253
    assert set(case.key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")
    assert len(manager_of(replace(ENTRY, case=case))) <= 128


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(TEXT), **fields})


MALFORMED = {
    "": "not JSON",
    "[": "not JSON",
    "[" * 4000: "not JSON",
    "7": "not a JSON object",
    TEXT + " " * 4096: "longer than 4096",
    changed(product="L4"): "its product is not",
    changed(count="1"): "its count is not",
    changed(extraBytes=0): "no number of bytes",
    changed(extraBytes=-GIB): "no number of bytes",
    changed(extraBytes=81 * GIB): "no number of bytes",
    changed(extraBytes="1Gi"): "no number of bytes",
    changed(extraBytes=True): "no number of bytes",
    changed(extraBytes=1e9): "no number of bytes",
    changed(learnedFrom="<b>"): "not the name of a server",
    changed(learnedFrom=None): "not the name of a server",
    changed(at="yesterday"): "not a time",
    changed(at="2026-11-30"): "not a time",
    changed(at=5): "not a time",
}


@pytest.mark.parametrize(("entry", "why"), MALFORMED.items(), ids=range(len(MALFORMED)))
def test_what_is_no_entry_is_told_once_and_changes_nothing(entry: str, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_entry(entry, CASE)
    made, capacity = measured({CASE.key: entry})
    assert capacity == measured({})[1]
    (note,) = (e for e in made.events if e.reason == "LearnedReserveIgnored")
    assert (note.type, CASE.key in note.message, why in note.message) == ("Warning", True, True)


# -- a fresh measurement --------------------------------------------------------------------------


def test_a_fresh_measurement_is_less_what_was_learned() -> None:
    made, capacity = measured({CASE.key: TEXT})
    assert capacity["maxTotalTokenNum"] == TOKENS - GIB // CELL
    assert capacity["kvCacheBytes"] == capacity["breakdown"]["kv"] == BUDGET.kv - GIB
    assert capacity["breakdown"]["reserve"]["extra"] == GIB
    assert capacity["learned"] == {"bytes": GIB, "from": "other", "at": "2026-11-30T08:00:00Z"}
    assert "shrinkSteps" not in capacity
    assert text(made, "Sized") == (
        f"Measured {TOKENS - GIB // CELL} tokens on {PRODUCT} (estimated), less 1.00 GiB that "
        "server other was found to need on 2026-11-30 (ConfigMap plimsoll-learned)."
    )
    (applied,) = (a for a in made.actions if getattr(a, "obj", {}).get("kind") == "Deployment")
    assert str(TOKENS - GIB // CELL) in str(applied)


def test_what_is_persisted_is_believed_and_says_so_without_the_map() -> None:
    _, capacity = measured({CASE.key: TEXT})
    status = {"capacity": capacity}
    made = plan(observe_from(body(status=status), node=node()), CONTEXT, NOW)
    assert "less 1.00 GiB" in text(made, "Sized")
    (applied,) = (a for a in made.actions if getattr(a, "obj", {}).get("kind") == "Deployment")
    assert str(TOKENS - GIB // CELL) in str(applied)


STEP = 50 * GIB * 5 // 100
SECOND = (50 * GIB - STEP) * 5 // 100

# spec.sizing.onOutOfMemory and other sizing fields, what was learned, what is taken
CAPS: dict[str, tuple[dict[str, Any], int, int]] = {
    "as learned": ({}, 3 * GIB, 3 * GIB),
    "a tenth of the device": ({"onOutOfMemory": {"maxSteps": 16}}, 9 * GIB, 8 * GIB),
    "all steps together": ({"onOutOfMemory": {"maxSteps": 2}}, 9 * GIB, STEP + SECOND),
    "steps as large as the user's": (
        {"onOutOfMemory": {"maxSteps": 1, "stepPercent": 10}}, 9 * GIB, 5 * GIB,
    ),
    "no step": ({"onOutOfMemory": {"maxSteps": 0}}, GIB, 0),
    "no action": ({"onOutOfMemory": {"action": "None"}}, GIB, 0),
    "below the user's least": ({"minTotalTokenNum": TOKENS}, GIB, 0),
    "below the user's context": ({"contextLength": TOKENS}, GIB, 0),
}  # fmt: skip


@pytest.mark.parametrize(("sizing", "known", "taken"), CAPS.values(), ids=CAPS)
def test_caps(sizing: dict[str, Any], known: int, taken: int) -> None:
    entry = learned_map(NAMESPACE, replace(ENTRY, extra_bytes=known))["data"]
    _, capacity = measured(entry, sizing=sizing)
    assert capacity["kvCacheBytes"] == BUDGET.kv - taken
    assert (capacity.get("learned") or {}).get("bytes", 0) == taken
    assert ("learned" in capacity) is bool(taken)


def test_a_limit_of_the_user_that_leaves_as_much_free_is_kept() -> None:
    spec: dict[str, Any] = {"sizing": {"maxTotalTokenNum": 48 * GIB // CELL}}
    report = replace(REPORT, max_total_token_num=48 * GIB // CELL)
    found = {}
    for known in (GIB, 3 * GIB):
        entries = learned_map(NAMESPACE, replace(ENTRY, extra_bytes=known))["data"]
        world = observe_from(body(**spec), pods=[ended(sizing(**spec), report)], node=node())
        made = plan(replace(world, learned=entries), CONTEXT, NOW)
        assert made.status is not None
        capacity = made.status["capacity"]
        found[known] = capacity["maxTotalTokenNum"] * CELL, "learned" in capacity
    assert found == {GIB: (48 * GIB, False), 3 * GIB: (47 * GIB, True)}


def test_other_cases_and_no_map_take_nothing() -> None:
    other = replace(ENTRY, case=replace(CASE, product="L4"))
    plain = measured(None)[1]
    assert measured({})[1] == measured(learned_map(NAMESPACE, other)["data"])[1] == plain
    assert "learned" not in plain


def test_a_stored_answer_is_never_changed() -> None:
    status = after(observe_from(body(), pods=[ended(sizing())], node=node()))
    world = replace(serving(status=status), learned={CASE.key: TEXT})
    made = plan(world, CONTEXT, NOW)
    assert made.status is not None
    assert made.status["capacity"] == status["capacity"]
    assert made.actions == ()


# -- the lesson -----------------------------------------------------------------------------------


def shrunk_world(
    entries: dict[str, str] | None = None, report: Report = REPORT, **spec: Any
) -> Observed:
    """A server that serves with a pool that is one step smaller; its status is behind."""
    pod = ended(sizing(**spec), report)
    capacity = after(observe_from(body(**spec), pods=[pod], node=node()))["capacity"]
    shrunk = shrink.shrunk(server(**spec), capacity)
    assert shrunk is not None
    world = observe_from(body(status={"capacity": shrunk}, **spec), node=node())
    (*rest, applied) = (a.obj for a in plan(world, CONTEXT, NOW).actions if isinstance(a, Apply))
    live = child(**spec)
    live["spec"]["template"] = applied["spec"]["template"]
    return replace(
        world,
        deployment=live,
        service={**rest[0], "metadata": {**rest[0]["metadata"], "uid": "u"}},
        server_pods=(server_pod(live),),
        learned=entries,
    )


def lessons(world: Observed) -> list[Object]:
    return [a.obj for a in plan(world, CONTEXT, NOW).actions if isinstance(a, Remember)]


def test_a_shrunk_server_that_serves_teaches() -> None:
    (made,) = lessons(shrunk_world({}))
    entry = read_entry(made["data"][CASE.key], CASE)
    assert (entry.extra_bytes, entry.learned_from, entry.at) == (
        STEP,
        "llama",
        "2026-12-01T12:00:00Z",
    )
    assert entry.why == (
        "the engine ran out of device memory as it started and serves with 2.50 GiB more left free"
    )


def test_the_users_own_reserve_is_not_learned() -> None:
    reserve = {"activation": 7 * GIB, "fragmentation": 2 * GIB, "extra": GIB}
    report = replace(REPORT, budget=replace(BUDGET, reserve=reserve))
    (made,) = lessons(shrunk_world({}, report, sizing={"extraReserve": "1Gi"}))
    assert read_entry(made["data"][CASE.key], CASE).extra_bytes == STEP


def test_what_a_server_was_given_at_once_is_no_news() -> None:
    """Whoever deletes the map would otherwise find it again, as soon as such a server is ready."""
    world = shrunk_world({})
    capacity = {k: v for k, v in world.status["capacity"].items() if k != "shrinkSteps"}
    again = replace(world, raw={**world.raw, "status": {"capacity": capacity}})
    assert (len(lessons(world)), len(lessons(again))) == (1, 0)


def test_a_number_teaches_once_it_is_in_the_template_and_whoever_measured_it() -> None:
    world = shrunk_world({})
    capacity = world.status["capacity"]
    pods = Survey(world.server_pods, (), ())
    found = [
        len(learned.lesson(world, Sizing((), capacity=given, stamp=stamp), pods, NOW))
        for given, stamp in (
            (capacity, Stamp()),
            (capacity, None),
            (None, Stamp()),
            ({**capacity, "source": "InPod"}, Stamp()),
        )
    ]
    assert found == [1, 0, 0, 1]


def test_an_engine_of_unknown_version_is_its_image() -> None:
    image = "registry/lightllm@sha256:" + "0" * 64
    capacity = measured(None)[1]
    made = learned.case_of(server(engine={"type": "LightLLM", "image": image}), capacity)
    assert made == replace(CASE, version=image)


def test_when_the_map_is_read() -> None:
    never = {"onOutOfMemory": {"action": "None"}}
    world = shrunk_world()
    said = plan(world, CONTEXT, NOW).status
    assert said is not None
    reading = observe_from(body(), pods=[ended(sizing())], node=node())
    table = (
        ("a result", reading, True),
        ("a result of one that never shrinks",
         observe_from(body(sizing=never), pods=[ended(sizing(sizing=never))]), False),
        ("a failure", observe_from(body(), pods=[ended(sizing(), "", code=4)]), False),
        ("no result yet", observe_from(body(), pods=[sizing()]), False),
        ("a result that is stored",
         replace(reading, raw=body(status=after(reading))), False),
        ("shrunk and ready", world, True),
        ("shrunk and ready, as its status says",
         replace(world, raw={**world.raw, "status": said}), False),
        ("shrunk and starting",
         replace(world, server_pods=(server_pod(child(), ready=False),)), False),
        ("ready", serving(), False),
    )  # fmt: skip
    found = [(what, learned.is_wanted(given)) for what, given, _ in table]
    assert found == [(what, wanted) for what, _, wanted in table]


def test_when_nothing_is_to_be_learned() -> None:
    world = shrunk_world({})
    unready = replace(world, server_pods=(server_pod(child(), ready=False),))
    known = learned_map(NAMESPACE, replace(ENTRY, extra_bytes=STEP))["data"]
    less = learned_map(NAMESPACE, replace(ENTRY, extra_bytes=STEP - 1))["data"]
    full = {f"key-{number}": "" for number in range(learned.MOST_ENTRIES)}
    plain = replace(serving(), learned={})
    table = (
        ("it serves", world, 1),
        ("switched off, or not readable", replace(world, learned=None), 0),
        ("does not serve", unready, 0),
        ("not shrunk", plain, 0),
        ("never shrinks", shrunk_world({}, sizing={"onOutOfMemory": {"action": "None"}}), 0),
        ("known", replace(world, learned=known), 0),
        ("known to be less", replace(world, learned=less), 1),
        ("what is known is broken", replace(world, learned={CASE.key: "{}"}), 1),
        ("the map is full", replace(world, learned=full), 0),
        ("full, but known", replace(world, learned={**full, **less}), 1),
    )
    assert [(what, len(lessons(given))) for what, given, _ in table] == [
        (what, count) for what, _, count in table
    ]


# -- from end to end ------------------------------------------------------------------------------


class Nothing:
    """Readers that have nothing to tell."""

    async def look(self, within: float | None = None) -> None:  # noqa: ARG002 -- as the reader has it
        return None

    async def read(self, *_: object) -> tuple[()]:
        return ()


def rig_of(*, learn: bool = True) -> Rig:
    rig = Rig()
    rig.senses = Senses(rig.cluster, Nothing(), Nothing(), learn=learn)
    return rig


def the_map(rig: Rig) -> dict[str, str] | None:
    found = rig.cluster.objects.get(("ConfigMap", NAMESPACE, LEARNED_MAP))
    return None if found is None else found["data"]


def capacity_of(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = rig.status()["capacity"]
    return found


async def crash_once(rig: Rig, ooms: int = 1, **spec: Any) -> None:
    """A server whose engine runs out of memory that often and then serves."""
    rig.apply(**spec)
    rig.kubernetes.ooms = ooms
    await rig.settle()
    assert rig.condition("Ready") == ("True", "Ready")
    assert capacity_of(rig)["shrinkSteps"] == ooms


def forget_server(rig: Rig) -> None:
    """The user deletes the server, with all that is its own."""
    rig.cluster.remove("InferenceServer", *KEY)
    rig.kubernetes.settle()


async def test_the_next_server_of_its_kind_does_not_crash() -> None:
    rig = rig_of()
    await crash_once(rig, ooms=2)
    entries = the_map(rig)
    assert entries is not None
    assert read_entry(entries[CASE.key], CASE).extra_bytes == STEP + SECOND
    assert not rig.cluster.objects["ConfigMap", NAMESPACE, LEARNED_MAP]["metadata"].get(
        "ownerReferences"
    )
    forget_server(rig)
    assert the_map(rig) == entries
    rig.cluster.writes.clear()
    await_pods = rig.kubernetes.born
    rig.apply()
    await rig.settle()
    assert capacity_of(rig)["kvCacheBytes"] == BUDGET.kv - STEP - SECOND
    assert "shrinkSteps" not in capacity_of(rig)
    assert rig.kubernetes.born == await_pods + 1
    assert not [w for w in rig.cluster.writes if w.kind == "ConfigMap"]


async def test_who_deletes_the_map_is_measured_as_before() -> None:
    rig = rig_of()
    await crash_once(rig)
    rig.cluster.remove("ConfigMap", NAMESPACE, LEARNED_MAP)
    forget_server(rig)
    rig.apply()
    await rig.settle()
    assert capacity_of(rig)["kvCacheBytes"] == BUDGET.kv


async def test_two_entries_do_not_undo_each_other() -> None:
    rig = rig_of()
    await crash_once(rig)
    forget_server(rig)
    await crash_once(rig, engine={"type": "LightLLM", "image": "ghcr.io/modeltc/lightllm:v1.1.0"})
    entries = the_map(rig)
    assert entries is not None
    assert set(entries) == {CASE.key, replace(CASE, version="1.1.0").key}


async def test_switched_off_nothing_is_read_or_written() -> None:
    rig = rig_of(learn=False)
    await rig.cluster.apply(learned_map(NAMESPACE, ENTRY), manager_of(ENTRY))
    rig.cluster.writes.clear()
    await crash_once(rig)
    assert capacity_of(rig)["kvCacheBytes"] == BUDGET.kv - STEP
    assert not [w for w in rig.cluster.writes if w.kind == "ConfigMap"]


@pytest.mark.parametrize(
    "fault", [Refused(403, "Forbidden", "configmaps is forbidden"), Retry("it is away")]
)
async def test_without_the_right_the_server_serves_all_the_same(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_of()
    apply, get = rig.cluster.apply, rig.cluster.get

    async def no_apply(obj: Object, manager: str = "plimsoll", *, force: bool = True) -> Object:
        if obj["kind"] == "ConfigMap":
            raise fault
        return await apply(obj, manager, force=force)

    monkeypatch.setattr(rig.cluster, "apply", no_apply)
    await crash_once(rig)
    assert caplog.text.count("not written") == 1

    async def no_get(resource: Any, namespace: str | None, name: str) -> Object | None:
        if resource.kind == "ConfigMap":
            raise fault
        return await get(resource, namespace, name)

    monkeypatch.setattr(rig.cluster, "get", no_get)
    forget_server(rig)
    await crash_once(rig)
    assert "ConfigMap team/plimsoll-learned is not readable" in caplog.text


async def test_the_map_is_read_only_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of()
    get, asked = rig.cluster.get, []

    async def counted(resource: Any, namespace: str | None, name: str) -> Object | None:
        if resource.kind == "ConfigMap":
            asked.append((namespace, name))
        return await get(resource, namespace, name)

    monkeypatch.setattr(rig.cluster, "get", counted)
    rig.apply()
    await rig.settle()
    assert asked == [(NAMESPACE, LEARNED_MAP)]
    for _ in range(3):
        await rig.operate()
    assert len(asked) == 1
