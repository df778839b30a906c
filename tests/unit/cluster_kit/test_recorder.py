"""The recorder of behaviour tests: what it would overlook, no test of a rollout could fail on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.behaviour.table import render, status
from tests.cluster.recorder import LAG, Pod, Recorder, Said, Track, Wanted
from tests.cluster.world import wait

if TYPE_CHECKING:
    from collections.abc import Iterator

READY = Pod("s", "new", ready=True, leaving=False, restarts=0)
OLD = Pod("s", "old", ready=True, leaving=False, restarts=0)
LEAVES = Pod("s", "new", ready=True, leaving=True, restarts=0)
WANTED = Wanted(1, "new", "digest")
TRUE = Said("True", "Ready", "", fresh=True)


class FakeRest:
    """A namespace in which nothing happens; the watches stay open until the test ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.listed: list[dict[str, Any]] = []

    def watch(self, _path: str, **_: Any) -> Iterator[dict[str, Any]]:
        self.ended.wait()
        yield from ()

    def items(self, path: str) -> list[dict[str, Any]]:
        return self.listed if path.endswith("pods") else []


@pytest.fixture
def rest() -> Iterator[FakeRest]:
    rest = FakeRest()
    yield rest
    rest.ended.set()


@pytest.fixture
def recorder(rest: FakeRest) -> Iterator[Recorder]:
    recorder = Recorder(rest, "space")  # type: ignore[arg-type]
    yield recorder
    recorder.stop()


@pytest.fixture
def told(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """One that a test tells what happened, before second 100."""
    monkeypatch.setattr(recorder, "settled", lambda: 100.0)
    return recorder


def test_a_short_moment_without_a_server_is_not_overlooked(told: Recorder) -> None:
    told.pods.put(1, "a", READY)
    told.pods.put(2, "a", LEAVES)
    told.pods.put(2.01, "b", READY)
    assert told.fewest_ready("s", 1) == 0
    assert told.fewest_ready("s", 2.01) == 1
    assert told.fewest_ready("s", 1, 1.5) == 1
    assert told.fewest_ready("s", 0.5) == 0, "the state at the beginning counts too"
    with pytest.raises(AssertionError, match="0 ready where 1 were promised"):
        told.never_fewer_than(1, "s", 1)
    assert told.never_fewer_than(1, "s", 2.01) == 1


def test_other_servers_do_not_count_unless_all_are_meant(told: Recorder) -> None:
    told.pods.put(1, "a", READY)
    told.pods.put(1, "b", Pod("other", "x", ready=True, leaving=False, restarts=3))
    assert told.fewest_ready("s", 1) == 1
    assert told.fewest_ready(None, 1) == 2
    assert (told.restarts("s"), told.restarts(None)) == (0, 3)


@pytest.mark.parametrize(
    ("pod", "said", "lies"),
    [
        (READY, TRUE, False),
        (OLD, TRUE, True),
        (LEAVES, TRUE, True),
        (OLD, Said("True", "Ready", "", fresh=False), False),
        (OLD, Said("False", "Progressing", "", fresh=True), False),
    ],
)
def test_ready_without_a_server_of_the_present_template_is_a_lie(
    told: Recorder, pod: Pod, said: Said, *, lies: bool
) -> None:
    told.wanted.put(1, "s", WANTED)
    told.pods.put(1, "a", pod)
    told.said.put(1, "s", said)
    assert bool(told.lies("s")) is lies


@pytest.mark.parametrize(("seconds", "lies"), [(LAG - 0.1, False), (LAG + 0.1, True)])
def test_a_condition_may_follow_its_pods(told: Recorder, seconds: float, *, lies: bool) -> None:
    told.wanted.put(1, "s", WANTED)
    told.said.put(1, "s", TRUE)
    told.pods.put(1 + seconds, "a", READY)
    assert bool(told.lies("s")) is lies


def test_scaled_to_zero_is_ready_without_a_server(told: Recorder) -> None:
    told.wanted.put(1, "s", Wanted(0, "new", "digest"))
    told.said.put(1, "s", TRUE)
    assert told.lies("s") == []


def test_the_same_again_is_no_change() -> None:
    track: Track[Pod] = Track()
    track.put(1, "a", READY)
    track.put(2, "a", READY)
    track.put(3, "b", None)
    assert track.times == [1]
    track.put(4, "a", None)
    assert track.at(3.9) == {"a": READY}
    assert track.at(4) == {}


def test_a_watch_that_ended_proves_nothing(rest: FakeRest, recorder: Recorder) -> None:
    recorder.settled()
    rest.ended.set()
    wait(lambda: len(recorder._broken) == 3, 10, "the watches end")
    with pytest.raises(AssertionError, match="the watch ended"):
        recorder.settled()


def test_what_is_there_must_have_been_seen(
    rest: FakeRest, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.recorder.CATCH_UP", 0.05)
    rest.listed = [{"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}}]
    with pytest.raises(AssertionError, match="do not catch up"):
        recorder.settled()
    recorder._versions["u"] = 7
    recorder.settled()
    recorder.pods.put(0, "gone", READY)
    with pytest.raises(AssertionError, match="do not catch up"):
        recorder.settled()


def test_the_page_has_the_line_that_tells() -> None:
    header = "NAME   READY   STATUS        MODEL"
    moments = [
        {
            "moment": "after",
            "header": header,
            "line": "s      1/2     Progressing   m",
            "message": "wait | see",
        },
        {
            "moment": "end",
            "header": header,
            "line": "s      2/2     Ready         m",
            "message": "Serving.",
        },
    ]
    row = {"row": 3, "what": "Edits", "moments": moments, "message": "wait | see", "seconds": 9.6}
    page = render([row | {"promised": 1, "fewest_ready": 2, "facts": ["It holds."]}])
    assert "| 3 | Edits | Progressing | wait \\| see | 10 | 1 | 2 |" in page
    assert "## 3. Edits" in page
    assert page.endswith("It holds.\n")
    assert status(moments[1]) == "Ready"
