"""The server container of an InPod template: its numbers come from the sizer beside it.

The init container writes an env file into the shared emptyDir; the server's arguments name the
variables of it. Two transports bring the values there:

* ``fileKeyRef`` (kubelets from 1.35 on): each variable is an ``env`` entry that the kubelet fills
  from the file, and ``--flag=$(VAR)`` is expanded by the kubelet;
* ``wrapper`` (any kubelet): a shell reads the file and starts the engine with the values.

Which flags there are, before any number is known, is :func:`plimsoll.core.engines.inpod.inpod_flags`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from plimsoll.controller.crd import sizing_request
from plimsoll.controller.objects import names
from plimsoll.controller.objects.context import FILE_KEY_REF, WRAPPER
from plimsoll.controller.objects.pod import literal
from plimsoll.core.engines import lookup
from plimsoll.core.engines.inpod import InPodFlags, argument_key, env_key, inpod_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plimsoll.controller.crd.types import InferenceServer

# The first Kubernetes minor versions whose kubelets fill in fileKeyRef, and know the action
# RestartAllContainers, without a feature gate being set.
FILE_KEY_REF_SINCE: Final = (1, 35)
RESTART_ALL_SINCE: Final = (1, 36)

ENV_FILE: Final = "env"
_REFERENCE: Final = re.compile(r"\$\(([A-Z0-9_a-z]+)\)")
_SHELL: Final = ("/bin/sh", "-c")


def flags_of(server: InferenceServer) -> InPodFlags:
    """The arguments that Plimsoll adds to this server's engine, before any number is known."""
    return inpod_flags(lookup(server.spec.engine.type), sizing_request(server))


def sizer_env(server: InferenceServer) -> list[dict[str, str]]:
    """What the init container must write; it refuses when the model needs other flags."""
    found = flags_of(server)
    lists = {"PLIMSOLL_ARGS": found.flags, "PLIMSOLL_ENVS": found.env_names}
    return [{"name": key, "value": " ".join(words)} for key, words in lists.items() if words]


def env(server: InferenceServer, transport: str) -> list[dict[str, Any]]:
    """The engine's environment beside the user's own entries."""
    found = flags_of(server)
    constant = [{"name": key, "value": literal(v)} for key, v in found.literal_env.items()]
    if transport == WRAPPER:
        return constant  # the shell exports the rest
    keys = {argument_key(flag): argument_key(flag) for flag in found.flags}
    keys |= {name: env_key(name) for name in found.env_names}
    return [*constant, *({"name": n, "valueFrom": _file_key(key)} for n, key in keys.items())]


def _file_key(key: str) -> dict[str, Any]:
    return {"fileKeyRef": {"volumeName": names.WORK_VOLUME, "path": ENV_FILE, "key": key}}


def entry_point(
    server: InferenceServer, transport: str, command: Sequence[str], words: Sequence[str]
) -> Mapping[str, list[str]]:
    """Command and arguments of the server container.

    Args:
        server: the resource.
        transport: ``fileKeyRef`` or ``wrapper``.
        command: what starts the engine, as given; may be empty (the image's own) only for
            ``fileKeyRef``.
        words: the arguments that hold no number.
    """
    pinned = lookup(server.spec.engine.type).argv(flags_of(server).words)
    if transport == FILE_KEY_REF:
        plain = [literal(word) for word in words]
        return {"command": [literal(word) for word in command], "args": [*plain, *_kept(pinned)]}
    start = [literal(word) for word in (*command, *words)]
    return {"command": [*_SHELL, literal(_script(server, pinned)), "plimsoll"], "args": start}


def _kept(pinned: Sequence[str]) -> list[str]:
    """Our own words: constant ones are literal, references are for the kubelet to expand."""
    return [word if _REFERENCE.search(word) else literal(word) for word in pinned]


def _script(server: InferenceServer, pinned: Sequence[str]) -> str:
    """Reads the file, and becomes the engine: signals and the exit code are the engine's own."""
    file = posixpath.join(names.WORK_PATH, ENV_FILE)
    exports = [f'export {name}="${{{env_key(name)}}}"' for name in flags_of(server).env_names]
    values = " ".join(_quoted(word) for word in pinned)
    return "; ".join([f"set -eu; . {file}", *exports, f'exec "$@" {values}'.rstrip()])


def _quoted(word: str) -> str:
    """A word for the shell: its references are expanded, everything else is literal."""
    parts = _REFERENCE.split(word)  # text, name, text, name, ..., text
    return "".join(
        f'"${{{part}}}"' if index % 2 else shlex.quote(part) if part else ""
        for index, part in enumerate(parts)
    )
