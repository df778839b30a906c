"""HTTP becomes outcomes in one place; what each call sends is fixed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from plimsoll.controller.cluster import (
    ALL_PODS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SERVERS,
    Conflict,
    Refused,
    Retry,
    resource_of,
)
from plimsoll.controller.kube import KubeCluster, connect, outcome_of
from tests.unit.controller.toy_api import ToyApi

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
}


@pytest.fixture
async def api() -> AsyncIterator[ToyApi]:
    async with ToyApi() as api:
        yield api


@pytest.fixture
async def kube(api: ToyApi, tmp_path: Path) -> AsyncIterator[KubeCluster]:
    file = tmp_path / "kubeconfig"
    file.write_text(api.kubeconfig())
    async with await connect(str(file)) as kube:
        yield kube


def script(api: ToyApi, *answers: tuple[int, Any]) -> None:
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer t0ken"
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return web.json_response(body, status=status)

    api.answer = answer


@pytest.mark.parametrize(
    ("status", "kind", "after"),
    [
        (400, Refused, None),
        (401, Retry, 0),
        (403, Refused, None),
        (404, Refused, None),
        (405, Refused, None),
        (409, Conflict, 0),
        (410, Refused, None),
        (413, Refused, None),
        (415, Refused, None),
        (422, Refused, None),
        (429, Retry, 3),
        (500, Retry, 3),
        (503, Retry, 3),
        (504, Retry, 3),
    ],
)
def test_codes(status: int, kind: type[Exception], after: float | None) -> None:
    header = "3" if after == 3 else None
    outcome = outcome_of(status, {"reason": "Why", "message": "because"}, header)
    assert type(outcome) is kind
    assert "because" in str(outcome)
    if isinstance(outcome, Refused):
        assert (outcome.status, outcome.reason) == (status, "Why")
    elif isinstance(outcome, Retry):
        assert outcome.after == after


def test_an_error_without_a_body_still_says_something() -> None:
    refused = outcome_of(403, {})
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.message) == ("Unknown", "HTTP 403 without a message")
    later = outcome_of(429, {"details": {"retryAfterSeconds": 9}})
    assert isinstance(later, Retry)
    assert later.after == 9


def test_a_kind_that_is_not_ours_is_a_defect() -> None:
    with pytest.raises(LookupError, match="v1 Secret"):
        resource_of("v1", "Secret")


def test_paths() -> None:
    assert PODS.path("ns", "p") == "/api/v1/namespaces/ns/pods/p"
    assert PODS.path() == "/api/v1/pods"
    assert NODES.path(None, "n") == "/api/v1/nodes/n"
    assert DEPLOYMENTS.path("ns") == "/apis/apps/v1/namespaces/ns/deployments"
    assert (
        SERVERS.path("ns", "s", "status")
        == "/apis/plimsoll.dev/v1alpha1/namespaces/ns/inferenceservers/s/status"
    )


async def test_get_and_its_absence(api: ToyApi, kube: KubeCluster) -> None:
    script(api, (200, POD))
    assert await kube.get(PODS, "ns", "p") == POD
    script(api, (404, {"reason": "NotFound"}))
    assert await kube.get(PODS, "ns", "p") is None


async def test_list_asks_for_our_children_only(api: ToyApi, kube: KubeCluster) -> None:
    script(api, (200, {"metadata": {"resourceVersion": "42"}, "items": [POD]}))
    listing = await kube.list(PODS)
    assert (listing.version, list(listing.items)) == ("42", [POD])
    assert api.requests[-1][1:3] == (
        "/api/v1/pods",
        {"labelSelector": "app.kubernetes.io/managed-by=plimsoll"},
    )
    await kube.list(SERVERS, "ns")
    assert api.requests[-1][2] == {}


async def test_pages_of_everybodys_pods(api: ToyApi, kube: KubeCluster) -> None:
    script(
        api,
        (200, {"metadata": {"continue": "t"}, "items": [POD]}),
        (200, {"metadata": {}, "items": None}),
    )
    first = await kube.page(ALL_PODS, fields="spec.nodeName!=", limit=7)
    assert (list(first.items), first.more) == ([POD], "t")
    query = {"fieldSelector": "spec.nodeName!=", "limit": "7"}
    assert api.requests[-1][:3] == ("GET", "/api/v1/pods", query)
    last = await kube.page(ALL_PODS, fields="spec.nodeName!=", limit=7, token=first.more)
    assert (list(last.items), last.more) == ([], "")
    assert api.requests[-1][2] == {**query, "continue": "t"}
    await kube.page(PODS)
    label = "app.kubernetes.io/managed-by=plimsoll"
    assert api.requests[-1][2] == {"labelSelector": label, "limit": "500"}
    await kube.page(EVENTS, namespace="ns", fields="involvedObject.uid=u", limit=9)
    query = {"fieldSelector": "involvedObject.uid=u", "limit": "9"}
    assert api.requests[-1][:3] == ("GET", "/api/v1/namespaces/ns/events", query)


async def test_a_list_that_expired_between_its_pages_is_begun_again(
    api: ToyApi, kube: KubeCluster
) -> None:
    script(api, (410, {"reason": "Expired", "message": "The provided continue parameter is old."}))
    with pytest.raises(Retry, match="continue parameter"):
        await kube.page(ALL_PODS, token="t")
    script(api, (403, {"reason": "Forbidden", "message": "no"}))
    with pytest.raises(Refused):
        await kube.page(ALL_PODS)


async def test_apply_is_forced_and_signed(api: ToyApi, kube: KubeCluster) -> None:
    script(api, (200, POD))
    await kube.apply(POD)
    method, path, query, body = api.requests[-1]
    assert (method, path, body) == ("PATCH", "/api/v1/namespaces/ns/pods/p", POD)
    assert query == {"fieldManager": "plimsoll", "force": "true"}


async def test_status_is_one_apply_with_the_version_it_was_planned_on(
    api: ToyApi, kube: KubeCluster
) -> None:
    script(api, (200, POD))
    await kube.patch_status({**POD, "spec": {"x": 1}, "status": {"phase": "Q"}})
    method, path, query, body = api.requests[-1]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/pods/p/status")
    assert query == {"fieldManager": "plimsoll-status", "force": "true"}
    metadata = {"name": "p", "namespace": "ns", "resourceVersion": "7"}
    assert body == {**POD, "metadata": metadata, "status": {"phase": "Q"}}
    script(api, (404, {}))
    assert await kube.patch_status({**POD, "status": {}}) is None


PATCH = [{"op": "remove", "path": "/spec/hostNetwork"}]


async def test_a_json_patch_is_for_one_version_and_signed_as_no_apply(
    api: ToyApi, kube: KubeCluster
) -> None:
    script(api, (200, POD))
    assert await kube.patch(POD, PATCH) == POD
    method, path, query, body = api.requests[-1]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/pods/p")
    assert query == {"fieldManager": "plimsoll-drift"}
    assert body == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "remove", "path": "/spec/hostNetwork"},
    ]
    script(api, (404, {}))
    assert await kube.patch(POD, PATCH) is None


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        ((200, {"metadata": {"resourceVersion": "8"}}), Conflict),
        ((200, {"metadata": {"resourceVersion": "7"}}), Refused),
        ((503, {}), Retry),
    ],
)
async def test_a_patch_refused_as_invalid_is_a_conflict_only_where_the_object_has_changed(
    api: ToyApi, kube: KubeCluster, then: tuple[int, Any], kind: type[Exception]
) -> None:
    script(api, (422, {"reason": "Invalid", "message": "an error in our request"}), then)
    with pytest.raises(kind) as caught:
        await kube.patch(POD, PATCH)
    assert type(caught.value) is kind
    assert [r[:2] for r in api.requests[-2:]] == [
        ("PATCH", "/api/v1/namespaces/ns/pods/p"),
        ("GET", "/api/v1/namespaces/ns/pods/p"),
    ]


async def test_a_patch_of_what_went_meanwhile_or_may_not_be_patched(
    api: ToyApi, kube: KubeCluster
) -> None:
    script(api, (422, {"reason": "Invalid"}), (404, {}))
    assert await kube.patch(POD, PATCH) is None
    script(api, (403, {"reason": "Forbidden"}))
    with pytest.raises(Refused):
        await kube.patch(POD, PATCH)
    assert api.requests[-1][0] == "PATCH"


async def test_create_of_what_exists_returns_it(api: ToyApi, kube: KubeCluster) -> None:
    script(api, (409, {"reason": "AlreadyExists"}), (200, POD))
    assert await kube.create(POD) == POD
    assert [r[0] for r in api.requests] == ["POST", "GET"]


async def test_a_conflict_about_a_quota_is_not_an_existing_object(
    api: ToyApi, kube: KubeCluster
) -> None:
    script(api, (409, {"reason": "Conflict"}), (404, {}))
    with pytest.raises(Retry):
        await kube.create(POD)


async def test_delete_names_the_incarnation(api: ToyApi, kube: KubeCluster) -> None:
    script(api, (200, {}), (404, {}), (409, {}))
    for _ in range(3):
        await kube.delete(PODS, "ns", "p", "u")
    assert api.requests[-1][0] == "DELETE"
    assert api.requests[-1][3]["preconditions"] == {"uid": "u"}


async def test_replace_carries_the_version(api: ToyApi, kube: KubeCluster) -> None:
    lease = {
        "apiVersion": LEASES.api_version,
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "ns", "resourceVersion": "3"},
    }
    script(api, (409, {"reason": "Conflict"}))
    with pytest.raises(Conflict):
        await kube.replace(lease)
    assert api.requests[-1][0] == "PUT"
    assert api.requests[-1][3]["metadata"]["resourceVersion"] == "3"


async def test_a_log_is_text_and_bounded(api: ToyApi, kube: KubeCluster) -> None:
    async def log(_: web.Request) -> web.Response:
        return web.Response(body=b"tokens: 7\n\xff" + b"x" * 100)

    api.answer = log
    assert await kube.pod_log("ns", "p", "server", limit_bytes=12) == "tokens: 7\n\ufffdx"
    method, path, query, _ = api.requests[-1]
    assert (method, path) == ("GET", "/api/v1/namespaces/ns/pods/p/log")
    assert query == {"container": "server", "limitBytes": "12"}
    await kube.pod_log("ns", "p", "server", limit_bytes=12, tail_lines=3)
    assert api.requests[-1][2]["tailLines"] == "3"


@pytest.mark.parametrize(
    ("status", "outcome"), [(404, None), (400, None), (403, Refused), (500, Retry), (429, Retry)]
)
async def test_a_log_that_does_not_come(
    api: ToyApi, kube: KubeCluster, status: int, outcome: type[Exception] | None
) -> None:
    script(api, (status, {"reason": "Why", "message": "because"}))
    if outcome is None:
        assert await kube.pod_log("ns", "p", "server", limit_bytes=9) is None
    else:
        with pytest.raises(outcome, match="because"):
            await kube.pod_log("ns", "p", "server", limit_bytes=9)


async def test_a_reset_a_refused_connection_and_a_cut_body_are_for_later(
    api: ToyApi, kube: KubeCluster
) -> None:
    async def reset(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    api.answer = reset
    with pytest.raises(Retry):
        await kube.apply(POD)

    async def cut(_: web.Request) -> web.Response:
        return web.Response(text='{"metadata":', content_type="application/json")

    api.answer = cut
    with pytest.raises(Retry, match="broken body"):
        await kube.get(PODS, "ns", "p")
    await api._runner.cleanup()
    with pytest.raises(Retry):
        await kube.get(PODS, "ns", "p")


async def test_every_request_is_metered(api: ToyApi, tmp_path: Path) -> None:
    calls: list[tuple[str, int | None, float]] = []
    file = tmp_path / "kubeconfig"
    file.write_text(api.kubeconfig())
    async with await connect(str(file), meter=lambda *call: calls.append(call)) as kube:
        script(api, (200, POD), (404, {}), (403, {"reason": "Forbidden"}), (404, {}))
        await kube.apply(POD)
        assert await kube.get(PODS, "ns", "p") is None
        with pytest.raises(Refused):
            await kube.create(POD)
        assert await kube.pod_log("ns", "p", "server", limit_bytes=9) is None
        await api._runner.cleanup()
        with pytest.raises(Retry):
            await kube.delete(PODS, "ns", "p", "u")
    assert [call[:2] for call in calls] == [
        ("PATCH", 200),
        ("GET", 404),
        ("POST", 403),
        ("GET", 404),
        ("DELETE", None),
    ]
    assert all(0 < seconds < 5 for *_, seconds in calls)


async def test_a_silent_server_is_for_later(
    api: ToyApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio  # noqa: PLC0415  # only this test waits

    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    file = tmp_path / "kubeconfig"
    file.write_text(api.kubeconfig())
    async with await connect(str(file)) as kube:
        kube._api.timeout = 0.05
        api.answer = silent
        with pytest.raises(Retry, match="Timeout"):
            await kube.get(PODS, "ns", "p")
        kube._api.timeout = 30
        monkeypatch.setattr("plimsoll.controller.kube.LOG_SECONDS", 0.05)
        with pytest.raises(Retry, match="Timeout"):
            await kube.pod_log("ns", "p", "server", limit_bytes=9)


async def test_served_tells_whether_the_crd_is_there(api: ToyApi, kube: KubeCluster) -> None:
    script(api, (404, {}))
    assert not await kube.served()
    script(api, (200, {"resources": [{"name": "somethingelse"}]}))
    assert not await kube.served()
    api.answer = None
    assert await kube.served()
