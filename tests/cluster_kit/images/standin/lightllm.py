"""LightLLM 1.2: one number of tokens that is taken at its word, and one checking prefill."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final

from . import flags
from .device import GIB, OutOfMemoryError
from .program import Start, StartError, run, traceback_text
from .serving import TEXT, Load, Reply, Site, gauge, model_list, reply_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

PROG: Final = "api_server.py"
MARGIN: Final = 8  # the router asks for max_req_total_len + 8 tokens
FRONT_END: Final = 36  # its front end limits a request to the pool less these
DEFAULT_CONTEXT: Final = 16384
#: Share of a two-byte cache.
KV_TYPES: Final = {
    "None": 1.0,
    "int8kv": 0.625,
    "int4kv": 0.375,
    "fp8kv_sph": 0.5,
    "fp8kv_spt": 0.5,
    "fp8kv_dsa": 0.5,
}
_SWITCHES: Final = (
    "use_config_server_to_init_nccl trust_remote_code disable_log_stats disable_aggressive_schedule "
    "use_dynamic_prompt_cache disable_dynamic_prompt_cache token_healing_mode first_token_constraint_mode "
    "disable_custom_allreduce enable_custom_allreduce enable_fa3 use_tgi_api health_monitor enable_monitor_auth "
    "disable_vision disable_audio disable_cudagraph enable_prefill_cudagraph disable_chunked_prefill "
    "enable_multimodal enable_multimodal_audio return_all_prompt_logprobs enable_tpsp_mix_mode enable_mps "
    "enable_prefill_microbatch_overlap enable_decode_microbatch_overlap enable_flashinfer_prefill "
    "enable_flashinfer_decode enable_custom_allgather auto_update_redundancy_expert use_reward_model diverse_mode"
)
_VALUED: Final = (
    "httpserver_workers zmq_mode pd_master_ip pd_master_port pd_decode_rpyc_port config_server_host "
    "config_server_port tokenizer_mode load_way eos_id tool_call_parser reasoning_parser nccl_host nccl_port "
    "multinode_httpmanager_port multinode_router_gloo_port log_stats_interval router_token_ratio "
    "router_max_new_token_len router_max_wait_tokens dp_prefill_wait_step output_constraint_mode cache_capacity "
    "cache_reserved_ratio long_truncation_mode metric_gateway job_name grouping_key push_interval visual_nccl_ports "
    "sampling_backend chat_template llm_prefill_att_backend llm_decode_att_backend run_mode mode quant_type quant_cfg "
    "kv_quant_calibration_config_path vit_quant_type vit_quant_cfg performance_mode data_type graph_split_batch_size "
    "graph_grow_step_size graph_max_len_in_batch visual_infer_batch_size visual_gpu_ids visual_tp visual_dp "
    "linear_att_cache_size linear_att_ssm_data_type linear_att_hash_page_size linear_att_page_block_num "
    "penalty_counter_mode ep_redundancy_expert_config_path llm_kv_quant_group_size page_size dp nnodes node_rank "
    "mtp_mode mtp_step mtp_draft_model_dir"
)


class LightLLM:
    """See the module's first line."""

    prog = PROG

    def parse(self, argv: Sequence[str], version: str) -> argparse.Namespace:
        """See Engine."""
        del version
        parser = flags.build(
            PROG,
            [f"--{name}" for name in _VALUED.split()],
            {
                "--model_dir": (str, None),
                "--model_name": (str, "default_model_name"),
                "--host": (str, "127.0.0.1"),
                "--port": (int, 8000),
                "--tp": (int, 1),
                "--max_total_token_num": (int, None),
                "--mem_fraction": (float, 0.8),
                "--batch_max_tokens": (int, None),
                "--chunked_prefill_size": (int, None),
                "--running_max_req_size": (int, 256),
                "--max_req_total_len": (int, None),
                "--graph_max_batch_size": (int, 256),
                "--llm_kv_type": (str, "None"),
            },
            [f"--{name}" for name in _SWITCHES.split()],
        )
        args, rest = flags.parse(parser, argv)
        message = f"unrecognized arguments: {' '.join(rest)}" if rest else ""
        if args.llm_kv_type not in KV_TYPES:
            choices = ", ".join(map(repr, KV_TYPES))
            message = f"argument --llm_kv_type: invalid choice: {args.llm_kv_type!r} (choose from {choices})"
        if not args.model_dir:
            message = "the following arguments are required: --model_dir"
        if message:
            flags.refuse(PROG, f"{PROG} [-h] [--run_mode ...]", message)
        return args

    def model_path(self, args: argparse.Namespace) -> str:
        """See Engine."""
        return str(args.model_dir)

    def ranks(self, args: argparse.Namespace) -> int:
        """See Engine."""
        return int(args.tp)

    def start(self, start: Start) -> Site:
        """See Engine."""
        args, devices, switches = start.args, start.devices, start.switches
        args.batch_max_tokens = args.batch_max_tokens or 16384
        args.max_req_total_len = args.max_req_total_len or start.model.context or DEFAULT_CONTEXT
        devices.take(switches.context)
        start.load_weights(start.model.weights // args.tp)
        say(
            "mem_manager.py:46",
            "mem_manager class: <class 'lightllm.common.kv_cache_mem_manager.MemoryManager'>",
        )
        cell = int(start.model.cell(args.tp) * KV_TYPES[args.llm_kv_type])
        tokens = args.max_total_token_num or profile(start, cell)
        start.take_pool((tokens + 1) * cell)
        check(tokens, args)
        try:
            if not args.disable_cudagraph:
                devices.take(switches.graphs)
                say(
                    "cuda_graph.py:67",
                    f"cuda graph batch_sizes: {graph_sizes(args.graph_max_batch_size)}",
                )
            devices.take(switches.overhead)
        except OutOfMemoryError as error:
            raise StartError(infer_failed(str(error))) from None
        say("basemodel.py:1010", f"check max_len {args.batch_max_tokens} infer ok")
        reported = int(tokens * switches.report_factor)
        say("manager.py:193", f"set shm_max_total_token_num value to {reported}")
        return site_of(start, reported)

    def failed(self, text: str) -> int:
        """See Engine. The process of the model fails, and the front end ends with it."""
        where = "/lightllm/lightllm/server/router/model_infer/model_rpc.py"
        print(traceback_text(text, where), file=sys.stderr, flush=True)
        say("start_utils.py:53", "init func start_router_process : init error, exit", "ERROR")
        return 1

    def serving(self, args: argparse.Namespace) -> None:
        """See Engine."""
        say("hypercorn.py:1", f"Running on http://{args.host}:{args.port} (CTRL + C to quit)")


def say(where: str, text: str, level: str = "INFO") -> None:
    """A line of its log, on standard output."""
    print(f"{level} {time.strftime('%m-%d %H:%M:%S')} [{where}] {text}", flush=True)


def profile(start: Start, cell: int) -> int:
    """The tokens that its fraction leaves. Free is read before graphs and prefill, all of which live in the rest."""
    fraction, devices = start.args.mem_fraction, start.devices
    available = (devices.free - devices.total * (1 - fraction)) / GIB
    tokens = int(available * GIB / cell)
    say(
        "mem_manager.py:89",
        f"{available} GB space is available after load the model weight\n"
        f"{cell / (1 << 20)} MB is the size of one token kv cache\n"
        f"{tokens} is the profiled max_total_token_num with the mem_fraction {fraction}\n",
    )
    return max(tokens, 0)


def check(tokens: int, args: argparse.Namespace) -> None:
    """Its ``_check_mem_size``. Raises StartError."""
    if tokens <= args.batch_max_tokens:
        raise StartError(
            "AssertionError: max_total_token_num must be greater than batch_max_tokens"
        )
    longest = args.max_req_total_len + MARGIN
    if longest > tokens:
        raise StartError(
            "AssertionError: max_total_token_num must be >= max_seq_length, got "
            f"max_total_token_num={tokens}, max_seq_length={longest}. "
            f"Try set --max_req_total_len a smaller value < {tokens}."
        )


def infer_failed(error: str) -> str:
    """The text of a checking prefill that ran out of memory."""
    say("basemodel.py:1013", error, "ERROR")
    advice = (
        "check max len infer fail, you can try:"
        "1.Set the --mem_fraction or --max_total_token_num startup parameter to a smaller value."
        "2.Set the --max_req_total_len to a smaller value."
        "3.Set the --batch_max_tokens startup parameter to a smaller value."
    )
    say("basemodel.py:1020", advice, "ERROR")
    return f"torch.OutOfMemoryError: {error}\n\nException: {advice}"


def graph_sizes(most: int) -> list[int]:
    """1 to 32, then every 16."""
    return [*range(1, min(most, 32) + 1), *range(48, most + 1, 16)]


def site_of(start: Start, tokens: int) -> Site:
    """What it serves."""
    args = start.args
    load = Load(args.running_max_req_size)
    longest = min(tokens - FRONT_END, args.max_req_total_len)

    def metrics() -> Reply:
        rows = {
            "lightllm_queue_size": load.waiting,
            "lightllm_batch_current_size": load.running,
            "lightllm_num_running_reqs": load.running,
            "lightllm_batch_pause_size": 0,
            "lightllm_batch_current_max_tokens": 0,
            "lightllm_cache_hit_rate": 0,
        }
        labels = f'{{model_name="{args.model_name}"}}'
        return 200, TEXT, "".join(gauge(name, value, labels) for name, value in rows.items())

    def token_load() -> Reply:
        part = load.running / load.limit
        return reply_json(
            {"current_load": [part], "logical_max_load": [part], "dynamic_max_load": [part]}
        )

    return Site(
        model=args.model_name,
        longest=longest,
        load=load,
        switches=start.switches,
        health={"/health": 200, "/healthz": 200},
        pages={
            "/liveness": lambda: reply_json({"status": "ok"}),
            "/readiness": lambda: reply_json({"status": "ok"}),
            "/get_server_info": lambda: reply_json(vars(args)),
            "/token_load": token_load,
            "/metrics": metrics,
            "/v1/models": lambda: model_list(args.model_name, longest),
        },
        out_of_memory=lambda: prompt_failed(start),
    )


def prompt_failed(start: Start) -> int:
    """A prompt that its memory cannot hold ends the server."""
    print(f"torch.OutOfMemoryError: {start.devices.out_of_memory()}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(run(LightLLM(), sys.argv[1:], os.environ))
