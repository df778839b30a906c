"""The command line of ``plimsoll fit``, and what its words mean as a question and a device."""

from __future__ import annotations

import argparse
from typing import Final

from plimsoll import __version__
from plimsoll.cli.parsing import Parser
from plimsoll.core.catalogue import find_gpu
from plimsoll.core.device import Device
from plimsoll.core.engines import ENGINES, lookup
from plimsoll.core.errors import BadArgument
from plimsoll.core.records import replace
from plimsoll.core.request import MODES, SizingRequest
from plimsoll.core.units import parse_size

FORMATS: Final = ("text", "json", "yaml", "args")
_MAX_DIGITS: Final = 15


def parser() -> Parser:
    """The parser of the whole program."""
    program = Parser(
        prog="plimsoll",
        description="Finds the load line of a GPU: how many KV-cache tokens an LLM server can hold on it.",
    )
    program.add_argument("--version", action="version", version=f"plimsoll {__version__}")
    commands = program.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = commands.add_parser(
        "fit",
        help="compute the number for a model, a GPU and an engine",
        description="Computes the token budget. Sizes: bytes, or a number with KiB, MiB, GiB, KB, MB or GB.",
        epilog=_EXAMPLE,
        allow_abbrev=False,
    )
    _add_fit(fit)
    return program


def fit_parser() -> Parser:
    """The parser of ``fit`` by itself, for completion."""
    fit = Parser(prog="plimsoll fit")
    _add_fit(fit)
    return fit


_EXAMPLE: Final = (
    "example:\n  plimsoll fit /models/Llama-3.1-8B-Instruct --engine LightLLM "
    "--engine-version 1.2.0 --gpu H100-80GB"
)


def _add_fit(fit: Parser) -> None:
    fit.add_argument(
        "path", metavar="PATH", help="a model folder, a config.json, a .gguf, or - (a config.json)"
    )
    add_device(fit.add_argument_group("GPU (without it: the model part alone)"))
    _add_engine(fit.add_argument_group("engine"))
    fit.add_argument("-o", "--output", choices=FORMATS, default="text")


def add_device(device: argparse._ArgumentGroup) -> None:
    """The flags of a GPU, and of weights that are stated."""
    device.add_argument(
        "--gpu", metavar="NAME", help="a well-known GPU, for example H100-80GB; unknown: lists them"
    )
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
        help="an argument of the server, --engine-arg=--flag=value; repeat",
    )
    engine.add_argument(
        "--tensor", type=_count, default=1, metavar="N", help="tensor-parallel ranks"
    )
    engine.add_argument("--pipeline", type=_count, default=1, metavar="N", help="pipeline stages")
    engine.add_argument("--dtype", default="auto", help="compute dtype of the weights")
    engine.add_argument("--kv-cache-dtype", default="auto", help="dtype of the cache")
    engine.add_argument(
        "--context", type=_count, metavar="N", help="longest request; default the model's"
    )
    engine.add_argument(
        "--mode",
        default="Auto",
        metavar="|".join(MODES),
        help="Auto: what Plimsoll would write; Engine: what the engine would allocate by itself",
    )


def settings_of(options: argparse.Namespace) -> SizingRequest:
    """The question, with the engine's own spellings taken over.

    Raises:
        BadArgument: A value out of range, or the same setting twice with two values.
        Unsupported: An engine that is not in the table.
    """
    if not options.engine and (options.engine_arg or options.engine_version):
        raise BadArgument("--engine-arg and --engine-version need --engine", field="--engine")
    if options.mode not in MODES:
        raise BadArgument(
            f"--mode {options.mode[:32]!r} does not exist; use {' or '.join(MODES)}",
            field="--mode",
            value=options.mode,
        )
    if options.mode == "Engine" and not options.engine:
        raise BadArgument("--mode Engine needs --engine", field="--engine")
    request = SizingRequest(
        engine_type=options.engine,
        engine_version=options.engine_version,
        engine_args=tuple(options.engine_arg),
        tensor=options.tensor,
        pipeline=options.pipeline if options.pipeline > 1 else None,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        context_length=options.context,
        mode=options.mode if options.mode != "Auto" else None,
    ).validated()
    if not options.engine:
        return request
    absorbed = lookup(options.engine).absorb(request)
    if absorbed.mode == "Engine":
        # There the flags themselves are the question: the engine's law reads them again.
        absorbed = replace(absorbed, engine_args=request.engine_args)
    return absorbed.validated()


def device_of(
    options: argparse.Namespace, settings: SizingRequest
) -> tuple[Device | None, tuple[str, ...]]:
    """The GPU from its flags, the more specific winning, and what had to be assumed.

    Raises:
        BadArgument: More free memory than memory, or a GPU that is not in the catalogue.
    """
    name, total, nvml = options.gpu_name, options.gpu_total, options.nvml_total
    if options.gpu is not None:
        gpu = find_gpu(options.gpu)
        name, total, nvml = name or gpu.product, total or gpu.total, nvml or gpu.nvml_total
    sizes = (total, nvml, options.gpu_free, options.gpu_free_after_init)
    if not any(sizes):
        if name is not None:
            raise BadArgument("--gpu-name needs --gpu-total", field="--gpu-total")
        return None, ()
    if not settings.engine_type:
        raise BadArgument("GPU flags need --engine: the reserve is the engine's", field="--engine")
    known = next(size for size in sizes if size)
    notes = () if total else (f"--gpu-total is not given; {known} is taken for it",)
    free = options.gpu_free or known
    after_init = options.gpu_free_after_init
    if free > known or (after_init or 0) > free:
        raise BadArgument(
            f"free memory ({after_init or free}) is more than there is ({free if after_init else known})",
            field="--gpu-free-after-init" if after_init else "--gpu-free",
            value=after_init or free,
        )
    device = Device(
        product=name or "",
        total=known,
        nvml_total=nvml or known,
        free=free,
        free_after_init=after_init,
        count=settings.tensor * (settings.pipeline or 1),
    )
    return device, notes


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
