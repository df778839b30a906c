"""Giving up: what is stopped, what goes on, how long it stands, and that it comes to rest."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.actions import Apply, Plan
from plimsoll.controller.plan import plan
from plimsoll.controller.senses import wants_replica_sets
from tests.unit.controller.builders import (
    CONTEXT,
    LIGHTLLM,
    NOW,
    TOKENS,
    body,
    crashed,
    deleting,
    server_pod,
    stored,
)
from tests.unit.controller.plan_worlds import child, conditions, serving, sized_status, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.controller.observed import Observed

OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory"
# An edit that changes the servers and not the question: the number is known.
GOOD: dict[str, Any] = {"template": {"annotations": {"example.com/edit": "good"}}}
BAD: dict[str, Any] = {"template": {"annotations": {"example.com/edit": "bad"}}}
# Passes after which a world without news must have come to rest.
PASSES = 12


def replica_set(live: dict[str, Any], name: str) -> dict[str, Any]:
    """The ReplicaSet that the Deployment controller made of this template."""
    template = copy.deepcopy(live["spec"]["template"])
    template["metadata"]["labels"]["pod-template-hash"] = name
    template["metadata"]["creationTimestamp"] = None
    return {
        "metadata": {"name": f"llama-{name}", "annotations": {}},
        "spec": {"replicas": 1, "template": template},
    }


def pod_of(live: dict[str, Any], name: str, number: int = 0, *, ready: bool = True) -> Any:
    """A pod of that ReplicaSet, which serves or runs out of device memory."""
    pod = server_pod(live, number)
    pod["metadata"]["name"] = f"llama-{name}-{number}"
    pod["metadata"]["uid"] = f"uid-{name}-{number}"
    pod["metadata"]["ownerReferences"][0]["name"] = f"llama-{name}"
    return pod if ready else crashed(pod, 1, "Error", OOM)


def hash_of(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["annotations"]["plimsoll.dev/inputs-hash"])


@dataclass
class Loop:
    """Passes over a world that does what is written: pods of a template serve, or crash.

    Attributes:
        world: as it is now.
        serves: by the hash of a template, the name of its ReplicaSet where it serves.
        templates: what the Deployment was told, in order.
        readable: whether ReplicaSets may be read.
    """

    world: Observed
    serves: dict[str, str]
    templates: list[str] = field(default_factory=list)
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    readable: bool = True
    now: Any = NOW
    last: Plan = field(default_factory=Plan)

    def turn(self) -> bool:
        """One pass and what comes of it; False where nothing did."""
        if self.readable and wants_replica_sets(self.world):
            self.world = replace(self.world, replica_sets=tuple(self.sets.values()))
        self.last = made = plan(self.world, CONTEXT, self.now)
        for action in made.actions:
            assert isinstance(action, Apply)
            if action.obj["kind"] == "Deployment":
                self._write(action.obj)
        if made.status is not None:
            self.world = replace(self.world, raw={**self.world.raw, "status": made.status})
        return bool(made.actions) or made.status is not None

    def settle(self) -> None:
        """Until nothing is written any more."""
        for _ in range(PASSES):
            if not self.turn():
                return
        pytest.fail(f"no rest; templates {self.templates}, last {self.last}")

    def edit(self, **spec: Any) -> None:
        """The user changes the resource."""
        status = self.world.raw["status"]
        raw = body(generation=self.world.generation + 1, status=status, **spec)
        self.world = replace(serving(**spec), raw=raw, deployment=self.live, server_pods=self.pods)

    @property
    def live(self) -> dict[str, Any]:
        assert self.world.deployment is not None
        return self.world.deployment

    @property
    def pods(self) -> tuple[dict[str, Any], ...]:
        return self.world.server_pods

    def _write(self, wanted: dict[str, Any]) -> None:
        live = {**copy.deepcopy(self.live), "spec": copy.deepcopy(wanted["spec"])}
        template, replicas = live["spec"]["template"], live["spec"]["replicas"]
        assert "pod-template-hash" not in template["metadata"]["labels"]
        key = hash_of(template)
        name = self.serves.get(key, key[:6])
        if key != hash_of(self.live["spec"]["template"]):
            self.templates.append(key)
        self.sets.setdefault(name, replica_set(live, name))
        kept = [pod for pod in self.pods if hash_of(pod) in self.serves]
        if key in self.serves:
            kept = [pod_of(live, name, i) for i in range(replicas)]
        elif replicas:
            # One of the old ones stays until a new one serves.
            kept = [*kept[:replicas], pod_of(live, name, 7, ready=False)]
        else:
            kept = []
        self.world = replace(self.world, deployment=live, server_pods=tuple(kept))


def given_up() -> dict[str, Any]:
    """A status in which the last step was made."""
    status = sized_status()
    return {**status, "capacity": {**status["capacity"], "shrinkSteps": 3}}


def alone(**spec: Any) -> Loop:
    """A first server that runs out of memory with its last number."""
    live = child(**spec)
    world = replace(
        serving(status=given_up(), **spec), server_pods=(pod_of(live, "bad", ready=False),)
    )
    return Loop(world, {})


def edited(replicas: int = 2) -> Loop:
    """Servers that serve, and an edit whose servers run out of memory whatever the number is."""
    live = stored(child(replicas=replicas, **GOOD))
    pods = tuple(pod_of(live, "good", i) for i in range(replicas))
    world = replace(serving(replicas=replicas, **GOOD), server_pods=pods)
    key = hash_of(live["spec"]["template"])
    loop = Loop(world, {key: "good"}, sets={"good": replica_set(live, "good")})
    loop.settle()
    assert loop.templates == []
    loop.edit(replicas=replicas, **BAD)
    return loop


def test_it_is_persisted_before_anything_is_stopped() -> None:
    loop = alone()
    first = plan(loop.world, CONTEXT, NOW)
    assert first.actions == ()
    assert first.status is not None
    assert first.status["rollout"]["halted"]["reason"] == "OutOfMemoryBackoff"
    assert first.requeue_after == 1
    loop.turn()
    loop.turn()
    assert loop.live["spec"]["replicas"] == 0


def test_the_first_template_is_stopped_and_stays_so() -> None:
    loop = alone()
    loop.settle()
    assert loop.live["spec"]["replicas"] == 0
    assert loop.templates == []
    found = conditions(loop.last, loop.world)
    assert found["Ready"] == ("False", "OutOfMemoryBackoff")
    assert found["Degraded"] == ("True", "OutOfMemoryBackoff")
    assert "Stalled" in found
    loop.now += timedelta(days=1)
    assert not loop.turn()


def test_the_template_before_comes_back_and_goes_on() -> None:
    loop = edited()
    (good,) = loop.serves
    loop.settle()
    # The bad template, three smaller pools of it, and back.
    assert len(loop.templates) == 5
    assert loop.templates[-1] == good
    assert loop.templates.count(good) == 1
    assert [hash_of(pod) for pod in loop.pods] == [good, good]
    assert conditions(loop.last, loop.world)["Ready"] == ("False", "OutOfMemoryBackoff")
    (said,) = [c["message"] for c in loop.world.status["conditions"] if c["type"] == "RolledOut"]
    assert "Servers of the template before go on." in said
    loop.now += timedelta(days=1)
    assert not loop.turn()


def test_scaling_goes_on_and_lifts_nothing() -> None:
    loop = edited()
    loop.settle()
    loop.edit(replicas=3, **BAD)
    loop.settle()
    (good,) = loop.serves
    assert [hash_of(pod) for pod in loop.pods] == [good] * 3
    assert loop.templates[-1] == good
    stopped = alone()
    stopped.settle()
    stopped.edit(replicas=3)
    stopped.settle()
    assert stopped.live["spec"]["replicas"] == 0


@pytest.mark.parametrize("spec", [
    {"sizing": {"onOutOfMemory": {"maxSteps": 4}}},
    {"sizing": {"onOutOfMemory": {"action": "None"}}},
    {"engine": {**LIGHTLLM, "image": "ghcr.io/modeltc/lightllm:v1.2.1"}},
], ids=["more steps", "no steps", "another image"])  # fmt: skip
def test_an_edit_lifts_it(spec: dict[str, Any]) -> None:
    loop = alone()
    loop.settle()
    loop.edit(**spec)
    made = plan(loop.world, CONTEXT, NOW)
    assert made.status is not None
    assert "halted" not in (made.status.get("rollout") or {})


def test_servers_are_not_stopped_where_the_template_before_cannot_be_read() -> None:
    loop = edited()
    loop.readable = False
    loop.settle()
    (good,) = loop.serves
    assert len(loop.templates) == 4
    assert good in [hash_of(pod) for pod in loop.pods]
    loop.readable = True
    loop.settle()
    assert loop.templates[-1] == good


def test_old_servers_that_do_not_serve_are_no_reason_to_go_back() -> None:
    loop = edited(replicas=1)
    while "halted" not in (loop.world.status.get("rollout") or {}):
        assert loop.turn()
    broken = tuple(crashed(pod, 1, "Error", "no") for pod in loop.pods)
    loop.world = replace(loop.world, server_pods=broken)
    loop.settle()
    assert loop.live["spec"]["replicas"] == 0


def test_most_servers_decide_what_to_go_back_to() -> None:
    loop = edited(replicas=2)
    while "halted" not in (loop.world.status.get("rollout") or {}):
        assert loop.turn()
    other = child(sizing={"extraReserve": "1Gi"})
    (good,) = loop.serves
    served = child(replicas=2, **GOOD)
    loop.sets = {"aaa": replica_set(other, "aaa"), **loop.sets}
    loop.world = replace(
        loop.world,
        server_pods=(pod_of(other, "aaa"), pod_of(served, "good", 1), pod_of(served, "good", 2)),
    )
    loop.settle()
    assert loop.templates[-1] == good


def _paused(loop: Loop) -> None:
    loop.edit(rollout={"paused": True})


def _leaving(loop: Loop) -> None:
    loop.world = replace(loop.world, deployment=deleting(loop.live))


def _without(loop: Loop) -> None:
    loop.world = replace(loop.world, deployment=None, server_pods=())


@pytest.mark.parametrize(("change", "replicas"), [
    (_paused, 0), (_leaving, None), (_without, None),
], ids=["a pause stops no stopping", "a child that goes is left alone", "nothing to stop"])  # fmt: skip
def test_what_is_stopped(change: Callable[[Loop], None], replicas: int | None) -> None:
    loop = alone()
    loop.turn()
    change(loop)
    made = plan(loop.world, CONTEXT, NOW)
    assert [a.obj["spec"]["replicas"] for a in made.actions if isinstance(a, Apply)] == (
        [] if replicas is None else [replicas]
    )
    assert conditions(made, loop.world)["RolledOut"] == ("False", "OutOfMemoryBackoff")


def test_the_service_of_servers_that_go_on_is_kept_right() -> None:
    loop = edited()
    loop.settle()
    loop.edit(replicas=2, service={"port": 8080}, **BAD)
    made = plan(loop.world, CONTEXT, NOW)
    loop.world = replace(loop.world, service=None)
    again = plan(loop.world, CONTEXT, NOW)
    kinds = [[a.obj["kind"] for a in p.actions if isinstance(a, Apply)] for p in (made, again)]
    assert kinds == [[], ["Service"]]


def test_the_message_has_the_terms() -> None:
    loop = alone()
    made = plan(loop.world, CONTEXT, NOW)
    for words in (f"{TOKENS} tokens", "3 of 3 smaller pools", "weights 15.00 GiB", "extraReserve"):
        assert words in text(made, "Degraded")
