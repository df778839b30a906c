"""Crashes, lost writes, edits and deletions at any moment: every path ends in the same world.

A small world of dicts is moved in turns by the planner (through the same order of writes as
reconcile: actions, then status) and by what stands for Kubernetes: a scheduler that counts GPUs, a
kubelet that ends sizers, a Deployment controller with maxSurge 0.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.controller.actions import Patch
from plimsoll.controller.objects.labels import SIZING_LABEL
from plimsoll.controller.objects.names import inputs_hash_of
from plimsoll.controller.observed import observe_from, wanted_node
from plimsoll.controller.plan import Action, Apply, Create, Delete, Plan, plan
from plimsoll.core.report import Failure, Report
from tests.unit.controller.builders import (
    CONTEXT,
    FAILURE,
    NAMESPACE,
    NOW,
    REPORT,
    body,
    born,
    ended,
    node,
    server_pod,
    stored,
    unschedulable,
)
from tests.unit.controller.fake_cluster import patched

Object = dict[str, Any]
Outcome = tuple[Report | Failure | str, int]
GOOD: Outcome = (REPORT, 0)


class Crash(Exception):  # noqa: N818 -- it is not an error, it is the end of a process
    """The operator dies."""


@dataclass
class World:
    """One server, its children and a few GPUs on one node."""

    spec: dict[str, Any] = field(default_factory=dict)
    gpus: int = 2
    outcomes: list[Outcome] = field(default_factory=list)
    crashes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.raw = body(**self.spec)
        self.children: dict[str, Object] = {}
        self.pods: list[Object] = []
        self.now = NOW
        self.writes = 0
        self.deaths = 0
        self.born = 0
        self.created: list[str] = []
        self.last = Plan()

    # -- the operator ---------------------------------------------------------------------------

    def operate(self) -> bool:
        """One pass; whether it wrote anything. A crash loses the rest of the pass."""
        pods = copy.deepcopy(self.pods)
        wanted = wanted_node(self.raw, pods)
        observed = observe_from(
            copy.deepcopy(self.raw),
            deployment=copy.deepcopy(self.children.get("Deployment")),
            service=copy.deepcopy(self.children.get("Service")),
            pods=pods,
            node=node() if wanted == "node-a" else None,
        )
        self.last = plan(observed, CONTEXT, self.now)
        try:
            if any(not isinstance(action, Delete) for action in self.last.actions):
                self._tell()
            for action in self.last.actions:
                self._write(action)
            self._tell()
        except Crash:
            return True
        return bool(self.last.actions) or self.last.status is not None

    def _tell(self) -> None:
        status = self.last.status
        if status is not None and status != self.raw.get("status"):
            self._survive()
            self.raw["status"] = copy.deepcopy(status)

    def _write(self, action: Action) -> None:
        self._survive()
        if isinstance(action, Delete):
            self._check_deletion(action)
            self.pods = [p for p in self.pods if p["metadata"]["uid"] != action.uid]
        elif isinstance(action, Create):
            name = action.obj["metadata"]["name"]
            if all(pod["metadata"]["name"] != name for pod in self.pods):
                self.born += 1
                self.created.append(name)
                self.pods.append(born(action.obj, f"uid-{self.born}", at=self.now))
        elif isinstance(action, Apply):
            self._check_number(action.obj)
            self.children[action.obj["kind"]] = stored(action.obj)
        elif isinstance(action, Patch):
            made = patched(action.live, action.ops)
            self._check_number(made)
            self.children[made["kind"]] = made

    def _survive(self) -> None:
        self.writes += 1
        if self.writes in self.crashes:
            self.deaths += 1
            raise Crash

    def _check_number(self, obj: Object) -> None:
        """What is written into a template was persisted before, and is what was persisted."""
        if obj["kind"] != "Deployment" or self.raw["spec"].get("sizing", {}).get("mode") == "Fixed":
            return
        stands_there = self.children.get("Deployment")
        if stands_there is not None and _tokens(stands_there) == _tokens(obj):
            return
        assert _tokens(obj) == self.raw["status"]["capacity"]["maxTotalTokenNum"]

    def _check_deletion(self, action: Delete) -> None:
        """A pod with an answer that is still wanted goes only when the answer is in the template."""
        (pod,) = (p for p in self.pods if p["metadata"]["uid"] == action.uid)
        capacity = self.raw.get("status", {}).get("capacity") or {}
        if capacity.get("requestHash", "")[:7] == pod["metadata"]["name"][-7:]:
            live = self.children.get("Deployment")
            resized = self.last.status is not None or live is None
            assert resized or _tokens(live) == capacity["maxTotalTokenNum"]

    # -- Kubernetes -----------------------------------------------------------------------------

    def turn(self) -> bool:
        """The Deployment controller, or the scheduler and a kubelet, do one thing; whether they did."""
        return self._deploy() or any(self._run(i) for i in range(len(self.pods)))

    def _free(self) -> int:
        return self.gpus - sum(_holds_gpu(pod) for pod in self.pods)

    def _run(self, index: int) -> bool:
        pod = self.pods[index]
        if pod["status"]["phase"] != "Pending":
            return False
        if self._free() < 1:
            waits = unschedulable(pod, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
            self.pods[index] = waits
            return waits != pod
        if SIZING_LABEL in pod["metadata"]["labels"]:
            outcome, code = self.outcomes.pop(0) if self.outcomes else GOOD
            self.pods[index] = ended(pod, outcome, code)
        else:
            live = {"metadata": {"name": "llama"}, "spec": {"template": _template_of(pod)}}
            ready = server_pod(live)
            ready["metadata"] = pod["metadata"]
            self.pods[index] = ready
        return True

    def _deploy(self) -> bool:
        live = self.children.get("Deployment")
        serving = [p for p in self.pods if SIZING_LABEL not in p["metadata"]["labels"]]
        wanted = live["spec"]["replicas"] if live else 0
        current = [
            p
            for p in serving
            if live and inputs_hash_of(p) == inputs_hash_of(live["spec"]["template"])
        ]
        for pod in [*(p for p in serving if p not in current), *current[wanted:]]:
            self.pods.remove(pod)
            return True
        if len(current) >= wanted or live is None:
            return False
        self.born += 1
        pod = server_pod(live, self.born)
        pod["metadata"]["uid"] = f"uid-{self.born}"
        pod["status"] = {"phase": "Pending"}
        self.pods.append(pod)
        return True

    # -- the run --------------------------------------------------------------------------------

    def settle(self, turns: int = 400) -> None:
        """Until nobody has anything to do; when all wait for the clock, the clock moves."""
        for _ in range(turns):
            if self.operate() or self.turn():
                continue
            if self.last.requeue_after is None or _waits_for_gpu(self):
                return
            self.now += timedelta(seconds=self.last.requeue_after)
        pytest.fail(f"no rest after {turns} turns: {self.last}")

    def edit(self, spec: dict[str, Any]) -> None:
        """The user applies another spec."""
        changed = body(generation=self.raw["metadata"]["generation"] + 1, **spec)
        self.raw = {**changed, "status": self.raw.get("status", {})}

    def end_state(self) -> dict[str, Any]:
        """Everything that must not depend on how we got here."""
        status = self.raw["status"]
        return {
            "children": self.children,
            "capacity": status.get("capacity"),
            "conditions": {
                c["type"]: (c["status"], c["reason"], c["message"]) for c in status["conditions"]
            },
            "ready": status["ready"],
            "rest": {
                k: v
                for k, v in status.items()
                if k in {"effective", "endpoint", "selector", "sizing"}
            },
            "pods": sorted(str(_tokens_of_pod(p["spec"])) for p in self.pods),
        }


def _tokens(deployment: Object | None) -> int | None:
    return _tokens_of_pod(deployment["spec"]["template"]["spec"]) if deployment else None


def _tokens_of_pod(spec: Object) -> int | None:
    found = [a for a in spec["containers"][0]["args"] if a.startswith("--max_total_token_num=")]
    return int(found[0].partition("=")[2]) if found else None


def _template_of(pod: Object) -> Object:
    metadata = {k: pod["metadata"][k] for k in ("labels", "annotations")}
    return {"metadata": metadata, "spec": pod["spec"]}


def _holds_gpu(pod: Object) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def _waits_for_gpu(world: World) -> bool:
    return any(pod["status"]["phase"] == "Pending" for pod in world.pods)


def settled(spec: dict[str, Any] | None = None, **more: Any) -> World:
    """A world at rest that nothing ever disturbed."""
    world = World(spec or {}, **more)
    world.settle()
    return world


SPECS: list[dict[str, Any]] = [
    {},
    {"replicas": 2},
    {"replicas": 0},
    {"sizing": {"extraReserve": "1Gi"}},
    {"sizing": {"mode": "Fixed", "maxTotalTokenNum": 4096}},
    {"service": {"port": 8080}},
    {"engine": {"type": "LightLLM", "image": "x:v1.2.0", "args": ["--mode", "fast"]}},
]
BAD_SPEC: dict[str, Any] = {
    "engine": {"type": "LightLLM", "image": "x:v1.2.0", "args": ["--mem_fraction=1"]}
}


def test_the_main_job() -> None:
    world = settled()
    status = world.raw["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    assert status["ready"] == "1/1"
    assert _tokens(world.children["Deployment"]) == REPORT.max_total_token_num
    assert [p["metadata"]["labels"].get(SIZING_LABEL) for p in world.pods] == [None]
    assert len(world.created) == 1
    assert world.children["Service"]["metadata"]["namespace"] == NAMESPACE


@pytest.mark.parametrize("point", range(1, 13))
def test_a_crash_after_any_write_changes_nothing(point: int) -> None:
    """The sizing pod, its status, the number's status, the Deployment, the Service, the deletion."""
    calm, world = settled(), World(crashes={point})
    world.settle()
    assert world.end_state() == calm.end_state()
    assert world.created == calm.created  # the question was not measured twice
    assert world.deaths == (1 if point <= world.writes else 0)
    assert calm.writes <= 12  # so that the points above cover all of them


def test_a_failed_measurement_ends_in_the_same_world() -> None:
    outcomes: list[Outcome] = [
        (FAILURE, 4),
        ("forged", 0),
        ("", 137),
        (replace(FAILURE, reason="ModelNotFound"), 2),
    ]
    world = settled(outcomes=outcomes)
    assert world.end_state() == settled().end_state()
    assert len(world.created) == 5
    assert world.now > NOW + timedelta(seconds=5)


def test_without_a_free_gpu_a_resize_waits_and_scaling_down_frees_one() -> None:
    world = settled(gpus=1)
    world.edit({"sizing": {"extraReserve": "1Gi"}})
    world.settle()
    found = {c["type"]: (c["status"], c["reason"]) for c in world.raw["status"]["conditions"]}
    assert found["CapacityAvailable"] == ("False", "Unschedulable")
    assert found["Available"] == ("True", "MinimumReplicas")
    world.edit({"sizing": {"extraReserve": "1Gi"}, "replicas": 0})
    world.settle()
    world.edit({"sizing": {"extraReserve": "1Gi"}})
    world.settle()
    assert world.end_state() == settled({"sizing": {"extraReserve": "1Gi"}}, gpus=1).end_state()


def test_a_bad_spec_disturbs_nothing_and_its_correction_recovers() -> None:
    world = settled()
    before = copy.deepcopy(world.children), copy.deepcopy(world.pods)
    world.edit(BAD_SPEC)
    world.settle()
    assert (world.children, world.pods) == before
    found = {c["type"]: (c["status"], c["reason"]) for c in world.raw["status"]["conditions"]}
    assert found["Stalled"] == ("True", "FlagNotAllowed")
    world.edit({})
    world.settle()
    assert world.end_state() == settled().end_state()
    assert len(world.created) == 1


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["edit", "delete", "lose pods", "bad spec", "wipe", "forge", "turns"]),
        st.integers(0, 20),
    ),
    max_size=6,
)
FAILURES = st.sampled_from(
    [(FAILURE, 4), ("forged", 0), ("", 137), (replace(FAILURE, reason="ModelNotFound"), 2)]
)


def _disturb(world: World, step: Step, spec: dict[str, Any]) -> dict[str, Any]:
    """Do one disturbance; the spec that is in force afterwards."""
    kind, number = step
    if kind == "edit":
        spec = SPECS[number % len(SPECS)]
        world.edit(spec)
    elif kind == "bad spec":
        world.edit(BAD_SPEC)
        world.operate()
        world.edit(spec)
    elif kind == "delete":
        world.children.pop(("Deployment", "Service")[number % 2], None)
    elif kind == "lose pods":
        world.pods.clear()
    elif kind == "wipe":
        world.raw["status"] = {}
    elif kind == "forge":
        capacity = world.raw.get("status", {}).get("capacity") or {}
        capacity |= {"maxTotalTokenNum": 10**9, "kvCacheBytes": number}
    for _ in range(number):
        world.operate()
        world.turn()
    return spec


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    crashes=st.sets(st.integers(1, 60), max_size=8),
    failures=st.lists(FAILURES, max_size=3),
)
def test_every_path_ends_in_the_same_world(
    steps: list[Step], crashes: set[int], failures: list[Outcome]
) -> None:
    world = World(gpus=4, crashes=crashes, outcomes=list(failures))
    spec: dict[str, Any] = {}
    for step in steps:
        spec = _disturb(world, step, spec)
    world.settle()
    assert world.end_state() == settled(spec, gpus=4).end_state()
    assert world.operate() is False
