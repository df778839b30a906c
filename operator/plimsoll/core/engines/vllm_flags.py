"""vLLM's command line, 0.12 to 0.33, as a table.

Source: the flags of the releases 0.12.0, 0.22.0, 0.32.0 (CPU) and 0.33.0, read from their source by
syntax tree. vLLM turns underscores into dashes and takes unambiguous prefixes, as argparse does.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.engines.flags import FlagTable, names, words

_POOL: Final = "the pool is pinned in bytes; spec.sizing.extraReserve leaves more free"
_PREFILL: Final = "use spec.sizing.prefillTokens"
_RANKS: Final = "use spec.parallelism"
_GRAPHS: Final = "use spec.sizing.cudaGraphs"
_UNSIZED: Final = "this version of Plimsoll sizes one tensor-parallel group and nothing else"
_DEVICES: Final = "the device plugin decides which devices the server sees"

_SWITCHES: Final = (
    "aggregate-engine-logging allow-credentials async-scheduling cudagraph-metrics "
    "disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs "
    "disable-frontend-multiprocessing disable-log-requests disable-log-stats "
    "disable-mm-preprocessor-cache disable-nccl-for-dp-synchronization disable-uvicorn-access-log "
    "enable-auto-tool-choice enable-flashinfer-autotune enable-force-include-usage "
    "enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests "
    "enable-logging-iteration-details enable-mfu-metrics enable-offline-docs "
    "enable-per-request-metrics enable-prompt-tokens-details enable-request-id-headers "
    "enable-server-load-tracking enable-ssl-refresh enable-tokenizer-info-endpoint "
    "exclude-tools-when-tool-choice-none fail-on-environ-validation interleave-mm-strings "
    "jit-monitor-verbose kv-cache-metrics log-error-stack ray-workers-use-nsight "
    "return-tokens-as-token-ids scheduler-reserve-full-isl skip-tokenizer-init tokens-only "
    "trust-remote-code trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel "
    "use-tqdm-on-load numa-bind cohere-is-reasoning-model disable-cascade-attn grpc"
)

FLAGS: Final = FlagTable(
    engine="vLLM",
    abbreviates=True,
    aliases={
        "-tp": "tensor-parallel-size",
        "-pp": "pipeline-parallel-size",
        "-dp": "data-parallel-size",
        "-dpa": "data-parallel-address",
        "-dpb": "data-parallel-backend",
        "-dpe": "data-parallel-external-lb",
        "-dph": "data-parallel-hybrid-lb",
        "-dpl": "data-parallel-size-local",
        "-dpm": "data-parallel-multi-port-external-lb",
        "-dpn": "data-parallel-rank",
        "-dpp": "data-parallel-rpc-port",
        "-dpr": "data-parallel-start-rank",
        "-dcp": "decode-context-parallel-size",
        "-pcp": "prefill-context-parallel-size",
        "-ep": "enable-expert-parallel",
        "-q": "quantization",
        "-n": "nnodes",
        "-r": "node-rank",
        "-cc": "compilation-config",
        "-sc": "speculative-config",
        "-ac": "attention-config",
        "-O": "optimization-level",
        "--device-memory-utilization": "gpu-memory-utilization",
        "--cuda-graph-sizes": "cudagraph-capture-sizes",
        "--task": "runner",
    },
    fields={
        "max-model-len": "context_length",
        "max-num-seqs": "max_concurrent_requests",
        "max-num-batched-tokens": "prefill_tokens",
        "tensor-parallel-size": "tensor",
        "pipeline-parallel-size": "pipeline",
        "kv-cache-dtype": "kv_cache_dtype",
        "max-cudagraph-capture-size": "cuda_graph_max_batch",
    },
    owned={
        "gpu-memory-utilization": _POOL,
        "kv-cache-memory-bytes": _POOL,
        "num-gpu-blocks-override": _POOL,
        "max-model-len": "use spec.sizing.contextLength",
        "max-num-batched-tokens": _PREFILL,
        "max-num-scheduled-tokens": _PREFILL,
        "max-num-seqs": "use spec.sizing.maxConcurrentRequests",
        "max-num-active-seqs": "use spec.sizing.maxConcurrentRequests",
        "block-size": "the block follows from the model",
        "kv-cache-dtype": "use spec.sizing.kvCacheDType",
        "cudagraph-capture-sizes": _GRAPHS,
        "max-cudagraph-capture-size": _GRAPHS,
        "tensor-parallel-size": "use spec.parallelism.tensor",
        "pipeline-parallel-size": _RANKS,
        "data-parallel-size": _UNSIZED,
        "data-parallel-size-local": _UNSIZED,
        "data-parallel-rank": _UNSIZED,
        "data-parallel-start-rank": _UNSIZED,
        "data-parallel-external-lb": _UNSIZED,
        "data-parallel-hybrid-lb": _UNSIZED,
        "data-parallel-multi-port-external-lb": _UNSIZED,
        "decode-context-parallel-size": _UNSIZED,
        "prefill-context-parallel-size": _UNSIZED,
        "nnodes": _UNSIZED,
        "node-rank": _UNSIZED,
        "headless": _UNSIZED,
        "device-ids": _DEVICES,
        "model": "use spec.model",
        "host": "the server listens on all addresses of its pod",
        "port": "use spec.engine.port",
        "uds": "the server listens on all addresses of its pod",
        "config": "a file of flags could hold one that Plimsoll sets; write the flags as arguments",
    },
    sizing=names(
        "dtype enforce-eager no-enforce-eager enable-chunked-prefill no-enable-chunked-prefill "
        "enable-prefix-caching no-enable-prefix-caching mamba-cache-dtype mamba-ssm-cache-dtype "
        "disable-hybrid-kv-cache-manager no-disable-hybrid-kv-cache-manager language-model-only "
        "no-language-model-only runner convert speculative-config"
    ),
    unsized=names(
        # Adapters, drafts, experts, offloading, other parallel modes, second pools, other programs.
        "enable-lora no-enable-lora max-loras max-lora-rank max-cpu-loras lora-modules lora-dtype "
        "lora-target-modules fully-sharded-loras no-fully-sharded-loras default-mm-loras "
        "enable-mixed-moe-lora-format enable-moe-shared-loras enable-tower-connector-lora "
        "specialize-active-lora max-lora-cls-labels spec-method spec-model spec-tokens "
        "per-request-spec-decode-metrics quantization quantization-config override-attention-dtype "
        "enable-expert-parallel no-enable-expert-parallel enable-eplb no-enable-eplb eplb-config "
        "expert-placement-strategy all2all-backend moe-backend linear-backend enable-dbo ubatch-size "
        "dbo-decode-token-threshold dbo-prefill-token-threshold enable-elastic-ep "
        "elastic-ep-max-dp-size enable-ep-weight-filter cpu-offload-gb cpu-offload-params "
        "offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step "
        "kv-offloading-backend kv-offloading-size kv-transfer-config ec-transfer-config "
        "ec-manager-config kv-cache-dtype-skip-layers kv-sharing-fast-prefill calculate-kv-scales "
        "mamba-block-size mamba-cache-mode mamba-backend enable-mamba-shared-prefix-checkpoint "
        "use-replayssm replayssm-buffer-len enable-sleep-mode enable-cumem-allocator sleep-mode-backend "
        "sleep-mode-offload-cudagraph compilation-config attention-config attention-backend "
        "optimization-level performance-mode kernel-config additional-config hf-overrides "
        "hf-config-path model-impl model-class-overrides worker-cls worker-extension-cls scheduler-cls "
        "limit-mm-per-prompt mm-processor-kwargs media-io-kwargs skip-mm-profiling "
        "no-skip-mm-profiling mm-encoder-tp-mode mm-encoder-only mm-encoder-attn-backend "
        "mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-ipc-gpu-memory-gb mm-tensor-ipc "
        "mm-processor-device mm-device-do-normalize enable-mm-embeds enable-prompt-embeds "
        "enable-multimodal-encoder-data-parallel video-pruning-rate video-pruning-method "
        "disable-sliding-window no-disable-sliding-window max-logprobs logprobs-mode "
        "logits-processors pooler-config engram-config diffusion-config swa-bounded-replay "
        "no-swa-bounded-replay monokernel enable-return-routed-experts enable-batch-sharded-sampling "
        "weight-transfer-config enable-hc-sp watermark watermark-config data-parallel-supervisor-port "
        "swap-space distributed-executor-backend device gdn-prefill-backend kda-prefill-backend "
        "kda-decode-backend enable-mamba-cache-stochastic-rounding enable-scale-out "
        "allow-deprecated-quantization enable-nccl-comm-suspend"
    ),
    neutral=names(" ".join(f"{name}! no-{name}!" for name in _SWITCHES.split()))
    | names(
        "allowed-headers allowed-local-media-path allowed-media-domains allowed-methods "
        "allowed-origins anthropic-disabled-thinking-effort api-key api-server-count aux-output-config "
        "chat-template chat-template-content-format code-revision cohere-format "
        "collect-detailed-traces config-format cp-kv-cache-interleave-size custom-histogram-buckets "
        "cpu-distributed-timeout-seconds data-parallel-address data-parallel-backend "
        "data-parallel-rpc-port dcp-kv-cache-interleave-size default-chat-template-kwargs "
        "disable-access-log-for-endpoints distributed-timeout-seconds download-dir "
        "fault-tolerance-config fingerprint-mode fingerprint-value generation-config grpc-port "
        "h11-max-header-count h11-max-incomplete-event-size hf-token ignore-patterns "
        "io-processor-plugin jit-monitor-mode kv-cache-metrics-sample kv-events-config load-format "
        "log-config-file log-level logging-config logits-processor-pattern "
        "long-prefill-token-threshold master-addr master-port max-log-len max-long-partial-prefills "
        "max-num-partial-prefills max-num-queued-reqs max-num-queued-tokens "
        "max-parallel-loading-workers middleware mm-hasher-algorithm mm-processor-cache-gb "
        "mm-processor-cache-type mm-shm-cache-max-object-size-mb model-loader-extra-config "
        "numa-bind-cpus numa-bind-nodes otlp-traces-endpoint override-generation-config "
        "prefix-caching-hash-algo prefix-match-unit profiler-config pt-load-map-location "
        "reasoning-config reasoning-effort-map reasoning-parser reasoning-parser-plugin "
        "renderer-num-workers response-role revision root-path safetensors-load-strategy "
        "safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduling-policy seed "
        "served-model-name show-hidden-metrics-for-version shutdown-timeout sse-keep-alive-interval "
        "ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval "
        "structured-outputs-config tokenizer tokenizer-mode tokenizer-revision tool-call-parser "
        "tool-parser-plugin tool-server tool-strict-level uvicorn-log-level watchdog-config"
    ),
    owned_env={
        "VLLM_CPU_KVCACHE_SPACE": "it overrides the size that Plimsoll pins",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "longer requests than the model's are not sized",
    },
    neutral_env=words(
        "VLLM_LOGGING_LEVEL VLLM_LOGGING_CONFIG_PATH VLLM_CONFIGURE_LOGGING VLLM_LOGGING_PREFIX "
        "VLLM_LOG_STATS_INTERVAL VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_USAGE_SOURCE VLLM_API_KEY "
        "VLLM_CACHE_ROOT VLLM_CONFIG_ROOT VLLM_ASSETS_CACHE VLLM_HTTP_TIMEOUT_KEEP_ALIVE "
        "VLLM_WORKER_MULTIPROC_METHOD VLLM_USE_MODELSCOPE VLLM_RPC_TIMEOUT VLLM_SERVER_DEV_MODE "
        "VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_ENGINE_READY_TIMEOUT_S VLLM_HOST_IP VLLM_PORT "
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_IMAGE_FETCH_TIMEOUT VLLM_TARGET_DEVICE "
        "VLLM_CPU_OMP_THREADS_BIND TRITON_CACHE_DIR"
    ),
)
