"""The command line of llama.cpp's server, as a table.

Source: ``llama-server --help`` of 2025 and 2026 builds. Its parser takes exact names only, ``_`` for
``-`` in long ones, and an environment name for nearly every flag.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.engines.flags import FlagTable, names, words

_MODEL: Final = "use spec.model"
_KV: Final = "use spec.sizing.kvCacheDType"

FLAGS: Final = FlagTable(
    engine="LlamaCpp",
    fields={
        "ubatch-size": "prefill_tokens",
        "parallel": "max_concurrent_requests",
        "cache-type-k": "kv_cache_dtype",
        "cache-type-v": "kv_cache_dtype",
    },
    owned={
        "model": _MODEL,
        "model-url": _MODEL,
        "hf-repo": _MODEL,
        "hf-file": _MODEL,
        "docker-repo": _MODEL,
        "models-dir": _MODEL,
        "models-preset": _MODEL,
        "host": "the server listens on all addresses of its pod",
        "port": "use spec.engine.port",
        "ctx-size": "use spec.sizing.contextLength and spec.sizing.maxTotalTokenNum",
        "parallel": "use spec.sizing.maxConcurrentRequests",
        "n-gpu-layers": "all layers are put on the GPU",
        "batch-size": "use spec.sizing.prefillTokens",
        "ubatch-size": "use spec.sizing.prefillTokens",
        "cache-type-k": _KV,
        "cache-type-v": _KV,
        "config": "a file of flags could hold one that Plimsoll sets; write the flags as arguments",
    },
    aliases={
        "-m": "model", "-mu": "model-url", "-hf": "hf-repo", "-hfr": "hf-repo", "-hff": "hf-file",
        "-dr": "docker-repo", "-c": "ctx-size", "-np": "parallel", "-ngl": "n-gpu-layers",
        "--gpu-layers": "n-gpu-layers", "-b": "batch-size", "-ub": "ubatch-size",
        "-ctk": "cache-type-k", "-ctv": "cache-type-v",
        "-t": "threads", "-tb": "threads-batch", "-a": "alias", "-n": "n-predict",
        "--predict": "n-predict", "-fa": "flash-attn", "-nkvo": "no-kv-offload",
        "-kvu": "kv-unified", "-md": "model-draft", "-cd": "ctx-size-draft",
        "-ngld": "gpu-layers-draft", "--n-gpu-layers-draft": "gpu-layers-draft",
        "-mm": "mmproj", "-ot": "override-tensor", "-cmoe": "cpu-moe", "-ncmoe": "n-cpu-moe",
        "-sm": "split-mode", "-ts": "tensor-split", "-mg": "main-gpu", "-dev": "device",
        "-cb": "cont-batching", "-nocb": "no-cont-batching", "-to": "timeout", "-s": "seed",
        "-v": "verbose", "-lv": "log-verbosity", "-cram": "cache-ram", "-fit": "fit",
    },
    sizing=frozenset(),
    # Several of these move the cache or layers off the GPU, or put a second model on it.
    unsized=names(
        "no-kv-offload model-draft ctx-size-draft gpu-layers-draft mmproj mmproj-url override-tensor cpu-moe "
        "n-cpu-moe split-mode tensor-split main-gpu device lora lora-scaled control-vector flash-attn "
        "kv-unified swa-full embedding embeddings rerank reranking no-op-offload rope-scaling rope-scale "
        "yarn-orig-ctx override-kv ctx-checkpoints fit grp-attn-n grp-attn-w hf-repo-draft rpc"
    ),
    neutral=names(
        "alias threads threads-batch cpu-mask cpu-range cpu-strict prio poll n-predict keep seed temp top-k "
        "top-p min-p repeat-penalty samplers sampling-seq chat-template chat-template-file chat-template-kwargs "
        "jinja! no-jinja! reasoning-format reasoning-budget api-key api-key-file ssl-key-file ssl-cert-file timeout "
        "threads-http cache-reuse cache-prompt! no-cache-prompt! cache-ram metrics! slots! no-slots! props! "
        "slot-save-path slot-prompt-similarity no-webui! webui! path api-prefix cont-batching! "
        "no-cont-batching! mlock! mmap! no-mmap! load-mode no-warmup! warmup! verbose! log-verbosity log-file "
        "log-colors log-prefix! log-timestamps! log-disable! offline! numa no-perf! check-tensors! no-context-shift! "
        "context-shift! pooling defrag-thold"
    ),
    owned_env={
        "LLAMA_ARG_MODEL": _MODEL,
        "LLAMA_ARG_MODEL_URL": _MODEL,
        "LLAMA_ARG_HF_REPO": _MODEL,
        "LLAMA_ARG_HF_FILE": _MODEL,
        "LLAMA_ARG_DOCKER_REPO": _MODEL,
        "LLAMA_ARG_MODELS_DIR": _MODEL,
        "LLAMA_ARG_MODELS_PRESET": _MODEL,
        "LLAMA_ARG_HOST": "the server listens on all addresses of its pod",
        "LLAMA_ARG_PORT": "use spec.engine.port",
        "LLAMA_ARG_CTX_SIZE": "use spec.sizing.contextLength and spec.sizing.maxTotalTokenNum",
        "LLAMA_ARG_N_PARALLEL": "use spec.sizing.maxConcurrentRequests",
        "LLAMA_ARG_N_GPU_LAYERS": "all layers are put on the GPU",
        "LLAMA_ARG_BATCH": "use spec.sizing.prefillTokens",
        "LLAMA_ARG_UBATCH": "use spec.sizing.prefillTokens",
        "LLAMA_ARG_CACHE_TYPE_K": _KV,
        "LLAMA_ARG_CACHE_TYPE_V": _KV,
        # Names built by hand from a flag, which a reader may try before looking them up.
        "LLAMA_ARG_PARALLEL": "use spec.sizing.maxConcurrentRequests",
        "LLAMA_ARG_BATCH_SIZE": "use spec.sizing.prefillTokens",
        "LLAMA_ARG_UBATCH_SIZE": "use spec.sizing.prefillTokens",
    },
    neutral_env=words(
        "LLAMA_ARG_THREADS LLAMA_ARG_THREADS_HTTP LLAMA_ARG_ALIAS LLAMA_ARG_ENDPOINT_METRICS LLAMA_ARG_ENDPOINT_SLOTS "
        "LLAMA_ARG_ENDPOINT_PROPS LLAMA_ARG_NO_WEBUI LLAMA_ARG_CONT_BATCHING LLAMA_ARG_CHAT_TEMPLATE LLAMA_ARG_JINJA "
        "LLAMA_ARG_TIMEOUT LLAMA_ARG_N_PREDICT LLAMA_ARG_API_PREFIX LLAMA_ARG_STATIC_PATH LLAMA_API_KEY "
        "LLAMA_LOG_COLORS LLAMA_LOG_VERBOSITY LLAMA_LOG_PREFIX LLAMA_LOG_TIMESTAMPS LLAMA_ARG_NO_MMAP "
        "LLAMA_ARG_MLOCK"
    ),
)  # fmt: skip
