"""The engine table. A new engine is one module and one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.base import Allocation, Engine, Pinned, Situation
from plimsoll.core.engines.lightllm import LightLLM
from plimsoll.core.engines.llamacpp import LlamaCpp
from plimsoll.core.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGINES: Final[Mapping[str, Engine]] = {engine.type: engine for engine in (LightLLM(), LlamaCpp())}

__all__ = ["ENGINES", "Allocation", "Engine", "Pinned", "Situation", "lookup"]


def lookup(engine_type: str) -> Engine:
    """The engine of that name.

    Raises:
        Unsupported: No such engine; names those that exist.
    """
    try:
        return ENGINES[engine_type]
    except KeyError:
        raise Unsupported(
            f"engine {engine_type[:64]!r} is not supported; use one of {', '.join(sorted(ENGINES))}",
            reason="UnsupportedEngine",
            field="spec.engine.type",
            value=engine_type,
        ) from None
