"""``plimsoll fit PATH``: the arithmetic of the cluster on any machine."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from plimsoll import __version__
from plimsoll.checkpoint import Checkpoint, fit_checkpoint, parse_config, read_checkpoint
from plimsoll.checkpoint.reader import MAX_CONFIG
from plimsoll.cli import render
from plimsoll.core.budget import Device
from plimsoll.core.engines import ENGINES, lookup
from plimsoll.core.errors import BadArgument, Unsupported
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMATS: Final = ("text", "json", "yaml", "args")
_STDIN: Final = "-"
_NAMED: Final = re.compile(r"argument (?:-\w/)?(--[\w-]+)")
_MAX_DIGITS: Final = 15


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print a usage and exit: there is one way to refuse."""

    def error(self, message: str) -> NoReturn:
        named = _NAMED.match(message)  # argparse's own: "argument -o/--output: invalid choice"
        field = named[1] if named else "arguments"
        raise BadArgument(f"{message}; see {self.prog} --help", field=field)


def run(words: Sequence[str]) -> int:
    """Parse, compute, print; return the exit code.

    Raises:
        PlimsollError: For everything that ends in exit code 2 or 3.
    """
    options = _parser().parse_args(words)
    settings = _settings(options)
    device, notes = _device(options)
    if device is not None and not settings.engine_type:
        raise BadArgument("GPU flags need --engine: the reserve is the engine's", field="--engine")
    answer = fit_checkpoint(
        _checkpoint(options.path), device, settings, weights=options.weights or None
    )
    answer = replace(answer, warnings=(*answer.warnings, *notes))
    print(render.render(answer, options.output), end="")
    if answer.error is not None:
        print(render.error_line(answer.error), file=sys.stderr)
    return answer.exit_code


def wanted_format(words: Sequence[str]) -> str:
    """The format asked for, as far as it can be told when the arguments do not parse."""
    scout = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    scout.add_argument("-o", "--output", default="text")
    try:
        return str(scout.parse_known_args(list(words))[0].output)
    except argparse.ArgumentError:
        return "text"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="plimsoll",
        description="Finds the load line of a GPU: how many KV-cache tokens an LLM server can hold on it.",
    )
    parser.add_argument("--version", action="version", version=f"plimsoll {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = commands.add_parser(
        "fit",
        help="compute the number for a model, a GPU and an engine",
        description="Computes the token budget. Sizes: bytes, or a number with KiB, MiB, GiB, KB, MB or GB.",
        allow_abbrev=False,
    )
    fit.add_argument(
        "path", metavar="PATH", help="a model folder, a config.json, a .gguf, or - (a config.json)"
    )
    _add_device(fit.add_argument_group("GPU (without it: the model part alone)"))
    _add_engine(fit.add_argument_group("engine"))
    fit.add_argument("-o", "--output", choices=FORMATS, default="text")
    return parser


def _add_device(device: argparse._ArgumentGroup) -> None:
    device.add_argument("--gpu", help=argparse.SUPPRESS)
    device.add_argument("--gpu-name", metavar="TEXT", help="name as NVML gives it")
    device.add_argument("--gpu-total", type=_size, metavar="T", help="memory as CUDA sees it")
    device.add_argument("--nvml-total", type=_size, metavar="N", help="memory as NVML reports it")
    device.add_argument(
        "--gpu-free", type=_size, metavar="F0", help="free before any process; default T"
    )
    device.add_argument(
        "--gpu-free-after-init", type=_size, metavar="F1", help="free after CUDA context and NCCL"
    )
    device.add_argument(
        "--weights",
        type=_size,
        action="append",
        metavar="SIZE",
        help="bytes per rank; repeat, one for each rank",
    )


def _add_engine(engine: argparse._ArgumentGroup) -> None:
    engine.add_argument("--engine", default="", metavar="NAME", help=" | ".join(sorted(ENGINES)))
    engine.add_argument(
        "--engine-version", metavar="VERSION", help="unknown or absent: the widest reserve"
    )
    engine.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="an argument of the server; repeat",
    )
    engine.add_argument(
        "--tensor", type=_count, default=1, metavar="N", help="tensor-parallel ranks"
    )
    engine.add_argument(
        "--pipeline", type=_count, default=1, metavar="N", help="pipeline stages (1 only, so far)"
    )
    engine.add_argument("--dtype", default="auto", help="compute dtype of the weights")
    engine.add_argument("--kv-cache-dtype", default="auto", help="dtype of the cache")
    engine.add_argument(
        "--context", type=_count, metavar="N", help="longest request; default the model's"
    )
    engine.add_argument("--mode", default="Auto", help="Auto: what Plimsoll would write")


def _settings(options: argparse.Namespace) -> SizingRequest:
    """The question, with the engine's own spellings taken over."""
    if options.mode != "Auto":
        raise BadArgument(
            f"--mode {options.mode} does not exist yet; Auto is the only mode",
            field="--mode",
            value=options.mode,
        )
    if options.pipeline != 1:
        raise Unsupported(
            f"--pipeline {options.pipeline} cannot be sized yet; use 1",
            reason="UnsupportedParallelism",
            field="--pipeline",
            value=options.pipeline,
        )
    if not options.engine and (options.engine_arg or options.engine_version):
        raise BadArgument("--engine-arg and --engine-version need --engine", field="--engine")
    request = SizingRequest(
        engine_type=options.engine,
        engine_version=options.engine_version,
        engine_args=tuple(options.engine_arg),
        tensor=options.tensor,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        context_length=options.context,
    ).validated()
    return lookup(options.engine).absorb(request) if options.engine else request


def _device(options: argparse.Namespace) -> tuple[Device | None, tuple[str, ...]]:
    """The GPU from its flags, the more specific winning, and what had to be assumed."""
    if options.gpu is not None:
        raise BadArgument(
            "--gpu NAME does not exist yet; give --gpu-name, --gpu-total and --nvml-total",
            field="--gpu",
        )
    sizes = (options.gpu_total, options.nvml_total, options.gpu_free, options.gpu_free_after_init)
    if not any(sizes):
        if options.gpu_name is not None:
            raise BadArgument("--gpu-name needs --gpu-total", field="--gpu-total")
        return None, ()
    total = next(size for size in sizes if size)
    notes = () if options.gpu_total else (f"--gpu-total is not given; {total} is taken for it",)
    free = options.gpu_free or total
    after_init = options.gpu_free_after_init
    if free > total or (after_init or 0) > free:
        raise BadArgument(
            f"free memory ({after_init or free}) is more than there is ({free if after_init else total})",
            field="--gpu-free-after-init" if after_init else "--gpu-free",
            value=after_init or free,
        )
    device = Device(
        product=options.gpu_name or "",
        total=total,
        nvml_total=options.nvml_total or total,
        free=free,
        free_after_init=after_init,
        count=options.tensor,
    )
    return device, notes


def _checkpoint(path: str) -> Checkpoint:
    if path != _STDIN:
        return read_checkpoint(Path(path), require_weights=False)
    data = sys.stdin.buffer.read(MAX_CONFIG + 1)
    return Checkpoint(
        parse_config(data, "-"), None, sha256(data).hexdigest(), "config", Path(_STDIN)
    )


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if size == 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return size


def _count(text: str) -> int:
    # Not int(): it takes " 7 ", "1_000" and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text[:32]!r} is not a whole number above 0")
    return int(text)
