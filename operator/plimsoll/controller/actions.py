"""What a plan consists of: writes as data, events, and when to look again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a complete child object; ``why`` is for the log."""

    obj: dict[str, Any]
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Create:
    """Plain create of a sizing pod. That it already exists is success: its name is the question."""

    obj: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object by UID, so that a newer one of the same name is never hit."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Patch:
    """JSON patch of exactly one version of a child, to take out what others added.

    Attributes:
        wanted: the child as we render it.
        live: the child as it was looked at; the patch is for this version of it.
        ops: the operations (RFC 6902), without the test of the version.
        why: names what goes, for the log and the Event.
    """

    wanted: dict[str, Any] = field(compare=False)
    live: dict[str, Any]
    ops: tuple[dict[str, Any], ...]
    why: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Remember:
    """Server-side apply of one entry of an object that is the namespace's, not the server's.

    What was learned is a convenience: where the write is refused the log says so, and that is all.

    Attributes:
        obj: the object with that entry alone.
        manager: owns the entry, so that an apply of another one leaves it in place.
        why: for the log.
    """

    obj: dict[str, Any]
    manager: str
    why: str = field(compare=False)


Action = Apply | Create | Delete | Patch | Remember


@dataclass(frozen=True, slots=True)
class EventNote:
    """An Event to record on the resource; ``type`` is Normal or Warning.

    ``retells`` says that an action of the same plan is its cause: the log has it from there.
    """

    type: str
    reason: str
    message: str
    retells: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision of one pass.

    Attributes:
        actions: writes on children, in this order.
        status: the whole new status, or None when it is as it was.
        events: transitions that people should see.
        requeue_after: seconds until the next look if nothing happens before; None: no need.
    """

    actions: tuple[Action, ...] = ()
    status: dict[str, Any] | None = None
    events: tuple[EventNote, ...] = ()
    requeue_after: float | None = None


class Refusal(Protocol):
    """An answer of the API server that says no: HTTP status, its reason word and its sentence."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def reason(self) -> str:
        """The machine-readable reason, for example ``Forbidden``."""

    @property
    def message(self) -> str:
        """The sentence for people."""


def delete_pod(pod: Mapping[str, Any]) -> Delete:
    """The deletion of exactly this pod."""
    metadata = pod["metadata"]
    return Delete("v1", "Pod", metadata["namespace"], metadata["name"], metadata["uid"])
