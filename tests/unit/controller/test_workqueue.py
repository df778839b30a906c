"""The queue merges, never runs a key twice at once, and loses nothing."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.controller.workqueue import BURST, EARNED_PER_SECOND, JITTER, WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock=clock, rng=random.Random(1), base=1.0, cap=8.0)


def test_keys_come_out_in_order_and_repeats_merge(queue: WorkQueue[str]) -> None:
    for key in "abacb":
        queue.add(key)
    assert [queue.pop(), queue.pop(), queue.pop(), queue.pop()] == ["a", "b", "c", None]


def test_a_thousand_keys_of_one_group_hold_up_no_other(clock: Clock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, rng=random.Random(1), group=lambda key: key[0])
    for key in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.add(key)
    assert [queue.pop() for _ in range(3)] == ["a1", "b1", "c1"]
    clock.now += 5
    queue.add("c2")
    assert len(queue) == 4
    assert queue.oldest_ready_seconds() == 5
    assert [queue.pop() for _ in range(5)] == ["a2", "b2", "c2", "a3", None]
    assert queue.oldest_ready_seconds() == 0


def test_a_busy_key_is_not_handed_out_again_but_runs_once_more(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert queue.pop() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.pop() is None
    queue.done("a")
    assert queue.pop() == "a"
    queue.done("a")
    assert queue.pop() is None


def test_a_delayed_key_waits_and_the_earliest_appointment_wins(
    queue: WorkQueue[str], clock: Clock
) -> None:
    queue.add("a", 10)
    queue.add("a", 5)
    queue.add("a", 20)
    assert queue.next_due() == 105
    assert queue.pop() is None
    clock.now = 105
    assert queue.pop() == "a"
    queue.done("a")
    clock.now = 1000
    assert queue.pop() is None  # the other two appointments fell with the pass


def test_a_pass_drops_the_appointment_it_overtakes(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("a", 5)
    queue.add("a")
    assert queue.pop() == "a"
    queue.done("a")
    clock.now = 1000
    assert queue.pop() is None
    assert queue.next_due() is None


def test_a_key_that_comes_due_while_busy_runs_afterwards(
    queue: WorkQueue[str], clock: Clock
) -> None:
    queue.add("a")
    queue.pop()
    queue.add("a", 1)
    clock.now += 2
    assert queue.pop() is None
    queue.done("a")
    assert queue.pop() == "a"


def test_back_off_doubles_to_its_cap_and_success_forgets(queue: WorkQueue[str]) -> None:
    delays = [queue.fail("a") for _ in range(6)]
    for delay, ideal in zip(delays, [1, 2, 4, 8, 8, 8], strict=True):
        assert ideal * (1 - JITTER) <= delay <= ideal * (1 + JITTER)
    assert len(set(delays[3:])) == 3  # jitter: keys that failed together come back apart
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.fail("a") <= 1 + JITTER


def test_the_server_s_own_wish_is_a_floor(queue: WorkQueue[str]) -> None:
    assert queue.fail("a", at_least=60) == 60


def test_a_key_that_never_comes_to_rest_is_slowed_and_others_are_not(
    queue: WorkQueue[str], clock: Clock
) -> None:
    passes = 0
    for _ in range(100_000):
        queue.add("spinning")
        while (key := queue.pop()) is not None:
            passes += 1
            assert passes < 1000
            queue.add(key)  # while busy, as the watch's echo of our own write
            queue.done(key)
        clock.now += 0.001
    assert BURST + 90 * EARNED_PER_SECOND <= passes <= BURST + 101 * EARNED_PER_SECOND
    queue.add("calm")
    assert queue.pop() == "calm"
    clock.now += 2 * BURST / EARNED_PER_SECOND
    assert queue.pop() == "spinning"  # and nothing is lost


def test_keys_that_rest_are_forgotten(queue: WorkQueue[str], clock: Clock) -> None:
    for number in range(5_000):
        queue.add(f"k{number}")
        queue.done(queue.pop() or "")
        clock.now += 1
    assert len(queue._spent) < 2 * 1024


def test_a_thousand_failures_do_not_overflow(queue: WorkQueue[str]) -> None:
    assert max(queue.fail("a") for _ in range(1100)) <= 8 * (1 + JITTER)


def test_ages_and_depth(queue: WorkQueue[str], clock: Clock) -> None:
    assert (queue.oldest_busy_seconds(), queue.oldest_ready_seconds(), len(queue)) == (0, 0, 0)
    queue.add("a")
    queue.add("b")
    clock.now += 3
    assert (queue.oldest_ready_seconds(), len(queue)) == (3, 2)
    queue.pop()
    queue.add("a")
    clock.now += 2
    assert (queue.oldest_busy_seconds(), len(queue)) == (2, 2)


async def test_get_wakes_for_an_add_and_for_a_delay() -> None:
    loop = asyncio.get_running_loop()
    queue: WorkQueue[str] = WorkQueue(clock=loop.time, rng=random.Random(1))
    waiters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("soon", 0.01)
    queue.add("now")
    done, pending = await asyncio.wait(waiters, timeout=0.3)
    assert sorted(t.result() or "" for t in done) == ["now", "soon"]
    queue.close()
    assert [await t for t in pending] == [None]


async def test_drained_waits_for_the_running_pass(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.add("b")
    queue.pop()
    queue.close()
    waiter = asyncio.create_task(queue.drained())
    await asyncio.sleep(0)
    assert not waiter.done()
    queue.done("a")
    await waiter
    assert await queue.get() is None  # b is left for the next process


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "later", "pop", "done", "fail", "tick"]), st.integers(0, 3)
        ),
        max_size=60,
    )
)
def test_no_key_is_ever_lost_or_doubled(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    queue: WorkQueue[int] = WorkQueue(clock=clock, rng=random.Random(1))
    owed: set[int] = set()
    busy: set[int] = set()
    for step, key in steps:
        match step:
            case "add" | "later":
                queue.add(key, 1.0 if step == "later" else 0.0)
                owed.add(key)
            case "pop":
                popped = queue.pop()
                assert popped not in busy
                if popped is not None:
                    busy.add(popped)
                    owed.discard(popped)
            case "done" | "fail" if key in busy:
                if step == "fail":
                    queue.fail(key)
                    owed.add(key)
                busy.discard(key)
                queue.done(key)
            case _:
                clock.now += 0.6
    for key in busy:
        queue.done(key)
    clock.now += 1000
    left = set()
    while (popped := queue.pop()) is not None:
        left.add(popped)
        queue.done(popped)
    assert left == owed


def test_how_long_a_key_was_due_is_told(clock: Clock) -> None:
    waits: list[float] = []
    queue: WorkQueue[str] = WorkQueue(clock=clock, rng=random.Random(1), waited=waits.append)
    queue.add("a")
    clock.now += 2
    assert queue.pop() == "a"
    clock.now += 1
    queue.add("a")  # while it is busy: the event is what counts, not the end of the pass
    clock.now += 4
    queue.done("a")
    clock.now += 3
    assert queue.pop() == "a"
    queue.done("a")
    queue.add("b", 10.0)
    clock.now += 10.0
    assert queue.pop() == "b"  # an appointment that is kept was no wait
    assert waits == [2.0, 7.0, 0.0]
