"""The ConfigMap in which a namespace remembers what its engines needed beside model and cache.

One key for each kind of case (engine and its version, model, GPU class), one entry of JSON in it.
It belongs to the namespace: no server owns it, and whoever deletes it, or a key of it, makes Plimsoll
forget. Every entry is applied by a field manager of its own, because an apply removes what the same
manager applied before and leaves out now; so two servers that learn at once do not undo each other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from plimsoll.controller.objects.labels import MANAGED_BY, MANAGED_BY_LABEL

LEARNED_MAP: Final = "plimsoll-learned"

_LONGEST_ENTRY: Final = 4096
_LONGEST_PART: Final = 60
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Malformed(Exception):  # noqa: N818  # an outcome: the entry is passed over
    """What stands under a key is not an entry of ours; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """What has to be the same for one server's need to tell another's.

    Attributes:
        engine: its type.
        version: as far as it is known, else the image.
        model_digest: of the checkpoint's headers.
        product: of the GPU.
        total_bytes: of the GPU's memory.
        mig: the profile of a slice.
        sharing: how the GPU is shared.
        count: GPUs of one server.
    """

    engine: str
    version: str
    model_digest: str
    product: str
    total_bytes: int
    mig: str | None
    sharing: str | None
    count: int

    @property
    def key(self) -> str:
        """The key in the map: readable as far as a key allows, and unmistakable by its end."""
        text = json.dumps(self.to_mapping(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        parts = (self.engine, self.version, self.product)
        return ".".join([*(_UNFIT.sub("-", part)[-_LONGEST_PART:] for part in parts), digest])

    def to_mapping(self) -> dict[str, Any]:
        """The JSON keys that an entry repeats, so that people can read it."""
        return {
            "engine": self.engine,
            "version": self.version,
            "modelDigest": self.model_digest,
            "product": self.product,
            "totalBytes": self.total_bytes,
            "mig": self.mig,
            "sharing": self.sharing,
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """What was learned of one case.

    Attributes:
        case: of which.
        extra_bytes: needed on each device beside the computed reserve and the user's own.
        learned_from: the server that needed it.
        at: when it served at last, RFC 3339.
        why: a sentence for people.
    """

    case: Case
    extra_bytes: int
    learned_from: str
    at: str
    why: str


def learned_map(namespace: str, entry: Entry) -> dict[str, Any]:
    """The map with this entry alone, ready for an apply by `manager_of` it."""
    document = {
        **{key: value for key, value in entry.case.to_mapping().items() if value is not None},
        "extraBytes": entry.extra_bytes,
        "learnedFrom": entry.learned_from,
        "at": entry.at,
        "why": entry.why,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": LEARNED_MAP,
            "namespace": namespace,
            "labels": {MANAGED_BY_LABEL: MANAGED_BY},
        },
        "data": {entry.case.key: json.dumps(document)},
    }


def manager_of(entry: Entry) -> str:
    """The field manager of the entry; the API admits 128 characters."""
    return f"{LEARNED_MAP}-{entry.case.key[-12:]}"


def read_entry(text: str, case: Case) -> Entry:
    """The entry under the case's key.

    The map is an input: whoever may edit ConfigMaps writes it.

    Raises:
        Malformed: it is none of ours, or of another case.
    """
    if len(text) > _LONGEST_ENTRY:
        raise Malformed(f"it is longer than {_LONGEST_ENTRY} characters")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON") from None
    if not isinstance(document, Mapping):
        raise Malformed("it is not a JSON object")
    for key, value in case.to_mapping().items():
        if document.get(key) != value:
            raise Malformed(f"its {key} is not {value!r}")
    extra, at = document.get("extraBytes"), document.get("at")
    if type(extra) is not int or not 0 < extra <= case.total_bytes:
        raise Malformed("its extraBytes is no number of bytes on that GPU")
    server, why = document.get("learnedFrom"), document.get("why")
    if not isinstance(server, str) or not _NAME.fullmatch(server):
        raise Malformed("its learnedFrom is not the name of a server")
    if not isinstance(at, str) or not _is_time(at):
        raise Malformed("its at is not a time")
    return Entry(case, extra, server, at, why if isinstance(why, str) else "")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
