"""Every reason that the code can give has its paragraph, and no paragraph is about one that it cannot."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from plimsoll.controller import status
from tools.reference import conditions, reasons, source

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
_SECTION = re.compile(r"(?ms)^### (\w+)\n(.*?)(?=^##|\Z)")
PARAGRAPHS = dict(_SECTION.findall(PAGE))


def test_every_reason_has_a_paragraph_and_every_paragraph_a_reason() -> None:
    wanted = set(conditions.documented())
    assert set(PARAGRAPHS) == wanted


def test_nothing_that_the_code_can_give_is_left_out() -> None:
    found = set(reasons.collect())
    assert found - set(conditions.documented()) == set(conditions.RENAMED)
    assert {"Unschedulable", "WeightsDoNotFit", "GuardMismatch", "ScaleUpTriggered", "TorchUnavailable",
            "DriftExceeded", "PoolShrunk", "InPodFlagsMismatch", "KubeletTooOld", "ForeignFieldsStay",
            } <= found  # fmt: skip
    assert len(found) > 80


def test_every_paragraph_says_what_it_means_and_what_to_do() -> None:
    of_conditions = conditions.condition_reasons()
    for reason, text in PARAGRAPHS.items():
        meaning, _, advice = text.partition("**Do:**")
        assert len(meaning.strip()) > 20, reason
        assert len(advice.strip()) > 5, reason
        kinds = set(of_conditions.get(reason, ()))
        assert {kind for kind in kinds if f"`{kind}" in meaning} == kinds, reason


def test_examples_are_in_the_words_of_the_code() -> None:
    """Each example holds a piece of text that stands in the sources, so a changed message is noticed."""
    pieces = set(_pieces())
    examples = re.findall(r"(?m)^> (.+)$", PAGE)
    assert len(examples) > 20
    for example in examples:
        assert any(piece in example for piece in pieces), example


def _pieces() -> list[str]:
    found = []
    for name, module in source.modules().items():
        if name.startswith("plimsoll.core.arch"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.strip()
                found += [text] if 14 < len(text) < 400 and " " in text else []
    return found


def _module(text: str, name: str = "plimsoll.controller.steps.made") -> dict[str, source.Module]:
    every = source.modules()
    known = ("plimsoll.controller.actions", "plimsoll.controller.status", "plimsoll.core.errors")
    made = source._module(name, ast.parse(text))
    return {**{module: every[module] for module in known}, name: made}


def test_a_new_reason_is_found_however_it_is_written() -> None:
    found = reasons.collected(
        _module(
            "from plimsoll.controller.actions import EventNote\n"
            "from plimsoll.controller.status import FALSE, SIZED, Condition\n"
            "from plimsoll.core.errors import Unsupported\n"
            "NAMED = 'ByConstant'\n"
            "def helper(what, reason):\n    return Condition(SIZED, FALSE, reason, what)\n"
            "def outer(word):\n    return helper('x', word)\n"
            "def all(bad):\n"
            "    chosen = 'ByBranch' if bad else 'ByOtherBranch'\n"
            "    a = Condition(SIZED, FALSE, chosen, '')\n"
            "    b = Condition(SIZED, FALSE, NAMED, '')\n"
            "    c = outer('ByTwoFunctions')\n"
            "    d = EventNote('Normal', 'ByEvent', '')\n"
            "    raise Unsupported('x', reason='ByError')\n"
        )
    )
    for reason in ("ByConstant", "ByBranch", "ByOtherBranch", "ByTwoFunctions"):
        assert found[reason].kinds == {status.SIZED}, reason
    assert found["ByEvent"].event
    assert found["ByError"].errors == {"Unsupported"}


@pytest.mark.parametrize(
    "expression", ["f'Because{x}'", "x + 'Failed'", "TABLE[x]", "x.lower()", "unknown"]
)
def test_a_reason_that_is_put_together_is_an_error(expression: str) -> None:
    text = (
        "from plimsoll.controller.status import FALSE, SIZED, Condition\n"
        f"def made(x):\n    return Condition(SIZED, FALSE, {expression}, '')\n"
    )
    with pytest.raises(reasons.Untraceable, match=r"plimsoll\.controller\.steps\.made, line 3"):
        reasons.collected(_module(text))


def test_conditions_are_those_of_the_code() -> None:
    assert tuple(conditions.TYPES) == status.ORDER
