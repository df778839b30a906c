"""The harness of `make bench` on a control plane of its own: the figures that do not depend on the machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from bench.operator import stamped
from bench.operator.contenders import running
from bench.operator.lab import TENANTS, Lab, stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.contract

SERVERS = 5


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A control plane with the CRD and the operator's rights; the operator's process is the test's."""
    found = Lab(f"{os.environ.get('PLIMSOLL_TEST_PREFIX', 't')}-bench")
    try:
        found.up()
        yield found
    finally:
        found.down()


def test_requests_of_a_life_and_of_a_restart(lab: Lab) -> None:
    """At most 8 writes from creation to deletion, Events apart; every object read once; a restart writes nothing.

    Lists of nodes and pods are shared by all servers and made by the clock, so they are not counted here.
    """
    life = stamped.stamped(lab, SERVERS, per_second=0)["callsWithDeletion"]
    assert life["byCall"]["create pods"] == SERVERS
    assert 0 < life["writesEach"] <= 8, life
    gets = {call: count for call, count in life["byCall"].items() if call.startswith("get ")}
    of_servers = {call: count for call, count in gets.items() if call != "get leases"}
    assert sum(of_servers.values()) <= 4 * SERVERS, life
    once = {"get deployments", "get services", "get configmaps", "get pods/log"}
    assert {call for call, count in gets.items() if count > SERVERS and call in once} == set(), life
    assert gets.keys() - once <= {"get nodes", "get leases", "get inferenceservers"}, life
    with running(lab, "plimsoll") as one:
        (seen,) = lab.load([(TENANTS[0], SERVERS, 0)])
        assert (seen["settled"], seen["missing"]) == (SERVERS, 0)
        one.quiet()
    since = stamp()
    with running(lab, "plimsoll") as one:
        one.quiet()
        again = one.calls(since, SERVERS)
    assert again["byCall"]["watch inferenceservers"] == 1
    assert again["writes"] == 0, again
