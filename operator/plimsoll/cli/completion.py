"""``plimsoll completion SHELL``, and the words themselves, which the scripts ask the program for.

The scripts know nothing: what can come next is computed from the table of commands and from their parsers, so
that it cannot be out of step. kubectl asks in the same way through ``kubectl_complete-plimsoll``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from plimsoll.cli.commands import COMMANDS
from plimsoll.cli.kubectl import SERVERS, Kubectl
from plimsoll.cli.parsing import Parser, command
from plimsoll.core.errors import PlimsollError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Values = dict[str, tuple[str, ...] | None]
    Ask = Callable[[Sequence[str]], Iterable[str]]

SHELLS: Final = ("bash", "zsh", "fish")
#: Directives of kubectl's (Cobra's) completion: files may follow, and they may not.
FILES: Final = 0
NO_FILES: Final = 4

_ASK_SECONDS: Final = 3
_HANDED_ON: Final = ("-n", "--namespace", "--context", "--kubeconfig")

_BASH: Final = """\
# bash completion of plimsoll: source <(plimsoll completion bash)
_plimsoll() {
    local line words=() directive=0
    while IFS= read -r line; do
        case $line in :*) directive=${line#:} ;; *) words+=("${line%%$'\\t'*}") ;; esac
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=("${words[@]}")
    if [[ ${#words[@]} -eq 0 && $directive -eq 0 ]]; then
        COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    fi
}
complete -F _plimsoll plimsoll kubectl-plimsoll
"""
_ZSH: Final = """\
#compdef plimsoll kubectl-plimsoll
# zsh completion of plimsoll: source <(plimsoll completion zsh), after compinit
_plimsoll() {
    local line directive=0
    local -a found
    while IFS= read -r line; do
        case $line in
            :*) directive=${line#:} ;;
            *) found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}") ;;
        esac
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( ${#found} )); then
        _describe plimsoll found
    elif (( directive == 0 )); then
        _files
    fi
}
compdef _plimsoll plimsoll kubectl-plimsoll
"""
_FISH: Final = """\
# fish completion of plimsoll: plimsoll completion fish | source
function __plimsoll_complete
    set -l typed (commandline -opc) (commandline -ct)
    $typed[1] __complete $typed[2..-1] 2>/dev/null | string match -v -r '^:[0-9]+$'
end
complete -c plimsoll -f -a '(__plimsoll_complete)'
complete -c kubectl-plimsoll -f -a '(__plimsoll_complete)'
complete -c plimsoll -n '__fish_seen_subcommand_from fit render' -F
"""
_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def parser() -> Parser:
    """The command line."""
    found = command(
        "completion",
        "Prints a completion script for a shell. `kubectl plimsoll` is completed by kubectl's own completion,\n"
        "which runs kubectl_complete-plimsoll.",
        """
completion bash > /etc/bash_completion.d/plimsoll
completion zsh > "${fpath[1]}/_plimsoll"
completion fish > ~/.config/fish/completions/plimsoll.fish
""",
    )
    found.add_argument("shell", choices=SHELLS, metavar="bash|zsh|fish")
    return found


def run(words: list[str]) -> int:
    """Print the script."""
    sys.stdout.write(_SCRIPTS[parser().parse_args(words).shell])
    return 0


def complete(words: Sequence[str]) -> int:
    """Print what may stand in place of the last word: a line each, then the directive.

    Args:
        words: everything after the program's name; the last is the word that is being typed.
    """
    try:
        found, directive = candidates(list(words) or [""], _server_names)
    except PlimsollError:  # half a command line is no mistake
        found, directive = [], FILES
    for word, about in found:
        print(f"{word}\t{about}" if about else word)
    print(f":{directive}")
    return 0


def candidates(words: Sequence[str], names: Ask) -> tuple[list[tuple[str, str]], int]:
    """Words with what they are, and whether files may come instead.

    Args:
        words: as for ``complete``.
        names: asks for the servers, given the words that select a cluster.
    """
    *before, typed = words
    if not before:
        return _starting(((name, row.summary) for name, row in COMMANDS.items()), typed), NO_FILES
    if before[0] not in COMMANDS:
        return [], NO_FILES
    flags = list(_parser(before[0]).flags())
    values = {name: given for spelled, given, _ in flags for name in spelled}
    if before[-1] in values and values[before[-1]] != ():
        return _starting(((value, "") for value in values[before[-1]] or ()), typed), FILES
    if typed.startswith("-"):
        longest = ((max(spelled, key=len), about) for spelled, _, about in flags)
        return _starting(longest, typed), NO_FILES
    return _plain(before, typed, values, names)


def _plain(
    before: Sequence[str], typed: str, values: Values, names: Ask
) -> tuple[list[tuple[str, str]], int]:
    """What a word that is no flag may be."""
    kind = COMMANDS[before[0]].words
    if not kind:
        return [], FILES
    if _has_word(before[1:], values):
        return [], NO_FILES
    kinds = {"shell": SHELLS, "command": tuple(COMMANDS)}
    known = kinds[kind] if kind in kinds else names(_selecting(before[1:]))
    return _starting(((name, "") for name in known), typed), NO_FILES


def _parser(name: str) -> Parser:
    """The parser with the flags; that of fit is one below the program's."""
    if name == "fit":
        from plimsoll.cli.options import fit_parser  # noqa: PLC0415 - loads the catalogue

        return fit_parser()
    found = import_module(f"plimsoll.cli.{COMMANDS[name].module}").parser()
    assert isinstance(found, Parser)
    return found


def _starting(words: Iterable[tuple[str, str]], typed: str) -> list[tuple[str, str]]:
    return [(word, about) for word, about in words if word.startswith(typed)]


def _has_word(words: Sequence[str], values: Values) -> bool:
    """Whether a plain word, one that is no flag and no flag's value, was given already."""
    previous = ""
    for word in words:
        if not word.startswith("-") and values.get(previous, ()) == ():
            return True
        previous = word
    return False


def _selecting(words: Sequence[str]) -> list[str]:
    """The words that choose cluster and namespace, for kubectl."""
    found: list[str] = []
    for index, word in enumerate(words):
        if word in _HANDED_ON:
            found += words[index : index + 2]
        elif word.startswith(tuple(f"{flag}=" for flag in _HANDED_ON[1:])):
            found.append(word)
    return found


def _server_names(words: Sequence[str]) -> Iterator[str]:
    kubectl = Kubectl(seconds=_ASK_SECONDS)
    text = kubectl.run(["get", SERVERS, "--output=name", *words])
    for line in text.splitlines():
        yield line.rpartition("/")[2]
