"""Parsers of all commands: how they refuse, and the flags that every command with a cluster has."""

from __future__ import annotations

import argparse
import os.path
import re
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from plimsoll.core.errors import BadArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGIN: Final = "kubectl-plimsoll"
_NAMED: Final = re.compile(r"argument (?:-\w/)?(--[\w-]+)")


class _Help(argparse.RawDescriptionHelpFormatter):
    """A fixed width: asking the terminal for it would load shutil at each start, 5 ms."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


class Parser(argparse.ArgumentParser):
    """Raises where argparse would print a usage and exit: there is one way to refuse."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(*args, **(kwargs | {"formatter_class": _Help}))

    def error(self, message: str) -> NoReturn:
        """Refuse.

        Raises:
            BadArgument: Always.
        """
        named = _NAMED.match(message)  # argparse's own: "argument -o/--output: invalid choice"
        field = named[1] if named else "arguments"
        raise BadArgument(f"{message}; see {self.prog} --help", field=field)

    def flags(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...] | None, str]]:
        """Every flag, for completion: its spellings, its values (None: any; empty: none), its help."""
        for action in self._actions:
            if action.option_strings and action.help != argparse.SUPPRESS:
                values: tuple[str, ...] | None = () if action.nargs == 0 else None
                if action.choices is not None:
                    values = tuple(str(choice) for choice in action.choices)
                yield tuple(action.option_strings), values, action.help or ""


def program() -> str:
    """How the user called us: ``plimsoll``, or ``kubectl plimsoll``."""
    called = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119 - pathlib costs 5 ms
    return "kubectl plimsoll" if called.startswith(PLUGIN) else "plimsoll"


def command(name: str, description: str, example: str) -> Parser:
    """The parser of one command.

    Args:
        name: of the command.
        description: sentences, for the head of its help.
        example: command lines, without the program's name, one a line, a comment after ``#``.
    """
    called = program()
    lines = "".join(f"  {called} {line}\n" for line in example.strip().splitlines())
    return Parser(
        prog=f"{called} {name}",
        description=description,
        epilog=f"example:\n{lines}",
        allow_abbrev=False,
    )


def add_cluster(parser: Parser, *, everywhere: bool = False) -> None:
    """The flags that are handed on to kubectl, with kubectl's own names."""
    group = parser.add_argument_group("cluster (as for kubectl)")
    group.add_argument("-n", "--namespace", metavar="NAME", help="namespace of the servers")
    if everywhere:
        group.add_argument(
            "-A", "--all-namespaces", action="store_true", help="servers of all namespaces"
        )
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    group.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig to use")


def add_output(parser: Parser, *formats: str) -> None:
    """The flag -o; text is the default."""
    choices = ("text", *formats)
    parser.add_argument("-o", "--output", choices=choices, default="text", help="default: text")
