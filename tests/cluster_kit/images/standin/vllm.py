"""vLLM 0.33: blocks of a pool that is pinned in bytes or measured, and one block that nobody gets."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from . import flags
from .device import GIB
from .model import element_bytes
from .program import Start, StartError, run
from .serving import TEXT, Load, Reply, Site, gauge, model_list, reply_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

PROG: Final = "vllm"
SERVE: Final = "vllm serve"
USAGE: Final = "vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ..."
DEFAULT_BLOCK: Final = 16
DEFAULT_SEQUENCES: Final = 256
ONE_BYTE: Final = ("fp8", "int8")
SWITCHES: Final = ("--enforce-eager", "--disable-log-stats")
AUTO_LENGTHS: Final = ("auto", "-1")


def length(text: str) -> int:
    """``--max-model-len``; 0 stands for auto."""
    return 0 if text in AUTO_LENGTHS else flags.number(text)


class VLLM:
    """See the module's first line."""

    prog = PROG

    def parse(self, argv: Sequence[str], version: str) -> argparse.Namespace:
        """See Engine."""
        words = [dashed(word) for word in argv]
        if not words or words[0] != "serve":
            flags.refuse(PROG, USAGE, f"argument subparser: invalid choice: {words[:1]}")
        parser = flags.build(
            SERVE,
            flags.release_flags("vllm", version),
            {
                "--model": (str, None),
                "--served-model-name": (str, None),
                "--host": (str, "0.0.0.0"),
                "--port": (int, 8000),
                "--tensor-parallel-size": (int, 1),
                "--pipeline-parallel-size": (int, 1),
                "--gpu-memory-utilization": (float, 0.92),
                "--kv-cache-memory-bytes": (flags.number, None),
                "--num-gpu-blocks-override": (int, None),
                "--max-model-len": (length, None),
                "--max-num-batched-tokens": (flags.number, None),
                "--max-num-seqs": (int, DEFAULT_SEQUENCES),
                "--block-size": (int, None),
                "--kv-cache-dtype": (str, "auto"),
                "--dtype": (str, "auto"),
            },
            SWITCHES,
            {"--tensor-parallel-size": ["-tp"], "--pipeline-parallel-size": ["-pp"]},
        )
        parser.add_argument("model_tag", nargs="?", default=None)
        args, rest = flags.parse(parser, words[1:])
        if rest:
            flags.refuse(PROG, USAGE, f"unrecognized arguments: {' '.join(rest)}")
        return args

    def model_path(self, args: argparse.Namespace) -> str:
        """See Engine."""
        return str(args.model_tag or args.model)

    def ranks(self, args: argparse.Namespace) -> int:
        """See Engine."""
        return int(args.tensor_parallel_size * args.pipeline_parallel_size)

    def start(self, start: Start) -> Site:
        """See Engine."""
        args, devices, switches = start.args, start.devices, start.switches
        context = context_of(start)
        devices.take(switches.context)
        first = devices.free
        requested = math.ceil(args.gpu_memory_utilization * devices.total)
        if first < requested:
            raise StartError(
                f"ValueError: Free memory on device cuda:0 ({gib(first)}/{gib(devices.total)} GiB) on startup is less "
                f"than desired GPU memory utilization ({args.gpu_memory_utilization}, {gib(requested)} GiB). Decrease "
                "GPU memory utilization or reduce GPU memory used by other processes."
            )
        weights = start.model.weights // self.ranks(args)
        seconds = start.load_weights(weights)
        say(
            "gpu_model_runner.py:4400",
            f"Model loading took {gib(weights)} GiB memory and {seconds:.6f} seconds",
        )
        pool = pool_of(start, first, requested - weights, context)
        start.take_pool(pool.blocks * pool.block_bytes)
        reported = pool.reported(switches.report_factor)
        say(
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {reported.tokens:,} tokens, Maximum concurrency for {reported.context:,} tokens per "
            f"request: {reported.concurrency:.2f}x",
        )
        if not args.enforce_eager:
            devices.take(switches.graphs)
        devices.take(switches.overhead)
        if not args.enforce_eager:
            say(
                "gpu_model_runner.py:5800",
                f"Graph capturing finished in 1 secs, took {gib(switches.graphs)} GiB",
            )
        say(
            "core.py:363",
            f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s",
        )
        return site_of(start, reported)

    def failed(self, text: str) -> int:
        """See Engine. The cause comes first, the front end's own words last."""
        for line in (
            f"EngineCore failed to start.\nTraceback (most recent call last):\n{text}"
        ).split("\n"):
            print(
                f"(EngineCore pid={os.getpid()}) ERROR {stamp()} [core.py:1374] {line}",
                file=sys.stderr,
            )
        print(
            f"(APIServer pid={os.getpid()}) RuntimeError: Engine core initialization failed. See root cause above. "
            "Failed core proc(s): {}",
            file=sys.stderr,
            flush=True,
        )
        return 1

    def serving(self, args: argparse.Namespace) -> None:
        """See Engine."""
        name = f"(APIServer pid={os.getpid()})"
        print(
            f"{name} INFO {stamp()} [api_server.py:1977] Starting vLLM server on http://{args.host}:{args.port}"
        )
        print(f"{name} INFO:     Application startup complete.", flush=True)


@dataclass(frozen=True, slots=True)
class Pool:
    """Blocks on each rank.

    Attributes:
        blocks: with the null block.
        block_tokens: tokens of a block.
        block_bytes: bytes of a block on one rank.
        context: tokens of the longest request.
    """

    blocks: int
    block_tokens: int
    block_bytes: int
    context: int

    @property
    def concurrency(self) -> float:
        """Requests of ``context`` tokens that it holds."""
        return self.blocks / math.ceil(self.context / self.block_tokens)

    @property
    def tokens(self) -> int:
        """As the log and the label count them."""
        return int(self.concurrency * self.context)

    def reported(self, factor: float) -> Pool:
        """The pool that the server claims to have."""
        return Pool(int(self.blocks * factor), self.block_tokens, self.block_bytes, self.context)


def dashed(word: str) -> str:
    """Underscores of a flag are dashes."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def stamp() -> str:
    """Time as in its log."""
    return time.strftime("%m-%d %H:%M:%S")


def say(where: str, text: str) -> None:
    """A line of its core's log."""
    print(f"(EngineCore pid={os.getpid()}) INFO {stamp()} [{where}] {text}", flush=True)


def gib(size: float) -> float:
    """GiB to two digits, as it prints them."""
    return round(size / GIB, 2)


def context_of(start: Start) -> int:
    """The longest request; of auto, the model's own for now. Raises StartError."""
    stated, own = start.args.max_model_len, start.model.context
    if stated and own and stated > own:
        raise StartError(
            f"ValueError: User-specified max_model_len ({stated}) is greater than the derived max_model_len "
            f"(max_position_embeddings={float(own)} or model_max_length=None in model's config.json)."
        )
    return int(stated or own or 2048)


def pool_of(start: Start, first: int, rest: int, context: int) -> Pool:
    """The pool, pinned or measured. Raises StartError: it cannot hold one request."""
    args, switches = start.args, start.switches
    element = element_bytes(args, ONE_BYTE)
    block = args.block_size or DEFAULT_BLOCK
    page = (
        start.model.cell(args.tensor_parallel_size, element) * block // args.pipeline_parallel_size
    )
    if args.kv_cache_memory_bytes is not None:
        size = args.kv_cache_memory_bytes
        say(
            "gpu_worker.py:492",
            f"Initial free memory {gib(first)} GiB, reserved {gib(size)} GiB memory for KV Cache as specified by "
            "kv_cache_memory_bytes config and skipped memory profiling. This does not respect the "
            "gpu_memory_utilization config. Only use kv_cache_memory_bytes config when you want manual control of KV "
            "cache memory size. If OOM'ed, check the difference of initial free memory between the current run and "
            "the previous run where kv_cache_memory_bytes is suggested and update it correspondingly.",
        )
    else:
        size = rest - switches.overhead - (0 if args.enforce_eager else switches.graphs)
        say("gpu_worker.py:540", f"Available KV cache memory: {gib(size)} GiB")
    if size <= 0:
        raise StartError(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        )
    blocks = size // page
    if args.num_gpu_blocks_override is not None:
        override = args.num_gpu_blocks_override
        say(
            "kv_cache_utils.py:1100",
            f"Overriding num_gpu_blocks={blocks} with num_gpu_blocks_override={override}",
        )
        blocks = override
    longest = (blocks - 1) * block
    if args.max_model_len == 0 and longest < context and longest > 0:
        say(
            "kv_cache_utils.py:1500",
            f"Auto-fit max_model_len: reduced from {context} to {longest} to fit in available KV cache memory "
            f"({gib(size)} GiB GPU)",
        )
        context = longest
    if math.ceil(context / block) + 1 > blocks:
        needed = gib((math.ceil(context / block) + 1) * page)
        raise StartError(
            f"ValueError: To serve at least one request with the model's max seq len ({context}), ({needed} GiB KV "
            f"cache is needed, which is larger than the available KV cache memory ({gib(size)} GiB). Based on the "
            f"available memory, the estimated maximum model length is {max(longest, 0)}. Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    return Pool(blocks, block, page, context)


def site_of(start: Start, pool: Pool) -> Site:
    """What it serves."""
    args = start.args
    name = args.served_model_name or args.model_tag or args.model
    load = Load(args.max_num_seqs)

    def metrics() -> Reply:
        if args.disable_log_stats:
            return 200, TEXT, "# HELP python_info Python platform information\n"
        labels = f'{{engine="0",model_name="{name}"}}'
        text = gauge("vllm:num_requests_running", load.running, labels)
        text += gauge("vllm:num_requests_waiting", load.waiting, labels)
        text += gauge("vllm:kv_cache_usage_perc", 0, labels)
        return 200, TEXT, text + gauge("vllm:cache_config_info", 1, cache_labels(args, pool))

    pages = {
        "/metrics": metrics,
        "/v1/models": lambda: model_list(name, pool.context),
        "/version": lambda: reply_json({"version": start.switches.version or "0.33.0"}),
        "/load": lambda: reply_json({"server_load": load.running}),
    }
    if start.environ.get("VLLM_SERVER_DEV_MODE") == "1":
        cache = {"num_gpu_blocks": pool.blocks, "block_size": pool.block_tokens}
        pages["/server_info"] = lambda: reply_json({"vllm_config": {"cache_config": cache}})
    return Site(
        model=name,
        longest=pool.context,
        load=load,
        switches=start.switches,
        health={"/health": 200, "/ping": 200},
        pages=pages,
        out_of_memory=lambda: prompt_failed(start),
    )


def cache_labels(args: argparse.Namespace, pool: Pool) -> str:
    """Labels of ``vllm:cache_config_info``."""
    size = args.kv_cache_memory_bytes
    labels = {
        "block_size": pool.block_tokens,
        "cache_dtype": args.kv_cache_dtype,
        "effective_attention_block_size": pool.block_tokens,
        "engine": 0,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "kv_cache_max_concurrency": pool.concurrency,
        "kv_cache_memory_bytes": size if size is not None else pool.blocks * pool.block_bytes,
        "kv_cache_size_tokens": pool.tokens,
        "num_gpu_blocks": pool.blocks,
        "num_gpu_blocks_override": args.num_gpu_blocks_override,
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def prompt_failed(start: Start) -> int:
    """A prompt that its memory cannot hold ends the engine, and the front end with it."""
    error = start.devices.out_of_memory()
    for line in ("EngineCore encountered a fatal error.", f"torch.OutOfMemoryError: {error}"):
        print(
            f"(EngineCore pid={os.getpid()}) ERROR {stamp()} [core.py:1400] {line}",
            file=sys.stderr,
            flush=True,
        )
    return 1


if __name__ == "__main__":
    sys.exit(run(VLLM(), sys.argv[1:], os.environ))
