"""kopf as an informer: event handlers that hand objects over, and nothing else.

Beside `__main__` the only module that knows kopf. The handlers cannot fail, return nothing (a
returned value would be written to the status) and hold no decision. There are no change handlers,
timers, daemons or indices: those add finalizers, write annotations or lose work on a failed PATCH.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from plimsoll.controller.cluster import WATCHED, Object, Resource

logger = logging.getLogger(__name__)

Deliver = Callable[[str | None, Object], None]
"""Takes the event's type (None for an object of a list) and the object, in kopf's thread."""

_BACKOFFS = (1.0, 1.0, 2.0, 3.0, 5.0)
"""Seconds between kopf's own tries. A tuple: kopf would use a generator up on the first request.
Short, because `watch.Watches` starts everything again afterwards."""


CHUNK = 100
"""Objects in one answer to a list. A part is in memory as text and as objects, of several kinds at once."""

_GRACE_SECONDS = 1.0
_CANCEL_SECONDS = 0.2


class _NothingHandled(kopf.DiffBaseStorage):
    """Where kopf keeps what its change handlers have seen: there are none.

    Its own store copies every object of every event three times, to compare it with what an annotation
    holds; that was half of what the watches cost.
    """

    def build(self, **_: object) -> Any:  # noqa: ANN401  # kopf's types are not public
        return {}

    def fetch(self, **_: object) -> None:
        return None

    def store(self, **_: object) -> None:
        """Nothing is kept."""


class _NothingInProgress(kopf.ProgressStorage):
    """Where kopf keeps how far its change handlers are."""

    def fetch(self, **_: object) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:  # noqa: ANN401  # kopf's types are not public
        return essence

    def store(self, **_: object) -> None:
        """Nothing is kept."""

    def purge(self, **_: object) -> None:
        """Nothing is there."""

    def touch(self, **_: object) -> None:
        """Nothing is written."""


def build_registry(deliver: Deliver) -> kopf.OperatorRegistry:
    """One event handler per watched kind, and the login."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for resource in WATCHED:
        handler = functools.partial(_handle, resource, deliver)
        kopf.on.event(
            resource.group,
            resource.version,
            resource.plural,
            id=resource.plural,
            registry=registry,
        )(handler)
    return registry


def build_settings() -> kopf.OperatorSettings:
    """Kopf's settings; each line departs from a default that has hurt others."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # peering pauses everybody at equal priority
    settings.scanning.disabled = True  # else it lists and watches namespaces and CRDs
    settings.persistence.diffbase_storage = _NothingHandled()
    settings.persistence.progress_storage = _NothingInProgress()
    settings.posting.enabled = False  # our own recorder posts, on transitions only
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70  # a half-open connection is silent for ever
    settings.watching.reconnect_backoff = 1
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _BACKOFFS
    settings.process.ultimate_exiting_timeout = 20
    settings.watching.chunk_size = CHUNK  # else the whole list is one answer, held in memory twice
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 0.1  # a worker holds the last event of its object for so long
    for resource in WATCHED:
        if resource.selector:
            selector = (resource.group, resource.version, resource.plural)
            settings.watching.label_selectors[selector] = resource.selector
    return settings


async def watch(namespaces: Sequence[str], deliver: Deliver) -> None:
    """Run kopf until cancelled.

    When kopf fails it first gives its other watches five seconds and then waits for tasks that may
    never end (a watch that waits for new credentials swallows the cancellation). Nothing of that
    is worth waiting for, so its cleanup activity, which runs before, is taken as its end.

    Raises:
        RuntimeError: kopf ended by a fault, which it has logged.
    """
    ending, stop = asyncio.Event(), asyncio.Event()
    registry = build_registry(deliver)

    async def cleanup(**_: object) -> None:
        ending.set()

    kopf.on.cleanup(registry=registry)(cleanup)
    others = asyncio.all_tasks()
    asyncio.get_running_loop().set_exception_handler(_note)
    # Before kopf starts: it cancels what was created later.
    ended = asyncio.create_task(ending.wait(), name="kopf's end")
    operator = asyncio.create_task(
        kopf.operator(
            registry=registry,
            settings=build_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        ),
        name="kopf",
    )
    try:
        await asyncio.wait({ended, operator}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Asked first, so that it closes its connections; then made to.
        stop.set()
        await asyncio.wait({operator}, timeout=_GRACE_SECONDS)
        await _cancel_until_gone(others)
    if operator.cancelled() or operator.exception() is None:
        raise RuntimeError("kopf ended")
    await operator


def _note(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """What kopf's tasks leave unsaid when cut off; the fault itself was logged by kopf."""
    logger.debug("kopf: %s: %r", context.get("message"), context.get("exception"))


async def _cancel_until_gone(others: set[asyncio.Task[Any]]) -> None:
    """Cancel all tasks of this loop but the others, again and again: once is not always enough."""
    while left := asyncio.all_tasks() - others:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_CANCEL_SECONDS)


async def _handle(
    resource: Resource, deliver: Deliver, /, event: Mapping[str, Any], **_: object
) -> None:
    # Positional only: kopf passes some twenty names, "resource" among them.
    try:
        obj = dict(event["object"])
        obj.setdefault("apiVersion", resource.api_version)  # lists omit both on their items
        obj.setdefault("kind", resource.kind)
        deliver(event["type"], obj)
    except Exception:
        # kopf drops an event whose handler failed; at least somebody must read of it.
        logger.exception("an event about %s was lost; the next resync repairs it", resource.plural)


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:  # noqa: ANN401  # kopf's open-ended call
    """The pod's service account, else a kubeconfig; both without a client library."""
    info = kopf.login_with_service_account(**kwargs)
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT"),
    )
    if info is None or not (host and port):
        return info or kopf.login_with_kubeconfig(**kwargs)
    # kopf asks for kubernetes.default.svc: that needs a cluster DNS that works before we do. The
    # kubelet's own variables name the same Service by address, as client-go uses them.
    bracketed = f"[{host}]" if ":" in host else host
    return dataclasses.replace(info, server=f"https://{bracketed}:{port}")
