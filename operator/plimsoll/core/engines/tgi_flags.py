"""The command line of TGI's launcher, 3.3, as a table.

Source: ``launcher/src/main.rs`` of 3.3.7, from the research on engines and the project's own
documentation of the launcher; not checked against a running parser. The launcher uses clap: no
abbreviations, and each flag also has an environment variable of its name in capitals.
"""

from __future__ import annotations

from typing import Final

from plimsoll.core.engines.flags import FlagTable, names, words

_SHARE: Final = "the shares follow from the number; spec.sizing.extraReserve leaves more free"
_PREFILL: Final = "use spec.sizing.prefillTokens"
_CONTEXT: Final = "use spec.sizing.contextLength"

_OWNED: Final = {
    "cuda-memory-fraction": _SHARE,
    "max-batch-total-tokens": "TGI ignores it for the models that it sizes itself",
    "max-total-tokens": _CONTEXT,
    "max-input-tokens": _CONTEXT,
    "max-input-length": _CONTEXT,
    "max-batch-prefill-tokens": _PREFILL,
    "max-batch-size": "use spec.sizing.maxConcurrentRequests",
    "cuda-graphs": "use spec.sizing.cudaGraphs",
    "kv-cache-dtype": "use spec.sizing.kvCacheDType",
    "num-shard": "use spec.parallelism.tensor",
    "sharded": "use spec.parallelism.tensor",
    "model-id": "use spec.model",
    "hostname": "the server listens on all addresses of its pod",
    "port": "use spec.engine.port",
}

FLAGS: Final = FlagTable(
    engine="TGI",
    aliases={"-p": "port", "-e": "env"},
    fields={
        "max-total-tokens": "context_length",
        "max-batch-prefill-tokens": "prefill_tokens",
        "max-batch-size": "max_concurrent_requests",
        "num-shard": "tensor",
        "kv-cache-dtype": "kv_cache_dtype",
    },
    owned=_OWNED,
    sizing=names("dtype"),
    unsized=names(
        "quantize speculate lora-adapters disable-custom-kernels rope-scaling rope-factor "
        "enable-prefill-logprobs max-top-n-tokens"
    ),
    neutral=names(
        "revision validation-workers trust-remote-code! max-concurrent-requests max-best-of "
        "max-stop-sequences waiting-served-ratio max-waiting-tokens prometheus-port shard-uds-path "
        "master-addr master-port huggingface-hub-cache weights-cache-override json-output! "
        "otlp-endpoint otlp-service-name cors-allow-origin api-key watermark-gamma watermark-delta "
        "ngrok! ngrok-authtoken ngrok-edge tokenizer-config-path disable-grammar-support! env! "
        "max-client-batch-size usage-stats payload-limit graceful-termination-timeout served-model-name"
    ),
    owned_env={
        **{
            flag.replace("-", "_").upper(): f"it is --{flag}; {why}" for flag, why in _OWNED.items()
        },
        "TGI_WIGGLE_ROOM": _SHARE,
        "ATTENTION": "it decides the size of a block",
        "BLOCK_SIZE": "it decides the size of a block",
    },
    neutral_env=words(
        "HUGGINGFACE_HUB_CACHE HUGGING_FACE_HUB_TOKEN LOG_LEVEL RUST_BACKTRACE JSON_OUTPUT USAGE_STATS "
        "OTLP_ENDPOINT PREFIX_CACHING SAFETENSORS_FAST_GPU LOG_FORMAT LOG_COLORIZE"
    ),
)
