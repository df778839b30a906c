"""The command line of ``trtllm-serve serve`` (PyTorch backend), 1.0 to 1.3, as a table.

Source: the project's documentation of the command and the research on engines; not checked against a
running parser. It uses click: no abbreviations, underscores in names. What has no flag is given in a
YAML file by ``--config`` (older: ``--extra_llm_api_options``), among it ``max_gpu_total_bytes``.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.engines.flags import FlagTable, names, words

_SHARE: Final = "the share follows from the number; spec.sizing.extraReserve leaves more free"
_FILE: Final = "a file of settings could hold one that Plimsoll sets; write them as flags"

FLAGS: Final = FlagTable(
    engine="TensorRTLLM",
    underscores=True,
    aliases={
        "--free_gpu_memory_fraction": "kv-cache-free-gpu-memory-fraction",
        "--free-gpu-memory-fraction": "kv-cache-free-gpu-memory-fraction",
        "--kv_cache_free_gpu_mem_fraction": "kv-cache-free-gpu-memory-fraction",
        "--extra_llm_api_options": "config",
        "--extra-llm-api-options": "config",
        "--tensor_parallel_size": "tp-size",
        "--pipeline_parallel_size": "pp-size",
    },
    fields={
        "tp-size": "tensor",
        "pp-size": "pipeline",
        "max-num-tokens": "prefill_tokens",
        "max-batch-size": "max_concurrent_requests",
        "max-seq-len": "context_length",
        "kv-cache-dtype": "kv_cache_dtype",
    },
    owned={
        "kv-cache-free-gpu-memory-fraction": _SHARE,
        "max-num-tokens": "use spec.sizing.prefillTokens",
        "max-batch-size": "use spec.sizing.maxConcurrentRequests",
        "max-seq-len": "use spec.sizing.contextLength",
        "kv-cache-dtype": "use spec.sizing.kvCacheDType",
        "tp-size": "use spec.parallelism.tensor",
        "pp-size": "use spec.parallelism",
        "cp-size": "this version of Plimsoll cannot size it",
        "gpus-per-node": "the device plugin decides which devices the server sees",
        "host": "the server listens on all addresses of its pod",
        "port": "use spec.engine.port",
        "config": _FILE,
    },
    sizing=frozenset(),
    unsized=names(
        "backend max_beam_width ep_size moe_expert_parallel_size cluster_size enable_chunked_prefill "
        "extra_encoder_options enable_attention_dp disagg_cluster_uri server_role "
        "fail_fast_on_attention_window_too_large video_pruning_rate telemetry custom_module_dirs"
    ),
    neutral=names(
        "tokenizer custom_tokenizer served_model_name trust_remote_code! log_level reasoning_parser "
        "tool_parser num_postprocess_workers metadata_server_config_file otlp_traces_endpoint revision "
        "chat_template grpc! media_io_kwargs hf_revision"
    ),
    neutral_env=words("TLLM_LOG_LEVEL TRTLLM_ENABLE_PDL UCX_TLS OMPI_ALLOW_RUN_AS_ROOT"),
)
