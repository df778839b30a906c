"""Exactly one of work and clock reports."""

from __future__ import annotations

import threading

from plimsoll.sizer.deadline import Deadline


def test_it_expires() -> None:
    expired = threading.Event()
    deadline = Deadline(0, expired.set)
    deadline.start()
    assert expired.wait(30)
    assert deadline.claim() is False


def test_work_that_claims_first_is_not_interrupted() -> None:
    expired = threading.Event()
    deadline = Deadline(3600, expired.set)
    deadline.start()
    (watcher,) = [thread for thread in threading.enumerate() if thread.name == "deadline"]
    assert deadline.claim() is True
    watcher.join(20)  # it ends at once, not after its time
    assert not watcher.is_alive()
    assert not expired.is_set()


def test_only_one_claim_is_granted() -> None:
    deadline = Deadline(30, lambda: None)
    assert [deadline.claim() for _ in range(3)] == [True, False, False]
