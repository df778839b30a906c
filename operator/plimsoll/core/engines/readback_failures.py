"""Plain texts by which an engine's log shows why it gave up, most telling first. Data.

Source: the research on engines, sections 2.2, 3 and 7; refusals of vLLM 0.32 tried on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Engine -> (text, kind). ``*`` is asked last, for every engine.
FAILURES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "LightLLM": (
        ("check max len infer fail", "OutOfMemory"),
        ("must be greater than batch_max_tokens", "PoolTooSmall"),
        ("max_total_token_num must be >=", "PoolTooSmall"),
        ("api_server.py: error:", "BadFlag"),
    ),
    "SGLang": (
        ("leave no GPU memory for the KV cache", "PoolTooSmall"),
        ("Not enough memory. Please try to increase", "PoolTooSmall"),
        ("cannot hold even one request", "PoolTooSmall"),
        ("leaves no room for the full", "PoolTooSmall"),
        ("Not enough GPU memory for hybrid", "PoolTooSmall"),
        ("state cache is too small to serve", "PoolTooSmall"),
        ("Capture cuda graph failed", "OutOfMemory"),
        ("memory capacity is unbalanced", "Unbalanced"),
        ("is greater than the derived context_length", "ContextTooLong"),
        ("launch_server.py: error:", "BadFlag"),
        ("sglang serve: error:", "BadFlag"),
    ),
    "VLLM": (
        ("To serve at least one request with the model", "PoolTooSmall"),
        ("KV cache is needed, which is larger than", "PoolTooSmall"),
        ("No available memory for the cache blocks", "PoolTooSmall"),
        ("is less than desired GPU memory utilization", "TooLittleFree"),
        ("is less than requested memory for kv", "TooLittleFree"),
        ("Error in memory profiling", "TooLittleFree"),
        ("is greater than the derived max_model_len", "ContextTooLong"),
        ("No common block size for", "BadFlag"),
        ("vllm: error:", "BadFlag"),
        ("vllm serve: error:", "BadFlag"),
    ),
    "TGI": (
        ("Not enough memory to handle", "PoolTooSmall"),
        ("NotEnoughMemory", "PoolTooSmall"),
        ("must be <= `max_batch_prefill_tokens`", "BadFlag"),
        ("error: unexpected argument", "BadFlag"),
        ("error: invalid value", "BadFlag"),
    ),
    "TensorRTLLM": (
        ("Impossible to fit in any sequence", "PoolTooSmall"),
        ("mpossible to fit any sequence", "PoolTooSmall"),
        ("Error: No such option", "BadFlag"),
        ("Error: Invalid value", "BadFlag"),
    ),
    "LlamaCpp": (
        ("failed to allocate buffer for kv cache", "OutOfMemory"),
        ("error: invalid argument", "BadFlag"),
        ("unable to allocate CUDA", "OutOfMemory"),
        ("failed to load model", "WeightsUnreadable"),
    ),
    "*": (
        ("error: unrecognized arguments", "BadFlag"),
        ("error: ambiguous option", "BadFlag"),
        ("error: argument -", "BadFlag"),
        ("OutOfMemoryError", "OutOfMemory"),
        ("CUDA out of memory", "OutOfMemory"),
        ("CUDA error: out of memory", "OutOfMemory"),
        ("cudaErrorMemoryAllocation", "OutOfMemory"),
        ("HIP out of memory", "OutOfMemory"),
    ),
}
