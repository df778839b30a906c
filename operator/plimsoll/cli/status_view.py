"""How far a rollout is: a document and its text, from the resource and its pods. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli.classes import class_table
from plimsoll.cli.style import printable, table, wrapped
from plimsoll.controller.objects.names import inputs_hash_of
from plimsoll.controller.status import (
    CAPACITY_VERIFIED,
    DEGRADED,
    FALSE,
    LADDER,
    READY,
    STALLED,
    TRUE,
    UPDATE_AVAILABLE,
    WAITING_REASONS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from plimsoll.cli.style import Style

SCHEMA: Final = "plimsoll.dev/status.v1"
STEPS: Final = (*LADDER, READY, CAPACITY_VERIFIED)

# Where a server stands: ``state`` of the document.
DONE: Final = "Ready"
FAILED: Final = "Failed"
WAITS: Final = "WaitsForYou"
GOING: Final = "Progressing"

_MARKS: Final = {"done": "[x]", "failed": "[!]", "going": "[>]", "open": "[ ]"}
_TONES: Final = {"done": "good", "failed": "bad", "going": "busy", "open": "dim"}
_STATES: Final = {DONE: "good", FAILED: "bad", WAITS: "busy", GOING: "busy"}
_BESIDE: Final = (DEGRADED, STALLED, UPDATE_AVAILABLE)
_WIDTH: Final = 20


def document(
    raw: Mapping[str, Any],
    pods: Iterable[Mapping[str, Any]],
    deployment: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The document ``plimsoll.dev/status.v1`` of one server.

    Args:
        raw: the InferenceServer.
        pods: its server pods.
        deployment: its Deployment, which tells the current template.
    """
    status = raw.get("status") or {}
    effective, capacity = status.get("effective") or {}, status.get("capacity") or {}
    conditions = {str(c["type"]): c for c in status.get("conditions") or ()}
    seen = int(status.get("observedGeneration") or 0) >= int(raw["metadata"].get("generation") or 0)
    steps = [_step(kind, conditions.get(kind)) for kind in STEPS]
    return {
        "schema": SCHEMA,
        "name": raw["metadata"]["name"],
        "namespace": raw["metadata"].get("namespace"),
        "state": _state(conditions) if seen else GOING,
        "observed": seen,
        "ready": status.get("ready"),
        "tokens": capacity.get("maxTotalTokenNum"),
        "classes": list(status.get("classes") or ()),
        "mode": effective.get("mode"),
        "strategy": effective.get("strategy"),
        "strategyReason": effective.get("strategyReason"),
        "done": sum(step["state"] == "done" for step in steps),
        "of": len(steps),
        "steps": steps,
        "beside": [_step(k, conditions[k]) for k in _BESIDE if k in conditions],
        "sizingPod": (status.get("sizing") or {}).get("pod"),
        "pods": _pods(status, pods, deployment),
    }


def _state(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    def is_true(kind: str) -> bool:
        return conditions.get(kind, {}).get("status") == TRUE

    if is_true(READY):
        return DONE
    if is_true(STALLED):
        return FAILED
    if conditions.get("RolledOut", {}).get("reason") == "Paused":
        return WAITS
    return GOING


def _step(kind: str, condition: Mapping[str, Any] | None) -> dict[str, Any]:
    if condition is None:
        return {"type": kind, "state": "open", "status": None, "reason": None, "message": None}
    status, reason = condition.get("status"), str(condition.get("reason"))
    state = "going"
    if status == TRUE:
        state = "failed" if kind in {DEGRADED, STALLED} else "done"
    elif status == FALSE and reason not in WAITING_REASONS:
        state = "failed"
    elif reason == "NotAccepted":
        state = "open"
    return {
        "type": kind,
        "state": state,
        "status": status,
        "reason": reason,
        "message": condition.get("message"),
        "since": condition.get("lastTransitionTime"),
    }


def _pods(
    status: Mapping[str, Any],
    pods: Iterable[Mapping[str, Any]],
    deployment: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Server pods with what the status knows of them; new or old by the template they carry."""
    template = ((deployment or {}).get("spec") or {}).get("template") or {}
    wanted = inputs_hash_of(template)
    known = {pod["name"]: pod for pod in status.get("pods") or ()}
    found = []
    for pod in pods:
        metadata = pod["metadata"]
        row = known.get(metadata["name"], {})
        same = wanted is not None and inputs_hash_of(pod) == wanted
        found.append(
            {
                "name": metadata["name"],
                "node": pod.get("spec", {}).get("nodeName"),
                "template": "new" if same else "old",
                "tokens": row.get("tokens"),
                "engineTokens": row.get("engineTokens"),
                "state": _pod_state(pod, row),
                "message": row.get("message"),
            }
        )
    return sorted(found, key=lambda pod: (pod["template"] != "new", pod["name"]))


def _pod_state(pod: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"]:
        return "Leaving"
    ready = {c["type"]: c["status"] for c in status.get("conditions") or ()}.get("Ready")
    if ready == TRUE:
        return "Ready"
    if row.get("reason"):
        return str(row["reason"])
    if not pod.get("spec", {}).get("nodeName"):
        return "Pending"
    started = any(
        s.get("name") == "server" and "running" in (s.get("state") or {})
        for s in status.get("containerStatuses") or ()
    )
    return "Loading" if started else "Measuring"


def text(answer: Mapping[str, Any], style: Style) -> Iterator[str]:
    """One server: its steps, what is beside them, its pods."""
    width = (style.width or 120) - 1
    head = f"{answer['namespace']}/{answer['name']}"
    facts = [f"{answer['ready']} ready" if answer["ready"] else "", answer["mode"] or ""]
    if answer["strategy"]:
        why = f" ({answer['strategyReason']})" if answer["strategyReason"] else ""
        facts.append(f"{answer['strategy']}{why}")
    state = style.paint(answer["state"], _STATES[answer["state"]])
    more = "".join(f"   {printable(fact)}" for fact in facts if fact)
    yield f"{style.paint(printable(head), 'bold')}   {state}{more}"
    yield f"{_progress(answer)} {answer['done']} of {answer['of']} steps"
    if not answer["observed"]:
        yield "The newest spec was not looked at yet."
    yield ""
    said: set[str | None] = set()
    for step in (*answer["steps"], *answer["beside"]):
        # Ready and Stalled repeat the words of the step that is in the way.
        yield from _step_lines(step, style, width, again=step["reason"] in said)
        said.add(step["reason"])
    if len(answer["classes"]) > 1:
        yield ""
        yield from class_table(answer["classes"])
    if answer["pods"]:
        yield ""
        yield from pod_table(answer["pods"])


def _progress(answer: Mapping[str, Any]) -> str:
    done = round(_WIDTH * answer["done"] / answer["of"])
    return f"[{'=' * done}{'>' if done < _WIDTH else ''}".ljust(_WIDTH + 1)[: _WIDTH + 1] + "]"


def _step_lines(step: Mapping[str, Any], style: Style, width: int, *, again: bool) -> Iterator[str]:
    mark = style.paint(_MARKS[step["state"]], _TONES[step["state"]])
    head = f"{step['type']:<18}{printable(step['reason'] or ''):<22}"
    plain = f"{mark} {head}".rstrip()
    # What is done needs no words, but the number and the last word do.
    speaks = step["state"] in {"going", "failed"} or step["type"] in {
        "Sized",
        READY,
        CAPACITY_VERIFIED,
    }
    if not step["message"] or not speaks or again:
        yield plain
        return
    lines = wrapped(str(step["message"]), " " * 44, max(width, 80))
    yield f"{plain:<{44 + len(mark) - 3}}{lines[0].strip()}"
    yield from lines[1:]


def pod_table(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """The pods, one a line."""
    rows = [
        (
            pod["name"],
            pod["node"],
            pod["template"],
            _count(pod["tokens"]),
            _count(pod["engineTokens"]),
            pod["state"],
        )
        for pod in pods
    ]
    header = ("POD", "NODE", "TEMPLATE", "TOKENS", "ENGINE", "STATE")
    return table(header, rows, frozenset({3, 4}))


def overview(answers: Sequence[Mapping[str, Any]], style: Style) -> Iterator[str]:
    """Several servers, one a line, with the step that each is at."""
    rows = []
    for answer in answers:
        step = current(answer)
        said = f"{step['type']}: {step['reason'] or 'not begun'}" if step else ""
        tokens = _count(answer["tokens"])
        rows.append(
            (
                answer["namespace"],
                answer["name"],
                answer["state"],
                f"{_progress(answer)} {answer['done']}/{answer['of']}",
                answer["ready"],
                tokens,
                said,
            )
        )
    header = ("NAMESPACE", "NAME", "STATE", "PROGRESS", "READY", "TOKENS", "AT")
    for line in table(header, rows, frozenset({5})):
        yield line[: style.width - 1] if style.width else line


def current(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first step that failed, else the first that is not done; None: all are."""
    steps: Sequence[Mapping[str, Any]] = answer["steps"]
    failed = (step for step in steps if step["state"] == "failed" and step["type"] != READY)
    first = next(failed, None)
    return first or next((step for step in steps if step["state"] != "done"), None)


def changes(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Iterator[str]:
    """What is new since the last look, one line each, for a log."""
    known = {step["type"]: step for step in (*before["steps"], *before["beside"])} if before else {}
    for step in (*now["steps"], *now["beside"]):
        old = known.get(step["type"], {})
        same = all(old.get(key) == step[key] for key in ("status", "reason"))
        if same or step["reason"] is None:
            continue
        yield printable(f"{step['type']}={step['status']} {step['reason']}: {step['message']}")
    pods = {pod["name"]: pod["state"] for pod in before["pods"]} if before else {}
    for pod in now["pods"]:
        if pods.get(pod["name"]) != pod["state"]:
            where = f" on {pod['node']}" if pod["node"] else ""
            yield printable(f"pod {pod['name']} ({pod['template']}){where}: {pod['state']}")
    for name in sorted(pods.keys() - {pod["name"] for pod in now["pods"]}):
        yield printable(f"pod {name}: gone")


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
