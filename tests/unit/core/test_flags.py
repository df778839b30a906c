"""Owned flags in every spelling that an engine's parser, or a reader of its manual, would accept."""

from __future__ import annotations

import pytest

from plimsoll.core.engines import ENGINES, lookup
from plimsoll.core.engines.lightllm_flags import FLAGS as LIGHTLLM
from plimsoll.core.engines.llamacpp_flags import FLAGS as LLAMACPP
from plimsoll.core.errors import BadArgument, FlagNotAllowed, Unsupported
from plimsoll.core.request import SizingRequest

TABLES = (LIGHTLLM, LLAMACPP)
#: The issue's list for LightLLM, and llama.cpp's with their short names and environment names.
LIGHTLLM_OWNED = [
    "max_total_token_num",
    "mem_fraction",
    "model_dir",
    "host",
    "port",
    "tp",
    "batch_max_tokens",
    "chunked_prefill_size",
    "running_max_req_size",
    "max_req_total_len",
    "graph_max_batch_size",
    "llm_kv_type",
]
LLAMACPP_OWNED = {
    "--model": ("-m", "LLAMA_ARG_MODEL"),
    "--host": (None, "LLAMA_ARG_HOST"),
    "--port": (None, "LLAMA_ARG_PORT"),
    "--ctx-size": ("-c", "LLAMA_ARG_CTX_SIZE"),
    "--parallel": ("-np", "LLAMA_ARG_N_PARALLEL"),
    "--n-gpu-layers": ("-ngl", "LLAMA_ARG_N_GPU_LAYERS"),
    "--batch-size": ("-b", "LLAMA_ARG_BATCH"),
    "--ubatch-size": ("-ub", "LLAMA_ARG_UBATCH"),
    "--cache-type-k": ("-ctk", "LLAMA_ARG_CACHE_TYPE_K"),
    "--cache-type-v": ("-ctv", "LLAMA_ARG_CACHE_TYPE_V"),
}


def refused(engine: str, *args: str, env: tuple[str, ...] = ()) -> FlagNotAllowed:
    with pytest.raises(FlagNotAllowed) as caught:
        lookup(engine).check_args(args, env)
    return caught.value


@pytest.mark.parametrize("name", LIGHTLLM_OWNED)
def test_lightllm_owned_flags_in_every_spelling(name: str) -> None:
    dashed = name.replace("_", "-")
    for args in (
        (f"--{name}", "5"),
        (f"--{name}=5",),
        (f"--{dashed}", "5"),
        (f"--{dashed}=5",),
        ("--data_type", "bf16", f"--{name}=5"),
    ):
        error = refused("LightLLM", *args)
        assert f"--{name}" in error.message or f"--{dashed}" in error.message
        assert (
            error.field
            == f"spec.engine.args[{len(args) - 1 if '=' in args[-1] else len(args) - 2}]"
        )


@pytest.mark.parametrize("name", LIGHTLLM_OWNED)
def test_lightllm_abbreviations_are_refused_as_argparse_would_take_them(name: str) -> None:
    known = {flag.rstrip("!") for flag in LIGHTLLM.neutral} | LIGHTLLM.sizing | LIGHTLLM.unsized
    dashed = name.replace("_", "-")
    for end in range(2, len(dashed)):
        short = dashed[:end]
        if short not in known:
            refused("LightLLM", f"--{short}=5")
            refused("LightLLM", "--" + short.replace("-", "_"), "5")


def test_the_message_says_what_an_abbreviation_means_and_what_to_use() -> None:
    error = refused("LightLLM", "--max_total_token_n", "5")
    assert "--max_total_token_num" in error.message
    assert "spec.sizing.maxTotalTokenNum" in error.message
    assert error.value == "--max_total_token_n"


@pytest.mark.parametrize("flag", LLAMACPP_OWNED)
def test_llamacpp_owned_flags_in_every_spelling(flag: str) -> None:
    short, env = LLAMACPP_OWNED[flag]
    spellings = [flag, flag.replace("-", "_").replace("__", "--", 1), *([short] if short else [])]
    for spelling in spellings:
        refused("LlamaCpp", spelling, "5")
        refused("LlamaCpp", f"{spelling}=5")
    assert env in refused("LlamaCpp", env=(str(env),)).message


@pytest.mark.parametrize(
    "arg", ["--gpu-layers", "-hf", "--hf-repo", "-mu", "--models-preset", "--config"]
)
def test_llamacpp_other_ways_to_the_same_settings(arg: str) -> None:
    refused("LlamaCpp", arg, "x")


def test_llamacpp_takes_no_abbreviations() -> None:
    lookup("LlamaCpp").check_args(["--ctx", "5", "--mod", "x"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "PLIMSOLL_TOKENS", "PLIMSOLL_X"]
)
def test_names_that_would_change_the_devices_are_refused(engine: str, name: str) -> None:
    error = refused(engine, env=("HF_HOME", name))
    assert name in error.message
    assert error.field == "spec.engine.env"


@pytest.mark.parametrize(
    "args", [("--config", "x"), ("--config=x",), ("--dp", "2"), ("--mtp_step=1",)]
)
def test_lightllm_files_of_flags_and_unsized_multipliers(args: tuple[str, ...]) -> None:
    refused("LightLLM", *args)


def test_neutral_and_unlisted_flags_pass() -> None:
    lookup("LightLLM").check_args(
        [
            "--tokenizer_mode",
            "fast",
            "--mode",
            "x",
            "--trust_remote_code",
            "--brand_new",
            "-1",
            "-",
        ],
        ["HF_HOME"],
    )
    lookup("LlamaCpp").check_args(
        ["-t", "4", "--metrics", "-fa", "on", "--brand-new"], ["LLAMA_ARG_THREADS"]
    )


@pytest.mark.parametrize(
    ("args", "allowed"),
    [
        (("--tokenizer_mode=$(X)",), True),
        (("--tokenizer_mode", "$(X)"), True),
        (("$(X)",), False),
        (("--$(X)",), False),
        (("--trust_remote_code", "$(X)"), False),  # a switch takes no value
        (("--tokenizer_mode=fast", "$(X)"), False),
        (("--brand_new", "$(X)"), False),
        (("$$(X)",), True),  # Kubernetes leaves it alone
    ],
)
def test_an_expansion_cannot_smuggle_a_flag(args: tuple[str, ...], *, allowed: bool) -> None:
    if allowed:
        lookup("LightLLM").check_args(args)
    else:
        assert "expand" in refused("LightLLM", *args).message


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.engine)
def test_the_tables_are_consistent(table: object) -> None:
    assert isinstance(table, type(LIGHTLLM))
    neutral = {name.rstrip("!") for name in table.neutral}
    kinds = [set(table.owned), set(table.sizing), set(table.unsized), neutral]
    assert sum(map(len, kinds)) == len(set().union(*kinds)), "a flag is in two lists"
    assert set(table.fields) <= set(table.owned)
    assert set(table.aliases.values()) <= set().union(*kinds)
    assert not any("_" in name for kind in kinds for name in kind)
    assert not set(table.owned_env) & table.neutral_env


@pytest.mark.parametrize(
    ("args", "known"),
    [
        ((), True),
        (("--data_type", "bf16", "--trust_remote_code", "--tokenizer_m=fast"), True),
        (("--brand_new",), False),
        (("--quant_type=ao-int8wo",), False),
    ],
)
def test_unlisted_and_unsized_flags_are_noted(args: tuple[str, ...], *, known: bool) -> None:
    request = SizingRequest("LightLLM", "1.2.0", engine_args=args)
    notes = lookup("LightLLM").adopt(request)[1]
    assert (notes == ()) is known
    if not known:
        assert args[0].split("=")[0] in notes[0]


def test_unlisted_names_are_noted() -> None:
    request = SizingRequest(
        "LlamaCpp", "2026.10", engine_env=("HF_HOME", "LLAMA_ARG_THREADS", "STRANGE")
    )
    assert [note for note in lookup("LlamaCpp").adopt(request)[1] if "STRANGE" in note]
    assert len(lookup("LlamaCpp").adopt(request)[1]) == 1


def test_sizing_flags_reach_the_arithmetic() -> None:
    adopt = lookup("LightLLM").adopt
    given = SizingRequest(
        "LightLLM", "1.2.0", engine_args=("--data_type", "float32", "--disable_cudagraph")
    )
    request, notes = adopt(given)
    assert (request.dtype, request.cuda_graphs, notes) == ("fp32", False, ())
    with pytest.raises(BadArgument):
        adopt(SizingRequest("LightLLM", "1.2.0", engine_args=("--data_type",)))
    with pytest.raises(BadArgument):
        adopt(SizingRequest("LightLLM", "1.2.0", dtype="bf16", engine_args=("--data_type=fp16",)))


@pytest.mark.parametrize("version", [None, "latest", "9.9.9", "1"])
def test_an_unknown_version_is_said(version: str | None) -> None:
    assert any(
        "version" in note
        for note in lookup("LightLLM").adopt(SizingRequest("LightLLM", version))[1]
    )


@pytest.mark.parametrize("version", ["1.0.1", "v1.1.0", "1.2.0", "1.2.0-cu128"])
def test_a_known_version_is_not(version: str) -> None:
    assert lookup("LightLLM").adopt(SizingRequest("LightLLM", version))[1] == ()


def test_versions_that_cannot_be_pinned_are_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        lookup("LightLLM").adopt(SizingRequest("LightLLM", "0.0.1"))
    assert caught.value.reason == "UnsupportedEngineVersion"


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Unsupported) as caught:
        lookup("Vllm")
    assert "LightLLM" in caught.value.message


@pytest.mark.parametrize(
    ("args", "attribute", "value"),
    [
        (("--max_req_total_len=8192",), "context_length", 8192),
        (("--max-req-total-len", "8192"), "context_length", 8192),
        (("--tp", "2"), "tensor", 2),
        (("--llm_kv_type", "int8kv"), "kv_cache_dtype", "int8kv"),
        (("--running_max_req_size=9", "--running_max_req_size=9"), "max_concurrent_requests", 9),
    ],
)
def test_fit_takes_the_engines_own_spelling(
    args: tuple[str, ...], attribute: str, value: object
) -> None:
    request = lookup("LightLLM").absorb(
        SizingRequest("LightLLM", engine_args=("--mode", "x", *args))
    )
    assert getattr(request, attribute) == value
    assert request.engine_args == ("--mode", "x")


@pytest.mark.parametrize(
    "request_",
    [
        SizingRequest("LightLLM", context_length=4096, engine_args=("--max_req_total_len=8192",)),
        SizingRequest("LightLLM", engine_args=("--tp=2", "--tp=4")),
        SizingRequest("LightLLM", engine_args=("--tp",)),
        SizingRequest("LightLLM", engine_args=("--tp=x",)),
        SizingRequest("LightLLM", engine_args=("--tp=-1",)),
        SizingRequest("LlamaCpp", engine_args=("-ctk", "f16", "-ctv", "q8_0")),
    ],
)
def test_contradictions_are_refused(request_: SizingRequest) -> None:
    with pytest.raises(BadArgument):
        lookup(request_.engine_type).absorb(request_)
