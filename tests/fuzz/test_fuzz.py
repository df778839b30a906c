"""A short round of each fuzz target, always with the same seed; ``make fuzz`` runs them long."""

from __future__ import annotations

import pytest

from plimsoll.core.errors import BadModel
from tests.fuzz.engine import fuzz
from tests.fuzz.targets import TARGETS, Target

SECONDS = 20.0  # of a noisy machine; the number of inputs is what ends a round
SWALLOW = {"engines", "command", "index", "log", "pickle"}  # these look at refusals themselves
INPUTS = {"engines": 150, "folder": 400, "request": 500, "log": 500}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_refusals(name: str) -> None:
    found = fuzz(TARGETS[name], SECONDS, 20260930, most=INPUTS.get(name, 1500))
    assert found.crashes == []
    assert found.executions > 20
    assert len(found.ends) > 1 or name in SWALLOW


def run_with_a_fault(data: bytes) -> None:
    if b"\0" in data:
        raise BadModel("as it should")
    if b"{" in data:
        raise KeyError("as it should not")


def test_a_fault_is_found() -> None:
    found = fuzz(Target(run_with_a_fault, (b"abc",)), SECONDS, 1, most=5000)
    assert len(found.crashes) == 1  # one of each place
    assert "KeyError" in found.crashes[0][1]
    assert b"{" in found.crashes[0][0]
    assert found.accepted
