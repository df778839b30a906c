"""The pure domain: what a model costs, what a GPU holds, what an engine can do with it.

Standard library only. Nothing in here reads a file, a clock, an environment variable or a device:
the same question always gets the same answer, on a laptop and on a GPU node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.core.budget import fit

__all__ = ["fit"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type of whatever is asked for
    """``plimsoll.core.fit``, loaded when first used: most importers want one small module."""
    if name == "fit":
        from plimsoll.core.budget import fit  # noqa: PLC0415

        return fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
