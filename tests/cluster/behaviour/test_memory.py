"""Device memory that is not there: taken by a stranger, or by the engine itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cluster.behaviour.situation import SMALL, standin
from tests.cluster.behaviour.test_edits import SERVERS, edited
from tests.cluster.world import NODE_B, wait

if TYPE_CHECKING:
    from tests.cluster.behaviour.situation import Situation

GIB = 1 << 30
STANDIN_OWN = (480 + 64) << 20  # its CUDA context and graphs
STEPS = 3


def test_device_memory_shrinks_between_measuring_and_start(situation: Situation) -> None:
    """The guard refuses, says who is to blame, and after its last refusal the number that it measured is taken."""
    tenant, recorder = situation.tenant, situation.recorder
    cluster = tenant.world.cluster
    spec: dict[str, Any] = {"node": NODE_B, "sub_path": SMALL, "engine": standin()}
    tenant.apply(**spec, replicas=0)
    tenant.wait_condition("RolledOut", "True", "ScaledToZero", seconds=60)
    before = tenant.server()["status"]["capacity"]["maxTotalTokenNum"]
    try:
        cluster.set_gpu(NODE_B, 0, used=8 * GIB)
        with situation.row(
            9, "Device memory shrinks between measuring and start", promised=0
        ) as row:
            tenant.apply(**spec, replicas=1)
            situation.says(row, "the guard refuses", "Degraded", "Something else holds memory", 60)
            tenant.wait_ready(seconds=150)
            situation.look(row, "at the end")
            after = tenant.server()["status"]["capacity"]["maxTotalTokenNum"]
            assert after < before
            assert recorder.restarts("smollm2") == 0, "the engine itself never crashed"
            row.facts.append(
                f"It serves with {after} tokens after {before}; the engine never crashed."
            )
    finally:
        cluster.set_gpu(NODE_B, 0, used=0)


def test_out_of_memory_at_start_shrinks_and_serves(situation: Situation) -> None:
    """The engine takes 1.5 GiB more than the number leaves it: two steps of a GiB heal that."""
    tenant, recorder = situation.tenant, situation.recorder
    spec: dict[str, Any] = {"node": NODE_B, "sub_path": SMALL}
    tenant.apply(**spec, replicas=0, engine=standin(OVERHEAD_BYTES=0))
    tenant.wait_condition("RolledOut", "True", "ScaledToZero", seconds=60)
    terms = tenant.server()["status"]["capacity"]["breakdown"]
    left = terms["deviceFree"] - terms["weights"] - terms["kv"] - STANDIN_OWN
    with situation.row(10, "Out of memory at the start shrinks and serves", promised=0) as row:
        tenant.apply(**spec, engine=standin(OVERHEAD_BYTES=left + 3 * GIB // 2))
        situation.says(row, "after a crash", "Degraded", "ran out of device memory", 60)
        tenant.wait_ready(seconds=120)
        situation.look(row, "at the end")
        capacity = tenant.server()["status"]["capacity"]
        assert capacity["shrinkSteps"] == 2
        (pod,) = [p for p in tenant.pods(SERVERS) if "deletionTimestamp" not in p["metadata"]]
        assert situation.reported(pod["metadata"]["name"]) == capacity["maxTotalTokenNum"]
        steps = len(recorder.templates("smollm2", row.began)) - 2
        assert steps == 2, "each smaller pool is rolled out once"
        row.facts.append(
            "Two steps of 1 GiB; the engine was told the number that the status shows."
        )


def test_out_of_memory_for_ever(situation: Situation) -> None:
    """An edit makes every start crash: three smaller pools, then the former template, which served all the time."""
    tenant, recorder = situation.tenant, situation.recorder
    tenant.apply(**edited("good", engine=standin(CRASH_STARTS="99")))
    tenant.wait_ready(seconds=60)
    good = recorder.templates("smollm2")[-1]
    with situation.row(11, "Out of memory for ever", promised=2) as row:
        tenant.apply(**edited("bad", engine=standin(CRASH_STARTS="*")))
        situation.says(row, "given up", "Degraded", "it is not started again", 150)
        wait(
            lambda: (
                {p["metadata"]["annotations"]["example.com/edit"] for p in tenant.pods(SERVERS)}
                == {"good"}
            ),
            60,
            "nothing of the bad template is left",
            recorder.story,
        )
        wait(lambda: recorder.serving("smollm2") == 2, 60, "two servers serve", recorder.story)
        assert tenant.server()["status"]["capacity"]["shrinkSteps"] == STEPS
        quiet = recorder.settled()
        wait(lambda: recorder.now > quiet + 6, 20, "six seconds pass")
        situation.look(row, "six seconds later", tells="Degraded")
        recorder.settled()
        assert not [at for at in recorder.pods.times if at > quiet], recorder.story()
        assert recorder.wanted.at(recorder.now)["smollm2"].generation == good
        assert len(recorder.templates("smollm2", row.began)) == STEPS + 3
        row.facts.append(
            f"{STEPS + 1} numbers were tried; then nothing of that template is started any more, and the two servers "
            "of the template before serve on."
        )
