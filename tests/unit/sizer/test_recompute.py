"""The independent recomputation: its arithmetic by hand-made messages, and that it is independent."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "recompute.py"

MESSAGE: dict[str, Any] = {
    "schema": "plimsoll.dev/report.v1",
    "podUID": "u",
    "requestHash": "h",
    "modelDigest": "d",
    "class": {"product": "p", "totalBytes": 10_000, "mig": None, "sharing": None, "count": 1},
    "driver": "580",
    "devices": ["GPU-1"],
    "rank": 0,
    "budget": {
        "deviceTotal": 9_900,
        "deviceFree": 9_800,
        "freeAfterInit": 9_000,
        "weights": 3_000,
        "reserve": {"activation": 500, "extra": 7},
        "safety": 100,
        "kv": 5_393,
    },
    "perToken": {"kvBytesPerRank": 10},
    "fixedPools": 93,
    "granule": 16,
    "maxTotalTokenNum": 528,  # (5393 - 93) / 10 = 530, in steps of 16
    "tokenMeaning": "AllLayersFull",
    "maxSequences": 2,
    "contextLength": 200,
    "modelFile": None,
    "prefillTokens": 8,
    "confidence": "estimated",
    "end": "plimsoll",
}


def call(message: dict[str, Any] | str, *arguments: str) -> tuple[int, str, str]:
    text = message if isinstance(message, str) else json.dumps(message)
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


def changed(path: str, value: Any) -> dict[str, Any]:
    message = copy.deepcopy(MESSAGE)
    *parents, last = path.split(".")
    place = message
    for name in parents:
        place = place[name]
    place[last] = value
    return message


def test_the_formula() -> None:
    assert call(MESSAGE) == (0, "528", "")


def test_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "message").write_text(json.dumps(MESSAGE))
    assert call("", str(tmp_path / "message")) == (0, "528", "")


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["--engine", "LlamaCpp"], 400),  # two slots of 200
        (["--engine", "LightLLM"], 528),
        (["--bound", "500"], 496),  # the bound, in whole granules
        (["--bound", "10000"], 528),
        (["--engine", "LlamaCpp", "--bound", "300"], 288),
    ],
)
def test_caps(arguments: list[str], tokens: int) -> None:
    assert call(changed("maxTotalTokenNum", tokens), *arguments) == (0, str(tokens), "")


def test_another_number_is_noticed() -> None:
    code, number, why = call(changed("maxTotalTokenNum", 512))
    assert (code, number) == (1, "528")
    assert "the message says 512" in why


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("budget.kv", 5_394, "its terms leave 5393"),
        ("budget.weights", 2_999, "its terms leave 5394"),
        ("budget.reserve.extra", True, "not an integer"),
        ("granule", 16.0, "not an integer"),
        ("schema", "plimsoll.dev/report.v2", "schema"),
        ("end", "plim", "end marker"),
        ("surplus", 1, "surplus"),
        ("budget.surplus", 1, "budget"),
        ("devices", [], "count"),
        ("error", {"reason": "BudgetTooSmall"}, "BudgetTooSmall"),
        ("driver", "x" * 2048, "2048"),
    ],
)
def test_what_is_wrong_is_said(path: str, value: Any, why: str) -> None:
    code, number, errors = call(changed(path, value))
    assert (code, number) == (1, "")
    assert why in errors


def test_a_cut_message_is_refused() -> None:
    code, _, errors = call(json.dumps(MESSAGE)[10:])
    assert code == 1
    assert "not JSON" in errors


def test_it_imports_nothing_of_the_product() -> None:
    names = {
        name
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names == {"__future__", "argparse", "json", "sys", "pathlib", "typing"}
