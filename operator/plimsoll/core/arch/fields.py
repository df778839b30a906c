"""Strict reading of a config.json that somebody else wrote.

A value of the wrong type or beyond any model ever built is refused with its field's name; nothing
is coerced, because ``int(" 7 ")`` and ``True`` are how a broken file becomes a wrong number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core import dtypes
from plimsoll.core.errors import BadArgument, BadModel
from plimsoll.core.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LAYERS: Final = 1024
MAX_DIM: Final = 1 << 20
MAX_VOCAB: Final = 1 << 22
MAX_CONTEXT: Final = 1 << 31
MAX_EXPERTS: Final = 4096


@dataclass(slots=True)
class Fields:
    """One configuration object, with the notes that become warnings.

    A key that is absent takes the value of transformers' config class, where that is known
    (``defaults``); a key that is null does not: absent is not null.

    Attributes:
        values: The parsed JSON object, or GGUF's metadata.
        notes: What was missing and how it was filled in.
        defaults: Values of the config class for keys that are absent.
        seen: Keys that a reader has asked for.
        path: Where this object sits in the file, for messages: ``text_config.``.
    """

    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    path: str = ""

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever the file says
        """The raw value, the class's default when the key is absent."""
        self.seen.add(key)
        return self.values[key] if key in self.values else self.defaults.get(key)

    def has(self, key: str) -> bool:
        """Whether there is a value other than null, stated or by the class's default."""
        return self.get(key) is not None

    def states(self, key: str) -> bool:
        """Whether the file itself has the key, null or not."""
        return key in self.values

    def integer(self, key: str, most: int, *, default: int | None = None, least: int = 1) -> int:
        """An integer in ``[least, most]``; the default when absent or null, and a note about it.

        Raises:
            BadModel: Wrong type, out of range, or missing without a default.
        """
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.wrong(key, f"an integer from {least} to {most}")
            self.notes.append(f"config names no {self.path}{key}; {default} is assumed")
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"an integer from {least} to {most}")
        if key not in self.values:
            self.notes.append(f"config names no {self.path}{key}; {value} is assumed")
        return value

    def first(self, *keys: str, most: int, default: int | None = None, least: int = 1) -> int:
        """An integer under the first of several spellings that the file states.

        Raises:
            BadModel: As ``integer``, for the first spelling.
        """
        self.seen.update(keys)
        for key in keys:
            if self.values.get(key) is not None:
                return self.integer(key, most, least=least)
        for key in keys:
            if self.get(key) is not None:
                return self.integer(key, most, least=least)
        return self.integer(keys[0], most, default=default, least=least)

    def child(self, key: str, defaults: Mapping[str, Any] | None = None) -> Fields:
        """A nested object; an empty one when absent or null. Notes are shared.

        Raises:
            BadModel: Not an object.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(value or {}, self.notes, defaults or {}, path=f"{self.path}{key}.")

    def optional(self, key: str, most: int, *, least: int = 1, quiet: bool = False) -> int | None:
        """An integer in ``[least, most]``, or None when absent or null.

        ``quiet`` leaves out the note about a class's default: for switches whose absence is usual.
        """
        if not self.has(key):
            return None
        before = len(self.notes)
        value = self.integer(key, most, least=least)
        if quiet:
            del self.notes[before:]
        return value

    def either(self, *keys: str, most: int, least: int = 1) -> int | None:
        """An integer under the first spelling that the file states, else the class's default; or None."""
        self.seen.update(keys)
        for key in keys:
            if self.values.get(key) is not None:
                return self.integer(key, most, least=least)
        for key in keys:
            if self.has(key):
                return self.optional(key, most, least=least, quiet=True)
        return None

    def number(self, key: str, most: float, *, default: float) -> float:
        """A finite number in ``[0, most]``; the default when absent or null."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.wrong(key, f"a number from 0 to {most:g}")
        return float(value)

    def text(self, key: str, allowed: frozenset[str] | None = None) -> str | None:
        """A word, of those allowed if they are given; None when absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or (allowed is not None and value not in allowed):
            raise self.wrong(key, " or ".join(sorted(allowed or {"text"})))
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false; the default when absent or null."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def integers(self, key: str, most: int) -> tuple[int, ...]:
        """A list of integers in ``[0, most]``; empty when absent or null."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise self.wrong(key, f"a list of at most {MAX_LAYERS} integers")
        for item in value:
            if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= most:
                raise self.wrong(key, f"a list of integers from 0 to {most}")
        return tuple(value)

    def choices(self, key: str, count: int, allowed: frozenset[str]) -> tuple[str, ...] | None:
        """A list of exactly ``count`` of the allowed words, or None when absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count:
            raise self.wrong(key, f"a list of {count} entries")
        for item in value:
            if not isinstance(item, str) or item not in allowed:
                raise self.wrong(key, f"a list of {', '.join(sorted(allowed))}")
        return tuple(value)

    def dtype(self) -> str | None:
        """Canonical dtype of ``dtype`` (new spelling) or ``torch_dtype``; None when neither is given."""
        for key in ("dtype", "torch_dtype"):
            value = self.get(key)
            if value is None or value == "auto":
                continue
            if not isinstance(value, str):
                raise self.wrong(key, "the name of a dtype")
            try:
                return dtypes.canonical(value, key)
            except BadArgument:
                raise self.wrong(key, "the name of a known dtype") from None
        return None

    def dtype_under(self, key: str) -> str | None:
        """Canonical dtype under that key; None when absent, null or ``auto``.

        Raises:
            BadModel: Not the name of a dtype.
        """
        value = self.get(key)
        if value is None or value == "auto":
            return None
        if not isinstance(value, str):
            raise self.wrong(key, "the name of a dtype")
        try:
            return dtypes.canonical(value, key)
        except BadArgument:
            raise self.wrong(key, "the name of a known dtype") from None

    def wrong(self, key: str, wanted: str) -> BadModel:
        """The refusal of one field."""
        value = self.get(key)
        shown = "missing" if value is None else repr(value)[:64]
        return BadModel(
            f"{self.path}{key} is {shown}; it must be {wanted}",
            reason="ConfigUnreadable",
            field=f"{self.path}{key}",
            value=value,
        )


def heads_of(
    fields: Fields, *, hidden: int, heads: int, head_keys: tuple[str, ...] = ("head_dim",)
) -> tuple[int, int]:
    """KV heads and head size, by the rules that Llama-like configs share.

    Absent or null KV heads mean as many as query heads. ``head_dim`` wins when positive, stated or
    by the class's default; 0 and null mean hidden / heads.

    Raises:
        BadModel: More KV heads than heads, or a number that does not divide them.
    """
    kv_heads = fields.optional("num_key_value_heads", MAX_DIM) or heads
    if kv_heads > heads or heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of the {heads} query heads")
    stated = None
    fields.seen.update(head_keys)
    for key in head_keys:
        stated = stated or fields.optional(key, MAX_DIM, least=0)
    size = stated or hidden // heads
    if size < 1:
        raise fields.wrong("hidden_size", f"at least num_attention_heads, {heads}")
    return kv_heads, size
