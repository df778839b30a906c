"""Status and conditions: computed in full on every pass, written only when different."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plimsoll.controller.observed import Observed

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

ACCEPTED: Final = "Accepted"
MODEL_READY: Final = "ModelReady"
CAPACITY_AVAILABLE: Final = "CapacityAvailable"
SIZED: Final = "Sized"
ROLLED_OUT: Final = "RolledOut"
AVAILABLE: Final = "Available"
READY: Final = "Ready"
CAPACITY_VERIFIED: Final = "CapacityVerified"
UPDATE_AVAILABLE: Final = "UpdateAvailable"
DEGRADED: Final = "Degraded"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"

# The order in which people read them, and in which the first obstacle is looked for.
LADDER: Final = (ACCEPTED, MODEL_READY, CAPACITY_AVAILABLE, SIZED, ROLLED_OUT, AVAILABLE)
ORDER: Final = (
    *LADDER,
    READY,
    CAPACITY_VERIFIED,
    UPDATE_AVAILABLE,
    DEGRADED,
    RECONCILING,
    STALLED,
)

_LONGEST_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as a decision; times and generation are added when it is written."""

    type: str
    status: str
    reason: str
    message: str


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as the API server writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(text: str, now: datetime) -> float:
    """Seconds from a time that the API server wrote until now; 0 when its clock is ahead of ours."""
    return max(0.0, (now - datetime.fromisoformat(text)).total_seconds())


def previous(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type in a written status, or an empty mapping."""
    found: Mapping[str, Any] = next(
        (c for c in status.get("conditions") or () if c.get("type") == kind), {}
    )
    return found


def merged(conditions: Iterable[Condition]) -> list[Condition]:
    """One condition for each type, in reading order; a later step's word replaces an earlier's."""
    by_type = {condition.type: condition for condition in conditions}
    return [by_type[kind] for kind in ORDER if kind in by_type]


def written(
    observed: Observed, conditions: Iterable[Condition], now: datetime
) -> list[dict[str, Any]]:
    """The conditions as the API server stores them.

    The transition time is kept while the status is the same: it answers "since when".
    """
    return [_written(observed, condition, now) for condition in conditions]


def _written(observed: Observed, condition: Condition, now: datetime) -> dict[str, Any]:
    before = previous(observed.status, condition.type)
    same = before.get("status") == condition.status
    since = before.get("lastTransitionTime") if same else None
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": _one_line(condition.message),
        "observedGeneration": observed.generation,
        "lastTransitionTime": since or timestamp(now),
    }


def same_status(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two statuses say the same, as far as it is ours to say.

    The API server may keep list maps in another order than we sent, and others may add conditions
    of their own, which are neither ours to judge nor a reason to write.
    """
    return _said(one) == _said(other)


def _said(status: Mapping[str, Any]) -> dict[str, Any]:
    ours = {c["type"]: c for c in status.get("conditions") or () if c["type"] in ORDER}
    pods = {pod["name"]: pod for pod in status.get("pods") or ()}
    return {**status, "conditions": ours, "pods": pods}


# What tells how far things are: who waits for it can wait a second longer.
_COUNTS: Final = (
    "ready", "replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "pods", "conditions",
)  # fmt: skip


# What the engine says; whether that is as it should be is a condition.
_READINGS: Final = frozenset({"engineReportedTokens", "driftPercent"})

# Turning true, these are only steps on the way to a number, or to Ready.
_STEPS: Final = frozenset({MODEL_READY, CAPACITY_AVAILABLE})
_LAST_STEPS: Final = frozenset({AVAILABLE, CAPACITY_VERIFIED})


def pressing(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the change from one status to the next is more than progress.

    Progress are counts, messages, and one reason for "not yet" in place of another. Several of them
    follow each other within a second while a server starts; written together they say the same.
    """
    if _without_counts(before) != _without_counts(after):
        return True
    told = {c["type"]: c for c in before.get("conditions") or ()}
    new = {c["type"]: c for c in after.get("conditions") or ()}
    ours = {kind for kind in told if kind in ORDER} | new.keys()
    return any(_has_turned(told.get(kind), new.get(kind)) for kind in ours)


def _has_turned(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    if after is not None and after.get("type") in _LAST_STEPS and after.get("status") == TRUE:
        return False
    if before is None or after is None:
        return True
    if before.get("status") != after.get("status"):
        step = after.get("type") in _STEPS and before.get("status") == UNKNOWN
        return not (step and after.get("status") == TRUE)
    same = before.get("reason") == after.get("reason")
    waits = after.get("status") == UNKNOWN or after.get("reason") in WAITING_REASONS
    generation = before.get("observedGeneration") == after.get("observedGeneration")
    return not generation or not (same or waits)


def _without_counts(status: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in status.items() if key not in _COUNTS}
    # Which pod answers is told when it has answered.
    found["sizing"] = {k: v for k, v in (status.get("sizing") or {}).items() if k != "podUID"}
    if "capacity" in found:
        found["capacity"] = {k: v for k, v in found["capacity"].items() if k not in _READINGS}
    return found


def with_foreign_conditions(status: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Our status together with the conditions that others added to the live one."""
    foreign = [c for c in live.get("conditions") or () if c["type"] not in ORDER]
    return {**status, "conditions": [*status["conditions"], *foreign]}


def _one_line(message: str) -> str:
    text = " ".join(message.split())
    if len(text) <= _LONGEST_MESSAGE:
        return text
    return f"{text[: _LONGEST_MESSAGE - 4]}...."


def clause(text: str) -> str:
    """Somebody else's words in the middle of a message: one line, one full stop."""
    return f"{' '.join(text.split()).rstrip('.')}."


# What a message may not begin with as it is, and the word that is put before it.
_OPENINGS: Final = (
    (re.compile(r"(spec|metadata|status)\."), "Field"),
    (re.compile(r"-"), "Argument"),
    (re.compile(r"\S+\.(json|gguf|safetensors|bin|pt)\b"), "File"),
    (re.compile(r"/"), "Path"),
)
# What changes with its first letter (cuMemAlloc is a name), or has none to change.
_NAME: Final = re.compile(r"[a-z][a-z'-]*[^a-z'\s,:;.-]|[^A-Za-z]")


def sentence(text: str) -> str:
    """Somebody else's words as the first sentence of a message: a clause with a capital letter."""
    words = clause(text)
    for pattern, noun in _OPENINGS:
        if pattern.match(words):
            return f"{noun} {words}"
    if _NAME.match(words):  # such as cuMemAlloc: another spelling would be another name
        return f"Cause: {words}"
    return f"{words[:1].upper()}{words[1:]}"


_NEXT_SENTENCE: Final = re.compile(r"\. (\w*)")
_PROPER_NAMES: Final = frozenset({"Plimsoll", "Kubernetes"})


def one_sentence(text: str) -> str:
    """A message of several sentences as one: "It broke. Mend it." is "It broke; mend it."."""

    def joined(found: re.Match[str]) -> str:
        word = found.group(1)
        # "GPU" and "LightLLM" keep their capitals; a word that is one only by its place does not.
        plain = word.istitle() and word not in _PROPER_NAMES
        return f"; {word.lower() if plain else word}"

    return _NEXT_SENTENCE.sub(joined, text)


def summary(conditions: Iterable[Condition], ready_message: str) -> Condition:
    """Ready: True when every step is, else the obstacle that tells most, in its own words.

    That is the first with a cause. RolledOut is Progressing for as long as the engine crashes, and
    the crash is what people must read. Where nothing is wrong it is a node that is on its way, else
    how far we are: the sizing, then the rollout.
    """
    missing = [c for c in conditions if c.type in LADDER and c.status != TRUE]
    if not missing:
        return Condition(READY, TRUE, "Ready", ready_message)
    causes = [c for c in missing if c.status == FALSE and c.reason not in WAITING_REASONS]
    waits = sorted(missing, key=lambda c: (c.reason not in _NODE_COMES, c.type != SIZED))
    obstacle = (causes or waits)[0]
    return Condition(READY, obstacle.status, obstacle.reason, one_sentence(obstacle.message))


SCALE_UP_TRIGGERED: Final = "ScaleUpTriggered"
NODE_NOMINATED: Final = "NodeNominated"
# Why it takes long, though nobody has to do anything: it tells more than how far the sizing is.
_NODE_COMES: Final = frozenset({SCALE_UP_TRIGGERED, NODE_NOMINATED})
# Reasons that only say "not yet".
WAITING_REASONS: Final = _NODE_COMES | {
    "Progressing", "WaitingForSizing", "WaitingForTermination", "NoReadyReplicas",
}  # fmt: skip
