"""A number for each kind of GPU, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.cli.style import table
from plimsoll.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def class_table(kinds: Iterable[Mapping[str, Any]]) -> list[str]:
    """``status.classes``, one kind a line, the preferred first."""
    rows = [
        (
            " ".join(str(kind[key]) for key in ("product", "mig") if kind.get(key)),
            f"{kind['maxTotalTokenNum']:,}" if "maxTotalTokenNum" in kind else None,
            format_bytes(kind["kvCacheBytes"]) if "kvCacheBytes" in kind else None,
            kind.get("pods"),
            kind.get("ready"),
        )
        for kind in kinds
    ]
    return table(("GPU", "TOKENS", "POOL", "PODS", "READY"), rows, frozenset({1, 2, 3, 4}))
