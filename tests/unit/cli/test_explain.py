"""Where a number comes from, and what would raise it."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.cli.explain_document import document
from plimsoll.cli.explain_text import text
from plimsoll.cli.levers import ABOUT, EXACT, UP_TO, levers, without_effect
from plimsoll.cli.style import Style, style_of
from plimsoll.controller.crd import parse, sizing_request
from plimsoll.controller.steps.capacity import measured as as_stored
from plimsoll.core import fit
from plimsoll.core.catalogue import find_gpu
from plimsoll.core.device import Device
from tests.unit.cli.conftest import golden, server
from tests.unit.cli.test_fit import CONFIG

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import FakeKubectl

H100 = find_gpu("H100-80GB")
DEVICE = Device(H100.product, H100.total, H100.nvml_total, H100.total)


def measured(engine: str, version: str, **sizing: Any) -> dict[str, Any]:
    """A resource whose status is what fit says of Llama-3.1-8B on an H100."""
    raw = server("chat-vllm")
    raw["spec"]["engine"] = {"type": engine, "image": f"registry/x:v{version}", "version": version}
    raw["spec"]["sizing"] = sizing
    answer = fit(CONFIG, None, DEVICE, sizing_request(parse(raw)))
    report = answer.report(pod_uid="u", request_hash="0" * 40, model_digest="0" * 64)
    node = {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "H100"}}}
    capacity = as_stored(parse(raw), report, node=node, request_hash="0" * 40, at="t")
    raw["status"]["capacity"] = capacity
    return raw


@pytest.mark.parametrize("name", ["smollm2", "chat-vllm"])
def test_the_screen(name: str, kubectl: FakeKubectl, plimsoll: Any) -> None:
    kubectl.answers("get", out=server(name))
    outcome = plimsoll("explain", name)
    assert (outcome.code, outcome.err) == (0, "")
    golden(f"explain-{name}.txt", outcome.out)


def test_the_terms_add_up_and_each_has_an_origin(kubectl: FakeKubectl, plimsoll: Any) -> None:
    kubectl.answers("get", out=server("chat-vllm"))
    answer = plimsoll("explain", "chat-vllm", "-o", "json").json()
    assert answer["schema"] == "plimsoll.dev/explain.v1"
    parts = [term for term in answer["terms"] if term["mark"] not in {"sum", "#"}]
    pool = next(term for term in answer["terms"] if term["mark"] == "#")
    assert answer["terms"][0]["bytes"] + sum(term["bytes"] for term in parts) == pool["bytes"]
    assert all(term["from"] for term in answer["terms"])


def test_extra_is_told_apart() -> None:
    raw = server("chat-vllm")
    capacity = raw["status"]["capacity"]
    raw["spec"]["sizing"] = {"extraReserve": "1Gi"}
    capacity["breakdown"]["reserve"]["extra"] = 7 << 30
    learned = {"bytes": 2 << 30, "from": "other", "at": "2026-01-02T00:00:00Z"}
    capacity |= {"learned": learned, "shrinkSteps": 2}
    terms = {t["name"]: t for t in document(raw, (), ())["terms"] if t["name"].startswith("extra")}
    assert {name: -t["bytes"] >> 30 for name, t in terms.items()} == {
        "extra: asked for": 1,
        "extra: learned": 2,
        "extra: found out": 4,
    }
    assert "server other" in terms["extra: learned"]["from"]
    said = document(raw, (), ())["corrections"]
    assert any("made smaller 2 times" in line for line in said)
    assert any("because server other needed them" in line for line in said)


def test_classes_and_a_number_of_the_users() -> None:
    raw = server()
    kinds = [
        {
            "product": "A",
            "maxTotalTokenNum": 100_000,
            "kvCacheBytes": 1 << 30,
            "pods": 2,
            "ready": 1,
        }
    ]
    raw["status"] |= {
        "classes": kinds,
        "capacity": {"maxTotalTokenNum": 5, "source": "UserProvided"},
    }
    lines = "\n".join(text(document(raw, (), ()), Style()))
    assert "given by the resource, not measured" in lines
    assert "A     100,000   1.00 GiB      2       1" in lines
    assert "[" not in lines


def test_no_number_yet_is_said() -> None:
    raw = server()
    del raw["status"]
    lines = "\n".join(text(document(raw, (), ()), Style()))
    assert "There is no number yet" in lines


@pytest.mark.parametrize(
    ("engine", "version"),
    [("LightLLM", "1.2.0"), ("VLLM", "0.33.0"), ("SGLang", "0.5.23")],
)
def test_levers_hold_against_the_whole_arithmetic(engine: str, version: str) -> None:
    """About is within 6 % of what fit says for the changed request, and up to is never less."""
    raw = measured(engine, version, maxConcurrentRequests=128)
    resource, capacity = parse(raw), raw["status"]["capacity"]
    found = levers(resource, capacity)
    assert {lever.setting.partition(":")[0] for lever in found} >= {
        "sizing.kvCacheDType", "accelerator.count", "GPU H200",
    }  # fmt: skip
    for lever in found:
        gpu = find_gpu(lever.gpu) if lever.gpu else H100
        count = lever.request.get("tensor", 1)
        device = Device(gpu.product, gpu.total, gpu.nvml_total, gpu.total, count=count)
        truth = fit(CONFIG, None, device, replace(sizing_request(resource), **lever.request)).tokens
        assert truth is not None
        assert lever.tokens is not None
        if lever.basis == ABOUT:
            assert abs(lever.tokens - truth) <= 0.06 * truth, (lever, truth)
        else:
            assert lever.basis == UP_TO
            assert lever.tokens >= truth * 0.995, (lever, truth)
        assert truth > capacity["maxTotalTokenNum"] * 0.999


def test_shorter_context_is_said_to_change_little() -> None:
    raw = measured("VLLM", "0.33.0")
    said = without_effect(parse(raw), raw["status"]["capacity"])
    assert said is not None
    assert "does not change it" in said
    raw = measured("LightLLM", "1.2.0")
    said = without_effect(parse(raw), raw["status"]["capacity"])
    assert said is not None
    most = raw["status"]["capacity"]["breakdown"]["reserve"]["requestTables"]
    assert f"at most {most // 131072:,} tokens" in said


def test_only_levers_that_the_engine_has() -> None:
    raw = server()
    settings = {lever.setting for lever in levers(parse(raw), raw["status"]["capacity"])}
    assert not any(setting.startswith("accelerator.count") for setting in settings)
    assert "sizing.kvCacheDType: q8_0" in settings
    raw["spec"]["sizing"] = {"kvCacheDType": "q8_0"}
    again = {lever.setting for lever in levers(parse(raw), raw["status"]["capacity"])}
    assert not any(setting.startswith("sizing.kvCacheDType") for setting in again)


def test_caps_and_reserves_of_the_users_are_levers() -> None:
    raw = measured("LightLLM", "1.2.0", maxTotalTokenNum=1000, extraReserve="4Gi")
    found = {x.setting: x for x in levers(parse(raw), raw["status"]["capacity"])}
    whole = raw["status"]["capacity"]["breakdown"]["kv"] // 131072
    assert found["sizing.maxTotalTokenNum: (left out)"].tokens == whole
    assert found["sizing.extraReserve: 0"].tokens == whole + (4 << 30) // 131072


def test_with_the_models_files_levers_are_exact(
    kubectl: FakeKubectl, plimsoll: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    raw = measured("LightLLM", "1.2.0")
    kubectl.answers("get", out=raw)
    answer = plimsoll("explain", "chat-vllm", "--model", str(tmp_path), "-o", "json").json()
    assert {lever["basis"] for lever in answer["levers"]} == {EXACT}
    half = next(x for x in answer["levers"] if x["setting"] == "sizing.kvCacheDType: fp8")
    request = replace(sizing_request(parse(raw)), kv_cache_dtype="fp8")
    assert half["tokens"] == fit(CONFIG, None, DEVICE, request).tokens
    assert not any("other files" in note for note in answer["notes"])


def test_colours_only_on_a_terminal_that_wants_them() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert not style_of(io.StringIO(), {}).colour
    assert style_of(Terminal(), {}).colour
    assert not style_of(Terminal(), {"NO_COLOR": "1"}).colour
    assert not style_of(Terminal(), {"TERM": "dumb"}).colour
    answer = document(server(), (), ())
    coloured = "\n".join(text(answer, Style(colour=True)))
    plain = "\n".join(text(answer, Style()))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
