"""docs/reference/engines.md: what Plimsoll sets and refuses for each engine, from the engines' tables."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from plimsoll.core.engines import ENGINES, lookup, vllm_releases
from plimsoll.core.engines.flags import OWNED_ENV, OWNED_ENV_PREFIX, FlagTable
from tools.reference import crd
from tools.reference.text import code, page, plain, table

if TYPE_CHECKING:
    from collections.abc import Iterable

INTRODUCTION: Final = """\
Arguments in `spec.engine.args` are of three kinds. *Owned* flags are refused by name
([`FlagNotAllowed`](../troubleshooting.md#flagnotallowed)), in every spelling that the engine's parser takes: `-`
and `_`, `--flag=value` and `--flag value`, aliases and abbreviations. *Sizing* flags are read by the arithmetic.
Everything else is passed on; a flag or an environment name that no table knows makes the result `estimated` with
the widest reserve."""
_NAMES: Final = ", ".join(f"`{name}` ({why})" for name, why in OWNED_ENV.items())
COMMON: Final = f"{_NAMES}, and every name that begins with `{OWNED_ENV_PREFIX}`."


def flag_table(engine: str) -> FlagTable:
    """The engine's table of flags."""
    found = import_module(f"plimsoll.core.engines.{engine.lower()}_flags").FLAGS
    assert isinstance(found, FlagTable)
    return found


def known_versions(engine: str) -> str:
    """The releases that the arithmetic tells apart, in words."""
    modules = {
        "LightLLM": ("lightllm", "_KNOWN_VERSIONS"),
        "SGLang": ("sglang_defaults", "KNOWN"),
        "TGI": ("tgi", "_KNOWN"),
        "TensorRTLLM": ("tensorrtllm", "_KNOWN"),
        "LlamaCpp": ("llamacpp", "_KNOWN_VERSIONS"),
    }
    if engine == "VLLM":
        first, newest = vllm_releases.PINS_SINCE, vllm_releases.NEWEST
        return f"{_dotted(first)} to {_dotted(newest)}"
    module, name = modules[engine]
    found = getattr(import_module(f"plimsoll.core.engines.{module}"), name)
    return ", ".join(_dotted(version) for version in sorted(found))


def _cache_types() -> frozenset[str]:
    """The types that the resource knows; engines have further words for some."""
    sizing = crd.schema()["properties"]["spec"]["properties"]["sizing"]
    return frozenset(sizing["properties"]["kvCacheDType"]["enum"])


def _dotted(version: Iterable[int]) -> str:
    return ".".join(str(part) for part in version)


def render() -> str:
    """The page."""
    head = ("engine", "known versions", "port", "health", "its token number usually is")
    rows = []
    for name, engine in sorted(ENGINES.items()):
        link = f"[{name}](../howto/engines/{name.lower()}.md)"
        words = (code(engine.health_path), code(engine.token_meaning))
        rows.append((link, known_versions(name), str(engine.default_port), *words))
    parts = [table(head, rows), "## Environment names refused for every engine", COMMON]
    for name in sorted(ENGINES):
        parts += _engine(name)
    return page("Engines", INTRODUCTION, *parts)


def _engine(name: str) -> list[str]:
    engine, flags = lookup(name), flag_table(name)
    command = " ".join(engine.default_command)
    dtypes = ", ".join(code(dtype) for dtype in engine.kv_dtypes if dtype in _cache_types())
    facts = [
        f"- Command: {code(command) if command else 'that of the image'}.",
        f"- `spec.sizing.kvCacheDType`: {dtypes}.",
        f"- Abbreviated flags are {'taken too' if flags.abbreviates else 'not taken by its parser'}.",
    ]
    owned = [(code(flags.spell(flag)), plain(why)) for flag, why in sorted(flags.owned.items())]
    parts = [
        f"## {name}",
        "\n".join(facts),
        "Flags that Plimsoll sets, and so refuses:",
        table(("flag", "instead"), owned),
    ]
    env = [(code(variable), plain(why)) for variable, why in sorted(flags.owned_env.items())]
    if env:
        parts += ["Environment names that it refuses:", table(("name", "instead"), env)]
    sizing = ", ".join(code(flags.spell(flag)) for flag in sorted(flags.sizing))
    return [*parts, f"Flags that the arithmetic reads: {sizing}."]
