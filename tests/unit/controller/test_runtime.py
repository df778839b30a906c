"""The process: probing, standing by, leading, losing the lease, stopping; with a fake watch."""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

import plimsoll
from plimsoll.controller import plan
from plimsoll.controller.cluster import WATCHED, Object
from plimsoll.controller.lease import LeaseTimes
from plimsoll.controller.resync import Resync
from plimsoll.controller.runtime import (
    EXIT_LOST_LEASE,
    EXIT_NO_CRD,
    EXIT_STOPPED,
    Deliver,
    Edges,
    Operator,
)
from plimsoll.controller.settings import Settings
from plimsoll.controller.workqueue import WorkQueue
from tests.unit.controller.builders import CONTEXT, NAMESPACE, body
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.kubernetes_sim import Kubernetes
from tests.unit.controller.toy_api import ToyApi

KEY = (NAMESPACE, "llama")
ENV = {"PYTHONPATH": str(Path(plimsoll.__file__).parents[1])}
TIMES = LeaseTimes(duration=0.5, renew_deadline=0.3, retry=0.05)
KINDS = {resource.kind for resource in WATCHED}


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster(namespaces={NAMESPACE, "plimsoll-system"})
        self.kubernetes = Kubernetes(self.cluster)
        self.stop = asyncio.Event()
        self.deaf = False

    def operator(self, pod: str = "op-1") -> Operator:
        settings = Settings.from_env(
            {
                "PLIMSOLL_SIZER_IMAGE": "sizer",
                "POD_NAME": pod,
                "PLIMSOLL_HEALTH_HOST": "127.0.0.1",
                "PLIMSOLL_HEALTH_PORT": "0",
            }
        )
        edges = Edges(
            cluster=self.cluster,
            watch=self.watch,
            planner=plan,
            context=CONTEXT,
            clock=time.monotonic,
            now=lambda: datetime.now(UTC),
            rng=random.Random(1),
            times=TIMES,
        )
        return Operator(settings, edges)

    async def watch(self, _: Sequence[str], deliver: Deliver) -> None:
        """Runs in the watch thread; the fake cluster is changed in the main one."""

        def tell(kind: str, obj: Object) -> None:
            if obj["kind"] in KINDS and not self.deaf:
                deliver(kind, obj)

        for kind in sorted(KINDS):
            for obj in self.cluster.of_kind(kind):
                deliver(None, obj)
        self.cluster.subscribe(tell)
        try:
            await asyncio.Event().wait()
        finally:
            self.cluster._watchers.remove(tell)


@pytest.fixture
async def world() -> World:
    return World()


@contextlib.asynccontextmanager
async def running(world: World, operator: Operator) -> AsyncIterator[asyncio.Task[int]]:
    task = asyncio.create_task(operator.run(world.stop))
    try:
        yield task
    finally:
        world.stop.set()
        async with asyncio.timeout(10):
            await asyncio.wait({task})


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110  # what is awaited has no event of its own
            await asyncio.sleep(0.005)


def ready(world: World) -> bool:
    world.kubernetes.turn()
    status = world.cluster.objects["InferenceServer", *KEY].get("status") or {}
    return any((c["type"], c["status"]) == ("Ready", "True") for c in status.get("conditions", ()))


def create(world: World) -> None:
    wanted = body()
    del wanted["metadata"]["uid"]
    world.cluster.put(wanted)


async def test_a_server_becomes_ready_and_sigterm_ends_cleanly(world: World) -> None:
    operator = world.operator()
    async with running(world, operator) as task:
        await until(lambda: operator.health.phase == "leading" and world.cluster._watchers)
        create(world)
        await until(lambda: ready(world))
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{operator.port}/metrics") as response,
        ):
            text = await response.text()
        assert "plimsoll_leader 1\n" in text
        assert 'plimsoll_actions_total{verb="create",kind="Pod"} 1\n' in text
        assert "plimsoll_ready 1\n" in text
        assert "plimsoll_sizing_duration_seconds_count 1\n" in text
        assert 'plimsoll_rollouts_total{result="completed"} 1\n' in text
        whose = f'namespace="{NAMESPACE}",name="llama"'
        assert f'plimsoll_server_condition{{{whose},condition="Ready"}} 1\n' in text
        world.stop.set()
        assert await task == EXIT_STOPPED
    lease = world.cluster.objects["Lease", "plimsoll-system", "plimsoll-operator"]
    assert lease["spec"]["holderIdentity"] == ""  # a successor need not wait


async def test_an_echo_is_no_reason_for_a_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = world.operator()
    create(world)
    async with running(world, operator):
        await until(lambda: ready(world) and not len(operator.queue))
        await asyncio.sleep(0.05)
        live = world.cluster.objects["InferenceServer", *KEY]
        asked: list[object] = []
        monkeypatch.setattr(operator.queue, "add", asked.append)
        operator._take("MODIFIED", live)
        assert asked == []
        world.cluster.edit("InferenceServer", *KEY, lambda obj: obj["spec"].update(replicas=2))
        await until(lambda: asked == [KEY])


async def test_a_standby_is_ready_and_takes_over(world: World) -> None:
    first, second = world.operator("op-1"), world.operator("op-2")
    stop_first = asyncio.Event()
    leader = asyncio.create_task(first.run(stop_first))
    await until(lambda: first.health.phase == "leading")
    async with running(world, second):
        await until(lambda: second.health.phase == "standby")
        assert second.health.ready_problems() == []
        create(world)
        stop_first.set()
        assert await leader == EXIT_STOPPED
        await until(lambda: second.health.phase == "leading")
        await until(lambda: ready(world))


async def test_a_standby_that_cannot_ask_for_the_lease_is_not_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll.controller.health.SILENT_SECONDS", 0.2)
    first, second = world.operator("op-1"), world.operator("op-2")
    leader = asyncio.create_task(first.run(asyncio.Event()))
    await until(lambda: first.health.phase == "leading")
    async with running(world, second):
        await until(lambda: second.health.phase == "standby")
        world.cluster.down = True
        assert await leader == EXIT_LOST_LEASE  # a leader without answers ends soon
        await until(second.health.ready_problems)
        assert "Lease" in second.health.ready_problems()[0]
        assert second.health.live_problems() == []
        world.cluster.down = False
        await until(lambda: second.health.phase == "leading")
        await until(lambda: not second.health.ready_problems())


async def test_a_leader_whose_watches_do_not_last_is_not_ready(world: World) -> None:
    async def watch(*_: object) -> None:
        raise RuntimeError("403")

    world.watch = watch  # type: ignore[method-assign,assignment]
    operator = world.operator()
    async with running(world, operator):
        await until(lambda: operator.health.phase == "leading")
        assert operator.health.ready_problems() == []
        await until(operator.health.ready_problems)
        assert "the watches ended at once 3 times" in operator.health.ready_problems()[0]
        assert operator.metrics.watch_restarts.value() == 2
        assert operator.health.live_problems() == []


async def test_a_leader_whose_lists_are_refused_is_not_ready(world: World) -> None:
    operator = world.operator()
    async with running(world, operator):
        await until(lambda: operator.health.phase == "leading")
        world.cluster.down = True
        for _ in range(3):
            assert operator.health.ready_problems() == []
            assert not await operator._resync.once()
        assert "full lists failed 3 times" in operator.health.ready_problems()[0]
        world.cluster.down = False
        assert await operator._resync.once()
        assert operator.health.ready_problems() == []


async def test_losing_the_lease_ends_the_process(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    operator = world.operator()
    async with running(world, operator) as task:
        await until(lambda: operator.health.phase == "leading")
        world.cluster.edit(
            "Lease",
            "plimsoll-system",
            "plimsoll-operator",
            lambda obj: obj["spec"].update(holderIdentity="op-9_x"),
        )
        assert await task == EXIT_LOST_LEASE
    assert "taken by op-9_x" in caplog.text
    lease = world.cluster.objects["Lease", "plimsoll-system", "plimsoll-operator"]
    assert lease["spec"]["holderIdentity"] == "op-9_x"


async def test_without_the_crd_it_says_so_and_exits(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("plimsoll.controller.runtime._CRD_SECONDS", 0.02)
    monkeypatch.setattr("plimsoll.controller.runtime._PROBE_SECONDS", 0.01)
    world.cluster.crd = False
    async with running(world, world.operator()) as task:
        assert await task == EXIT_NO_CRD
    assert "CustomResourceDefinition" in caplog.text


async def test_an_api_server_that_is_away_at_start_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll.controller.runtime._CRD_SECONDS", 0.02)
    monkeypatch.setattr("plimsoll.controller.runtime._PROBE_SECONDS", 0.01)
    world.cluster.down = True
    operator = world.operator()
    async with running(world, operator) as task:
        await asyncio.sleep(0.1)
        assert not task.done()
        world.cluster.down = False
        await until(lambda: operator.health.phase == "leading")


async def test_a_deletion_unheard_is_found_by_the_resync(world: World) -> None:
    operator = world.operator()
    async with running(world, operator):
        await until(lambda: operator.health.phase == "leading" and world.cluster._watchers)
        create(world)
        await until(lambda: ready(world))
        world.deaf = True
        world.cluster.remove("Deployment", *KEY)
        assert operator.store.get("Deployment", *KEY) is not None
        assert await operator._resync.once()
        await until(lambda: ("Deployment", *KEY) in world.cluster.objects)


async def test_a_deaf_watch_is_restarted_then_fails_the_probe() -> None:
    cluster = FakeCluster(namespaces={NAMESPACE})
    operator = World().operator()
    restarts: list[int] = []

    async def no_wait(_: float) -> None:
        return

    resync = Resync(
        cluster,
        operator.store,
        WorkQueue(clock=time.monotonic, rng=random.Random(1)),
        namespaces=(),
        health=operator.health,
        metrics=operator.metrics,
        restart=lambda: restarts.append(1),
        rng=random.Random(1),
        sleep=no_wait,
    )
    wanted = body()
    live = cluster.put(wanted)
    operator.store.put(live, watched=True)
    assert await resync.once()
    assert restarts == []
    live = cluster.edit("InferenceServer", *KEY, lambda obj: obj["spec"].update(replicas=2))
    assert await resync.once()
    assert (restarts, operator.health.deaf, operator.health.live_problems()) == ([1], 1, [])
    assert await resync.once()
    assert operator.health.live_problems()
    operator.store.put(live, watched=True)
    assert await resync.once()
    assert operator.health.deaf == 0
    cluster.down = True
    assert not await resync.once()


@pytest.mark.parametrize(
    ("arguments", "env", "code", "says"),
    [
        (["--version"], {}, 0, "plimsoll 0."),
        ([], {"PLIMSOLL_SIZER_IMAGE": ""}, 2, "PLIMSOLL_SIZER_IMAGE is not set"),
    ],
)
async def test_the_command_line(
    arguments: list[str], env: dict[str, str], code: int, says: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "plimsoll.controller",
        *arguments,
        env={**ENV, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert (process.returncode, says in output.decode()) == (code, True), output


async def test_the_real_process_starts_watches_and_obeys_sigterm(tmp_path: Path) -> None:
    async with ToyApi() as api:
        file = tmp_path / "kubeconfig"
        file.write_text(api.kubeconfig())
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "plimsoll.controller",
            env={
                **ENV,
                "PLIMSOLL_SIZER_IMAGE": "sizer",
                "KUBECONFIG": str(file),
                "PLIMSOLL_HEALTH_HOST": "127.0.0.1",
                "PLIMSOLL_HEALTH_PORT": "0",
                "PLIMSOLL_LOG_FORMAT": "json",
            },
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(30):
                while not all(api.watching(r.plural) for r in WATCHED):  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.wait_for(process.communicate(), 15)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        assert process.returncode == 0, errors.decode()
        assert "Traceback" not in errors.decode()
        methods = {(m, p.rpartition("/")[2]) for m, p, *_ in api.requests if m != "GET"}
        assert methods == {("POST", "leases"), ("PUT", "plimsoll-operator")}
