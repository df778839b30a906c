"""Bytes: constants, the two spellings users give them in, and how we print them."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

#: No amount of memory or number of tokens that we handle is larger; Kubernetes has the same bound.
MAX_AMOUNT: Final = (1 << 63) - 1

# A digit class of [0-9], not \d: \d also matches other scripts' digits, which int would accept.
_QUANTITY = re.compile(
    r"\+?([0-9]{1,24}(?:\.[0-9]{0,24})?|\.[0-9]{1,24})([A-Za-z]{0,2}|[eE][+-]?[0-9]{1,2})"
)
_SIZE = re.compile(r"([0-9]{1,24}(?:\.[0-9]{1,24})?) ?([KMG]i?B)?")

#: Suffix -> (numerator, denominator). Whole numbers keep it exact.
_QUANTITY_SUFFIXES: Final[dict[str, tuple[int, int]]] = {
    "n": (1, 10**9), "u": (1, 10**6), "m": (1, 10**3), "": (1, 1),
    "k": (10**3, 1), "M": (10**6, 1), "G": (10**9, 1),
    "T": (10**12, 1), "P": (10**15, 1), "E": (10**18, 1),
    "Ki": (1 << 10, 1), "Mi": (1 << 20, 1), "Gi": (1 << 30, 1),
    "Ti": (1 << 40, 1), "Pi": (1 << 50, 1), "Ei": (1 << 60, 1),
}  # fmt: skip
_SIZE_SUFFIXES: Final[dict[str, int]] = {
    "KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9,
}  # fmt: skip


def parse_quantity(text: str | int, *, parts: int = 1) -> int:
    """Read a Kubernetes Quantity as a whole number, rounded up as Kubernetes rounds it.

    Args:
        text: For example ``"1Gi"``, ``"500M"``, ``"1.5e3"`` or an integer.
        parts: Of how many parts the unit is counted in: 1000 reads CPUs as millicores.

    Returns:
        Bytes, or units of whatever the quantity counts.

    Raises:
        ValueError: Not a Quantity, negative, or beyond 2^63 - 1.
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        # ValueError for any bad input: callers have one thing to catch.
        raise ValueError(f"{text!r} is not a quantity; write a number like 512Mi")  # noqa: TRY004
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{str(text)[:64]!r} is not a quantity; write a number like 512Mi or 1Gi")
    number, suffix = match.groups()
    if suffix in _QUANTITY_SUFFIXES:
        above, below = _QUANTITY_SUFFIXES[suffix]
    elif re.fullmatch(r"[eE][+-]?[0-9]{1,2}", suffix):
        power = int(suffix[1:])
        above, below = 10 ** max(power, 0), 10 ** max(-power, 0)
    else:
        raise ValueError(
            f"{str(text)[:64]!r} has the unknown suffix {suffix!r}; use Ki, Mi, Gi, k, M or G"
        )
    digits, places = _digits(number)
    return _bounded(ceil_div(digits * above * parts, 10**places * below), str(text))


def parse_size(text: str) -> int:
    """Read a size of the command line: an integer of bytes, or a number with a unit.

    Args:
        text: For example ``"17179869184"``, ``"14.96GiB"`` or ``"80 GB"``.

    Returns:
        Bytes, rounded down.

    Raises:
        ValueError: Not a size, or beyond 2^63 - 1.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[2] is None and "." in match[1]):
        raise ValueError(
            f"{text[:64]!r} is not a size; write bytes, or a number with KiB, MiB, GiB, KB, MB or GB"
        )
    scale = _SIZE_SUFFIXES[match[2]] if match[2] else 1
    digits, places = _digits(match[1])
    return _bounded(digits * scale // 10**places, text)


def format_bytes(amount: int) -> str:
    """Print bytes as people compare them: ``12.34 GiB``, or MiB below a tenth of a GiB."""
    if abs(amount) * 10 < GIB:
        return f"{amount / MIB:.2f} MiB"
    return f"{amount / GIB:.2f} GiB"


def ceil_div(numerator: int, denominator: int) -> int:
    """Divide whole numbers, rounding up."""
    return -(-numerator // denominator)


def _digits(number: str) -> tuple[int, int]:
    """A decimal number as a whole one, and how many of its digits stand behind the point."""
    whole, _, part = number.partition(".")
    return int(whole + part), len(part)


def _bounded(amount: int, text: str) -> int:
    if amount > MAX_AMOUNT:
        raise ValueError(f"{text[:64]!r} is larger than 2^63 - 1")
    return amount
