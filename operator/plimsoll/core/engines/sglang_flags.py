"""SGLang's command line, 0.5.6 to 0.5.23, as a table.

Source: the flags of the wheels 0.5.6, 0.5.12 and 0.5.23, read from their source by syntax tree. SGLang
uses argparse, so abbreviations count: ``--tp`` is a prefix of ``--tp-size``.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.engines.flags import FlagTable, names, words

_FRACTION: Final = "the share follows from the number; spec.sizing.extraReserve leaves more free"
_PREFILL: Final = "use spec.sizing.prefillTokens"
_RANKS: Final = "use spec.parallelism"
_GRAPHS: Final = "use spec.sizing.cudaGraphs"
_UNSIZED: Final = "this version of Plimsoll sizes one tensor-parallel group and nothing else"

FLAGS: Final = FlagTable(
    engine="SGLang",
    abbreviates=True,
    aliases={
        "--tensor-parallel-size": "tp-size",
        "--tp": "tp-size",
        "--pipeline-parallel-size": "pp-size",
        "--data-parallel-size": "dp-size",
        "--attention-data-parallel-size": "attn-dp-size",
        "--cuda-graph-max-bs": "cuda-graph-max-bs-decode",
        "--cuda-graph-bs": "cuda-graph-bs-decode",
        "--model": "model-path",
        "--mamba-scheduler-strategy": "mamba-radix-cache-strategy",
        "--expert-parallel-size": "ep-size",
        "--ep": "ep-size",
        "--enable-hicache": "enable-hierarchical-cache",
        "--speculative-draft-model": "speculative-draft-model-path",
        "--decode-context-parallel-size": "dcp-size",
        "--attention-context-parallel-size": "attn-cp-size",
        "--nsa-prefill-backend": "dsa-prefill-backend",
        "--nsa-decode-backend": "dsa-decode-backend",
    },
    fields={
        "max-total-tokens": "max_total_token_num",
        "tp-size": "tensor",
        "pp-size": "pipeline",
        "chunked-prefill-size": "prefill_tokens",
        "max-running-requests": "max_concurrent_requests",
        "context-length": "context_length",
        "cuda-graph-max-bs-decode": "cuda_graph_max_batch",
        "kv-cache-dtype": "kv_cache_dtype",
    },
    owned={
        "mem-fraction-static": _FRACTION,
        "max-total-tokens": "use spec.sizing.maxTotalTokenNum",
        "model-path": "use spec.model",
        "host": "the server listens on all addresses of its pod",
        "port": "use spec.engine.port",
        "tp-size": "use spec.parallelism.tensor",
        "pp-size": _RANKS,
        "chunked-prefill-size": _PREFILL,
        "max-prefill-tokens": _PREFILL,
        "max-running-requests": "use spec.sizing.maxConcurrentRequests",
        "context-length": "use spec.sizing.contextLength",
        "kv-cache-dtype": "use spec.sizing.kvCacheDType",
        "page-size": "the page follows from the model",
        "cuda-graph-max-bs-decode": _GRAPHS,
        "cuda-graph-bs-decode": _GRAPHS,
        "cuda-graph-config": _GRAPHS,
        "config": "a file of flags could hold one that Plimsoll sets; write the flags as arguments",
        "max-mamba-cache-size": "use --mamba-full-memory-ratio",
        "dp-size": _UNSIZED,
        "attn-dp-size": _UNSIZED,
        "enable-dp-attention": _UNSIZED,
        "dcp-size": _UNSIZED,
        "nnodes": _UNSIZED,
        "node-rank": _UNSIZED,
        "base-gpu-id": "the device plugin decides which devices the server sees",
        "gpu-id-step": "the device plugin decides which devices the server sees",
    },
    sizing=names(
        "dtype disable-cuda-graph disable-decode-cuda-graph disable-radix-cache attention-backend "
        "prefill-attention-backend decode-attention-backend swa-full-tokens-ratio "
        "disable-hybrid-swa-memory mamba-full-memory-ratio mamba-ssm-dtype mamba-radix-cache-strategy "
        "speculative-algorithm speculative-num-draft-tokens dsa-prefill-backend dsa-decode-backend "
        "language-only language-model-only mm-feature-transport"
    ),
    unsized=names(
        # Draft models, adapters, experts, other parallel modes, offloading, second pools.
        "speculative-draft-model-path speculative-num-steps speculative-eagle-topk "
        "speculative-draft-attention-backend speculative-draft-kv-cache-dtype enable-multi-layer-eagle "
        "speculative-draft-model-quantization speculative-token-map speculative-adaptive "
        "speculative-draft-window-size enable-lora lora-paths max-lora-rank max-loras-per-batch "
        "max-loaded-loras lora-target-modules quantization torchao-config quantize-and-serve ep-size "
        "ep-num-redundant-experts moe-a2a-backend deepep-mode enable-eplb moe-dense-tp-size moe-dp-size "
        "moe-data-parallel-size enable-dp-lm-head attn-cp-size disaggregation-mode enable-pdmux "
        "enable-two-batch-overlap enable-symm-mem enable-torch-symm-mem enable-nccl-nvls enable-mscclpp "
        "cpu-offload-gb offload-group-size enable-hisparse hisparse-config enable-unified-memory "
        "enable-memory-saver enable-torch-compile torch-compile-max-bs enable-hierarchical-cache "
        "cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-max-bs-prefill "
        "cuda-graph-bs-prefill disable-prefill-cuda-graph enable-piecewise-cuda-graph "
        "disable-piecewise-cuda-graph piecewise-cuda-graph-max-tokens enforce-piecewise-cuda-graph "
        "disable-cuda-graph-padding enable-multimodal mm-enable-dp-encoder encoder-only "
        "enable-prefix-mm-cache is-embedding swa-prefix-tails prefill-only-disable-kv-cache "
        "json-model-override-args model-impl enable-kv-cache-sharding enable-dsa-cache-layer-split "
        "enable-linear-replayssm enable-linear-replayssm-spec qsa-indexer-dtype enable-fp32-lm-head "
        "kt-weight-path kt-num-gpu-experts enable-return-hidden-states pp-max-micro-batch-size "
        "pp-async-batch-depth dwdp-size hybrid-kvcache-ratio enable-double-sparsity device"
    ),
    neutral=names(
        "served-model-name tokenizer-path tokenizer-mode tokenizer-worker-num skip-tokenizer-init! "
        "load-format trust-remote-code! revision chat-template completion-template reasoning-parser "
        "tool-call-parser tool-server api-key admin-api-key log-level log-level-http log-requests! "
        "log-requests-level log-requests-format log-requests-target enable-metrics! "
        "enable-metrics-for-all-schedulers! enable-cache-report! enable-mfu-metrics! show-time-cost! "
        "decode-log-interval crash-dump-folder watchdog-timeout soft-watchdog-timeout dist-timeout "
        "dist-init-addr nccl-port download-dir warmups skip-server-warmup! random-seed stream-interval "
        "stream-output! incremental-streaming-output! schedule-policy schedule-conservativeness "
        "grammar-backend sampling-backend sampling-defaults preferred-sampling-params weight-version "
        "constrained-json-whitespace-pattern constrained-json-disable-any-whitespace! "
        "constrained-json-max-whitespace-cnt default-chat-template-kwargs fastapi-root-path "
        "file-storage-path enable-request-time-stats-logging! prompt-tokens-buckets "
        "generation-tokens-buckets bucket-time-to-first-token bucket-inter-token-latency "
        "bucket-e2e-request-latency kv-events-config enable-trace! otlp-traces-endpoint "
        "otlp-service-name sleep-on-idle! gc-warning-threshold-secs gc-threshold numa-node "
        "disable-fast-image-processor! allowed-media-domains media-url-max-file-size-mb "
        "enable-tokenizer-batch-encode! disable-tokenizer-batch-decode! use-ray! ssl-keyfile "
        "ssl-certfile ssl-ca-certs ssl-keyfile-password enable-http2! max-queued-requests "
        "abort-on-priority-when-disabled! enable-priority-scheduling! radix-eviction-policy "
        "disable-outlines-disk-cache! disable-custom-all-reduce! disable-overlap-schedule! "
        "mamba-track-interval hf-chat-template-name model-loader-extra-config "
        "weight-loader-disable-mmap! enable-p2p-check! collect-tokens-histogram! "
        "uvicorn-access-log-exclude-prefixes extra-metric-labels grpc-mode! grpc-port "
        "scheduler-recv-interval retraction-policy forward-hooks enable-custom-logit-processor!"
    ),
    owned_env={
        "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "it sizes the pool by another law",
        "SGLANG_MAMBA_CONV_DTYPE": "the state's size follows from the model",
        "SGLANG_MAMBA_SSM_DTYPE": "use --mamba-ssm-dtype",
        "SGLANG_VLM_CACHE_SIZE_MB": "the reserve counts its default",
        "SGLANG_MM_FEATURE_CACHE_MB": "the reserve counts its default",
    },
    neutral_env=words(
        "SGLANG_LOGGING_CONFIG_PATH SGLANG_HEALTH_CHECK_TIMEOUT SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION "
        "SGLANG_CACHE_DIR SGLANG_USE_MODELSCOPE SGLANG_BLOCK_NONZERO_RANK_CHILDREN SGLANG_TIMEOUT_KEEP_ALIVE "
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN SGLANG_LOG_MS"
    ),
)
