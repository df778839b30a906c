"""Strict parsers of the engines' command lines: every flag of the release, and no other.

Flags that size something have a type. All others take any number of words, so that one table of names is enough.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .program import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TABLE = Path(__file__).with_name("flags.json")
_SUFFIXES = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def release_flags(engine: str, version: str) -> list[str]:
    """All spellings of one release, or of the newest.

    Raises:
        ValueError: no such release.
    """
    releases = json.loads(TABLE.read_text(encoding="utf-8"))[engine]
    if version and version not in releases:
        raise ValueError(f"STANDIN_VERSION={version} is none of {', '.join(releases)}")
    names: list[str] = releases[version or list(releases)[-1]]["all_flags"]
    return names


def number(text: str) -> int:
    """A whole number, with vLLM's suffixes (``1k`` is 1,000 and ``1K`` is 1,024)."""
    match = re.fullmatch(r"(-?\d+)([kKmMgG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}")
    return int(match[1]) * _SUFFIXES.get(match[2], 1)


def build(
    prog: str,
    names: Sequence[str],
    typed: Mapping[str, tuple[Callable[[str], Any], Any]],
    switches: Sequence[str] = (),
    aliases: Mapping[str, Sequence[str]] | None = None,
) -> argparse.ArgumentParser:
    """A parser.

    Args:
        prog: as the engine's own messages begin.
        names: all spellings of the release.
        typed: flag -> (converter, default). The destination follows from the flag.
        switches: flags without a value.
        aliases: flag -> its other spellings.
    """
    parser = argparse.ArgumentParser(prog=prog, usage=f"{prog} [-h] [options]", add_help=False)
    known: set[str] = set()

    def add(flag: str, **options: Any) -> None:
        spelled = [flag, *(aliases or {}).get(flag, ())]
        parser.add_argument(*spelled, dest=flag.lstrip("-").replace("-", "_"), **options)
        known.update(spelled)

    for flag, (convert, default) in typed.items():
        add(flag, type=convert, default=default)
    for flag in switches:
        add(flag, action="store_true")
    for flag in names:
        if flag not in known:
            add(flag, nargs="*", default=None)
    return parser


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the words that are none. Raises RefusedError: argparse printed why."""
    try:
        return parser.parse_known_args(list(argv))
    except SystemExit as error:
        raise RefusedError(error.code) from None


def refuse(prog: str, usage: str, message: str) -> NoReturn:
    """Print an argument error as argparse does. Raises RefusedError, with its exit code."""
    print(f"usage: {usage}\n{prog}: error: {message}", file=sys.stderr, flush=True)
    raise RefusedError(2)
