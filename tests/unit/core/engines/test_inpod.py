"""Arguments of servers that are sized inside their pod: both sides agree, for every engine."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from plimsoll.core.engines import ENGINES, Pinned, lookup
from plimsoll.core.engines.inpod import (
    argument_key,
    check_template,
    env_key,
    inpod_arguments,
    inpod_flags,
)
from plimsoll.core.errors import Unsupported
from plimsoll.core.request import SizingRequest

if TYPE_CHECKING:
    from plimsoll.core.engines.inpod import InPodArguments

PINNED = Pinned(
    max_total_token_num=457142,
    max_sequences=300,
    context_length=8192,
    prefill_tokens=2048,
    kv_cache_bytes=60 << 30,
    memory_fraction="0.953",
    block_tokens=16,
    graph_batch=200,
)

# engine, version, flags with a value from the env file, constant words, environment names
TABLE = [
    (
        "LightLLM",
        "1.2.0",
        (
            "--max_total_token_num --batch_max_tokens --chunked_prefill_size --running_max_req_size "
            "--max_req_total_len --graph_max_batch_size"
        ),
        "--llm_kv_type=None --mem_fraction=0.8",
        "",
    ),
    (
        "VLLM",
        "0.33.0",
        (
            "--kv-cache-memory-bytes --gpu-memory-utilization --max-model-len --max-num-batched-tokens "
            "--max-num-seqs --block-size --max-cudagraph-capture-size"
        ),
        "--kv-cache-dtype=auto --dtype=auto",
        "",
    ),
    (
        "VLLM",
        "0.33.0+cpu",
        (
            "--kv-cache-memory-bytes --gpu-memory-utilization --max-model-len --max-num-batched-tokens "
            "--max-num-seqs --block-size"
        ),
        "--kv-cache-dtype=auto --dtype=auto",
        "",
    ),
    (
        "SGLang",
        "0.5.12",
        (
            "--mem-fraction-static --max-total-tokens --chunked-prefill-size --max-prefill-tokens "
            "--max-running-requests --context-length --page-size --cuda-graph-max-bs"
        ),
        "--kv-cache-dtype=auto --swa-full-tokens-ratio=0.8 --mamba-full-memory-ratio=0.9",
        "",
    ),
    (
        "TGI",
        "3.3.7",
        "--max-total-tokens --max-input-tokens --max-batch-prefill-tokens",
        "--cuda-memory-fraction=1.0 --cuda-graphs=1,2,4,8,16,32",
        "TGI_WIGGLE_ROOM",
    ),
    (
        "TensorRTLLM",
        "1.2.0",
        "--kv_cache_free_gpu_memory_fraction --max_num_tokens --max_batch_size --max_seq_len",
        "",
        "",
    ),
    (
        "LlamaCpp",
        "b6000",
        "--ctx-size --parallel --batch-size --ubatch-size",
        "--n-gpu-layers=999 --cache-type-k=f16 --cache-type-v=f16",
        "",
    ),
]
NAMES = [f"{row[0]} {row[1]}" for row in TABLE]


def numbers(version: str) -> Pinned:
    return replace(PINNED, graph_batch=0) if version.endswith("+cpu") else PINNED


def test_every_engine_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == {*ENGINES}


@pytest.mark.parametrize(("engine", "version", "flags", "literals", "names"), TABLE, ids=NAMES)
def test_what_a_template_holds(
    engine: str, version: str, flags: str, literals: str, names: str
) -> None:
    found = inpod_flags(lookup(engine), SizingRequest(engine, version))
    assert found.flags == tuple(flags.split())
    assert found.literals == tuple(literals.split())
    assert found.env_names == tuple(names.split())
    assert found.literal_env == ({"CUDA_MEMORY_FRACTION": "1.0"} if names else {})
    variable = [word for word in found.words if word not in found.literals]
    assert variable == [f"{flag}=$({argument_key(flag)})" for flag in found.flags]
    assert {*found.words} - {*variable} == {*found.literals}


@pytest.mark.parametrize(("engine", "version"), [row[:2] for row in TABLE], ids=NAMES)
def test_filled_in_the_template_is_what_would_be_stamped(engine: str, version: str) -> None:
    request, program = SizingRequest(engine, version), lookup(engine)
    template = inpod_flags(program, request)
    found = inpod_arguments(program, numbers(version), request)
    filled = [
        re.sub(r"\$\((\w+)\)", lambda match: found.values[match[1]], word)
        for word in template.words
    ]
    stamped = [
        "--max-cudagraph-capture-size=200" if word.startswith("--cudagraph-capture") else word
        for word in program.pinned_args(numbers(version), request)
    ]
    assert filled == stamped
    env = {name: found.values[env_key(name)] for name in template.env_names}
    assert {**env, **template.literal_env} == program.pinned_env(numbers(version), request)
    check_template(
        program, found, request, flags=template.flags, env_names=template.env_names
    )  # does not raise


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SizingRequest("VLLM", "0.33.0", cuda_graphs=False), {"--enforce-eager"}),
        (SizingRequest("VLLM", "0.33.0", prefix_caching=False), {"--no-enable-prefix-caching"}),
        (SizingRequest("SGLang", "0.5.12", cuda_graphs=False), {"--disable-cuda-graph"}),
        (SizingRequest("LightLLM", "1.2.0", cuda_graphs=False), {"--disable_cudagraph"}),
        (
            SizingRequest("LightLLM", "1.2.0", cuda_graph_max_batch=32),
            {"--graph_max_batch_size=32"},
        ),
    ],
)
def test_switches_and_what_the_request_settles_are_constant(
    request_: SizingRequest, words: set[str]
) -> None:
    engine = lookup(request_.engine_type)
    template = inpod_flags(engine, request_)
    assert words <= {*template.literals}
    pinned = replace(PINNED, graph_batch=200 if request_.cuda_graphs else 0)
    found = inpod_arguments(engine, pinned, request_)
    assert (found.flags, found.literals) == (template.flags, template.literals)


def test_the_users_own_sizing_flags_are_left_to_him() -> None:
    request = SizingRequest("LightLLM", "1.2.0", engine_args=("--disable_cudagraph",))
    template = inpod_flags(lookup("LightLLM"), request)
    assert not [word for word in template.words if "graph" in word]
    merged = lookup("LightLLM").adopt(request)[0]
    assert inpod_flags(lookup("LightLLM"), merged) == template


def _check(found: InPodArguments, flags: str, env_names: str = "", engine: str = "TGI") -> None:
    check_template(
        lookup(engine),
        found,
        SizingRequest(engine, "1.0"),
        flags=flags.split(),
        env_names=env_names.split(),
    )


@pytest.mark.parametrize(
    ("flags", "env_names", "odd"),
    [
        ("--max-total-tokens --max-input-tokens", "TGI_WIGGLE_ROOM", "--max-batch-prefill-tokens"),
        (
            "--max-total-tokens --max-input-tokens --max-batch-prefill-tokens --port",
            "TGI_WIGGLE_ROOM",
            "--port",
        ),
        (
            "--max-total-tokens --max-input-tokens --max-batch-prefill-tokens",
            "",
            "TGI_WIGGLE_ROOM",
        ),
    ],
)
def test_a_template_with_other_arguments_is_refused(flags: str, env_names: str, odd: str) -> None:
    found = inpod_arguments(lookup("TGI"), PINNED, SizingRequest("TGI", "1.0"))
    with pytest.raises(Unsupported) as caught:
        _check(found, flags, env_names)
    assert (caught.value.reason, caught.value.exit_code) == ("InPodFlagsMismatch", 3)
    assert caught.value.value == odd
    assert "--max-total-tokens" in caught.value.message.partition(" needs ")[0]
    assert "--max-total-tokens" in caught.value.message.partition(" needs ")[2]


def test_a_flag_that_only_some_models_have_is_refused() -> None:
    request, engine = SizingRequest("LightLLM", "1.2.0"), lookup("LightLLM")
    found = inpod_arguments(engine, replace(PINNED, state_dtype="float32"), request)
    with pytest.raises(Unsupported, match="linear_att_ssm_data_type"):
        check_template(
            engine, found, request, flags=inpod_flags(engine, request).flags, env_names=()
        )


@pytest.mark.parametrize("value", ["a'b", "a\nb", ""])
def test_values_that_an_env_file_cannot_hold(value: str) -> None:
    pinned = replace(PINNED, memory_fraction=value)
    with pytest.raises(Unsupported, match="PLIMSOLL_ENV_TGI_WIGGLE_ROOM") as caught:
        inpod_arguments(lookup("TGI"), pinned, SizingRequest("TGI", "3.3.7"))
    assert caught.value.reason == "InPodFlagsMismatch"
