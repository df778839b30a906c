"""Arguments of a server whose numbers are known only inside its pod.

The pod's template cannot hold numbers then. It holds ``--flag=$(PLIMSOLL_ARG_FLAG)``, and the sizer, an init
container of the same pod, writes the value of each such key into an env file. Two programs that never meet
must agree on the keys: the controller asks :func:`inpod_flags`, the sizer :func:`inpod_arguments`, and
:func:`check_template` refuses where they differ, because a kubelet that does not find a key may start the
server with an empty argument.

Rules:

- A flag is a *variable* when its value follows from the numbers (:class:`Pinned`), and a *constant* when it follows
  from the request alone, as every switch without a value does. The template writes constants literally; the env
  file holds variables only.
- One flag is one word with one value. vLLM's list of graph sizes is several words, so the largest size is
  given instead: vLLM fills in the same sizes below it.
- A flag that only some models have (``--linear_att_ssm_data_type``) is in no template, since the controller does not
  read models. Such a model is refused in a pod; a stamped number serves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.base import Pinned
from plimsoll.core.engines.versions import is_cpu_build
from plimsoll.core.errors import Unsupported
from plimsoll.core.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plimsoll.core.engines.base import Engine
    from plimsoll.core.request import SizingRequest

MISMATCH: Final = "InPodFlagsMismatch"

# Two sets of numbers that differ in everything, one below and one above every bound that an engine puts on a
# number: what comes out the same for both does not depend on them.
_LOW: Final = Pinned(
    max_total_token_num=11,
    max_sequences=1,
    context_length=13,
    prefill_tokens=17,
    kv_cache_bytes=19,
    memory_fraction="0.1",
    block_tokens=16,
    graph_batch=1,
)
_HIGH: Final = Pinned(
    max_total_token_num=1 << 40,
    max_sequences=1 << 19,
    context_length=1 << 30,
    prefill_tokens=1 << 20,
    kv_cache_bytes=1 << 41,
    memory_fraction="0.9",
    block_tokens=32,
    graph_batch=512,
)
_GRAPH_SIZES: Final = "--cudagraph-capture-sizes"
_LARGEST_GRAPH: Final = "--max-cudagraph-capture-size"


@dataclass(frozen=True, slots=True)
class InPodFlags:
    """What the template of a server's pod holds before any number is known.

    Attributes:
        flags: Flags with variable values, as the engine spells them.
        literals: Constant words, ``--flag=value`` or a switch.
        words: Both in the engine's order, variables as ``--flag=$(KEY)``; for ``engine.argv``.
        env_names: Environment variables of the engine with variable values.
        literal_env: Those with constant ones.
    """

    flags: tuple[str, ...]
    literals: tuple[str, ...]
    words: tuple[str, ...]
    env_names: tuple[str, ...]
    literal_env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class InPodArguments:
    """What one model on one device needs.

    Attributes:
        flags: Flags with variable values, as the engine spells them.
        literals: Every other word.
        env_names: Environment variables with variable values.
        literal_env: Every other one.
        values: Key of the env file -> value, for ``flags`` and ``env_names``.
    """

    flags: tuple[str, ...]
    literals: tuple[str, ...]
    env_names: tuple[str, ...]
    literal_env: Mapping[str, str]
    values: Mapping[str, str]


def argument_key(flag: str) -> str:
    """Key of a flag's value in the env file: ``--max-model-len`` is ``PLIMSOLL_ARG_MAX_MODEL_LEN``."""
    return "PLIMSOLL_ARG_" + flag.lstrip("-").replace("-", "_").upper()


def env_key(name: str) -> str:
    """Key of an environment variable's value in the env file."""
    return f"PLIMSOLL_ENV_{name}"


def inpod_flags(engine: Engine, request: SizingRequest) -> InPodFlags:
    """The arguments that Plimsoll adds, before any number is known.

    Args:
        engine: The engine.
        request: The question, with or without the engine's sizing flags merged in.

    Raises:
        BadArgument: As ``engine.adopt``.
        Unsupported: As ``engine.adopt``.
    """
    request = engine.adopt(request)[0]
    low, high = (_probe(numbers, request) for numbers in (_LOW, _HIGH))
    words = _single_words(engine.pinned_args(low, request))
    constant = {*words} & {*_single_words(engine.pinned_args(high, request))}
    env, other = (engine.pinned_env(numbers, request) for numbers in (low, high))
    names = tuple(name for name in env if env[name] != other.get(name))
    return InPodFlags(
        flags=tuple(_flag(word) for word in words if word not in constant),
        literals=tuple(word for word in words if word in constant),
        words=tuple(word if word in constant else _reference(_flag(word)) for word in words),
        env_names=names,
        literal_env={name: value for name, value in env.items() if name not in names},
    )


def inpod_arguments(engine: Engine, pinned: Pinned, request: SizingRequest) -> InPodArguments:
    """The arguments that Plimsoll adds, split as the template of :func:`inpod_flags` splits them.

    Args:
        engine: The engine.
        pinned: The numbers.
        request: As for :func:`inpod_flags`.

    Raises:
        BadArgument: As ``engine.adopt``.
        Unsupported: As ``engine.adopt``; or a value that an env file cannot hold.
    """
    request = engine.adopt(request)[0]
    template = inpod_flags(engine, request)
    words = _single_words(engine.pinned_args(pinned, request))
    env = engine.pinned_env(pinned, request)
    flags = tuple(_flag(word) for word in words if _flag(word) in template.flags)
    names = tuple(name for name in env if name in template.env_names)
    values = {
        argument_key(_flag(word)): word.partition("=")[2] for word in words if _flag(word) in flags
    } | {env_key(name): env[name] for name in names}
    for key, value in values.items():
        if not value or not value.isprintable() or "'" in value:
            raise Unsupported(
                f"the value {value!r} of {key} cannot be written into an env file; "
                "use spec.sizing.mode Stamped",
                reason=MISMATCH,
                field=key,
                value=value,
            )
    return InPodArguments(
        flags=flags,
        literals=tuple(word for word in words if _flag(word) not in flags),
        env_names=names,
        literal_env={name: value for name, value in env.items() if name not in names},
        values=values,
    )


def check_template(
    engine: Engine,
    found: InPodArguments,
    request: SizingRequest,
    *,
    flags: Sequence[str],
    env_names: Sequence[str],
) -> None:
    """Refuse a template whose arguments are not exactly those that the numbers need.

    Args:
        engine: The engine.
        found: What the numbers need.
        request: As for :func:`inpod_flags`.
        flags: Flags for which the template expects a value.
        env_names: Environment variables for which the template expects a value.

    Raises:
        Unsupported: InPodFlagsMismatch, with both sets.
    """
    template = inpod_flags(engine, request)
    needed = {*found.flags, *found.literals, *_assignments(found.env_names, found.literal_env)}
    given = {*flags, *template.literals, *_assignments(env_names, template.literal_env)}
    if needed != given:
        raise Unsupported(
            f"the pod's template gives {engine.type} {_list(given)}, and for this model it needs "
            f"{_list(needed)}; use spec.sizing.mode Stamped, or an operator and a sizer image of one version",
            reason=MISMATCH,
            field="PLIMSOLL_ARGS",
            value=" ".join(sorted(needed ^ given)),
        )


def _probe(numbers: Pinned, request: SizingRequest) -> Pinned:
    # Only CUDA has graphs; whoever asks for a CPU build gets none, whatever cudaGraphs says.
    return replace(numbers, graph_batch=0) if is_cpu_build(request.engine_version) else numbers


def _single_words(args: Iterable[str]) -> list[str]:
    return [
        f"{_LARGEST_GRAPH}={arg.rpartition(',')[2].rpartition('=')[2]}"
        if _flag(arg) == _GRAPH_SIZES
        else arg
        for arg in args
    ]


def _flag(word: str) -> str:
    return word.partition("=")[0]


def _reference(flag: str) -> str:
    return f"{flag}=$({argument_key(flag)})"


def _assignments(names: Iterable[str], literal: Mapping[str, str]) -> list[str]:
    return [*names, *(f"{name}={value}" for name, value in literal.items())]


def _list(words: Iterable[str]) -> str:
    return " ".join(sorted(words)) or "nothing"
