"""From a word to its command, and from a refusal to one line."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli.commands import COMMANDS
from plimsoll.cli.parsing import program
from plimsoll.core.errors import BadArgument, PlimsollError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPLETE: Final = "__complete"
_CLOSE: Final = 0.5


def run(words: Sequence[str]) -> int:
    """Run one command; refusals are printed here.

    Args:
        words: the command and its own words.
    """
    name, rest = words[0], list(words[1:])
    try:
        if name == COMPLETE:
            code = _module("completion").complete(rest)
        elif name in COMMANDS:
            code = _module(COMMANDS[name].module).run(rest)
        else:
            raise _unknown(name)
    except PlimsollError as error:
        from plimsoll.cli.render import error_line  # noqa: PLC0415 - only refusals need it

        print(error_line(error), file=sys.stderr)
        if _wants_json(rest):
            document = {"schema": f"plimsoll.dev/{name}.v1", "error": error.to_dict()}
            print(json.dumps(document, indent=2))
        return error.exit_code
    return int(code)


def _module(name: str) -> Any:  # noqa: ANN401 - modules of commands are alike by agreement only
    return import_module(f"plimsoll.cli.{name}")


def _unknown(name: str) -> BadArgument:
    from difflib import get_close_matches  # noqa: PLC0415 - 1 ms, and only refusals need it

    near = get_close_matches(name[:32], COMMANDS, 1, _CLOSE)
    hint = f"did you mean `{program()} {near[0]}`?" if near else f"see {program()} help"
    return BadArgument(f"there is no command {name[:32]!r}; {hint}", field="COMMAND", value=name)


def _wants_json(words: Sequence[str]) -> bool:
    apart = any(flag in {"-o", "--output"} and value == "json" for flag, value in pairwise(words))
    return apart or bool({"-ojson", "-o=json", "--output=json"} & set(words))
