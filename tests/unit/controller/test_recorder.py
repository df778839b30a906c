"""One Event per transition, counted when it repeats, and never an error."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from plimsoll.controller.cluster import Refused, Retry
from plimsoll.controller.metrics import Metrics
from plimsoll.controller.recorder import Background, Recorder
from tests.unit.controller.fake_cluster import FakeCluster, Faults

SERVER = {
    "apiVersion": "plimsoll.dev/v1alpha1",
    "kind": "InferenceServer",
    "metadata": {"name": "llama", "namespace": "default", "uid": "u-1", "resourceVersion": "5"},
}


@dataclass(frozen=True)
class Note:
    type: str = "Normal"
    reason: str = "Sized"
    message: str = "24576 tokens"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def recorder(cluster: FakeCluster, instance: str = "op-1", minute: int = 0) -> Recorder:
    now = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
    return Recorder(cluster, instance, lambda: now, Metrics())


async def test_an_event_describes_the_server(cluster: FakeCluster) -> None:
    await recorder(cluster).record(SERVER, Note())
    (event,) = cluster.of_kind("Event")
    assert event["involvedObject"]["uid"] == "u-1"
    assert (event["type"], event["reason"], event["message"]) == (
        "Normal",
        "Sized",
        "24576 tokens",
    )
    assert (event["count"], event["firstTimestamp"]) == (1, "2026-01-01T00:00:00Z")
    assert event["metadata"]["name"].startswith("llama.")


async def test_a_repeat_is_counted_and_a_different_message_is_not(cluster: FakeCluster) -> None:
    ours = recorder(cluster)
    for note in (Note(), Note(), Note(message="other"), Note()):
        await ours.record(SERVER, note)
    counts = sorted((e["message"], e["count"]) for e in cluster.of_kind("Event"))
    assert counts == [("24576 tokens", 3), ("other", 1)]


async def test_counting_goes_on_after_a_restart(cluster: FakeCluster) -> None:
    await recorder(cluster).record(SERVER, Note())
    await recorder(cluster).record(SERVER, Note(message="other"))
    later = recorder(cluster, "op-2", minute=9)
    await later.record(SERVER, Note())
    await later.record(SERVER, Note())
    (event,) = (e for e in cluster.of_kind("Event") if e["message"] != "other")
    assert (event["count"], event["lastTimestamp"]) == (2, "2026-01-01T00:09:00Z")


async def test_an_expired_event_is_made_anew(cluster: FakeCluster) -> None:
    ours = recorder(cluster)
    await ours.record(SERVER, Note())
    (event,) = cluster.of_kind("Event")
    cluster.remove("Event", "default", event["metadata"]["name"])
    await ours.record(SERVER, Note())  # the patch finds nothing: lost
    await ours.record(SERVER, Note())
    assert [e["count"] for e in cluster.of_kind("Event")] == [1]


@pytest.mark.parametrize("error", [Retry("down"), Refused(403, "Forbidden", "no")])
async def test_a_failure_is_not_the_pass_s_problem(
    cluster: FakeCluster, error: BaseException
) -> None:
    cluster.faults = Faults(at=1, every=True, before=error)
    ours = recorder(cluster)
    await ours.record(SERVER, Note())
    assert cluster.of_kind("Event") == []
    assert ours._metrics.events.value(outcome="lost") == 1


async def test_a_long_message_is_cut_to_the_api_s_limit(cluster: FakeCluster) -> None:
    await recorder(cluster).record(SERVER, Note(message="x" * 5000))
    assert len(cluster.of_kind("Event")[0]["message"]) == 1024


async def test_in_the_background_nobody_waits_and_the_oldest_are_lost(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll.controller.recorder.MOST_WAITING", 2)
    metrics = Metrics()
    events = Background(recorder(cluster), metrics, lambda: False)
    for number in range(3):
        await events.record(SERVER, Note(message=str(number)))
    assert cluster.writes == []
    task = asyncio.create_task(events.run())
    async with asyncio.timeout(5):
        while len(cluster.of_kind("Event")) < 2:  # noqa: ASYNC110  # the fake has no event for it
            await asyncio.sleep(0)
    assert {event["message"] for event in cluster.of_kind("Event")} == {"1", "2"}
    assert metrics.events.value(outcome="lost") == 1
    await events.record(SERVER, Note(message="later"))
    async with asyncio.timeout(5):
        while len(cluster.of_kind("Event")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    task.cancel()


async def test_in_a_burst_servers_go_first_but_not_for_ever() -> None:
    crowds = iter([True, True, False, *[True] * 100])
    slept: list[float] = []
    posted: dict[str, float] = {}

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    class Slow(Recorder):
        async def record(self, server: Mapping[str, Any], note: Any) -> None:  # noqa: ARG002
            posted[note.message] = sum(slept)

    slow = Slow(FakeCluster(), "me", lambda: datetime.now(UTC), Metrics())
    events = Background(slow, Metrics(), lambda: next(crowds), sleep)
    for message in ("soon", "late"):
        await events.record(SERVER, Note(message=message))
    task = asyncio.create_task(events.run())
    async with asyncio.timeout(5):
        while len(posted) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    task.cancel()
    assert posted == {"soon": 0.5, "late": 5.5}
