from __future__ import annotations

import json

import pytest

from plimsoll.core import errors


@pytest.mark.parametrize(
    ("kind", "reason", "exit_code"),
    [
        (errors.DoesNotFit, "BudgetTooSmall", 1),
        (errors.BadModel, "ConfigUnreadable", 2),
        (errors.BadArgument, "InvalidArgument", 2),
        (errors.FlagNotAllowed, "FlagNotAllowed", 2),
        (errors.Unsupported, "UnsupportedArchitecture", 3),
        (errors.DeviceUnavailable, "NVMLUnavailable", 4),
        (errors.MeasurementFailed, "MeasurementFailed", 5),
        (errors.ResultInvalid, "ResultInvalid", 5),
    ],
)
def test_reasons_and_exit_codes_are_an_interface(
    kind: type[errors.PlimsollError], reason: str, exit_code: int
) -> None:
    error = kind("what to do")
    assert (error.reason, error.exit_code, str(error)) == (reason, exit_code, "what to do")


def test_the_error_object_has_every_key() -> None:
    error = errors.BadModel("x", reason="WeightsUnreadable", field="f", file="a", value=3)
    assert error.to_dict() == {
        "reason": "WeightsUnreadable",
        "message": "x",
        "field": "f",
        "file": "a",
        "value": 3,
    }


@pytest.mark.parametrize(
    "value", ["x" * 10_000, b"\x00" * 5000, {"a": [1] * 1000}, 10**400, "\x1b[31m\n"]
)
def test_a_hostile_value_is_shortened_to_plain_text(value: object) -> None:
    shown = errors.BadModel("x", value=value).to_dict()["value"]
    assert isinstance(shown, str)
    assert len(shown) <= 203
    assert shown.isprintable()
    assert json.dumps(shown)
