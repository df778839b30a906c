"""``plimsoll fit`` as a user and a script see it."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import plimsoll
from plimsoll.cli.__main__ import main
from plimsoll.cli.render import error_line
from plimsoll.core.catalogue import find_gpu
from plimsoll.core.errors import BadArgument
from plimsoll.core.units import GIB
from tests.unit.checkpoint.test_gguf import write
from tests.unit.cli.conftest import Outcome

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
}
#: The source tree, whether or not it is installed.
ENVIRON = os.environ | {"PYTHONPATH": str(Path(plimsoll.__file__).parents[1])}
GPU = ("--engine", "LightLLM", "--engine-version", "1.2.0", "--gpu-total", "79.19GiB")


@pytest.fixture
def fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))

    def run(*args: str, model: str | Path = path) -> Outcome:
        capsys.readouterr()
        code = main(["fit", str(model), *args])
        return Outcome(code, *capsys.readouterr())

    return run


def test_the_model_part_alone(fit: Any) -> None:
    outcome = fit("-o", "json")
    document = outcome.json()
    assert (outcome.code, outcome.err) == (0, "")
    assert document["schema"] == "plimsoll.dev/fit.v1"
    assert document["model"] == {
        "architecture": "LlamaForCausalLM",
        "attention": "GQA",
        "layers": 32,
        "contextLength": 131072,
    }
    assert document["perToken"] == {
        "kvBytesAllLayersFull": 131072,
        "kvBytesWindowsHonoured": 131072,
        "kvBytesPerRank": None,
    }
    assert (document["budget"], document["engine"], document["confidence"]) == (None, None, "exact")


def test_the_whole_answer(fit: Any) -> None:
    document = fit(*GPU, "-o", "json").json()
    budget = document["budget"]
    assert (
        budget["kv"]
        == budget["freeAfterInit"]
        - budget["weights"]
        - sum(budget["reserve"].values())
        - budget["safety"]
    )
    assert document["maxTotalTokenNum"] == budget["kv"] // 131072
    assert f"--max_total_token_num={document['maxTotalTokenNum']}" in document["engine"]["args"]
    assert document["confidence"] == "estimated"
    assert any("computed from the config" in warning for warning in document["warnings"])


def test_every_format_says_the_same(fit: Any) -> None:
    document = fit(*GPU, "-o", "json").json()
    assert yaml.safe_load(fit(*GPU, "-o", "yaml").out) == document
    assert fit(*GPU, "-o", "args").out.splitlines() == document["engine"]["args"]
    text = fit(*GPU).out
    for number in (
        document["maxTotalTokenNum"],
        document["budget"]["kv"],
        document["budget"]["safety"],
    ):
        assert f"{number:,}" in text
    for term in document["budget"]["reserve"]:
        assert term in text


def test_args_can_be_pasted_into_a_shell(fit: Any) -> None:
    args = fit(*GPU, "-o", "json").json()["engine"]["args"]
    assert shlex.split(fit(*GPU, "-o", "args").out) == args


def test_the_bar_shows_the_device(fit: Any) -> None:
    bar = next(line for line in fit(*GPU).out.splitlines() if line.startswith("["))
    assert len(bar) == 62
    document = fit(*GPU, "-o", "json").json()["budget"]
    assert abs(bar.count("#") - 60 * document["kv"] / document["deviceTotal"]) <= 1
    assert abs(bar.count("W") - 60 * document["weights"] / document["deviceTotal"]) <= 1


def test_a_well_known_gpu_fills_name_and_totals(fit: Any) -> None:
    engine = GPU[:4]
    named = fit(*engine, "--gpu", "h100-80gb", "-o", "json").json()
    gpu = find_gpu("H100-80GB")
    assert named["budget"]["deviceTotal"] == named["budget"]["deviceFree"] == gpu.total
    by_hand = ("--gpu-name", gpu.product, "--gpu-total", str(gpu.total))
    assert fit(*engine, *by_hand, "-o", "json").json() == named
    stated = fit(*engine, "--gpu", "H100-80GB", "--gpu-total", "70GiB", "-o", "json").json()
    assert stated["budget"]["deviceTotal"] == 70 * GIB


def test_mode_engine_predicts_what_the_engine_takes_by_itself(fit: Any) -> None:
    own = (
        "--mode",
        "Engine",
        "--engine-arg=--mem_fraction=0.9",
        "--weights",
        "15GiB",
        "-o",
        "json",
    )
    document = fit(*GPU, *own).json()
    budget = document["budget"]
    unused = budget["deviceTotal"] - int(budget["deviceTotal"] * 0.9)
    assert budget["safety"] == unused
    assert budget["reserve"].keys() == {"requestTables"}
    assert document["maxTotalTokenNum"] == budget["kv"] // 131072
    assert document["engine"]["args"] == []  # Plimsoll adds nothing there
    with_length = ("--engine-arg=--max_req_total_len=8192", *own)
    assert fit(*GPU, "--context", "8192", *with_length).code == 0
    assert fit(*GPU, "--context", "4096", *with_length).code == 2


def test_a_pipeline_has_the_number_of_its_scarcest_stage(fit: Any) -> None:
    vllm = ("--engine", "VLLM", "--engine-version", "0.33.0", "--gpu", "H100-80GB")
    one = fit(*vllm, "--weights", "16GiB", "-o", "json").json()
    sizes = ("--weights", "8GiB", "--weights", "9GiB")
    two = fit(*vllm, "--pipeline", "2", *sizes, "-o", "json").json()
    assert two["perToken"]["kvBytesPerRank"] == one["perToken"]["kvBytesPerRank"] // 2
    assert two["budget"]["weights"] == 9 * GIB
    assert two["maxTotalTokenNum"] == two["budget"]["kv"] // 65536
    assert fit(*vllm, "--pipeline", "2", *["--weights", "8GiB"] * 3).code == 2
    assert fit(*vllm, "--pipeline", "33").code == 2  # more stages than layers
    assert fit(*GPU, "--pipeline", "2").code == 3  # LightLLM has none


def test_what_would_fit_instead_is_said(fit: Any) -> None:
    small = fit("--engine", "LightLLM", "--engine-version", "1.2.0", "--gpu", "T4")
    assert small.code == 1
    assert "warning: fits on A10G, the smallest GPU that holds it" in small.out
    assert "warning: fits on 2 GPUs like this one (--tensor 2)" in small.out
    huge = fit("--engine", "LightLLM", "--gpu", "T4", "--weights", "900GiB")
    assert "fits on" not in huge.out


def test_the_table_of_terms_adds_up(fit: Any) -> None:
    lines = fit(*GPU).out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("free after start"))
    end = next(i for i, line in enumerate(lines) if line.startswith("= KV cache"))
    amounts = [int(line[26:44].replace(",", "")) for line in lines[start : end + 1]]
    assert sum(amounts[:-1]) == amounts[-1]


def test_does_not_fit_is_exit_1_with_the_whole_document(fit: Any) -> None:
    outcome = fit("--engine", "LightLLM", "--gpu-total", "12GiB", "-o", "json")
    document = outcome.json()
    assert outcome.code == 1
    assert document["maxTotalTokenNum"] == 0
    assert document["budget"]["kv"] < 0
    assert document["error"]["reason"] == "WeightsDoNotFit"
    assert len(outcome.err.splitlines()) == 1
    assert "budget.weights" in outcome.err
    assert fit("--engine", "LightLLM", "--gpu-total", "12GiB", "-o", "args").out == ""


@pytest.mark.parametrize(
    ("args", "code", "reason", "field"),
    [
        (("--gpu-total", "80GiB"), 2, "InvalidArgument", "--engine"),  # a GPU without an engine
        (("--engine-arg=--tp=2",), 2, "InvalidArgument", "--engine"),
        (
            ("--engine", "LightLLM", "--gpu-total", "80GB", "--gpu-free", "81GB"),
            2,
            "InvalidArgument",
            "--gpu-free",
        ),
        ((*GPU, "--gpu-free-after-init", "80GiB"), 2, "InvalidArgument", "--gpu-free-after-init"),
        (("--engine", "LightLLM", "--gpu-name", "H100"), 2, "InvalidArgument", "--gpu-total"),
        ((*GPU, "--weights", "1GiB", "--weights", "1GiB"), 2, "InvalidArgument", "weights"),
        (("--gpu-total", "80 gigs"), 2, "InvalidArgument", "--gpu-total"),
        (("--gpu-total", "-1"), 2, "InvalidArgument", "--gpu-total"),
        (("--gpu-total", "0"), 2, "InvalidArgument", "--gpu-total"),
        (("--tensor", "0"), 2, "InvalidArgument", "--tensor"),
        (("--tensor", " 2"), 2, "InvalidArgument", "--tensor"),
        (("--tensor", "1_0"), 2, "InvalidArgument", "--tensor"),
        (("--tens", "2"), 2, "InvalidArgument", "arguments"),  # no abbreviations
        (("--nonsense",), 2, "InvalidArgument", "arguments"),
        (("--gpu", "H100-80GB"), 2, "InvalidArgument", "--engine"),
        ((*GPU, "--gpu", "H1000"), 2, "InvalidArgument", "--gpu"),
        (("--mode", "Engine"), 2, "InvalidArgument", "--engine"),
        ((*GPU, "--mode", "engine"), 2, "InvalidArgument", "--mode"),
        (("--dtype", "bf17"), 2, "InvalidArgument", "dtype"),
        (("--dtype", "int8"), 2, "InvalidArgument", "dtype"),
        (("--kv-cache-dtype", "bf17"), 2, "InvalidArgument", "kvCacheDType"),
        ((*GPU, "--engine-arg=--mem_fraction=0.9"), 2, "FlagNotAllowed", "spec.engine.args[0]"),
        (
            (*GPU, "--context", "4096", "--engine-arg=--max_req_total_len=8192"),
            2,
            "InvalidArgument",
            "--max_req_total_len",
        ),
        (("--engine", "Vllm"), 3, "UnsupportedEngine", "spec.engine.type"),
        ((*GPU, "--pipeline", "0"), 2, "InvalidArgument", "--pipeline"),
        (
            (*GPU[:2], "--engine-version", "0.0.1"),
            3,
            "UnsupportedEngineVersion",
            "spec.engine.version",
        ),
        ((*GPU, "--tensor", "16"), 3, "UnsupportedParallelism", "spec.parallelism.tensor"),
    ],
)
def test_refusals_are_one_line_and_one_object(
    fit: Any, args: tuple[str, ...], code: int, reason: str, field: str
) -> None:
    outcome = fit(*args, "-o", "json")
    assert outcome.code == code
    document = outcome.json()
    assert document.keys() == {"schema", "error"}
    assert document["error"].keys() == {"reason", "message", "field", "file", "value"}
    assert (document["error"]["reason"], document["error"]["field"]) == (reason, field)
    assert len(outcome.err.splitlines()) == 1
    assert reason in outcome.err
    assert field in outcome.err
    plain = fit(*args)
    assert (plain.code, plain.out) == (code, "")


@pytest.mark.parametrize(
    ("content", "code", "reason", "field"),
    [
        ("{", 2, "ConfigUnreadable", None),
        ('{"model_type": "no_such_type"}', 3, "UnsupportedArchitecture", "num_hidden_layers"),
        (
            json.dumps(CONFIG | {"num_hidden_layers": -1}),
            2,
            "ConfigUnreadable",
            "num_hidden_layers",
        ),
    ],
)
def test_a_bad_model_names_its_file(
    fit: Any, tmp_path: Path, content: str, code: int, reason: str, field: str | None
) -> None:
    (tmp_path / "config.json").write_text(content)
    for model in (tmp_path / "config.json", tmp_path):
        outcome = fit("-o", "json", model=model)
        error = outcome.json()["error"]
        assert (outcome.code, error["reason"], error["field"], error["file"]) == (
            code,
            reason,
            field,
            "config.json",
        )
        assert "config.json" in outcome.err


def test_no_model(fit: Any, tmp_path: Path) -> None:
    outcome = fit("-o", "json", model=tmp_path / "absent")
    assert (outcome.code, outcome.json()["error"]["reason"]) == (2, "ModelNotFound")


def test_a_hostile_name_stays_on_one_line(fit: Any, tmp_path: Path) -> None:
    outcome = fit(model=tmp_path / "a\n\x1b[31mb")
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert "\x1b" not in outcome.err
    line = error_line(BadArgument("a\nb\x1b", field="c\rd", file="e\u2028f"))
    assert line == "plimsoll: InvalidArgument: a?b? (field c?d, file e?f)"


def test_standard_input(monkeypatch: pytest.MonkeyPatch, fit: Any) -> None:
    class Stdin:
        buffer = io.BytesIO(json.dumps(CONFIG).encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert fit("-o", "json", model="-").json()["perToken"]["kvBytesAllLayersFull"] == 131072
    Stdin.buffer = io.BytesIO(b" " * ((1 << 20) + 1))
    assert fit(model="-").code == 2


def test_a_gguf_file_and_its_folder(fit: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "m.gguf")
    args = (
        "--engine",
        "LlamaCpp",
        "--engine-version",
        "2026.10+cpu",
        "--gpu-total",
        "300MiB",
        "-o",
        "json",
    )
    by_file = fit(*args, model=tmp_path / "sub" / "m.gguf")
    by_folder = fit(*args, model=tmp_path / "sub")
    assert by_file.code == by_folder.code == 0
    assert by_file.json() == by_folder.json()
    document = by_file.json()
    assert document["budget"]["weights"] == 2560 + 512 + 320
    assert document["budget"]["freeAfterInit"] == 300 * 1024**2  # a CPU build: no context
    assert document["maxContextLength"] == 2048


@pytest.mark.parametrize(
    ("flags", "total", "free", "after"),
    [
        (("--gpu-total", "80GiB"), 80, 80, None),
        (("--gpu-total", "80GiB", "--gpu-free", "70GiB"), 80, 70, None),
        (("--gpu-total", "80GiB", "--gpu-free-after-init", "60GiB"), 80, 80, 60),
        (
            ("--gpu-total", "80GiB", "--gpu-free", "70GiB", "--gpu-free-after-init", "60GiB"),
            80,
            70,
            60,
        ),
        (("--nvml-total", "81GiB", "--gpu-total", "80GiB"), 80, 80, None),
        (("--gpu-free", "70GiB"), 70, 70, None),
    ],
)
def test_the_more_specific_flag_wins(
    fit: Any, flags: tuple[str, ...], total: int, free: int, after: int | None
) -> None:
    document = fit(*GPU[:4], *flags, "-o", "json").json()
    budget = document["budget"]
    assert budget["deviceTotal"] == total * GIB
    assert budget["deviceFree"] == free * GIB
    assert budget["freeAfterInit"] == (after * GIB if after else free * GIB - 51 * GIB // 100)
    assert any("--gpu-total" in warning for warning in document["warnings"]) == (
        "--gpu-total" not in flags
    )


def test_weights_are_taken_as_given(fit: Any) -> None:
    document = fit(*GPU, "--weights", "14.96GiB", "-o", "json").json()
    assert document["budget"]["weights"] == 16_063_177_687
    assert not any("computed" in warning for warning in document["warnings"])


def test_context_and_the_engines_own_flag_are_one_setting(fit: Any) -> None:
    ours = fit(*GPU, "--context", "8192", "-o", "json").json()
    theirs = fit(*GPU, "--engine-arg=--max_req_total_len=8192", "-o", "json").json()
    both = fit(
        *GPU, "--context", "8192", "--engine-arg=--max_req_total_len=8192", "-o", "json"
    ).json()
    assert ours == theirs == both
    assert ours["concurrencyAtContext"]["context"] == 8192


def test_sizing_flags_are_parsed_and_unlisted_ones_are_said(fit: Any) -> None:
    known = fit(*GPU, "--engine-arg=--data_type=float32", "-o", "json").json()
    assert known["perToken"]["kvBytesPerRank"] == 262_144
    unlisted = fit(*GPU, "--engine-arg=--brand_new", "--engine-arg=7", "-o", "json").json()
    assert any("--brand_new" in warning for warning in unlisted["warnings"])


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fit", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for flag in [
        "--gpu NAME",
        "--gpu-name",
        "--gpu-total",
        "--nvml-total",
        "--gpu-free",
        "--gpu-free-after-init",
        "--weights",
        "--engine",
        "--engine-version",
        "--engine-arg",
        "--tensor",
        "--pipeline",
        "--dtype",
        "--kv-cache-dtype",
        "--context",
        "--mode",
        "-o",
    ]:
        assert flag in text


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = subprocess.run(
        [sys.executable, "-m", "plimsoll.cli", "fit", str(tmp_path), *GPU, "-o", "args"],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRON,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("--max_total_token_num=")
    broken = subprocess.run(
        [sys.executable, "-m", "plimsoll.cli", "fit", str(tmp_path / "no")],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRON,
    )
    assert (broken.returncode, broken.stdout) == (2, "")


def test_no_command_is_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().err
