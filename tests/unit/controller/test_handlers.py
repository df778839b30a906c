"""Kopf delivers objects, writes nothing, and its death is survived."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from plimsoll.controller import handlers
from plimsoll.controller.cluster import MANAGED_SELECTOR, PODS, WATCHED
from plimsoll.controller.watch import HEALTHY_SECONDS, Watches
from tests.unit.controller.toy_api import ToyApi

Delivered = list[tuple[str | None, str, str]]


def obj(name: str, version: int, kind: str = "Pod") -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"u-{name}",
        "resourceVersion": str(version),
    }
    return {"metadata": metadata, "spec": {}, "kind": kind, "apiVersion": "v1"}


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ToyApi]:
    async with ToyApi() as api:
        file = tmp_path / "kubeconfig"
        file.write_text(api.kubeconfig())
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield api


@contextlib.asynccontextmanager
async def watching(delivered: Delivered, *namespaces: str) -> AsyncIterator[Watches]:
    def deliver(kind: str | None, obj: dict[str, Any]) -> None:
        delivered.append((kind, obj["kind"], obj["metadata"]["name"]))

    async def run() -> None:
        await handlers.watch(namespaces, deliver)

    watches = Watches(
        run, started=lambda _: None, clock=time.monotonic, rng=random.Random(1), base=0.01
    )
    watches.start()
    try:
        yield watches
    finally:
        await watches.stop()
        assert not watches.alive()


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(15):
        while not check():  # noqa: ASYNC110  # what is awaited has no event of its own
            await asyncio.sleep(0.02)


async def test_lists_and_events_are_delivered_and_nothing_is_written(api: ToyApi) -> None:
    listed = {k: v for k, v in obj("a", 1).items() if k not in {"kind", "apiVersion"}}
    api.objects["pods"] = [listed]
    api.objects["inferenceservers"] = [obj("llama", 2, "InferenceServer")]
    delivered: Delivered = []
    async with watching(delivered):
        await until(lambda: len(delivered) >= 2 and api.watching("pods"))
        assert set(delivered) == {(None, "Pod", "a"), (None, "InferenceServer", "llama")}
        api.send("pods", "MODIFIED", obj("a", 3))
        api.send("pods", "DELETED", obj("a", 4))
        await until(lambda: len(delivered) >= 4)
        assert delivered[2:] == [("MODIFIED", "Pod", "a"), ("DELETED", "Pod", "a")]
    assert {method for method, *_ in api.requests} == {"GET"}


async def test_only_our_children_are_streamed_and_nothing_else_is_asked(api: ToyApi) -> None:
    async with watching([]):
        await until(
            lambda: all(
                api.watching(p) for p in ("pods", "services", "deployments", "inferenceservers")
            )
        )
    asked = {
        (path.rpartition("/")[2], query.get("labelSelector"))
        for _, path, query, _ in api.requests
        if "resourceVersion" in query or path.endswith(("pods", "services", "deployments"))
    }
    assert asked == {
        ("pods", MANAGED_SELECTOR),
        ("services", MANAGED_SELECTOR),
        ("deployments", MANAGED_SELECTOR),
        ("inferenceservers", None),
    }
    paths = {path for _, path, _, _ in api.requests}
    assert not any("customresourcedefinitions" in p or "namespaces" in p for p in paths)


async def test_named_namespaces_are_watched_and_no_others(api: ToyApi) -> None:
    async with watching([], "ns"):
        await until(lambda: all(api.watching(resource.plural) for resource in WATCHED))
    lists = {path for _, path, query, _ in api.requests if "watch" in query}
    assert lists == {resource.path("ns") for resource in WATCHED}


@pytest.mark.parametrize(
    "fault",
    [
        [{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "boom"}}],
        [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "gone"}}],
        410,
        404,
        401,
    ],
    ids=["error-500", "error-410", "http-410", "http-404", "http-401"],
)
async def test_a_watch_fault_is_survived(api: ToyApi, fault: Any) -> None:
    left = [fault]
    api.on_watch = lambda plural: left.pop() if plural == "pods" and left else None
    api.objects["pods"] = [obj("a", 1)]
    delivered: Delivered = []

    def told() -> bool:
        # Sent until it arrives: a stream that is about to die swallows what is sent to it.
        api.send("pods", "MODIFIED", obj("b", 5))
        return ("MODIFIED", "Pod", "b") in delivered

    async with watching(delivered) as watches:
        await until(lambda: not left)
        await until(told)
        assert watches.alive()


async def test_a_handler_swallows_and_reports_a_broken_object(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def deliver(_: str | None, obj: dict[str, Any]) -> None:
        raise KeyError(obj["kind"])

    await handlers._handle(PODS, deliver, event={"type": "ADDED", "object": {}}, resource="x")
    await handlers._handle(PODS, deliver, event={"type": "ADDED"}, patch={})
    assert [r.getMessage().split()[3] for r in caplog.records] == ["pods"] * 2


async def test_a_task_that_swallows_cancellations_is_cancelled_until_it_is_gone() -> None:
    swallowed: list[int] = []

    async def stubborn() -> None:
        while len(swallowed) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(1)

    others = asyncio.all_tasks()
    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await handlers._cancel_until_gone(others)
    assert task.done()
    assert len(swallowed) == 3


def test_kopf_is_told_to_keep_quiet() -> None:
    settings = handlers.build_settings()
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert isinstance(settings.networking.error_backoffs, tuple)


def test_only_event_handlers_exist() -> None:
    registry = handlers.build_registry(lambda _kind, _obj: None)
    assert len(registry._watching.get_all_handlers()) == 4
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._indexing.get_all_handlers()


async def test_watches_start_again_with_a_growing_delay_and_stop_at_once() -> None:
    starts: list[int] = []
    enough = threading.Event()
    ahead = 0.0

    async def run() -> None:
        if len(starts) == 4:
            enough.set()
            await asyncio.Event().wait()
        raise RuntimeError("boom")

    def clock() -> float:
        return time.monotonic() + ahead

    watches = Watches(run, started=starts.append, clock=clock, rng=random.Random(1), base=0.001)
    assert watches.short_runs() == 0
    watches.start()
    assert await asyncio.to_thread(enough.wait, 10)
    assert watches.short_runs() == 3
    ahead = HEALTHY_SECONDS + 1  # the present one has lasted
    assert watches.short_runs() == 0
    await watches.stop()
    assert starts[:4] == [0, 1, 2, 3]
    assert not watches.alive()


async def test_restart_ends_the_present_watch_only() -> None:
    ended: list[bool] = []
    begun = threading.Semaphore(0)

    async def run() -> None:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    watches = Watches(
        run, started=lambda _: None, clock=time.monotonic, rng=random.Random(1), base=0.001
    )
    watches.start()
    assert await asyncio.to_thread(begun.acquire, timeout=10)
    watches.restart()
    assert await asyncio.to_thread(begun.acquire, timeout=10)
    assert len(ended) == 1
    await watches.stop()
    assert not watches.alive()
    assert len(ended) == 2


async def test_stop_before_the_first_run_leaves_no_thread() -> None:
    async def run() -> None:
        await asyncio.Event().wait()

    watches = Watches(
        run,
        started=lambda _: watches._stop.set(),  # the earliest moment a stop can come
        clock=time.monotonic,
        rng=random.Random(1),
    )
    watches.start()
    await watches.stop()
    assert not watches.alive()
