"""A scripted HTTP server that looks enough like an API server for the client and for kopf."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from plimsoll.controller.cluster import WATCHED, Resource

# kopf waits until discovery shows these, though it reads none of their objects.
DISCOVERED = (
    *WATCHED,
    Resource("v1", "Namespace", "namespaces", namespaced=False),
    Resource(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
    ),
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ToyApi:
    """Answers what it was told to, and lists and watches of the watched kinds."""

    requests: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    objects: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answer: Answer | None = None
    on_watch: Callable[[str], list[dict[str, Any]] | int | None] = lambda _plural: None
    host: str = ""
    version: int = 100
    lease: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        self._streams: dict[str, list[asyncio.Queue[dict[str, Any] | None]]] = {}
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.host = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hang_up()
        await self._runner.cleanup()

    def hang_up(self) -> None:
        """End every stream."""
        for queues in self._streams.values():
            for queue in queues:
                queue.put_nowait(None)

    def send(self, plural: str, kind: str, obj: dict[str, Any]) -> None:
        """Send an event to every open watch of a kind."""
        for queue in self._streams.get(plural, []):
            queue.put_nowait({"type": kind, "object": obj})

    def watching(self, plural: str) -> int:
        """How many watches of a kind are open."""
        return len(self._streams.get(plural, []))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        parsed = json.loads(body) if body else None
        self.requests.append((request.method, request.path, dict(request.query), parsed))
        if self.answer is not None:
            return await self.answer(request)
        if "/leases" in request.path:
            return self._lease(parsed)
        for resource in WATCHED:
            if request.path in {resource.path(), resource.path("ns")}:
                if "watch" in request.query:
                    return await self._watch(request, resource)
                return self._list(resource)
        return self._discover(request.path)

    def _lease(self, body: Any) -> web.Response:  # JSON
        if body is not None:
            self.version += 1
            body["metadata"] |= {"uid": "u-lease", "resourceVersion": str(self.version)}
            self.lease = body
        elif self.lease is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(self.lease)

    def _list(self, resource: Resource) -> web.Response:
        items = self.objects.get(resource.plural, [])
        return web.json_response(
            {"metadata": {"resourceVersion": str(self.version)}, "items": items}
        )

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        scripted = self.on_watch(resource.plural)
        if isinstance(scripted, int):
            return web.json_response({"kind": "Status", "code": scripted}, status=scripted)
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._streams.setdefault(resource.plural, []).append(queue)
        for event in scripted or []:
            queue.put_nowait(event)
        try:
            while (item := await queue.get()) is not None:
                await response.write(json.dumps(item).encode() + b"\n")
        except ConnectionError:
            pass  # the client closed first
        finally:
            self._streams[resource.plural].remove(queue)
        return response

    def _discover(self, path: str) -> web.Response:
        groups = sorted({r.api_version for r in DISCOVERED if r.group})
        if path == "/apis":
            return web.json_response(
                {
                    "groups": [
                        {
                            "name": g.split("/")[0],
                            "preferredVersion": {"version": g.split("/")[1]},
                            "versions": [{"version": g.split("/")[1]}],
                        }
                        for g in groups
                    ]
                }
            )
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        found = [
            r for r in DISCOVERED if path in {f"/apis/{r.api_version}", f"/api/{r.api_version}"}
        ]
        if not found:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(
            {
                "resources": [
                    {
                        "name": r.plural,
                        "kind": r.kind,
                        "singularName": r.kind.lower(),
                        "namespaced": r.namespaced,
                        "verbs": ["list", "watch", "get", "patch"],
                    }
                    for r in found
                ]
            }
        )

    def kubeconfig(self) -> str:
        """A kubeconfig that points here."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "toy",
                "contexts": [{"name": "toy", "context": {"cluster": "toy", "user": "toy"}}],
                "clusters": [{"name": "toy", "cluster": {"server": self.host}}],
                "users": [{"name": "toy", "user": {"token": "t0ken"}}],
            }
        )
