"""The engine table. A new engine is one module and one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Final, cast

from plimsoll.core.engines.base import Allocation, Engine, Pinned, Situation
from plimsoll.core.errors import Unsupported

__all__ = ["ENGINES", "Allocation", "Engine", "Pinned", "Situation", "lookup"]

#: Name in ``spec.engine.type`` -> module of this package; its class has the same name.
_MODULES: Final[Mapping[str, str]] = {
    "LightLLM": "lightllm",
    "LlamaCpp": "llamacpp",
    "SGLang": "sglang",
    "TensorRTLLM": "tensorrtllm",
    "TGI": "tgi",
    "VLLM": "vllm",
}


@cache
def _load(engine_type: str) -> Engine:
    module = import_module(f"plimsoll.core.engines.{_MODULES[engine_type]}")
    return cast("Engine", getattr(module, engine_type)())


class _Engines(Mapping[str, "Engine"]):
    """Loads an engine's module when it is first asked for: most callers need one of six."""

    def __getitem__(self, engine_type: str) -> Engine:
        return _load(engine_type)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


ENGINES: Final[Mapping[str, Engine]] = _Engines()


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
