"""``plimsoll verify NAME``: do the engines have what was stamped?"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli import engines
from plimsoll.cli.kubectl import Kubectl
from plimsoll.cli.parsing import Parser, add_cluster, add_output, command
from plimsoll.cli.style import style_of, table, wrapped, write
from plimsoll.controller.crd import parse
from plimsoll.controller.steps.verification import stamped_of
from plimsoll.core.drift import DRIFT_TOLERANCE_PERCENT, PodReading, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plimsoll.cli.engines import Target
    from plimsoll.cli.style import Style
    from plimsoll.controller.crd.types import InferenceServer

SCHEMA: Final = "plimsoll.dev/verify.v1"
AGREES, DIFFERS, UNTOLD = 0, 1, 4


def parser() -> Parser:
    """The command line."""
    found = command(
        "verify",
        "Asks the engine of every ready pod for the size of its KV cache, now, through the API server (rights: get\n"
        "pods/proxy and pods/log), and compares it with the stamped number.\n"
        f"Exit code 0: all within {DRIFT_TOLERANCE_PERCENT} %; 1: one differs by more; 4: no engine has told.",
        """
verify llama-8b
verify llama-8b -o json
""",
    )
    found.add_argument("name", metavar="NAME", help="of the InferenceServer")
    add_output(found, "json")
    add_cluster(found)
    return found


def run(words: list[str]) -> int:
    """Ask, compare, print."""
    chosen = parser().parse_args(words)
    kubectl = Kubectl.of(chosen)
    raw = kubectl.server(chosen.name)
    found = engines.targets(kubectl, [raw])
    answer = document(raw, found, engines.readings(kubectl, found))
    if chosen.output == "json":
        print(json.dumps(answer, indent=2))
    else:
        write(text(answer, style_of(sys.stdout)))
    return exit_code(answer)


def exit_code(answer: Mapping[str, Any]) -> int:
    """By the pod that is furthest off."""
    if any(pod["matches"] is False for pod in answer["pods"]):
        return DIFFERS
    return AGREES if any(pod["matches"] for pod in answer["pods"]) else UNTOLD


def document(
    raw: Mapping[str, Any], targets: Sequence[Target], readings: Mapping[str, PodReading]
) -> dict[str, Any]:
    """The document ``plimsoll.dev/verify.v1``.

    Args:
        raw: the InferenceServer.
        targets: its pods.
        readings: what their engines said, by UID.

    Raises:
        InvalidSpec: the resource is one that this version cannot read.
    """
    status, server = raw.get("status") or {}, parse(raw)
    capacity = status.get("capacity") or {}
    known = {pod["name"]: pod for pod in status.get("pods") or ()}
    pods = []
    for target in targets:
        row = known.get(target.name, {})
        reading = readings.get(target.uid)
        own = row.get("tokens") if capacity.get("source") == "InPod" else None
        pods.append(_pod(server, capacity, target, reading, own))
    verified: Mapping[str, Any] = next(
        (c for c in status.get("conditions") or () if c["type"] == "CapacityVerified"), {}
    )
    return {
        "schema": SCHEMA,
        "name": server.name,
        "namespace": server.namespace,
        "engine": server.spec.engine.type,
        "stampedTokens": capacity.get("maxTotalTokenNum"),
        "tolerancePercent": DRIFT_TOLERANCE_PERCENT,
        "operator": {
            "engineReportedTokens": capacity.get("engineReportedTokens"),
            "driftPercent": capacity.get("driftPercent"),
            "reason": verified.get("reason"),
        },
        "pods": pods,
    }


def _pod(
    server: InferenceServer,
    capacity: Mapping[str, Any],
    target: Target,
    reading: PodReading | None,
    own: int | None,
) -> dict[str, Any]:
    verdict: Verdict | None = None
    if reading is not None:
        verdict = judge(stamped_of(server, capacity, own), (reading,))
    stamped = own if own is not None else capacity.get("maxTotalTokenNum")
    drift = verdict.drift_percent if verdict is not None else None
    return {
        "name": target.name,
        "ready": target.ready,
        "stampedTokens": stamped,
        "engineTokens": reading.found.tokens if reading is not None else None,
        "source": reading.source if reading is not None else None,
        "driftPercent": None if drift is None else str(drift),
        "matches": verdict.matches if verdict is not None else None,
        "reason": verdict.reason if verdict is not None else "NotReady",
        "message": verdict.text
        if verdict is not None
        else "The pod is not ready, so it was not asked.",
    }


def text(answer: Mapping[str, Any], style: Style) -> Iterator[str]:
    """A table of the pods, and the words of those that do not agree exactly."""
    header = ("POD", "STAMPED", "ENGINE", "DRIFT %", "TOLD BY", "RESULT")
    rows = [
        (
            pod["name"],
            _count(pod["stampedTokens"]),
            _count(pod["engineTokens"]),
            pod["driftPercent"],
            pod["source"],
            pod["reason"],
        )
        for pod in answer["pods"]
    ]
    if not rows:
        yield "There is no server pod to ask."
        return
    lines = table(header, rows, frozenset({1, 2, 3}))
    yield lines[0]
    for line, pod in zip(lines[1:], answer["pods"], strict=True):
        tone = {True: "good", False: "bad"}.get(pod["matches"], "busy")
        yield style.paint(line, tone)
    for said in dict.fromkeys(pod["message"] for pod in answer["pods"]):
        yield ""
        yield from wrapped(said, "")


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
