"""Edits that come in the middle of a rollout, or while nothing serves, and GPUs that are all taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cluster.behaviour.situation import SMALL, standin
from tests.cluster.world import NODE_A, NODE_B, wait

if TYPE_CHECKING:
    from tests.cluster.behaviour.situation import Situation

SERVERS = "plimsoll.dev/server=smollm2"


def edited(mark: str, **spec: Any) -> dict[str, Any]:
    """Keyword arguments of Tenant.apply: two servers on a node with three GPUs, and a mark that is rendered."""
    return {
        "node": NODE_A,
        "sub_path": SMALL,
        "replicas": 2,
        "engine": standin(LOAD_SECONDS=1),
        "template": {"annotations": {"example.com/edit": mark}},
        **spec,
    }


def test_no_free_gpu_and_an_edit(situation: Situation) -> None:
    """The old servers hold every GPU that the new ones may use: each makes room for one, and two serve on."""
    tenant, recorder = situation.tenant, situation.recorder
    tenant.apply(**edited("first", replicas=3))
    tenant.wait_ready(seconds=60)
    with situation.row(1, "No free GPU, and an edit", promised=2) as row:
        tenant.apply(**edited("second", replicas=3))
        _wait_template(situation, "second")
        situation.says(row, "after the edit", "RolledOut", "no GPU is free")
        tenant.wait_ready(seconds=90)
        situation.look(row, "at the end")
        assert len(recorder.pods_made("smollm2")) == 6


def test_a_revert_in_mid_rollout(situation: Situation) -> None:
    tenant, recorder = situation.tenant, situation.recorder
    tenant.apply(**edited("first"))
    tenant.wait_ready(seconds=60)
    before = set(recorder.pods_made("smollm2"))
    first = recorder.templates("smollm2")[-1]
    with situation.row(2, "A revert in mid-rollout", promised=2) as row:
        tenant.apply(**edited("second"))
        wait(lambda: len(recorder.pods_made("smollm2")) == 3, 60, "a pod of the second spec")
        situation.says(row, "in mid-rollout", "RolledOut", "a GPU is free")
        tenant.apply(**edited("first"))
        situation.look(row, "reverted")
        tenant.wait_ready(seconds=60)
        situation.look(row, "at the end")
        assert recorder.templates("smollm2")[-1] == first
        serving = {p["metadata"]["name"] for p in tenant.pods(SERVERS)}
        assert before <= serving, "a server that served all the time was replaced for nothing"
        row.facts.append(
            "The two servers of the first spec served all the time and are still there."
        )


def test_three_quick_edits(situation: Situation) -> None:
    """Only the last one counts: no server of the edits between is waited for, and nothing of them stays."""
    tenant, recorder = situation.tenant, situation.recorder
    tenant.apply(**edited("first"))
    tenant.wait_ready(seconds=60)
    with situation.row(3, "Three quick edits", promised=2) as row:
        for mark in ("second", "third", "fourth"):
            tenant.apply(**edited(mark))
            _wait_template(situation, mark)
        situation.look(row, "after the third edit", tells="Ready")
        tenant.wait_ready(seconds=90)
        situation.look(row, "at the end")
        pods = [p for p in tenant.pods(SERVERS) if "deletionTimestamp" not in p["metadata"]]
        assert {p["metadata"]["annotations"]["example.com/edit"] for p in pods} == {"fourth"}
        assert len(recorder.templates("smollm2")) == 4


def test_broken_pods_and_an_edit_that_cures_them(situation: Situation) -> None:
    """Every GPU of the kind is held by a server that crashes: the cure does not wait for it to become ready."""
    tenant, recorder = situation.tenant, situation.recorder
    broken = standin(CRASH="exit", CRASH_STARTS="*")
    cured = standin(CRASH="exit", CRASH_STARTS="99")
    tenant.apply(node=NODE_B, sub_path=SMALL, engine=broken)
    tenant.wait_condition("Available", "False", "CrashLoop", seconds=60)
    with situation.row(4, "Broken old pods, and an edit that cures", promised=0) as row:
        situation.look(row, "before the edit", tells="Ready")
        tenant.apply(node=NODE_B, sub_path=SMALL, engine=cured)
        tenant.wait_ready(seconds=60)
        situation.look(row, "at the end")
        assert len(recorder.pods_made("smollm2")) == 2


def test_an_engine_that_never_becomes_ready(situation: Situation) -> None:
    """The rollout stops with its deadline and says so; the old server serves on, and the way back is an edit."""
    tenant = situation.tenant
    patience = {"progressDeadlineSeconds": 12}
    tenant.apply(**edited("good", engine=standin(NEVER_READY=0), rollout=patience))
    tenant.wait_ready(seconds=60)
    with situation.row(15, "An engine that never becomes ready", promised=2) as row:
        tenant.apply(**edited("bad", engine=standin(NEVER_READY=1), rollout=patience))
        tenant.wait_condition("RolledOut", "False", "ProgressDeadlineExceeded", seconds=60)
        assert tenant.condition("Stalled")["status"] == "True"
        situation.look(row, "its deadline is over", tells="Ready")
        tenant.apply(**edited("good", engine=standin(NEVER_READY=0), rollout=patience))
        tenant.wait_ready(seconds=60)
        situation.look(row, "reverted")


def _wait_template(situation: Situation, mark: str) -> None:
    """Wait until the Deployment carries the mark."""

    def written() -> bool:
        template = (situation.tenant.deployment() or {})["spec"]["template"]["metadata"]
        return bool(template["annotations"].get("example.com/edit") == mark)

    wait(written, 20, f"the template of the {mark} spec", situation.recorder.story)
