#!/usr/bin/env python3
"""llama-server's command line on top of llama.cpp's real HTTP server from the wheel ``xllamacpp``.

The demo and the cluster tests need a real engine and there is no registry to pull one from. Everything that answers
over HTTP is llama.cpp's own; this file only translates flags, and refuses those it does not know as llama-server does
(exit 1, ``error: invalid argument``), so that a flag which would have no effect is never accepted in silence.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STOP_SECONDS = 3  # then the server is killed: nothing that it holds outlives a request
POLL_SECONDS = 0.1
ENV_PREFIX = "LLAMA_ARG_"


class RefusedError(ValueError):
    """The command line names something that this server cannot honour."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One parameter of llama.cpp and how the flag's text becomes its value (None: a switch with ``value``)."""

    attribute: str
    convert: Callable[[str], object] | None = None
    value: object = None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RefusedError(f"{text!r} is not a whole number") from None


def _model(text: str) -> str:
    if not Path(text).is_file():
        raise RefusedError(f"no such file: {text}")
    return text


def _gpu_layers(text: str) -> int:
    return {"all": 999, "auto": -1}.get(text) or _whole(text)


def _cache_type(text: str) -> str:
    if text not in CACHE_TYPES:
        raise RefusedError(f"unsupported cache type {text!r}; use one of {', '.join(CACHE_TYPES)}")
    return text


def _flash_attention(text: str) -> int:
    try:
        return {"auto": -1, "off": 0, "on": 1}[text]
    except KeyError:
        raise RefusedError(f"{text!r} is not on, off or auto") from None


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

SETTINGS: Mapping[tuple[str, ...], Setting] = {
    ("-m", "--model"): Setting("model.path", _model),
    ("-a", "--alias"): Setting("model_alias", lambda text: set(text.split(","))),
    ("--host",): Setting("hostnames", lambda text: text.split(",")),
    ("--port",): Setting("port", _whole),
    ("-c", "--ctx-size"): Setting("n_ctx", _whole),
    ("-np", "--parallel"): Setting("n_parallel", _whole),
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): Setting("n_gpu_layers", _gpu_layers),
    ("-b", "--batch-size"): Setting("n_batch", _whole),
    ("-ub", "--ubatch-size"): Setting("n_ubatch", _whole),
    ("-ctk", "--cache-type-k"): Setting("cache_type_k", _cache_type),
    ("-ctv", "--cache-type-v"): Setting("cache_type_v", _cache_type),
    ("-fa", "--flash-attn"): Setting("flash_attn_type", _flash_attention),
    ("-t", "--threads"): Setting("cpuparams.n_threads", _whole),
    ("-tb", "--threads-batch"): Setting("cpuparams_batch.n_threads", _whole),
    ("--threads-http",): Setting("n_threads_http", _whole),
    ("-n", "--n-predict"): Setting("n_predict", _whole),
    ("-cram", "--cache-ram"): Setting("cache_ram_mib", _whole),
    ("--metrics",): Setting("endpoint_metrics", value=True),
    ("--slots",): Setting("endpoint_slots", value=True),
    ("--no-slots",): Setting("endpoint_slots", value=False),
    ("--no-warmup",): Setting("warmup", value=False),
    ("--no-webui", "--no-ui"): Setting("ui", value=False),
}
FLAGS = {name: setting for names, setting in SETTINGS.items() for name in names}


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, object]:
    """Return llama.cpp's parameters by attribute path; a later flag wins, as in llama-server.

    Raises:
        RefusedError: an unknown flag, a missing or malformed value, no model, or a ``LLAMA_ARG_*`` variable.
    """
    names = sorted(name for name in environ if name.startswith(ENV_PREFIX))
    if names:
        raise RefusedError(f"{names[0]} is not read here; give the flag itself")
    values: dict[str, object] = {}
    words = iter(argv)
    for word in words:
        flag, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        setting = FLAGS.get(name)
        if setting is None:
            raise RefusedError(f"invalid argument: {word}")
        if equals:
            # llama-server itself takes the value as a word of its own and knows no "=".
            _say(f"warning: llama-server itself refuses {word}; write {name} {text}")
        if setting.convert is None:
            values[setting.attribute] = setting.value
            continue
        given = text if equals else next(words, None)
        if given is None:
            raise RefusedError(f"{name}: expected value for argument")
        try:
            values[setting.attribute] = setting.convert(given)
        except RefusedError as error:
            raise RefusedError(f"{name}: {error}") from None
    if "model.path" not in values:
        raise RefusedError("--model is required")
    return values


def apply(values: Mapping[str, object], params: Any, xllamacpp: Any) -> None:
    """Write parsed values into ``CommonParams``."""
    for path, value in values.items():
        *parents, attribute = path.split(".")
        owner = params
        for parent in parents:
            owner = getattr(owner, parent)
        if attribute in {"cache_type_k", "cache_type_v"}:
            value = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{str(value).upper()}")  # noqa: PLW2901
        elif attribute == "flash_attn_type":
            value = xllamacpp.llama_flash_attn_type(value)  # noqa: PLW2901
        setattr(owner, attribute, value)


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM (exit 0); 1 for a refused command line, otherwise what llama.cpp ended with."""
    _say(f"NVIDIA_VISIBLE_DEVICES={os.environ.get('NVIDIA_VISIBLE_DEVICES', '(unset)')}")
    try:
        values = parse(argv, os.environ)
    except RefusedError as error:
        _say(f"error: {error}")
        return 1
    # The wheel's constructor holds the interpreter until the model is loaded, and as process 1 of a container this
    # one would ignore SIGTERM meanwhile. So a child loads and serves, and dies at once when told to.
    child = os.fork()
    if child == 0:
        os._exit(_serve(values))
    return _supervise(child)


def _serve(values: Mapping[str, object]) -> int:
    """Load the model and serve until SIGTERM."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    import xllamacpp  # noqa: PLC0415  # only in the child: importing starts threads, and forking those is unsafe

    params = xllamacpp.CommonParams()
    apply(values, params, xllamacpp)
    server = xllamacpp.Server(params)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the parent too
    while not stopping:
        time.sleep(POLL_SECONDS)
    del server
    return 0


def _supervise(child: int) -> int:
    """Pass SIGTERM and SIGINT on, kill what has not stopped in time, and return the exit status."""
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        os.kill(child, signal.SIGTERM)
        signal.alarm(STOP_SECONDS)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    code = os.waitstatus_to_exitcode(status)
    if stopped:
        return 0
    if code < 0:
        _say(f"error: llama.cpp ended by {signal.Signals(-code).name}")
        return 128 - code
    return code


def _say(text: str) -> None:
    print(f"llama-server: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
