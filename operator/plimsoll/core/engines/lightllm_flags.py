"""LightLLM's command line, versions 1.0 to 1.2, as a table.

Source: ``lightllm/server/api_cli.py`` (commits 051a2bcf of 1.0 and fc72ffab of July 2025) and the
project's ``docs`` for the flags that came after. LightLLM uses argparse, so abbreviations count.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.engines.flags import FlagTable, names, words

_TOKENS: Final = (
    "use spec.sizing.maxTotalTokenNum (an upper bound, or the number itself in mode Fixed)"
)
_PREFILL: Final = "use spec.sizing.prefillTokens"
_UNSIZED: Final = "this version of Plimsoll cannot size it, and the number would be too large"

FLAGS: Final = FlagTable(
    engine="LightLLM",
    abbreviates=True,
    underscores=True,
    fields={
        "max-total-token-num": "max_total_token_num",
        "tp": "tensor",
        "batch-max-tokens": "prefill_tokens",
        "running-max-req-size": "max_concurrent_requests",
        "max-req-total-len": "context_length",
        "graph-max-batch-size": "cuda_graph_max_batch",
        "llm-kv-type": "kv_cache_dtype",
    },
    owned={
        "max-total-token-num": _TOKENS,
        "mem-fraction": _TOKENS,
        "model-dir": "use spec.model",
        "host": "the server listens on all addresses of its pod",
        "port": "use spec.engine.port",
        "tp": "use spec.parallelism.tensor",
        "batch-max-tokens": _PREFILL,
        "chunked-prefill-size": _PREFILL,
        "running-max-req-size": "use spec.sizing.maxConcurrentRequests",
        "max-req-total-len": "use spec.sizing.contextLength",
        "graph-max-batch-size": "use spec.sizing.cudaGraphs.maxBatch",
        "llm-kv-type": "use spec.sizing.kvCacheDType",
        "config": "a file of flags could hold one that Plimsoll sets; write the flags as arguments",
        # These multiply the cache or add weights behind the arithmetic's back: refusing is the
        # safe side, since LightLLM crashes when the number is too large.
        "dp": _UNSIZED,
        "nnodes": _UNSIZED,
        "node-rank": _UNSIZED,
        "mtp-mode": _UNSIZED,
        "mtp-step": _UNSIZED,
        "mtp-draft-model-dir": _UNSIZED,
    },
    sizing=names("data_type disable_cudagraph"),
    unsized=names(
        "run_mode mode quant_type quant_cfg vit_quant_type vit_quant_cfg performance_mode "
        "disable_chunked_prefill enable_prefill_cudagraph graph_split_batch_size graph_grow_step_size "
        "graph_max_len_in_batch enable_multimodal enable_multimodal_audio visual_infer_batch_size "
        "visual_gpu_ids visual_tp visual_dp linear_att_cache_size linear_att_ssm_data_type "
        "linear_att_hash_page_size linear_att_page_block_num penalty_counter_mode return_all_prompt_logprobs "
        "enable_tpsp_mix_mode enable_prefill_microbatch_overlap enable_decode_microbatch_overlap "
        "enable_flashinfer_prefill enable_flashinfer_decode enable_custom_allgather "
        "enable_custom_allreduce ep_redundancy_expert_config_path auto_update_redundancy_expert "
        "llm_kv_quant_group_size page_size enable_mps use_reward_model diverse_mode"
    ),
    neutral=names(
        "httpserver_workers zmq_mode pd_master_ip pd_master_port pd_decode_rpyc_port config_server_host "
        "config_server_port model_name tokenizer_mode load_way eos_id tool_call_parser reasoning_parser "
        "multinode_httpmanager_port multinode_router_gloo_port nccl_host nccl_port "
        "use_config_server_to_init_nccl! trust_remote_code! disable_log_stats! log_stats_interval "
        "router_token_ratio router_max_new_token_len router_max_wait_tokens disable_aggressive_schedule! "
        "dp_prefill_wait_step use_dynamic_prompt_cache! disable_dynamic_prompt_cache! token_healing_mode! "
        "output_constraint_mode first_token_constraint_mode! disable_custom_allreduce! enable_fa3! "
        "cache_capacity cache_reserved_ratio long_truncation_mode use_tgi_api! health_monitor! "
        "metric_gateway job_name grouping_key push_interval visual_nccl_ports enable_monitor_auth! "
        "sampling_backend chat_template disable_vision! disable_audio! llm_prefill_att_backend "
        "llm_decode_att_backend kv_quant_calibration_config_path"
    ),
    owned_env={
        "LIGHTLLM_START_ARGS": "LightLLM passes its own arguments to its processes in it",
        "DISABLE_CHECK_MAX_LEN_INFER": "the checking prefill at start is what proves the number",
    },
    neutral_env=words(
        "LOADWORKER HEALTH_TIMEOUT HEALTH_FAILURE_THRESHOLD HEALTH_CHECK_INTERVAL_SECONDS REQUEST_TIMEOUT "
        "LIGHTLLM_LOG_LEVEL LIGHTLLM_LOG_DIR LIGHTLLM_UNIQUE_SERVICE_NAME_ID SKIP_SPECIAL_TOKENS RETURN_LIST "
        "LIGHTLLM_TOKEN_MAX_BYTES LIGHTLLM_OUT_TOKEN_QUEUE_SIZE FIRST_ALLOWED_TOKENS"
    ),
)
