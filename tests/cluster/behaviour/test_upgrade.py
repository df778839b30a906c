"""Another operator takes over running servers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.cluster.behaviour.hollow import NAME, TOLERATION, hollow_node
from tests.cluster.fault_proxy import OperatorUnderFault
from tests.cluster.world import operator_away, operator_back, wait

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.behaviour.situation import Situation
    from tests.cluster.world import Tenant

SERVERS = 50
OLD_SIZER = "ghcr.io/plimsoll-dev/sizer:0.0.9"
# The rules of render version 1 and no others, as release 0.1.0 had them.
OLD_OPERATOR = """\
import sys
from plimsoll.controller.objects import versions
versions.LATEST = versions.FIRST
versions.inputs_hash.__defaults__ = (versions.FIRST,)
from plimsoll.controller.__main__ import main
sys.exit(main())
"""


def test_an_upgrade_with_fifty_running_servers(situation: Situation, tmp_path: Path) -> None:
    """What the older operator rendered stays as it is to the last byte, and the newer one says that it would not."""
    tenant, recorder = situation.tenant, situation.recorder
    world = tenant.world
    names = [f"server-{number:02}" for number in range(SERVERS)]
    with hollow_node(world.rest, SERVERS), operator_away(world), _deleted(tenant):
        old = OperatorUnderFault(
            world.rest, tmp_path, lambda _: False, ("-c", OLD_OPERATOR), OLD_SIZER
        )
        with old:
            for name in names:
                tenant.apply(name, node=NAME, engine=ENGINE, template={"tolerations": [TOLERATION]})
            wait(
                lambda: _ready(tenant) == SERVERS, 150, "all servers Ready", lambda: _log(tmp_path)
            )
        before = dict(recorder.wanted.at(recorder.settled()))
        assert {pod.generation for pod in recorder.pods.at(recorder.now).values()} == {
            wanted.generation for wanted in before.values()
        }
        what = f"The operator is upgraded with {SERVERS} running servers"
        with situation.row(16, what, promised=SERVERS, server=None) as row:
            taken_over = recorder.now
            operator_back(world)
            wait(lambda: _told(tenant) == SERVERS, 90, "UpdateAvailable everywhere")
            situation.look(row, "at the end", tells="UpdateAvailable", server=names[0])
            recorder.settled()
            assert recorder.wanted.at(recorder.now) == before
            assert not [at for at in recorder.wanted.times if at > taken_over], recorder.story()
            assert not [at for at in recorder.pods.times if at > taken_over], recorder.story()
            assert recorder.restarts(None) == 0
            row.facts.append(
                f"The hashes of all {len(before)} pod templates are what they were, no Deployment and no pod was "
                "written, no server restarted."
            )


@contextmanager
def _deleted(tenant: Tenant) -> Iterator[None]:
    """Whatever happens, the servers go while their node is there."""
    try:
        yield
    finally:
        tenant.world.rest.call("DELETE", tenant.servers)
        tenant.world.rest.call("DELETE", f"{tenant.apps}/deployments")
        tenant.world.rest.call("DELETE", f"{tenant.core}/pods?gracePeriodSeconds=1")


ENGINE = {"type": "LightLLM", "image": "localhost/never-pulled:1", "version": "1.2.0"}


def _conditions(tenant: Tenant, kind: str) -> list[dict[str, Any]]:
    return [
        condition
        for item in tenant.world.rest.items(tenant.servers)
        for condition in item.get("status", {}).get("conditions", ())
        if condition["type"] == kind
    ]


def _ready(tenant: Tenant) -> int:
    return sum(c["status"] == "True" for c in _conditions(tenant, "Ready"))


def _told(tenant: Tenant) -> int:
    return sum(c["status"] == "True" for c in _conditions(tenant, "UpdateAvailable"))


def _log(folder: Path) -> list[str]:
    return (folder / "operator.log").read_text(errors="replace").splitlines()[-20:]
