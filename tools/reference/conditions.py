"""docs/reference/conditions.md: the conditions, and which reasons each can have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.controller import status
from plimsoll.controller.steps.sizing_result import EXITS
from plimsoll.core import errors
from tools.reference import reasons
from tools.reference.text import code, page, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.reference.reasons import Found

INTRODUCTION: Final = """\
Every pass computes all conditions anew. `kubectl describe isrv NAME` shows them; each message says what to do. What
every reason means and what helps stands in [Troubleshooting](../troubleshooting.md), one paragraph a reason; its
anchor is the reason in small letters, such as `troubleshooting/#weightsdonotfit`."""
KSTATUS: Final = """\
`Ready`, `Reconciling` and `Stalled` follow the conventions that tools for GitOps know (kstatus): `Reconciling`
while something is on its way, `Stalled` when only a person can help, never both, and neither when all is well.
`kubectl wait --for=condition=Ready isrv/NAME` works."""
EVENTS: Final = """\
Events tell what was done; `kubectl get events --field-selector involvedObject.kind=InferenceServer` lists them. A
condition that turns to a cause of trouble, `Sized` and `Ready` that turn true, are Events too, with the condition's
reason."""

TYPES: Final[Mapping[str, tuple[str, str]]] = {
    status.ACCEPTED: ("True", "The resource makes sense, and no argument is one that Plimsoll sets."),
    status.MODEL_READY: ("True", "The model's volume is there and the model can be read."),
    status.CAPACITY_AVAILABLE: ("True", "There is a GPU for the sizing pod, or none is needed."),
    status.SIZED: ("True", "There is a number for this very spec, or each server finds it."),
    status.ROLLED_OUT: ("True", "All servers are of the current template."),
    status.AVAILABLE: ("True", "Enough servers of the current template take requests (all but one)."),
    status.READY: ("True", "All of the above; otherwise reason and message of the obstacle that tells most."),
    status.CAPACITY_VERIFIED: ("True", "The engine reports what was stamped, within 5 %. No step waits for it."),
    status.UPDATE_AVAILABLE: ("absent", "A newer operator would render another template; only present when true."),
    status.DEGRADED: ("absent", "Something is wrong though servers may go on; only present when true."),
    status.RECONCILING: ("absent", "On its way; reason and message are Ready's. Only present when true."),
    status.STALLED: ("absent", "Only a person can help; reason and message are Ready's. Only present when true."),
}  # fmt: skip

# Conditions of reasons that reach them through a value, which text does not show.
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "NotAccepted": (status.MODEL_READY, status.CAPACITY_AVAILABLE, status.SIZED, status.ROLLED_OUT),
    "ScaleUpTriggered": (status.CAPACITY_AVAILABLE,),
    "NodeNominated": (status.CAPACITY_AVAILABLE,),
    "NoMatchingNodePool": (status.CAPACITY_AVAILABLE,),
    "WithinTolerance": (status.CAPACITY_VERIFIED,),
    "DriftExceeded": (status.CAPACITY_VERIFIED,),
    "NotReported": (status.CAPACITY_VERIFIED,),
    "FlagNotAllowed": (status.ACCEPTED,),
    "InvalidSpec": (status.ACCEPTED,),
    "CudaUnavailable": (status.SIZED,),
    "TorchUnavailable": (status.SIZED,),
    # A template that was given up: the reason of Degraded is RolledOut's too.
    "OutOfMemoryBackoff": (status.DEGRADED, status.ROLLED_OUT),
    "ForeignMemoryOnDevice": (status.DEGRADED, status.ROLLED_OUT),
    "GuardRejected": (status.DEGRADED, status.ROLLED_OUT, status.AVAILABLE),
    "GuardMismatch": (status.DEGRADED, status.ROLLED_OUT),
    "InvalidArgument": (status.ACCEPTED,),
}
# Reasons that the sizer gives and the operator writes as another.
RENAMED: Final[Mapping[str, str]] = {"InvalidArgument": "InvalidSpec"}


def condition_reasons() -> dict[str, tuple[str, ...]]:
    """Reason -> the conditions that can have it, for every reason that is one of a condition."""
    found = {}
    for name, entry in reasons.collect().items():
        kinds = set(entry.kinds) | set(_VALUES.get(name) or _kinds_of_errors(entry))
        if kinds and name not in RENAMED:
            found[name] = tuple(kind for kind in TYPES if kind in kinds)
    return found


def event_reasons() -> tuple[str, ...]:
    """Reasons of Events that are no condition's."""
    of_conditions = condition_reasons()
    return tuple(
        sorted(
            n for n, entry in reasons.collect().items() if entry.event and n not in of_conditions
        )
    )


def documented() -> tuple[str, ...]:
    """Every reason that a user can meet, in a condition or an Event."""
    return tuple(sorted({*condition_reasons(), *event_reasons()}))


def _kinds_of_errors(entry: Found) -> set[str]:
    """An error's exit code says in which condition the sizer's refusal shows."""
    kinds = set()
    for name in entry.errors:
        made = getattr(errors, name, None)
        if (
            made is not None
            and made.exit_code in EXITS
            and name not in {"BadArgument", "FlagNotAllowed"}
        ):
            kinds.add(EXITS[made.exit_code][0])
        elif name in {"unreadable", "read", "open"}:  # checkpoint.files: BadModel with that reason
            kinds.add(EXITS[errors.BadModel.exit_code][0])
    return kinds


def render() -> str:
    """The page."""
    by_type: dict[str, list[str]] = {kind: [] for kind in TYPES}
    for reason, kinds in sorted(condition_reasons().items()):
        for kind in kinds:
            by_type[kind].append(reason)
    rows = [(f"[`{k}`](#{k.lower()})", good, text) for k, (good, text) in TYPES.items()]
    parts = [table(("condition", "when all is well", "meaning"), rows), KSTATUS]
    for kind, (_, text) in TYPES.items():
        parts.append(f"## {kind}\n\n{text}")
        if by_type[kind]:
            parts.append("Reasons: " + ", ".join(_link(reason) for reason in by_type[kind]) + ".")
    parts.append(f"## Events\n\n{EVENTS}")
    parts.append("Reasons of their own: " + ", ".join(_link(r) for r in event_reasons()) + ".")
    return page("Conditions", INTRODUCTION, *parts)


def _link(reason: str) -> str:
    return f"[{code(reason)}](../troubleshooting.md#{reason.lower()})"
