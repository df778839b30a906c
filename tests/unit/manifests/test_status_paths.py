"""Every path of every status that the planner writes exists in the schema, and the schema has no other.

The API server drops unknown fields of a status without a word, so a slip here would lose facts that
the next pass builds on.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.actions import Apply, Create
from plimsoll.controller.objects.learned_map import Entry, learned_map
from plimsoll.controller.observed import observe_from
from plimsoll.controller.plan import plan
from plimsoll.controller.steps.learned import case_of
from plimsoll.core.drift import METRICS, PodReading
from plimsoll.core.engines.base import Pinned
from plimsoll.core.engines.readback import Reading
from plimsoll.core.report import RESERVE_TERMS
from plimsoll.core.units import GIB
from tests.unit.controller import builders as make
from tests.unit.manifests.samples import not_in_schema, schema, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = schema()["properties"]["status"]

EVERY_TERM = dict.fromkeys(RESERVE_TERMS, GIB)
FULL_REPORT = replace(
    make.REPORT,
    device_class=replace(make.DEVICE, mig="1g.10gb", sharing="time-slicing"),
    budget=replace(make.BUDGET, reserve=EVERY_TERM),
    model_file="model.gguf",
    pinned=Pinned(
        max_total_token_num=make.TOKENS,
        max_sequences=256,
        context_length=131072,
        prefill_tokens=8192,
        kv_cache_bytes=make.BUDGET.kv,
        memory_fraction="0.9",
        block_tokens=16,
        graph_batch=256,
        state_dtype="float32",
    ),
)


def life(report: Any = FULL_REPORT, **spec: Any) -> Iterator[dict[str, Any]]:
    """The statuses of one server: asked, failed once, measured, rolled out, read, one pod crashing."""
    raw = make.body(**spec)
    (create,) = (a for a in step(raw).actions if isinstance(a, Create))
    waiting = make.unschedulable(
        make.born(create.obj), "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    )
    yield put_status(raw, pods=[waiting])
    yield put_status(raw, pods=[make.ended(make.born(create.obj), make.FAILURE, code=4)])
    again = make.ended(make.born(create.obj, "second"), report)
    yield put_status(raw, pods=[again], node=make.node())
    deployment = next(a.obj for a in step(raw, node=make.node()).actions if is_deployment(a))
    well = make.server_pod(deployment, 0)
    ill = make.server_pod(deployment, 1, ready=False)
    world = {"deployment": make.stored(deployment), "node": make.node()}
    yield put_status(raw, readings=[read(well, tokens=5000)], pods=[well], **world)
    yield put_status(raw, pods=[well, make.crashed(ill, 1, "Error", "assertion failed")], **world)
    yield put_status(raw, pods=[out_of_memory(ill)], **world)


def edited() -> Iterator[dict[str, Any]]:
    """A server that serves and is changed: who makes room for whom is said."""
    raw = make.body(sizing=FIXED)
    deployment = next(a.obj for a in step(raw).actions if is_deployment(a))
    pods = [make.server_pod(deployment, 0)]
    raw["spec"]["sizing"] = {**FIXED, "maxTotalTokenNum": 5000}
    yield put_status(raw, deployment=make.stored(deployment), pods=pods)


def read(pod: dict[str, Any], tokens: int) -> PodReading:
    """What the engine of this pod says."""
    metadata = pod["metadata"]
    return PodReading(metadata["name"], metadata["uid"], Reading(tokens=tokens), METRICS)


def in_pod() -> Iterator[dict[str, Any]]:
    """Each server measures for itself."""
    raw = make.body(replicas=2, sizing={"mode": "InPod"})
    deployment = next(a.obj for a in step(raw).actions if is_deployment(a))
    pods = [make.server_pod(deployment, number, ready=number == 0) for number in (0, 1)]
    slice_ = replace(make.REPORT, device_class=replace(make.DEVICE, mig="1g.10gb"))
    end = pods[0]["status"]["initContainerStatuses"][0]["state"]["terminated"]
    end["message"] = make.message(pods[0], slice_)
    yield put_status(raw, deployment=make.stored(deployment), pods=pods, node=make.node())


def ending(crash: Callable[[dict[str, Any]], dict[str, Any]], **sizing: Any) -> dict[str, Any]:
    """A server with a number, the pod of which ends badly: the status after that."""
    raw = make.body(sizing=sizing)
    (create,) = (a for a in step(raw).actions if isinstance(a, Create))
    put_status(raw, pods=[make.ended(make.born(create.obj))], node=make.node())
    deployment = next(a.obj for a in step(raw, node=make.node()).actions if is_deployment(a))
    pod = crash(make.server_pod(deployment, 0, ready=False))
    return put_status(raw, deployment=make.stored(deployment), pods=[pod], node=make.node())


def learned() -> Iterator[dict[str, Any]]:
    """A server whose namespace knows what its like needed."""
    raw = make.body()
    (create,) = (a for a in step(raw).actions if isinstance(a, Create))
    status = ending(out_of_memory)
    case = case_of(make.server(), status["capacity"])
    entry = Entry(case, GIB, "llama", "2026-12-01T12:00:00Z", "")
    entries = learned_map(make.NAMESPACE, entry)["data"]
    pod = make.ended(make.born(create.obj))
    yield put_status(raw, pods=[pod], node=make.node(), learned=entries)


def out_of_memory(pod: dict[str, Any]) -> dict[str, Any]:
    """The engine ended for want of device memory."""
    return make.crashed(pod, 1, "Error", "CUDA out of memory")


def refused(pod: dict[str, Any]) -> dict[str, Any]:
    """The guard met another GPU."""
    end = {"exitCode": 11, "message": make.message(pod), "finishedAt": "2026-12-01T12:00:05Z"}
    return make.sizer_state(pod, terminated=end)


def step(raw: dict[str, Any], **found: Any) -> Any:
    senses = {"readings": tuple(found.pop("readings", ())), "learned": found.pop("learned", None)}
    observed = replace(observe_from(raw, **found), **senses)
    return plan(observed, make.CONTEXT, make.NOW)


def put_status(raw: dict[str, Any], **found: Any) -> dict[str, Any]:
    """One pass; its status is what the next pass reads."""
    status = step(raw, **found).status
    assert status is not None
    raw["status"] = status
    written: dict[str, Any] = status
    return written


def is_deployment(action: object) -> bool:
    return isinstance(action, Apply) and action.obj["kind"] == "Deployment"


SIZING = {
    "maxConcurrentRequests": 8,
    "cudaGraphs": {"maxBatch": 4},
    "minTotalTokenNum": 1,
    "maxTotalTokenNum": 10**6,
}
FIXED = {"mode": "Fixed", "maxTotalTokenNum": 4000}
LIVES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "measured": lambda: life(replicas=2, sizing=SIZING),
    "fixed": lambda: iter([put_status(make.body(sizing={**SIZING, "mode": "Fixed"}))]),
    "edited": edited,
    "in pod": in_pod,
    "given up": lambda: iter([ending(out_of_memory, onOutOfMemory={"maxSteps": 0})]),
    "learned": learned,
    "asked again": lambda: iter([ending(refused)]),
    "refused": lambda: iter([put_status(make.body(engine={"type": "Another", "image": "x"}))]),
}


@pytest.mark.parametrize("name", LIVES)
def test_every_path_that_is_written_is_in_the_schema(name: str) -> None:
    for status in LIVES[name]():
        assert not_in_schema(status, SCHEMA, "status") == []


# In the schema, and written by nobody yet. Delete an entry as soon as a life above shows it: an
# entry that is written after all fails the test.
NOT_YET: set[str] = set()


def test_every_path_of_the_schema_is_written() -> None:
    written = {
        path for each in LIVES.values() for status in each() for path in paths(status, "status")
    }
    assert {path for path, _ in walk(SCHEMA, "status")} - written == NOT_YET


def test_the_pinned_numbers_of_a_status_are_those_of_the_engines() -> None:
    pinned = Pinned(*range(1, 1 + len(fields(Pinned))))  # only the keys count
    in_schema = SCHEMA["properties"]["capacity"]["properties"]["pinned"]["properties"]
    assert set(in_schema) == set(pinned.to_mapping())


def test_a_path_that_is_not_in_the_schema_is_found() -> None:
    status = {"capacity": {"gpu": {"colour": "green"}}, "pods": [{"name": 5}]}
    assert not_in_schema(status, SCHEMA, "status") == [
        "status.capacity.gpu.colour",
        "status.pods[0].name: 5 is no string",
    ]


def paths(value: object, path: str) -> Iterator[str]:
    """The paths of a value in the spelling of `walk`."""
    yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from paths(item, f"{path}.{name}")
    if isinstance(value, list):
        for item in value:
            yield from paths(item, f"{path}[0]")
