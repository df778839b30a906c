"""Values of the engines' own flags, read strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.errors import BadArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_DIGITS: Final = 15  # well below 2^53


def count(values: Mapping[str, str | None], flag: str, default: int) -> int:
    """A whole number among parsed flags; the default when the flag is absent.

    Raises:
        BadArgument: No plain digits.
    """
    if flag not in values:
        return default
    text = values[flag] or ""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise BadArgument(
            f"--{flag} needs a whole number, not {text[:32]!r}", field=f"--{flag}", value=text
        )
    return int(text)


def share(text: str, flag: str = "the memory fraction") -> float:
    """A share between 0 and 1, both excluded as a rule of the engines.

    Raises:
        BadArgument: Not such a number.
    """
    try:
        value = float(text) if len(text) < _MAX_DIGITS and text.isascii() else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise BadArgument(
            f"{flag} is {text[:32]!r}; it must be above 0 and at most 1", field=flag, value=text
        )
    return value
