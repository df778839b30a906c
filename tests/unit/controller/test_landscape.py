"""The picture is read when asked for, by one, seldom; without it nothing breaks."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller import landscape
from plimsoll.controller.cluster import NODES, Page, Refused, Resource, Retry
from plimsoll.controller.landscape import BOUND, LandscapeReader
from plimsoll.controller.placement import demand_of, free_slots
from tests.unit.controller.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Callable

AT = datetime(2026, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
Raw = dict[str, Any]
ONE = demand_of({"containers": [{"resources": {"requests": {GPU: "1"}}}]})


class Paged(FakeCluster):
    """The fake, with every page that was asked for, and one that may answer otherwise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked: list[tuple[str, str, int, str]] = []
        self.hook: Callable[[Resource, str], None] = lambda _resource, _token: None
        self.wait: asyncio.Event | None = None

    async def page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        fields: str = "",
        limit: int = 500,
        token: str = "",
    ) -> Page:
        assert namespace is None
        self.asked.append((resource.plural, fields, limit, token))
        self.hook(resource, token)
        if self.wait is not None:
            await self.wait.wait()
        return await super().page(resource, fields=fields, limit=limit, token=token)

    @property
    def reads_of_nodes(self) -> int:
        return sum(plural == NODES.plural and not token for plural, _, _, token in self.asked)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def node(name: str, gpus: int) -> Raw:
    allocatable = {GPU: str(gpus), "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, on: str, phase: str = "Running") -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"resources": {"requests": {GPU: "1"}}}],
            **({"nodeName": on} if on else {}),
        },
        "status": {"phase": phase},
    }


@pytest.fixture
def cluster() -> Paged:
    cluster = Paged()
    for number in range(3):
        cluster.put(node(f"n{number}", gpus=2))
    cluster.put(pod("a", "n0"))
    cluster.put(pod("b", "n1"))
    cluster.put(pod("waits", ""))
    cluster.put(pod("done", "n1", "Succeeded"))
    return cluster


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(cluster: Paged, clock: Clock) -> LandscapeReader:
    return LandscapeReader(cluster, clock, lambda: AT)


async def slots(reader: LandscapeReader) -> int | None:
    seen = await reader.look()
    return None if seen is None else free_slots(ONE, seen)


async def test_nodes_and_the_pods_that_hold_something(
    reader: LandscapeReader, cluster: Paged
) -> None:
    seen = await reader.look()
    assert seen is not None
    assert [n.name for n in seen.nodes] == ["n0", "n1", "n2"]
    assert seen.at == AT
    assert free_slots(ONE, seen) == 4
    assert cluster.asked == [("nodes", "", 100, ""), ("pods", BOUND, 500, "")]
    uid = cluster.objects["Pod", "default", "a"]["metadata"]["uid"]
    assert free_slots(ONE, seen, without=frozenset({uid})) == 5


async def test_every_page_counts(
    reader: LandscapeReader, cluster: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landscape, "NODES_A_PAGE", 2)
    monkeypatch.setattr(landscape, "PODS_A_PAGE", 1)
    assert await slots(reader) == 4
    assert [(plural, token) for plural, _, _, token in cluster.asked] == [
        ("nodes", ""), ("nodes", "2"), ("pods", ""), ("pods", "1"),
    ]  # fmt: skip


async def test_a_picture_is_given_out_again_for_a_while(
    reader: LandscapeReader, cluster: Paged, clock: Clock
) -> None:
    first = await reader.look()
    cluster.put(pod("c", "n2"))
    clock.seconds = 9.9
    assert await reader.look() is first
    clock.seconds = 10.0
    assert await slots(reader) == 3
    assert cluster.reads_of_nodes == 2


async def test_one_reads_while_the_others_wait(reader: LandscapeReader, cluster: Paged) -> None:
    cluster.wait = asyncio.Event()
    looks = [asyncio.create_task(reader.look()) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert cluster.reads_of_nodes == 1
    cluster.wait.set()
    seen = await asyncio.gather(*looks)
    assert cluster.reads_of_nodes == 1
    assert seen[0] is not None
    assert all(other is seen[0] for other in seen)


async def test_who_reads_may_be_cancelled(reader: LandscapeReader, cluster: Paged) -> None:
    cluster.wait = asyncio.Event()
    first, second = asyncio.create_task(reader.look()), asyncio.create_task(reader.look())
    await asyncio.sleep(0)
    first.cancel()
    cluster.wait.set()
    assert await second is not None
    assert first.cancelled()


@pytest.mark.parametrize("kind", ["Node", "Pod"])
async def test_an_install_that_may_not_list_has_no_picture_and_says_so_once(
    reader: LandscapeReader,
    cluster: Paged,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    assert await slots(reader) == 4
    cluster.unlistable = {kind}
    clock.seconds = 10
    assert await reader.look() is None
    clock.seconds = 309.9
    assert await reader.look() is None
    assert cluster.reads_of_nodes == 2
    clock.seconds = 310
    assert await reader.look() is None
    assert cluster.reads_of_nodes == 3
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f'cannot list resource "{kind.lower()}s"' in warnings[0]

    cluster.unlistable = set()
    clock.seconds = 610
    assert await slots(reader) == 4
    cluster.unlistable = {kind}
    clock.seconds = 620
    assert await reader.look() is None
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 2


async def test_a_server_that_does_not_answer_leaves_the_last_picture_for_a_minute(
    reader: LandscapeReader, cluster: Paged, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first = await reader.look()
    cluster.down = True
    for seconds in (10.0, 15.0, 20.0, 60.0):
        clock.seconds = seconds
        assert await reader.look() is first
    assert cluster.reads_of_nodes == 4  # at 0, 10, 20 and 60
    clock.seconds = 60.1
    assert await reader.look() is None
    cluster.down = False
    clock.seconds = 70.0
    assert await slots(reader) == 4
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def test_no_picture_at_all_while_the_server_does_not_answer(
    reader: LandscapeReader, cluster: Paged, clock: Clock
) -> None:
    cluster.down = True
    assert await reader.look() is None
    clock.seconds = 5
    cluster.down = False
    assert await reader.look() is None  # not asked again so soon
    clock.seconds = 10
    assert await slots(reader) == 4


async def test_a_server_that_asks_for_time_gets_it(
    reader: LandscapeReader, cluster: Paged, clock: Clock
) -> None:
    def busy(_resource: Resource, _token: str) -> None:
        raise Retry("429 TooManyRequests", after=25)

    cluster.hook = busy
    assert await reader.look() is None
    cluster.hook = lambda _resource, _token: None
    clock.seconds = 24
    assert await reader.look() is None
    clock.seconds = 25
    assert await slots(reader) == 4


async def test_a_list_that_breaks_off_is_no_picture(
    reader: LandscapeReader, cluster: Paged, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landscape, "PODS_A_PAGE", 1)
    first = await reader.look()
    cluster.put(pod("c", "n2"))

    def expired(resource: Resource, token: str) -> None:
        if resource.kind == "Pod" and token == "2":
            raise Retry("410 Expired")

    cluster.hook = expired
    clock.seconds = 10
    assert await reader.look() is first


async def test_a_read_that_hangs_is_given_up(cluster: Paged, clock: Clock) -> None:
    reader = LandscapeReader(cluster, clock, lambda: AT, read_seconds=0.02)
    cluster.wait = asyncio.Event()
    assert await reader.look() is None
    cluster.wait = None
    clock.seconds = 10
    assert await slots(reader) == 4


async def test_a_list_without_an_end_is_given_up(
    reader: LandscapeReader, cluster: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landscape, "MOST_PAGES", 3)
    monkeypatch.setattr(landscape, "NODES_A_PAGE", 0)
    assert await reader.look() is None
    assert len(cluster.asked) == 3


async def test_age_is_counted_from_before_the_read(
    reader: LandscapeReader, cluster: Paged, clock: Clock
) -> None:
    def slow(_resource: Resource, _token: str) -> None:
        clock.seconds += 10

    cluster.hook = slow
    assert await slots(reader) == 4  # began at 0, ended at 20
    cluster.hook = lambda _resource, _token: None
    cluster.down = True
    clock.seconds = 61
    assert await reader.look() is None


async def test_any_refusal_is_remembered(
    reader: LandscapeReader, cluster: Paged, clock: Clock
) -> None:
    def refuse(_resource: Resource, _token: str) -> None:
        raise Refused(400, "BadRequest", "unable to parse the field selector")

    cluster.hook = refuse
    assert await reader.look() is None
    clock.seconds = 299
    assert await reader.look() is None
    assert cluster.reads_of_nodes == 1


async def test_who_decides_now_gets_a_fresher_picture(
    reader: LandscapeReader, cluster: Paged, clock: Clock
) -> None:
    first = await reader.look()
    clock.seconds = 2.0
    assert await reader.look(within=2.0) is first
    cluster.put(pod("c", "n2"))
    clock.seconds = 2.1
    assert await reader.look() is first
    seen = await reader.look(within=2.0)
    assert seen is not None
    assert free_slots(ONE, seen) == 3
    assert await reader.look() is seen  # and others have it too
    assert cluster.reads_of_nodes == 2


async def test_a_wish_for_less_than_the_reader_keeps_never_makes_it_older(
    reader: LandscapeReader, clock: Clock
) -> None:
    first = await reader.look()
    clock.seconds = 10.0
    assert await reader.look(within=60.0) is not first


@pytest.mark.parametrize("trouble", ["down", "refused"])
async def test_an_api_server_in_trouble_is_not_asked_more_often(
    reader: LandscapeReader, cluster: Paged, clock: Clock, trouble: str
) -> None:
    first = await reader.look()
    cluster.down = trouble == "down"
    cluster.unlistable = {"Pod"} if trouble == "refused" else set()
    clock.seconds = 10.0
    left = first if trouble == "down" else None
    for seconds in (10.0, 13.0, 16.0, 19.0):
        clock.seconds = seconds
        assert await reader.look(within=2.0) is left
    assert cluster.reads_of_nodes == 2
