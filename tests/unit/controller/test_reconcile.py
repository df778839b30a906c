"""Whole passes with the real planner over the fake cluster: to Ready, and there after any fault."""

import asyncio
import copy
import random
from datetime import timedelta
from typing import Any

import pytest

from plimsoll.controller.cluster import WATCHED, Conflict, Object, Refused, Retry
from plimsoll.controller.metrics import Metrics
from plimsoll.controller.reconcile import HOLD_SECONDS, work
from plimsoll.controller.store import Key
from plimsoll.controller.workqueue import WorkQueue
from tests.unit.controller.builders import FAILURE, NAMESPACE, TOKENS
from tests.unit.controller.fake_cluster import Crash, FakeCluster, Faults
from tests.unit.controller.rig import KEY, Rig


async def settled(rig: Rig | None = None, **spec: Any) -> Rig:
    rig = rig or Rig()
    rig.apply(**spec)
    await rig.settle()
    return rig


def tokens(rig: Rig) -> list[str]:
    deployment = rig.cluster.objects["Deployment", *KEY]
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return [a for a in args if a.startswith("--max_total_token_num")]


def fault(at: int, moment: str, error: BaseException, *, every: bool = False) -> Faults:
    if moment == "before":
        return Faults(at=at, every=every, before=error)
    return Faults(at=at, every=every, after=error)


async def test_from_apply_to_ready_and_then_silence() -> None:
    rig = await settled()
    assert rig.condition("Ready")[0] == "True"
    assert rig.status()["ready"] == "1/1"
    assert tokens(rig) == [f"--max_total_token_num={TOKENS}"]
    assert len(rig.created()) == 1
    owners = [
        obj["metadata"]["ownerReferences"][0]["uid"]
        for kind in ("Deployment", "Service")
        for obj in rig.cluster.of_kind(kind)
    ]
    assert owners == [rig.cluster.objects["InferenceServer", *KEY]["metadata"]["uid"]] * 2
    assert [e["reason"] for e in rig.cluster.of_kind("Event")]
    quiet = len(rig.cluster.writes)
    for _ in range(3):
        assert not await rig.operate()
    await rig.boot()
    assert not await rig.operate()  # nor does a restart write anything
    assert len(rig.cluster.writes) == quiet


async def test_the_number_of_writes_of_a_life_is_bounded() -> None:
    rig = await settled()
    verbs = [w.verb for w in rig.cluster.writes]
    assert verbs.count("create") == 1
    assert verbs.count("delete") == 1
    assert verbs.count("apply") <= 3
    assert verbs.count("status") <= 12


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_at_any_write_ends_in_the_same_world(moment: str) -> None:
    calm = await settled()
    writes = len(calm.cluster.writes)
    assert writes > 8
    for point in range(1, writes + 1):
        rig = Rig()
        rig.cluster.faults = fault(point, moment, Crash())
        await settled(rig)
        assert rig.deaths == 1, point
        assert rig.end_state() == calm.end_state(), point
        assert len(set(rig.created())) == 1, point


@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("error", [Retry("reset"), Conflict("409"), Retry("429", 7.0)])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_failing_writes_are_tried_again(
    every: int, error: BaseException, moment: str
) -> None:
    calm = await settled()
    rig = Rig()
    rig.cluster.faults = fault(every, moment, error, every=True)
    await settled(rig)
    assert rig.retries > 0
    assert rig.end_state() == calm.end_state()
    assert len(set(rig.created())) == 1
    assert len([w for w in rig.cluster.writes if (w.verb, w.kind) == ("delete", "Pod")]) <= 2


async def test_a_refused_pod_becomes_a_condition_and_is_created_when_allowed() -> None:
    rig = Rig()
    message = 'pods "x" is forbidden: exceeded quota: none, requested: pods=1'

    def refuse(verb: str, obj: Object) -> Refused | None:
        return (
            Refused(403, "Forbidden", message) if (verb, obj["kind"]) == ("create", "Pod") else None
        )

    rig.cluster.refuse = refuse
    rig.apply()
    for _ in range(6):
        await rig.operate()
    assert rig.condition("CapacityAvailable") == ("False", "QuotaExceeded")
    assert rig.requeue
    rig.cluster.refuse = lambda _verb, _obj: None
    rig.now = rig.now.replace(hour=13)
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"


async def test_a_stale_picture_repeats_nothing() -> None:
    rig = await settled()
    creates = len(rig.created())
    old = copy.deepcopy(rig.cluster.objects["InferenceServer", *KEY])
    old["status"] = {}
    old["metadata"]["resourceVersion"] = "1"
    await rig.boot()
    rig.store._drop(("InferenceServer", *KEY))
    for kind in ("Deployment", "Service"):
        rig.store._drop((kind, *KEY))
    rig.store.put(old)
    with pytest.raises(Conflict):
        await rig.reconcile(KEY)  # it would have measured again
    assert len(rig.created()) == creates
    await rig.settle()  # the check refreshed the store
    assert len(rig.created()) == creates
    assert rig.condition("Ready")[0] == "True"


async def test_a_stale_status_is_never_written_over_a_newer_one() -> None:
    rig = Rig()
    rig.apply(engine={"type": "LightLLM", "image": "x:v1.2.0", "args": ["--mem_fraction=1"]})
    await rig.boot()
    rig.deaf = lambda _kind, _obj: True
    rig.apply()  # corrected behind the operator's back
    with pytest.raises(Conflict):
        await rig.reconcile(KEY)
    assert rig.status() == {}
    rig.deaf = lambda _kind, _obj: False
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
async def test_a_deleted_child_comes_back(kind: str) -> None:
    rig = await settled()
    calm = rig.end_state()
    rig.cluster.remove(kind, *KEY)
    await rig.settle()
    assert rig.end_state() == calm
    assert len(rig.created()) == 1  # the number is still known


async def test_a_predecessor_s_pod_is_waited_out() -> None:
    rig = Rig()
    rig.apply()
    await rig.boot()
    await rig.operate()
    (pod,) = rig.cluster.of_kind("Pod")
    old = copy.deepcopy(pod)
    old["metadata"]["ownerReferences"][0]["uid"] = "uid-of-the-one-before"
    rig.cluster.objects["Pod", NAMESPACE, pod["metadata"]["name"]] = old
    rig.store._drop(("Pod", NAMESPACE, pod["metadata"]["name"]))
    with pytest.raises(Retry, match="predecessor"):
        await rig.reconcile(KEY)
    rig.cluster.remove("Pod", NAMESPACE, pod["metadata"]["name"])
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"


@pytest.mark.parametrize("replicas", [0, 1, 2])
async def test_an_hour_of_rest_is_an_hour_without_writes(replicas: int) -> None:
    rig = await settled(replicas=replicas)
    quiet = len(rig.cluster.writes)
    for _ in range(60):
        rig.now += timedelta(minutes=1)
        assert not await rig.operate()
        await rig.boot()  # as a resync, and a restart, would
    assert len(rig.cluster.writes) == quiet
    assert rig.status()["ready"] == f"{replicas}/{replicas}"


async def test_a_life_takes_so_many_requests() -> None:
    """Seven writes beside Events, and two reads: the Deployment's name and the node that was measured."""
    rig = await settled()
    writes = [(w.verb, w.kind) for w in rig.cluster.writes if w.kind != "Event"]
    assert sorted(writes) == [
        ("apply", "Deployment"),
        ("apply", "Service"),
        ("create", "Pod"),
        ("delete", "Pod"),
        *[("status", "InferenceServer")] * 3,
    ]
    assert rig.cluster.reads - len(WATCHED) <= 2


async def test_a_pod_is_asked_to_go_once_however_late_its_watch_is() -> None:
    rig = Rig()
    rig.apply()
    await rig.boot()
    rig.deaf = lambda what, obj: (what, obj["kind"]) == ("DELETED", "Pod")
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"
    for _ in range(3):
        await rig.reconcile(KEY)
    assert [w.verb for w in rig.cluster.writes].count("delete") == 1


async def test_a_fixed_number_is_served_without_a_single_read() -> None:
    rig = Rig()
    rig.apply(sizing={"mode": "Fixed", "maxTotalTokenNum": 5000})
    await rig.boot()
    read = rig.cluster.reads
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"
    assert rig.cluster.reads == read


async def test_progress_is_told_once_a_second_and_not_lost() -> None:
    rig = await settled(replicas=2)
    before = len(rig.cluster.writes)
    # One of two is away: still available, so nobody is in a hurry.
    pods = sorted(pod["metadata"]["name"] for pod in rig.cluster.of_kind("Pod"))
    rig.cluster.edit("Pod", NAMESPACE, pods[0], _not_ready)
    await rig.operate()
    assert rig.status()["ready"] == "2/2"
    assert rig.requeue is not None
    assert 0 < rig.requeue <= HOLD_SECONDS
    rig.now += timedelta(seconds=rig.requeue)
    await rig.operate()
    assert rig.status()["ready"] == "1/2"
    assert len(rig.cluster.writes) == before + 1


def _not_ready(pod: Object) -> None:
    for condition in pod["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition["status"] = "False"


async def test_a_taken_name_is_said_before_a_gpu_is_taken_and_left_alone() -> None:
    for kind, api in (("Deployment", "apps/v1"), ("Service", "v1")):
        for spec in ({}, {"sizing": {"mode": "Fixed", "maxTotalTokenNum": 5000}}):
            rig = Rig()
            metadata = {"name": "llama", "namespace": NAMESPACE}
            theirs = rig.cluster.put(
                {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": {}}
            )
            rig.apply(**spec)
            for _ in range(12):
                await rig.operate()
                if kind == "Service":
                    rig.kubernetes.turn()  # its sizing pod ends
            assert rig.condition("Ready") == ("False", "Conflict")
            assert rig.created() == [] or kind == "Service"
            assert kind == "Deployment" or rig.cluster.of_kind("Deployment") == []
            assert rig.cluster.objects[kind, *KEY] == theirs
            rig.cluster.remove(kind, *KEY)
            await rig.settle()
            assert rig.condition("Ready")[0] == "True"


async def test_a_refusal_is_said_once_and_stays_said() -> None:
    """A status that said "created" before each try would change to and fro with every one."""
    rig = Rig()
    no = Refused(403, "Forbidden", "exceeded quota")
    rig.cluster.refuse = lambda _verb, obj: no if obj["kind"] == "Deployment" else None
    rig.apply(sizing={"mode": "Fixed", "maxTotalTokenNum": 5000})
    for _ in range(3):
        await rig.operate()
    said = rig.condition("Ready")
    assert said[0] == "False"
    statuses = sum(w.verb == "status" for w in rig.cluster.writes)
    for _ in range(5):
        rig.now += timedelta(seconds=60)
        await rig.operate()
        assert rig.condition("Ready") == said
    assert sum(w.verb == "status" for w in rig.cluster.writes) == statuses


async def test_one_line_of_log_tells_each_action_and_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="plimsoll"):
        rig = await settled()
        rig.cluster.edit("Deployment", *KEY, lambda obj: obj["spec"].update(replicas=2))
        await rig.settle()
    lines = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    (pod,) = set(rig.created())
    begin = (
        f"create Pod {pod}",
        "apply Service llama because it does not exist",
        "apply Deployment llama because it does not exist",
        f"Measured: Measured {TOKENS} tokens on",
        f"delete Pod {pod}",
        f"Ready: Serving with {TOKENS} tokens",
        "apply Deployment llama because spec.replicas: 2 is not 1",
        f"Ready: Serving with {TOKENS} tokens",
    )
    for line, start in zip(lines, begin, strict=True):
        assert line.startswith(f"team/llama: {start}"), lines


async def test_a_server_deleted_under_a_pass_is_not_served() -> None:
    rig = Rig()
    rig.apply()
    await rig.boot()
    rig.deaf = lambda _kind, _obj: True
    rig.cluster.remove("InferenceServer", *KEY)
    assert await rig.reconcile(KEY) is None
    assert await rig.reconcile(KEY) is None
    assert [write.verb for write in rig.cluster.writes] == ["status"]
    assert rig.cluster.of_kind("Pod") == []


async def test_deleting_the_server_leaves_nothing() -> None:
    rig = await settled()
    rig.cluster.remove("InferenceServer", *KEY)
    await rig.settle()
    left = {obj["kind"] for obj in rig.cluster.objects.values()}
    assert left == {"Node", "Event"}
    assert list(rig.store.servers()) == []


async def test_a_failed_measurement_is_repeated_and_recovers() -> None:
    rig = Rig()
    rig.kubernetes.outcomes = [(FAILURE, 4), ("forged", 0)]
    await settled(rig)
    assert rig.condition("Ready")[0] == "True"
    assert len(rig.created()) == 3


async def test_events_that_come_late_or_never_do_not_matter_after_a_resync() -> None:
    calm = await settled()
    rng = random.Random(3)
    for _ in range(15):
        rig = Rig()
        rig.deaf = lambda _kind, _obj: rng.random() < 0.5
        rig.apply()
        for _ in range(30):
            await rig.operate()
            rig.kubernetes.turn()
            if rng.random() < 0.2:
                await rig.boot()
        rig.deaf = lambda _kind, _obj: False
        await rig.boot()
        await rig.settle()
        assert rig.end_state() == calm.end_state()


async def test_two_operators_at_once_do_no_harm() -> None:
    calm = await settled()
    cluster = FakeCluster(namespaces={NAMESPACE, "default"})
    first = Rig(cluster)
    second = Rig(cluster)
    first.apply()
    rng = random.Random(5)
    for _ in range(200):
        rig = rng.choice((first, second))
        await rig.operate()
        if rng.random() < 0.5:
            first.kubernetes.turn()
    await first.settle()
    assert first.end_state() == calm.end_state()
    assert len(set(first.created())) == 1


async def test_passes_that_wait_for_nobody_hold_up_nobody() -> None:
    """The lease was lost when 5,000 settled servers were looked at one after the other."""
    loop = asyncio.get_running_loop()
    queue: WorkQueue[Key] = WorkQueue(clock=loop.time, rng=random.Random(1))
    passes, seen_by_others = 0, set()

    async def reconcile(_: Key) -> float | None:
        nonlocal passes
        passes += 1
        return None

    for number in range(1000):
        queue.add(("ns", str(number)))
    worker = asyncio.create_task(work(queue, reconcile, Metrics(), loop.time))
    while passes < 1000:
        await asyncio.sleep(0)
        seen_by_others.add(passes)
    queue.close()
    await worker
    assert len(seen_by_others) > 900


async def test_a_worker_survives_whatever_a_pass_does() -> None:
    loop = asyncio.get_running_loop()
    queue: WorkQueue[Key] = WorkQueue(clock=loop.time, rng=random.Random(1), base=0.001)
    metrics = Metrics()
    seen: list[str] = []
    errors: dict[str, list[BaseException]] = {
        "defect": [ZeroDivisionError()],
        "refused": [Refused(403, "Forbidden", "no")],
        "later": [Retry("429", 0.001)],
    }

    async def reconcile(key: Key) -> float | None:
        seen.append(key[1])
        if errors.get(key[1]):
            raise errors[key[1]].pop()
        return 0.01 if key[1] == "again" and seen.count("again") < 3 else None

    for name in ("defect", "refused", "later", "good", "again"):
        queue.add(("ns", name))
    workers = [asyncio.create_task(work(queue, reconcile, metrics, loop.time)) for _ in range(2)]
    async with asyncio.timeout(5):
        while len(seen) < 10:  # noqa: ASYNC110  # what is awaited has no event of its own
            await asyncio.sleep(0.005)
    queue.close()
    await asyncio.gather(*workers)
    assert sorted(seen) == sorted(["defect", "refused", "later"] * 2 + ["good"] + ["again"] * 3)
    assert metrics.reconciles.value(outcome="error") == 1
    assert metrics.reconciles.value(outcome="refused") == 1
    assert metrics.reconciles.value(outcome="retry") == 1
    assert metrics.reconciles.value(outcome="ok") == 7


async def test_a_life_is_counted_once_though_the_watch_tells_of_each_write_first() -> None:
    rig = Rig()
    rig.apply()
    await rig.settle()
    assert rig.condition("Ready")[0] == "True"
    assert rig.metrics.rollouts.value(result="completed") == 1
    assert rig.metrics.sizing_seconds.count() == 1
    await rig.boot()  # a new process counts what happens in its own time
    await rig.settle()
    assert rig.metrics.rollouts.value(result="completed") == 0
    rig.apply(replicas=2)
    await rig.settle()
    assert rig.metrics.rollouts.value(result="completed") == 1
    assert rig.metrics.sizing_seconds.count() == 0
