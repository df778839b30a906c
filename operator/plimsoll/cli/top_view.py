"""Tokens in use of the budget: a document and its table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli.style import table
from plimsoll.core.engines.readback_usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from plimsoll.cli.engines import Target
    from plimsoll.cli.style import Style

SCHEMA: Final = "plimsoll.dev/top.v1"
FULL: Final = 90.0
BUSY: Final = 70.0


def document(
    servers: Iterable[Mapping[str, Any]],
    targets: Iterable[Target],
    usages: Mapping[str, Usage],
) -> dict[str, Any]:
    """The document ``plimsoll.dev/top.v1``.

    Args:
        servers: the InferenceServers.
        targets: their pods.
        usages: what engines said, by the pod's UID.
    """
    pods: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        pods.setdefault(target.server, []).append(target)
    found = []
    for raw in servers:
        metadata = raw["metadata"]
        of_it = pods.get((metadata["namespace"], metadata["name"]), [])
        found.append(_server(raw, of_it, usages))
    return {"schema": SCHEMA, "servers": found}


def _server(
    raw: Mapping[str, Any], targets: Sequence[Target], usages: Mapping[str, Usage]
) -> dict[str, Any]:
    """One server: the sum of its pods, as far as each has told."""
    status = raw.get("status") or {}
    stamped = (status.get("capacity") or {}).get("maxTotalTokenNum")
    own = {pod["name"]: pod.get("tokens") for pod in status.get("pods") or ()}
    in_pod = (status.get("effective") or {}).get("mode") == "InPod"
    pods = []
    for target in targets:
        budget = (own.get(target.name) if in_pod else None) or stamped
        pods.append(_pod(target, budget, usages.get(target.uid, Usage())))
    told = [pod for pod in pods if pod["usedTokens"] is not None]
    used = sum(pod["usedTokens"] for pod in told) if told else None
    budget = sum(pod["budgetTokens"] or 0 for pod in pods) or None
    shares = [pod["usedPercent"] for pod in pods if pod["usedPercent"] is not None]
    of_told = sum(pod["budgetTokens"] for pod in told)
    percent = round(100 * used / of_told, 1) if used is not None and of_told else None
    if percent is None and shares:
        percent = round(sum(shares) / len(shares), 1)
    return {
        "name": raw["metadata"]["name"],
        "namespace": raw["metadata"]["namespace"],
        "engine": raw["spec"]["engine"]["type"],
        "budgetTokens": budget,
        "usedTokens": used,
        "usedPercent": percent,
        "fullestPercent": max(shares, default=None),
        "running": _sum(pods, "running"),
        "waiting": _sum(pods, "waiting"),
        "basis": next((pod["basis"] for pod in pods if pod["basis"]), None),
        "podsTold": len([pod for pod in pods if pod["basis"]]),
        "pods": pods,
    }


def _pod(target: Target, budget: int | None, usage: Usage) -> dict[str, Any]:
    used, fraction = usage.tokens, usage.fraction
    if used is None and fraction is not None and budget:
        used = round(fraction * budget)
    if fraction is None and used is not None and budget:
        fraction = used / budget
    return {
        "name": target.name,
        "ready": target.ready,
        "budgetTokens": budget,
        "usedTokens": used,
        "usedPercent": None if fraction is None else round(100 * fraction, 1),
        "running": usage.running,
        "waiting": usage.waiting,
        "basis": usage.basis,
    }


def _sum(pods: Iterable[Mapping[str, Any]], key: str) -> int | None:
    numbers = [pod[key] for pod in pods if pod[key] is not None]
    return sum(numbers) if numbers else None


def text(answer: Mapping[str, Any], style: Style, *, pods: bool) -> Iterator[str]:
    """The table, a line for each server or each pod."""
    header = [
        "NAMESPACE",
        "SERVER",
        "ENGINE",
        "PODS",
        "BUDGET",
        "USED",
        "USED%",
        "RUNNING",
        "WAITING",
        "MEANS",
    ]
    if pods:
        header[3] = "POD"
    rows, shares = [], []
    for server in answer["servers"]:
        for row in server["pods"] if pods else [server]:
            where = row["name"] if pods else f"{server['podsTold']}/{len(server['pods'])}"
            share = row["usedPercent"]
            shares.append(share)
            rows.append(
                (
                    server["namespace"],
                    server["name"],
                    server["engine"],
                    where,
                    _count(row["budgetTokens"]),
                    _count(row["usedTokens"]),
                    None if share is None else f"{share:.1f}",
                    row["running"],
                    row["waiting"],
                    row["basis"],
                )
            )
    lines = table(header, rows, frozenset({4, 5, 6, 7, 8}))
    yield lines[0]
    for line, share in zip(lines[1:], shares, strict=True):
        yield style.paint(line, _tone(share))


def _tone(share: float | None) -> str:
    if share is None or share < BUSY:
        return ""
    return "bad" if share >= FULL else "busy"


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
