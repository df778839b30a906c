"""Every command by name: the one table behind dispatch, help and completion. Nothing heavy is imported here."""

from __future__ import annotations

from typing import Final

from plimsoll.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        module: of this package; it has ``run(words)`` and ``parser()``, and is loaded when it is asked for.
        summary: what it does, for lists of commands.
        words: what the plain words of its command line are, for completion: ``server`` or ``shell``.
    """

    module: str
    summary: str
    words: str = ""


COMMANDS: Final[dict[str, Command]] = {
    "fit": Command("fit", "compute the number for a model, a GPU and an engine (no cluster)"),
    "explain": Command(
        "explain", "where the number of a server comes from, and what would raise it", "server"
    ),
    "status": Command("status", "follow a rollout step by step until it is Ready", "server"),
    "top": Command("top", "tokens in use of the budget, by the engines' own word", "server"),
    "verify": Command(
        "verify", "ask the engines for their pools and compare with the number", "server"
    ),
    "render": Command("offline", "what the operator would create for a file (no cluster)"),
    "completion": Command("completion", "a completion script for bash, zsh or fish", "shell"),
    "version": Command("version", "versions of this program, of the operator and of the CRD"),
    "help": Command("help", "this list, or the help of one command", "command"),
}
