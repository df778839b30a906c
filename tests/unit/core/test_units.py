from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core.units import GIB, MIB, ceil_div, format_bytes, parse_quantity, parse_size


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        (7, 7),
        ("1Gi", GIB),
        ("1.5Gi", GIB + GIB // 2),
        ("500M", 500_000_000),
        ("1k", 1000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("2Ei", 2 << 60),
        ("12e-1", 2),  # 1.2 rounds up
        ("100m", 1),
        ("1n", 1),
        ("+3", 3),
        (".5Ki", 512),
        ("5.", 5),
    ],
)
def test_quantities(text: str | int, amount: int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    ("text", "millicores"),
    [
        ("1", 1000),
        (2, 2000),
        ("250m", 250),
        ("1.5", 1500),
        ("100u", 1),
        ("0.0015", 2),
        ("1k", 10**6),
    ],
)
def test_quantities_in_parts(text: str | int, millicores: int) -> None:
    assert parse_quantity(text, parts=1000) == millicores


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 Gi",
        "-1",
        "1gi",
        "1KB",
        "1_000",
        "0x10",
        "NaN",
        "1e999",
        "٣",
        "1Gi\n",
        "1.2.3",
        "8Ei",
        True,
    ],
)
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("17179869184", 16 * GIB),
        ("14.96GiB", 16_063_177_687),
        ("80GB", 80_000_000_000),
        ("80 GB", 80_000_000_000),
        ("512MiB", 512 * MIB),
        ("1KiB", 1024),
        ("1KB", 1000),
        ("1.5MB", 1_500_000),
    ],
)
def test_sizes(text: str, amount: int) -> None:
    assert parse_size(text) == amount


@pytest.mark.parametrize(
    "text", ["", "1.5", "-1GiB", "1Gi", "1 TiB", "GiB", "1e3", "1  GiB", "nan GiB", "9" * 24]
)
def test_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_size(text)


def test_bytes_for_people() -> None:
    assert format_bytes(85_029_615_042) == "79.19 GiB"
    assert format_bytes(-GIB) == "-1.00 GiB"
    assert format_bytes(64 * MIB) == "64.00 MiB"


@given(st.integers(0, 1 << 62))
def test_a_whole_number_is_itself_in_both_notations(amount: int) -> None:
    assert parse_quantity(str(amount)) == parse_size(str(amount)) == amount


@given(st.integers(0, 1 << 62), st.integers(1, 1 << 40))
def test_rounding_up_is_exact(numerator: int, denominator: int) -> None:
    result = ceil_div(numerator, denominator)
    assert (
        result - 1
    ) * denominator < numerator <= result * denominator or result == numerator == 0
