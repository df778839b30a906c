"""Logs, endpoints and failures of engines, on literal lines."""

from __future__ import annotations

import time

import pytest

from plimsoll.core.engines import ENGINES
from plimsoll.core.engines.readback import (
    ENDPOINTS,
    MAX_LINE,
    PATTERNS,
    Reading,
    classify_failure,
    read_endpoint,
    read_log,
)
from plimsoll.core.engines.readback_failures import FAILURES
from plimsoll.core.units import GIB, MIB

PREFIX = "(EngineCore pid=12) INFO 12-01 16:11:26 [kv_cache_utils.py:2327] "


def gib(number: float) -> int:
    return round(number * GIB)


def test_vllm_one_line_and_two() -> None:
    new = (
        PREFIX
        + "CPU KV cache size: 65,536 tokens, Maximum concurrency for 2,048 tokens per request: 32.00x"
    )
    old = (
        PREFIX + "GPU KV cache size: 65,536 tokens\n"
        "INFO [x.py:1] Maximum concurrency for 2,048 tokens per request: 32.00x"
    )
    wanted = Reading(tokens=65_536, context=2048, concurrency=32.0)
    assert read_log("VLLM", new) == wanted
    assert read_log("VLLM", old) == wanted
    assert read_log("VLLM", new.replace("CPU", "XPU")) == wanted


def test_vllm_terms() -> None:
    log = (
        "INFO Model loading took 14.9889 GiB memory and 3.210 seconds\n"
        "INFO Available KV cache memory: 38.24 GiB\n"
        "INFO Available KV cache memory: 38.20 GiB\n"
        "INFO Graph capturing finished in 20 secs, took 0.61 GiB\n"
        "INFO Free memory on device (78.68/79.19 GiB) on startup. Desired GPU memory utilization is "
        "(0.92, 72.85 GiB). Actual usage is 14.99 GiB for weight, 1.40 GiB for peak activation, and\n"
        "INFO Setting attention block size to 1,568 tokens\n"
    )
    reading = read_log("VLLM", log)
    assert reading.weights_bytes == gib(14.9889)
    assert reading.pool_bytes == gib(38.20)  # the scarcest rank
    assert reading.graph_bytes == gib(0.61)
    assert reading.activation_bytes == gib(1.40)
    assert reading.block_tokens == 1568


@pytest.mark.parametrize(
    ("log", "tokens"),
    [
        ("# GPU blocks: 8348, # CPU blocks: 2048", 8348 * 16),  # V0: blocks only
        ("Overriding num_gpu_blocks=512 with num_gpu_blocks_override=100", 1600),
        ("Available KV cache memory: -0.34 GiB", None),
    ],
)
def test_vllm_blocks(log: str, tokens: int | None) -> None:
    assert read_log("VLLM", log).tokens == tokens


def test_vllm_on_cpu() -> None:
    log = "Explicitly set (0.06/20.21) GiB for KV cache on node 0."
    assert read_log("VLLM", log).pool_bytes == gib(0.06)
    assert read_log(
        "VLLM", "Auto set (1.13/20.21) GiB for KV cache on node 0, with"
    ).pool_bytes == gib(1.13)


def test_sglang() -> None:
    log = (
        "[TP0] Load weight end. elapsed=3.2 s, type=X, dtype=torch.bfloat16, avail mem=10.00 GB, mem usage=12.91 GB.\n"
        "[TP0] Use sliding window memory pool. full_layer_tokens=24248, swa_layer_tokens=19398\n"
        "[TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 202093, K size: 3.85 GB, V size: 3.85 GB\n"
        "[TP0] KV Cache is allocated. #tokens: 202093, KV size: 0.08 GB\n"
        "[TP0] Mamba Cache is allocated. max_mamba_cache_size: 1521, conv_state size: 0.84GB, ssm_state size: 17.84GB\n"
        "[TP0] Capture decode CUDA graph end. elapsed=5.1 s, mem usage=0.42 GB, avail mem=1.9 GB\n"
        "[TP0] max_total_num_tokens=202093, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=1, context_len=262144, available_gpu_mem=1.89 GB\n"
    )
    reading = read_log("SGLang", log)
    assert reading.tokens == 202_093
    assert reading.pool_bytes == gib(7.70)  # K and V add up; the draft's pool comes second
    assert reading.weights_bytes == gib(12.91)
    assert reading.graph_bytes == gib(0.42)
    assert reading.window_tokens == 19_398
    assert reading.state_slots == 1521
    assert reading.context == 262_144


def test_lightllm() -> None:
    log = (
        "62.5 GB space is available after load the model weight\n"
        "0.125 MB is the size of one token kv cache\n"
        "391000 is the profiled max_total_token_num with the mem_fraction 0.8\n"
        "set shm_max_total_token_num value to 390999\n"
    )
    reading = read_log("LightLLM", log)
    assert reading.tokens == 390_999
    assert reading.cell_bytes == MIB // 8
    assert reading.pool_bytes == 390_999 * MIB // 8


def test_tgi() -> None:
    assert read_log("TGI", "KV-cache blocks: 801568, size: 1").tokens == 801_568
    assert read_log("TGI", "KV-cache blocks: 100, size: 16").tokens == 1600
    assert read_log("TGI", "INFO Setting max batch total tokens to 16224").tokens == 16_224


def test_tensorrt_llm() -> None:
    log = (
        "Memory used after loading model weights (inside torch) in memory usage profiling: 14.96 GiB\n"
        "Peak memory during memory usage profiling (torch + non-torch): 17.76 GiB, available KV cache memory when "
        "calculating max tokens: 109.96 GiB, fraction is set 0.9, kv size per token is 131072 bytes/token.\n"
        "Estimated max memory in KV cache : 109.96 GiB\n"
        "[MemUsageChange] Allocated 109.96 GiB for max tokens in paged KV cache (900800).\n"
        "Number of blocks in KV cache primary pool: 28150, size of block: x\nNumber of tokens per block: 32.\n"
    )
    reading = read_log("TensorRTLLM", log)
    assert reading.tokens == 900_800 == (reading.blocks or 0) * (reading.block_tokens or 0)
    assert reading.pool_bytes == gib(109.96)
    assert reading.weights_bytes == gib(14.96)
    assert reading.cell_bytes == 131_072


def test_llama_cpp() -> None:
    log = (
        "load_tensors:        CUDA0 model buffer size =  4403.49 MiB\n"
        "llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB\n"
        "llama_context: n_ctx         = 4096\n"
    )
    reading = read_log("LlamaCpp", log)
    assert (reading.tokens, reading.pool_bytes) == (4096, 512 * MIB)
    assert reading.weights_bytes == round(4403.49 * MIB)


METRIC = (
    '# HELP vllm:cache_config_info x\nvllm:cache_config_info{block_size="128",cache_dtype="auto",num_gpu_blocks="512",'
    'kv_cache_size_tokens="65536",kv_cache_memory_bytes="67108864",num_gpu_blocks_override="None",engine="0"} 1.0\n'
)


def test_metrics() -> None:
    reading = read_endpoint("VLLM", "/metrics", METRIC)
    assert (reading.blocks, reading.block_tokens, reading.tokens) == (512, 128, 65_536)
    assert reading.pool_bytes == 67_108_864
    older = METRIC.replace('kv_cache_size_tokens="65536",', "")
    assert read_endpoint("VLLM", "/metrics", older).tokens == 512 * 128
    assert read_endpoint("TGI", "/metrics", "tgi_batch_max_total_tokens 16224").tokens == 16_224
    sglang = 'sglang:max_total_num_tokens{model_name="a b"} 202093.0'
    assert read_endpoint("SGLang", "/metrics", sglang).tokens == 202_093
    assert read_endpoint("SGLang", "/metrics", "sglang:max_total_num_tokens NaN").tokens is None
    trt = "kv_cache_max_blocks 28150\nkv_cache_tokens_per_block 32\n"
    assert read_endpoint("TensorRTLLM", "/prometheus/metrics", trt).tokens == 900_800


def test_documents() -> None:
    assert read_endpoint("SGLang", "/server_info", {"max_total_num_tokens": 5}).tokens == 5
    props = {"total_slots": 3, "default_generation_settings": {"n_ctx": 6912}}
    assert read_endpoint("LlamaCpp", "/props", props).tokens == 20_736
    odd: object
    for odd in (True, "7", None, -1, 1 << 60, [], {}):
        body: dict[str, object] = {"max_total_token_num": odd}
        assert read_endpoint("LightLLM", "/get_server_info", body) == Reading()
    assert read_endpoint("SGLang", "/elsewhere", {"max_total_num_tokens": 5}) == Reading()


@pytest.mark.parametrize(
    ("engine", "line", "kind"),
    [
        ("LightLLM", "check max len infer fail: try a smaller", "OutOfMemory"),
        (
            "LightLLM",
            "AssertionError: max_total_token_num must be >= max_seq_length",
            "PoolTooSmall",
        ),
        (
            "SGLang",
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "PoolTooSmall",
        ),
        (
            "SGLang",
            "ValueError: Loaded weights leave no GPU memory for the KV cache under",
            "PoolTooSmall",
        ),
        ("SGLang", "Exception: Capture cuda graph failed: CUDA out of memory", "OutOfMemory"),
        ("SGLang", "The memory capacity is unbalanced. Some GPUs", "Unbalanced"),
        (
            "VLLM",
            "ValueError: To serve at least one request with the model's max seq len (2048), (0.0 GiB KV",
            "PoolTooSmall",
        ),
        (
            "VLLM",
            "ValueError: To serve at least one request with the models's max seq len",
            "PoolTooSmall",
        ),
        ("VLLM", "ValueError: No available memory for the cache blocks.", "PoolTooSmall"),
        (
            "VLLM",
            "Available memory on node 0 (16.84/20.21 GiB) on kv cache allocation is less than requested memory for kv",
            "TooLittleFree",
        ),
        (
            "VLLM",
            "Free memory (1/2 GiB) is less than desired GPU memory utilization",
            "TooLittleFree",
        ),
        (
            "VLLM",
            "User-specified max_model_len (9000) is greater than the derived max_model_len (8192)",
            "ContextTooLong",
        ),
        ("VLLM", "vllm: error: unrecognized arguments: --nope 1", "BadFlag"),
        ("TGI", "Not enough memory to handle 4096 prefill tokens.", "PoolTooSmall"),
        ("TensorRTLLM", "Impossible to fit in any sequence in KV cache", "PoolTooSmall"),
        ("LlamaCpp", "error: invalid argument: --nope", "BadFlag"),
        (
            "VLLM",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "OutOfMemory",
        ),
        ("unknown engine", "torch.OutOfMemoryError: CUDA out of memory.", "OutOfMemory"),
    ],
)
def test_failures(engine: str, line: str, kind: str) -> None:
    log = f"INFO starting\n{line}\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    failure = classify_failure(engine, log)
    assert failure is not None
    assert (failure.kind, failure.message) == (kind, line)


def test_the_stated_cause_comes_before_the_crash_it_ends_in() -> None:
    log = "CUDA out of memory\nValueError: No available memory for the cache blocks."
    failure = classify_failure("VLLM", log)
    assert failure is not None
    assert failure.kind == "PoolTooSmall"


def test_no_failure_in_a_good_log() -> None:
    assert classify_failure("VLLM", "INFO all good") is None
    assert read_log("VLLM", "INFO all good") == Reading()
    assert read_log("no such engine", "KV cache size: 5 tokens") == Reading()


def test_every_engine_is_covered() -> None:
    for engine in ENGINES:
        assert PATTERNS[engine]
        assert ENDPOINTS[engine]
        assert FAILURES[engine]


def test_messages_are_short_and_printable() -> None:
    failure = classify_failure("VLLM", "\x1b[31mCUDA out of memory" + "x" * 5000)
    assert failure is not None
    assert len(failure.message) <= 300
    assert failure.message.isprintable()


@pytest.mark.parametrize("engine", sorted(PATTERNS))
def test_hostile_logs_end_quickly(engine: str) -> None:
    """Each anchor a thousand times in long lines of digits, dots and blanks."""
    filler = ["9" * MAX_LINE, "1,." * 1300, " " * MAX_LINE, "1." * 2000]
    anchors = [p.anchor for p in PATTERNS[engine]]
    lines = [f"{f[:2000]}{a} {f}" for a in anchors for f in filler]
    text = "\n".join(lines * 40)
    begin = time.process_time()
    reading = read_log(engine, text)
    classify_failure(engine, text)
    assert time.process_time() - begin < 2
    assert reading.tokens is None or 0 <= reading.tokens <= 1 << 50


def test_huge_numbers_are_dropped() -> None:
    assert read_log("VLLM", "GPU KV cache size: 99999999999999999999 tokens") == Reading()
