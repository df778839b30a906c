"""Edits in the middle of rollouts on GPUs that are all taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cluster.behaviour.situation import SMALL, standin
from tests.cluster.world import NODE_A, wait

if TYPE_CHECKING:
    from tests.cluster.behaviour.situation import Situation


def edited(mark: str, **spec: Any) -> dict[str, Any]:
    """Keyword arguments of Tenant.apply: two servers on the two GPUs of one node, with a mark that is rendered."""
    return {
        "node": NODE_A,
        "sub_path": SMALL,
        "replicas": 2,
        "engine": standin(LOAD_SECONDS=2),
        "template": {"annotations": {"example.com/edit": mark}},
        **spec,
    }


def test_a_revert_in_mid_rollout(situation: Situation) -> None:
    tenant, recorder = situation.tenant, situation.recorder
    tenant.apply(**edited("first"))
    tenant.wait_ready()
    before = set(recorder.pods_made("smollm2"))
    first = recorder.templates("smollm2")[-1]
    with situation.row(2, "A revert in mid-rollout", promised=1) as row:
        tenant.apply(**edited("second"))
        wait(lambda: len(recorder.pods_made("smollm2")) == 3, 60, "a pod of the second spec")
        situation.look(row, "in mid-rollout", tells=True)
        tenant.apply(**edited("first"))
        situation.look(row, "reverted")
        tenant.wait_ready()
        situation.look(row, "at the end")
    assert recorder.wanted.at(recorder.now)["smollm2"].generation == first
    serving = {p["metadata"]["name"] for p in tenant.pods("plimsoll.dev/server=smollm2")}
    assert before & serving, "the pod that served all the time was replaced for nothing"
