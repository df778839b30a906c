"""Who called the API server how often, from its audit log."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
READS = frozenset({"get", "list"})


def events(log: Path, user: str, since: str, until: str = "9") -> Iterator[dict[str, Any]]:
    """Yield a user's audit events of an interval, oldest file first.

    Args:
        log: the audit log; files that it was rotated into lie beside it.
        user: the full name, ``system:serviceaccount:NAMESPACE:NAME``.
        since: RFC 3339 in UTC, as the log writes its times; compared as text.
        until: as since.
    """
    needle = f'"username":"{user}"'.encode()
    for path in sorted(
        log.parent.glob(f"{log.stem}*{log.suffix}"), key=lambda p: p.stat().st_mtime
    ):
        with path.open("rb") as lines:
            for line in lines:
                if needle not in line or not line.endswith(b"\n"):
                    continue
                event = json.loads(line)
                if since <= event["requestReceivedTimestamp"] < until:
                    yield event


def calls(log: Path, user: str, since: str, until: str = "9") -> Counter[str]:
    """Count a user's requests as ``verb resource[/subresource]``; a watch counts once, when it ends or begins."""
    found: Counter[str] = Counter()
    seen: set[str] = set()
    for event in events(log, user, since, until):
        if event["auditID"] in seen:
            continue
        seen.add(event["auditID"])
        found[name(event)] += 1
    return found


def name(event: dict[str, Any]) -> str:
    """``patch inferenceservers/status``, or the path where it is no resource."""
    ref = event.get("objectRef")
    if not ref or "resource" not in ref:
        return f"{event['verb']} {event['requestURI'].split('?')[0]}"
    sub = f"/{ref['subresource']}" if "subresource" in ref else ""
    return f"{event['verb']} {ref['resource']}{sub}"


def summary(found: Counter[str], servers: int) -> dict[str, Any]:
    """Writes (Events and the lease apart), reads, and all, for each server."""
    aside = ("events", "leases")

    def total(verbs: frozenset[str]) -> int:
        return sum(
            count
            for call, count in found.items()
            if call.split()[0] in verbs and call.split()[1].split("/")[0] not in aside
        )

    events_ = sum(n for call, n in found.items() if call.split()[1] == "events")
    return {
        "writesEach": round(total(WRITES) / servers, 3) if servers else None,
        "readsEach": round(total(READS) / servers, 3) if servers else None,
        "eventsEach": round(events_ / servers, 3) if servers else None,
        "writes": total(WRITES),
        "reads": total(READS),
        "byCall": dict(sorted(found.items())),
    }
