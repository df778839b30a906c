"""Command-line flags as data: whose they are, how they may be spelled, what they mean.

Flags are of three kinds. *Owned* flags are Plimsoll's and refused among the user's arguments.
*Sizing* flags change how memory is used. *Neutral* flags do not. A flag in no list is passed on,
and the result is then an estimate with the widest reserve.

Spelling is as lenient as the strictest reading of the engines' parsers demands: ``-`` and ``_`` are
the same, ``--flag=value`` equals ``--flag value``, and where the engine accepts abbreviations
(argparse does) any prefix of an owned flag counts as that flag, ambiguous or not: an ambiguous one
cannot start the engine anyway.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from plimsoll.core.errors import FlagNotAllowed
from plimsoll.core.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def words(text: str) -> frozenset[str]:
    """A set of names from a compact table."""
    return frozenset(text.split())


#: Names that would show the server other devices than the sizer measured.
OWNED_ENV: Final[Mapping[str, str]] = {
    "NVIDIA_VISIBLE_DEVICES": "the device plugin sets it",
    "CUDA_VISIBLE_DEVICES": "the device plugin decides which devices the server sees",
}
OWNED_ENV_PREFIX: Final = "PLIMSOLL_"

#: Names that change no memory of the GPU, for every engine.
NEUTRAL_ENV: Final = words(
    "HF_HOME HF_HUB_OFFLINE HF_HUB_CACHE HF_TOKEN HF_ENDPOINT TRANSFORMERS_OFFLINE TRANSFORMERS_CACHE "
    "TOKENIZERS_PARALLELISM OMP_NUM_THREADS MKL_NUM_THREADS TZ LANG LC_ALL HOME USER PATH TMPDIR "
    "HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy PYTHONUNBUFFERED "
    "NCCL_DEBUG NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME CUDA_DEVICE_ORDER POD_NAME POD_NAMESPACE POD_IP NODE_NAME"
)

# A dash alone is a value (standard input); a dash and a digit is a negative number, as in argparse.
_OPTION = re.compile(r"--?[A-Za-z]")
_EXPANSION = re.compile(r"(?<!\$)\$\(")


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of one engine.

    Names are canonical: without leading dashes, ``_`` written as ``-``. ``aliases`` maps further
    spellings, short ones with their dash (``-c``), to canonical names.

    Attributes:
        engine: Name for messages.
        owned: Flag -> the field to use instead.
        sizing: Flags that take values and that ``adopt`` understands.
        unsized: Flags known to change memory in ways this version cannot compute: an estimate.
        neutral: Flags that do not matter; a trailing ``!`` marks a switch without a value.
        aliases: Further spellings.
        abbreviates: Whether the engine's parser takes unambiguous prefixes.
        owned_env: Environment name -> what to use instead.
        fields: Owned flag -> attribute of SizingRequest that says the same.
        underscores: Whether the engine writes ``_`` in its flags; for messages.
        neutral_env: Names beside the common ones that do not matter.
    """

    engine: str
    owned: Mapping[str, str]
    sizing: frozenset[str]
    unsized: frozenset[str]
    neutral: frozenset[str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    abbreviates: bool = False
    owned_env: Mapping[str, str] = field(default_factory=dict)
    neutral_env: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)
    underscores: bool = False

    def check(self, args: Sequence[str], env_names: Iterable[str]) -> None:
        """Refuse owned flags and names, whatever their spelling.

        Raises:
            FlagNotAllowed: Names the argument as written and what to use instead.
        """
        for index, arg in enumerate(args):
            self._check_expansion(args, index)
            if not _OPTION.match(arg):
                continue
            name = self._owned_by(arg)
            if name is not None:
                spelled = arg.split("=", 1)[0]
                raise FlagNotAllowed(
                    f"{self.engine} argument {spelled!r} is set by Plimsoll"
                    f"{'' if _bare(spelled) == name else f' (it is read as {self.spell(name)})'}; {self.owned[name]}",
                    field=f"spec.engine.args[{index}]",
                    value=arg,
                )
        for name in env_names:
            why = self._owned_env(name)
            if why is not None:
                raise FlagNotAllowed(
                    f"environment variable {name!r} may not be set for {self.engine}: {why}",
                    field="spec.engine.env",
                    value=name,
                )

    def parse(self, args: Sequence[str], *, owned: bool = False) -> ParsedArgs:
        """Sort the user's arguments into known sizing values and everything unknown.

        Call it after ``check``. With ``owned`` (mode Engine, where nothing is owned) the values of
        owned flags are among the sizing values.
        """
        sizing = self.sizing | self.owned.keys() if owned else self.sizing
        values: dict[str, str | None] = {}
        unsized: list[str] = []
        unlisted: list[str] = []
        for index, arg in enumerate(args):
            if not _OPTION.match(arg):
                continue
            spelled, equals, value = arg.partition("=")
            name = self._resolve(spelled)
            if name in sizing:
                following = args[index + 1] if index + 1 < len(args) else None
                free = following is not None and not _OPTION.match(following)
                values[name] = value if equals else following if free else None
            elif name in self.unsized:
                unsized.append(spelled)
            elif not self._is_neutral(name):
                unlisted.append(spelled)
        return ParsedArgs(values, tuple(unsized), tuple(unlisted))

    def doubts(self, parsed: ParsedArgs, env_names: Iterable[str]) -> list[str]:
        """A sentence for each flag or name that makes the answer an estimate."""
        return [
            *(f"{flag} changes memory in a way that is not computed" for flag in parsed.unsized),
            *(f"{flag} is not in the list of {self.engine} flags" for flag in parsed.unlisted),
            *(f"{name} is not in the list of names" for name in self.unknown_env(env_names)),
        ]

    def unknown_env(self, names: Iterable[str]) -> tuple[str, ...]:
        """Environment names whose effect on memory nobody has looked at."""
        return tuple(n for n in names if n not in NEUTRAL_ENV and n not in self.neutral_env)

    def spell(self, name: str) -> str:
        """A canonical name as the engine writes it."""
        return "--" + (name.replace("-", "_") if self.underscores else name)

    def resolve(self, arg: str) -> str | None:
        """Canonical name of the flag that this argument gives; None when it is a value."""
        return self._resolve(arg.split("=", 1)[0]) if _OPTION.match(arg) else None

    def _known(self) -> frozenset[str]:
        neutral = frozenset(name.rstrip("!") for name in self.neutral)
        return neutral | self.owned.keys() | self.sizing | self.unsized

    def _is_neutral(self, name: str) -> bool:
        return name in self.neutral or name + "!" in self.neutral

    def _resolve(self, spelled: str) -> str:
        """Canonical name of a flag as written, following aliases and unique abbreviations."""
        if spelled in self.aliases:
            return self.aliases[spelled]
        name = _bare(spelled)
        if "--" + name in self.aliases:
            return self.aliases["--" + name]
        known = self._known()
        if name in known or not self.abbreviates or not spelled.startswith("--"):
            return name
        longer = [other for other in known if other.startswith(name)]
        return longer[0] if len(longer) == 1 else name

    def _owned_by(self, arg: str) -> str | None:
        """The owned flag that this argument sets, or could set."""
        spelled = arg.split("=", 1)[0]
        name = self._resolve(spelled)
        if name in self.owned:
            return name
        if not self.abbreviates or name in self._known() or not spelled.startswith("--"):
            return None
        return min((other for other in self.owned if other.startswith(name)), default=None)

    def _owned_env(self, name: str) -> str | None:
        if name.startswith(OWNED_ENV_PREFIX):
            return "names with this prefix are Plimsoll's"
        return OWNED_ENV.get(name) or self.owned_env.get(name)

    def _check_expansion(self, args: Sequence[str], index: int) -> None:
        """Refuse ``$(NAME)`` where Kubernetes would expand it into a flag that nobody checked.

        As a value it is fine: ``--api-key=$(KEY)``, or alone right after a known flag that takes one.
        """
        arg = args[index]
        found = _EXPANSION.search(arg)
        if found is None or (_OPTION.match(arg) and "=" in arg[: found.start()]):
            return
        before = args[index - 1] if index else ""
        takes_value = (
            "=" not in before and self._resolve(before) in self.neutral | self.sizing | self.unsized
        )
        if not _OPTION.match(arg) and _OPTION.match(before) and takes_value:
            return
        raise FlagNotAllowed(
            f"{self.engine} argument {arg!r} could expand into any flag; write --flag=$(NAME) as one argument",
            field=f"spec.engine.args[{index}]",
            value=arg,
        )


@dataclass(frozen=True, slots=True)
class ParsedArgs:
    """The user's arguments, sorted.

    Attributes:
        values: Sizing flag -> its value as text; None for a switch.
        unsized: Spellings of flags that change memory in a way that is not computed.
        unlisted: Spellings of flags that no table lists.
    """

    values: Mapping[str, str | None]
    unsized: tuple[str, ...]
    unlisted: tuple[str, ...]


def names(text: str) -> frozenset[str]:
    """A set of canonical flag names from a compact table."""
    return frozenset(text.replace("_", "-").split())


def _bare(spelled: str) -> str:
    return spelled.lstrip("-").replace("_", "-")
