"""What builders need beside the resource itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# How the number of an InPod template gets from the init container into the engine's arguments.
FILE_KEY_REF: Final = "fileKeyRef"
WRAPPER: Final = "wrapper"


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The operator's own settings that end up in pods."""

    sizer_image: str
    sizer_pull_policy: str


@dataclass(frozen=True, slots=True)
class Pin:
    """The node label that keeps a stamped number on the GPU class it was measured on."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """The numbers that go into the server's pod template.

    Tokens and sequences are counts, ``weight_bytes`` is the whole model's (None when nobody
    measured it), ``model_file`` is the file that was sized, below the model's folder (None when
    the folder is served). ``pin`` is None when no node was measured (mode Fixed).

    Since render version 2: ``pinned`` are the numbers behind the flags where the first four do not
    tell them all (JSON keys of ``Pinned``), ``kv_bytes`` is the pool of one rank, ``gpu`` and
    ``model_digest`` are what the guard compares with. ``transport`` is set in place of all numbers
    where each pod measures its own (InPod), ``remeasures`` where such a pod also measures again when
    its engine ended badly, ``extra_reserve`` are bytes that it leaves free beside the user's.
    ``unpinned`` is set where the engine sizes itself (mode Engine). Unset they leave a template's
    hash as it was.
    """

    max_total_token_num: int | None = None
    max_sequences: int | None = None
    context_length: int | None = None
    prefill_tokens: int | None = None
    weight_bytes: int | None = None
    model_file: str | None = None
    pin: Pin | None = None
    pinned: Mapping[str, Any] | None = None
    kv_bytes: int | None = None
    gpu: Mapping[str, Any] | None = None
    model_digest: str | None = None
    transport: str | None = None
    remeasures: bool | None = None
    extra_reserve: int | None = None
    unpinned: bool | None = None


@dataclass(frozen=True, slots=True)
class Turns:
    """How old and new server pods take turns; the counts are pods, None for Recreate."""

    strategy: str
    max_surge: int | None = None
    max_unavailable: int | None = None


# GPUs are scarce: a surge pod would wait for a GPU that the old pod holds.
FREE_FIRST: Final = Turns("RollingUpdate", 0, 1)
SURGE: Final = Turns("RollingUpdate", 1, 0)
RECREATE_ALL: Final = Turns("Recreate")
