"""``plimsoll help [COMMAND]``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from plimsoll.cli.commands import COMMANDS
from plimsoll.cli.parsing import Parser, command, program
from plimsoll.cli.style import write
from plimsoll.core.errors import BadArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXITS: Final = (
    "exit codes: 0 done, fits, Ready, agrees; 1 the answer is no; 2 bad input; 3 unsupported;",
    "            4 not known yet; 5 the cluster could not be asked; 130 interrupted",
)


def parser() -> Parser:
    """The command line."""
    found = command("help", "Lists the commands, or shows the help of one.", "help explain")
    found.add_argument("command", nargs="?", metavar="COMMAND")
    return found


def run(words: list[str]) -> int:
    """Print help."""
    wanted = parser().parse_args(words).command
    if wanted is None:
        write(overview())
    elif wanted == "fit":
        import_module("plimsoll.cli.options").parser().parse_args(["fit", "--help"])
    elif wanted in COMMANDS:
        print(import_module(f"plimsoll.cli.{COMMANDS[wanted].module}").parser().format_help())
    else:
        raise BadArgument(f"there is no command {wanted[:32]!r}", field="COMMAND", value=wanted)
    return 0


def overview() -> Iterator[str]:
    """All commands."""
    called = program()
    yield f"usage: {called} COMMAND [FLAGS]"
    yield ""
    yield "Finds the load line of a GPU: how many KV-cache tokens an LLM server can hold on it."
    yield ""
    width = max(map(len, COMMANDS))
    for name, row in COMMANDS.items():
        yield f"  {name:<{width}}  {row.summary}"
    yield ""
    yield f"{called} COMMAND --help shows the flags of a command and an example."
    yield from _EXITS
