"""What builders need beside the resource itself."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    max_total_token_num: int
    max_sequences: int | None = None
    context_length: int | None = None
    prefill_tokens: int | None = None
    weight_bytes: int | None = None
    model_file: str | None = None
    pin: Pin | None = None
