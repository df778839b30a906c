"""At most one leader, judged by our own clock."""

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from plimsoll.controller.cluster import LEASES, Conflict, Object, Retry
from plimsoll.controller.lease import Lease, LeaseTimes
from tests.unit.controller.fake_cluster import FakeCluster, Faults

if TYPE_CHECKING:
    from collections.abc import Callable


class World:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cluster = FakeCluster()
        self.on_sleep: Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.on_sleep()

    def lease(self, identity: str) -> Lease:
        return Lease(
            self.cluster,
            "plimsoll-system",
            "plimsoll-operator",
            identity,
            clock=self.clock,
            now=self.now,
            sleep=self.sleep,
            times=LeaseTimes(duration=15, renew_deadline=10, retry=2),
        )

    @property
    def record(self) -> Object:
        spec: Object = self.cluster.objects["Lease", "plimsoll-system", "plimsoll-operator"]["spec"]
        return spec


@pytest.fixture
def world() -> World:
    return World()


async def test_the_first_candidate_creates_the_record(world: World) -> None:
    lease = world.lease("a_1")
    await lease.acquire()
    assert lease.held
    assert world.seconds == 0
    assert world.record["holderIdentity"] == "a_1"
    assert world.record["leaseDurationSeconds"] == 15


async def test_another_waits_until_the_record_has_stood_still_for_its_duration(
    world: World,
) -> None:
    await world.lease("a_1").acquire()
    second = world.lease("b_2")
    await second.acquire()
    assert 15 <= world.seconds <= 18
    assert world.record["holderIdentity"] == "b_2"
    assert world.record["leaseTransitions"] == 2


async def test_a_renewing_holder_is_never_replaced(world: World) -> None:
    first = world.lease("a_1")
    await first.acquire()
    second = world.lease("b_2")
    for _ in range(30):
        assert await first._attempt()
        assert not await second._attempt()
        await world.sleep(2)


async def test_the_same_pod_restarted_does_not_wait(world: World) -> None:
    await world.lease("a_1").acquire()
    await world.lease("a_2").acquire()
    assert world.seconds == 0


async def test_an_incarnation_that_lives_on_yields_to_its_successor(world: World) -> None:
    old = world.lease("a_1")
    await old.acquire()
    await world.lease("a_2").acquire()
    assert "taken by a_2" in await old.hold()
    assert world.record["holderIdentity"] == "a_2"


async def test_a_released_lease_is_free_at_once(world: World) -> None:
    first = world.lease("a_1")
    await first.acquire()
    await first.release()
    await world.lease("b_2").acquire()
    assert world.seconds == 0
    assert world.record["holderIdentity"] == "b_2"


async def test_release_leaves_a_successor_s_record_alone(world: World) -> None:
    first = world.lease("a_1")
    await first.acquire()
    world.seconds += 100
    second = world.lease("b_2")
    await second.acquire()
    await first.release()
    assert world.record["holderIdentity"] == "b_2"


async def test_hold_ends_when_another_has_taken_the_lease(world: World) -> None:
    first = world.lease("a_1")
    await first.acquire()

    def steal() -> None:
        world.cluster.edit(
            "Lease",
            "plimsoll-system",
            "plimsoll-operator",
            lambda obj: obj["spec"].update(holderIdentity="b_2"),
        )

    world.on_sleep = steal
    assert "taken by b_2" in await first.hold()
    assert not first.held
    assert world.record["holderIdentity"] == "b_2"  # and does not take it back


async def test_hold_survives_a_short_outage_and_not_a_long_one(world: World) -> None:
    lease = world.lease("a_1")
    await lease.acquire()
    world.on_sleep = lambda: setattr(world.cluster, "down", 3 < world.seconds < 8)
    real = world.on_sleep

    def then_for_good() -> None:
        real()
        if world.seconds >= 20:
            world.cluster.down = True

    world.on_sleep = then_for_good
    assert "could not be renewed" in await lease.hold()
    # Renewed last at 18 s, given up within its deadline: before a successor may take over at 33 s.
    assert 28 <= world.seconds < 33


async def test_two_candidates_at_once_are_decided_by_the_version(world: World) -> None:
    await world.lease("old_1").acquire()
    world.seconds += 100
    first, second = world.lease("a_1"), world.lease("b_2")
    for lease in (first, second):
        await lease._attempt()  # both see the record for the first time
    world.seconds += 16
    stale = await world.cluster.get(LEASES, "plimsoll-system", "plimsoll-operator")
    assert stale is not None
    assert await first._attempt()
    with pytest.raises(Conflict):
        await world.cluster.replace(second._record(stale, holder="b_2"))


async def test_a_lost_answer_to_the_write_is_read_back(world: World) -> None:
    world.cluster.faults = Faults(at=1, after=Retry("connection reset"))
    lease = world.lease("a_1")
    await lease.acquire()
    assert lease.held
    assert len(world.cluster.writes) == 2  # the create whose answer was lost, then a renewal


async def test_a_deleted_record_is_made_again(world: World) -> None:
    lease = world.lease("a_1")
    await lease.acquire()
    world.cluster.remove("Lease", "plimsoll-system", "plimsoll-operator")
    assert await lease._attempt()
    assert world.record["holderIdentity"] == "a_1"


async def test_never_two_holders_under_random_faults() -> None:
    rng = random.Random(7)
    for _ in range(50):
        world = World()
        leases = [world.lease("a_1"), world.lease("b_1"), world.lease("c_1")]
        for _ in range(60):
            lease = rng.choice(leases)
            world.cluster.down = rng.random() < 0.3
            held = await lease._attempt()
            world.seconds += rng.uniform(0, 6)
            # A holder is one whose last renewal is younger than the deadline.
            holders = [x for x in leases if x.held and world.seconds - x._renewed_at < 10]
            assert len(holders) <= 1
            if not held and lease.held and lease._holder_is_other():
                leases[leases.index(lease)] = world.lease(f"{lease._identity[0]}_{rng.random()}")


async def test_silence_is_counted_since_the_last_answer(world: World) -> None:
    lease = world.lease("a_1")
    world.seconds = 40.0
    await lease.acquire()
    assert lease.silent_seconds() == 0
    world.seconds += 3
    world.cluster.down = True
    assert not await lease._attempt()
    assert lease.silent_seconds() == 3
    world.cluster.down = False
    assert await lease._attempt()
    assert lease.silent_seconds() == 0
    other = world.lease("b_2")
    world.seconds += 5
    assert not await other._attempt()  # somebody else leads: that too is an answer
    assert other.silent_seconds() == 0
