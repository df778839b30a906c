"""Engine versions, as far as the arithmetic must tell them apart."""

from __future__ import annotations

import re

_VERSION = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?(?:[.+-].*)?", re.ASCII)


def parse_version(text: str | None) -> tuple[int, int] | None:
    """Major and minor number of a version such as ``v1.2.0`` or ``2026.10+cpu``; None when it is none."""
    match = _VERSION.fullmatch(text) if text else None
    return (int(match[1]), int(match[2])) if match else None


def is_cpu_build(text: str | None) -> bool:
    """Whether the version names a CPU build (``+cpu``), which makes no CUDA context."""
    return text is not None and text.endswith("+cpu")


def parse_release(text: str | None) -> tuple[int, int, int] | None:
    """All three numbers of a version such as ``0.5.12.post1``; a missing third one is 0."""
    match = _VERSION.fullmatch(text) if text else None
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
