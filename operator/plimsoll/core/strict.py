"""Strict reading of the sizing result's JSON: typed access in which every failure names the key.

Nothing is coerced. Python's json accepts NaN, floats for integers, repeated keys, ``true`` as an
integer and nesting until the interpreter gives up; a forger may try each.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.errors import ResultInvalid
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

MAX_BYTES: Final = 2048
MAX_TEXT: Final = 128
MAX_DEVICES: Final = 64
MAX_INT: Final = 1 << 53  # beyond it JSON readers of other languages lose digits


def parse(text: str, end: str) -> dict[str, Any]:
    """JSON object of bounded size, without repeated keys, floats or NaN.

    Args:
        text: The message.
        end: Text it must end with; its absence shows that it was cut off.

    Raises:
        ResultInvalid: Anything else than that.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ResultInvalid("the result is not UTF-8 text") from error
    if size > MAX_BYTES:
        raise ResultInvalid(f"the result has {size} bytes, more than {MAX_BYTES}")
    if not text.endswith(end):
        raise ResultInvalid(
            "the result has no end marker: it was cut off, or it is not the sizer's"
        )
    try:
        document = json.loads(
            text, parse_constant=_refuse, parse_float=_refuse, object_pairs_hook=_no_repeats
        )
    except (ValueError, RecursionError) as error:
        raise ResultInvalid(f"the result is not the JSON expected: {str(error)[:100]}") from error
    if not isinstance(document, dict):
        raise ResultInvalid("the result is not a JSON object")
    return document


def _refuse(text: str) -> Any:  # noqa: ANN401 - the signature that json wants
    raise ValueError(f"the number {text[:20]} is not an integer")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is repeated")
    return document


@dataclass(frozen=True, slots=True)
class Reader:
    """Typed access to one JSON object; every failure names the key."""

    document: Mapping[str, Any]
    path: str

    def keys(self, wanted: frozenset[str], optional: frozenset[str] = frozenset()) -> None:
        """Exactly these keys: a missing one hides a number, a further one hides a message."""
        odd_keys = (self.document.keys() - optional) ^ wanted
        if odd_keys:
            odd = min(odd_keys)
            raise ResultInvalid(
                f"the result lacks or adds the key {self._name(odd)!r}", field=self._name(odd)
            )

    def child(self, key: str) -> Reader:
        """An object."""
        value = self.document[key]
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return Reader(value, self._name(key) + ".")

    def integer(self, key: str, least: int = 0, most: int = MAX_INT) -> int:
        """An integer in ``[least, most]``."""
        value = self.document[key]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(key, f"an integer from {least} to {most}")
        return value

    def text(self, key: str, most: int = MAX_TEXT) -> str:
        """Printable text."""
        value = self.document[key]
        if not isinstance(value, str) or not _is_plain(value, most):
            raise self._wrong(key, f"printable text of at most {most} characters")
        return value

    def text_or_none(self, key: str, most: int = MAX_TEXT) -> str | None:
        """Printable text, or null."""
        return None if self.document[key] is None else self.text(key, most)

    def word(self, key: str, form: re.Pattern[str], wanted: str) -> str:
        """Text of this form, which ``wanted`` describes."""
        value = self.text(key)
        if not form.fullmatch(value):
            raise self._wrong(key, wanted)
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """One of these words."""
        value = self.text(key)
        if value not in choices:
            raise self._wrong(key, f"one of {', '.join(choices)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A short list of printable texts."""
        value = self.document[key]
        if (
            not isinstance(value, list)
            or len(value) > MAX_DEVICES
            or not all(isinstance(item, str) and _is_plain(item, MAX_TEXT) for item in value)
        ):
            raise self._wrong(key, f"a list of at most {MAX_DEVICES} texts")
        return tuple(value)

    def _name(self, key: str) -> str:
        return (self.path + key)[:MAX_TEXT]

    def _wrong(self, key: str, wanted: str) -> ResultInvalid:
        return ResultInvalid(
            f"the result's {self._name(key)} is not {wanted}", field=self._name(key)
        )


def _is_plain(text: str, most: int) -> bool:
    return len(text) <= most and text.isprintable()
