"""kopf as an informer: event handlers that hand objects over, and nothing else.

Beside `__main__` the only module that knows kopf. The handlers cannot fail, return nothing (a
returned value would be written to the status) and hold no decision. There are no change handlers,
timers, daemons or indices: those add finalizers, write annotations or lose work on a failed PATCH.
"""

from __future__ import annotations

import functools
import logging
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
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 0.5  # idle workers hold up kopf's end by this long
    for resource in WATCHED:
        if resource.selector:
            selector = (resource.group, resource.version, resource.plural)
            settings.watching.label_selectors[selector] = resource.selector
    return settings


async def watch(namespaces: Sequence[str], deliver: Deliver) -> None:
    """Run kopf until cancelled; raises or returns early on the faults that end kopf."""
    await kopf.operator(
        registry=build_registry(deliver),
        settings=build_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )


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
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
