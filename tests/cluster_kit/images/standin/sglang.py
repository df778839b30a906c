"""SGLang 0.5: a share of what was free before the weights, and a number that only caps it."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from . import flags
from .device import GIB, OutOfMemoryError
from .model import element_bytes
from .program import Start, StartError, run
from .serving import TEXT, Load, Reply, Site, gauge, model_list, reply_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

PROG: Final = "launch_server.py"
DEFAULT_FRACTION: Final = 0.83
DEFAULT_REQUESTS: Final = 2048
SWITCHES: Final = (
    "--disable-cuda-graph",
    "--disable-decode-cuda-graph",
    "--disable-radix-cache",
    "--enable-metrics",
)
ONE_BYTE: Final = ("fp8", "mxfp8")
GRAPH_FAILED: Final = (
    "Possible solutions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
    "3. disable torch compile by not using --enable-torch-compile\n"
    "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)"
)


class SGLang:
    """See the module's first line."""

    prog = PROG

    def parse(self, argv: Sequence[str], version: str) -> argparse.Namespace:
        """See Engine."""
        names = flags.release_flags("sglang", version)
        parser = flags.build(
            PROG,
            names,
            {
                "--model-path": (str, None),
                "--served-model-name": (str, None),
                "--host": (str, "127.0.0.1"),
                "--port": (int, 30000),
                "--tp-size": (int, 1),
                "--pp-size": (int, 1),
                "--mem-fraction-static": (float, None),
                "--max-total-tokens": (flags.number, None),
                "--max-running-requests": (int, DEFAULT_REQUESTS),
                "--chunked-prefill-size": (int, 8192),
                "--max-prefill-tokens": (flags.number, 16384),
                "--context-length": (flags.number, None),
                "--page-size": (int, 1),
                "--kv-cache-dtype": (str, "auto"),
                "--dtype": (str, "auto"),
            },
            SWITCHES,
            {
                "--model-path": ["--model"],
                "--tp-size": ["--tensor-parallel-size"],
                "--pp-size": ["--pipeline-parallel-size"],
            },
        )
        args, rest = flags.parse(parser, argv)
        message = f"unrecognized arguments: {' '.join(rest)}" if rest else ""
        if not args.model_path:
            message = "the following arguments are required: --model-path/--model"
        if message:
            flags.refuse(PROG, f"{PROG} [-h] --model-path MODEL_PATH ...", message)
        return args

    def model_path(self, args: argparse.Namespace) -> str:
        """See Engine."""
        return str(args.model_path)

    def ranks(self, args: argparse.Namespace) -> int:
        """See Engine."""
        return int(args.tp_size * args.pp_size)

    def start(self, start: Start) -> Site:
        """See Engine."""
        args, devices, switches = start.args, start.devices, start.switches
        context = context_of(start)
        devices.take(switches.context)
        say("Init torch distributed ends. elapsed=0.10 s, mem usage=0.10 GB")
        before = devices.free
        say(f"Load weight begin. avail mem={gb(before)} GB")
        weights = start.model.weights // self.ranks(args)
        seconds = start.load_weights(weights)
        say(
            f"Load weight end. elapsed={seconds:.2f} s, type={start.model.architecture}, "
            f"avail mem={gb(devices.free)} GB, mem usage={gb(weights)} GB."
        )
        tokens = pool_of(start, before)
        say(f"Memory pool end. avail mem={gb(devices.free)} GB")
        capture(start)
        reported = int(tokens * switches.report_factor)
        say(
            f"max_total_num_tokens={reported}, chunked_prefill_size={args.chunked_prefill_size}, "
            f"max_prefill_tokens={args.max_prefill_tokens}, max_running_requests={args.max_running_requests}, "
            f"context_len={context}, available_gpu_mem={gb(devices.free)} GB"
        )
        return site_of(start, reported, context)

    def failed(self, text: str) -> int:
        """See Engine. The scheduler signals the server, which kills itself and, where that has no effect, leaves."""
        say(f"Scheduler hit an exception: Traceback (most recent call last):\n{text}\n")
        say("Received sigquit from a child process. It usually means the child failed.")
        if "STANDIN_FAILURE_EXIT" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def serving(self, args: argparse.Namespace) -> None:
        """See Engine."""
        say(f"INFO:     Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)")
        say("The server is fired up and ready to roll!")


def say(text: str) -> None:
    """A line of its log, on standard error."""
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def gb(size: float) -> str:
    """GiB with two digits; it calls them GB."""
    return f"{size / GIB:.2f}"


def context_of(start: Start) -> int:
    """The longest request. Raises StartError."""
    stated, own = start.args.context_length, start.model.context
    if stated and own and stated > own:
        raise StartError(
            f"ValueError: User-specified context_length ({stated}) is greater than the derived context_length ({own}). "
            "This may lead to incorrect model outputs or CUDA errors. To allow overriding this maximum, set the env "
            "var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        )
    return int(stated or own or 4096)


def pool_of(start: Start, before: int) -> int:
    """Take the pool and return its tokens. ``before`` is what was free before the weights. Raises StartError."""
    args, devices = start.args, start.devices
    fraction = DEFAULT_FRACTION if args.mem_fraction_static is None else args.mem_fraction_static
    after = devices.free
    rest = after - before * (1 - fraction)
    if rest <= 0:
        least = 1 - after / before
        raise StartError(
            f"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction}. "
            f"Raise --mem-fraction-static above {math.ceil(least * 1000) / 1000:.3f} (minimum viable = 1 - "
            f"available/pre = {least:.4f}). If using speculative decoding, draft weights are now counted."
        )
    element = element_bytes(args, ONE_BYTE)
    cell = start.model.cell(args.tp_size, element) // args.pp_size
    tokens = int(rest / cell)
    if args.max_total_tokens is not None:
        if args.max_total_tokens > tokens:
            say(
                f"max_total_tokens={args.max_total_tokens} is larger than the profiled value {tokens}. "
                "Use the profiled value instead."
            )
        tokens = min(tokens, args.max_total_tokens)
    tokens -= tokens % int(args.page_size)
    if tokens <= 0:
        raise StartError(
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
            f"Current value: mem_fraction_static={fraction}"
        )
    args.mem_fraction_static = fraction  # what /server_info says
    start.take_pool((tokens + args.page_size) * cell)
    size = tokens * cell
    sizes = (
        f"KV size: {gb(size)} GB"
        if start.model.latent
        else f"K size: {gb(size / 2)} GB, V size: {gb(size / 2)} GB"
    )
    say(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, {sizes}")
    return tokens


def capture(start: Start) -> None:
    """Capture graphs, or run the first prefill where there are none. Raises StartError or OutOfMemoryError."""
    args, devices, switches = start.args, start.devices, start.switches
    if args.disable_cuda_graph or args.disable_decode_cuda_graph:
        devices.take(switches.overhead)
        return
    say(f"Capture target decode CUDA graph begin. backend=full, avail mem={gb(devices.free)} GB")
    try:
        devices.take(switches.graphs + switches.overhead)
    except OutOfMemoryError as error:
        raise StartError(f"Exception: Capture cuda graph failed: {error}\n{GRAPH_FAILED}") from None
    say(
        f"Capture target decode CUDA graph end. elapsed=0.10 s, mem usage={gb(switches.graphs)} GB, "
        f"avail mem={gb(devices.free)} GB."
    )


def site_of(start: Start, tokens: int, context: int) -> Site:
    """What it serves."""
    args = start.args
    name = args.served_model_name or args.model_path
    load = Load(args.max_running_requests)
    longest = min(context, tokens) - 1

    def metrics() -> Reply:
        labels = f'{{engine_type="unified",model_name="{name}",pp_rank="0",tp_rank="0"}}'
        rows = {
            "sglang:num_running_reqs": load.running,
            "sglang:num_queue_reqs": load.waiting,
            "sglang:num_used_tokens": 0,
            "sglang:token_usage": 0,
            "sglang:max_total_num_tokens": tokens,
        }
        return 200, TEXT, "".join(gauge(key, value, labels) for key, value in rows.items())

    info = {
        **vars(args),
        "max_total_num_tokens": tokens,
        "version": start.switches.version or "0.5.23",
    }
    pages = {
        "/server_info": lambda: reply_json(info),
        "/get_server_info": lambda: reply_json(info),
        "/v1/models": lambda: model_list(name, context),
    }
    if args.enable_metrics:
        pages["/metrics"] = metrics
    return Site(
        model=name,
        longest=longest,
        load=load,
        switches=start.switches,
        health={"/health": 200, "/health_generate": 200, "/ready": 200},
        pages=pages,
        out_of_memory=lambda: prompt_failed(start),
    )


def prompt_failed(start: Start) -> int:
    """A prompt that its memory cannot hold ends the server."""
    code = SGLang().failed(f"torch.OutOfMemoryError: {start.devices.out_of_memory()}")
    return code if start.switches.failure_exit is None else start.switches.failure_exit


if __name__ == "__main__":
    sys.exit(run(SGLang(), sys.argv[1:], os.environ))
