"""Strict reading of a config.json that somebody else wrote.

A value of the wrong type or beyond any model ever built is refused with its field's name; nothing
is coerced, because ``int(" 7 ")`` and ``True`` are how a broken file becomes a wrong number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from plimsoll.core import dtypes
from plimsoll.core.errors import BadArgument, BadModel

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

    Attributes:
        values: The parsed JSON object, or GGUF's metadata.
        notes: What was missing and how it was filled in.
    """

    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.values.get(key) is not None

    def integer(self, key: str, most: int, *, default: int | None = None, least: int = 1) -> int:
        """An integer in ``[least, most]``; the default when absent or null, and a note about it.

        Raises:
            BadModel: Wrong type, out of range, or missing without a default.
        """
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.wrong(key, f"an integer from {least} to {most}")
            self.notes.append(f"config names no {key}; {default} is assumed")
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"an integer from {least} to {most}")
        return value

    def optional(self, key: str, most: int, *, least: int = 1) -> int | None:
        """An integer in ``[least, most]``, or None when absent or null."""
        return self.integer(key, most, least=least) if self.has(key) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false; the default when absent or null."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def integers(self, key: str, most: int) -> tuple[int, ...]:
        """A list of integers in ``[0, most]``; empty when absent or null."""
        value = self.values.get(key)
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
        value = self.values.get(key)
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
            value = self.values.get(key)
            if value is None or value == "auto":
                continue
            if not isinstance(value, str):
                raise self.wrong(key, "the name of a dtype")
            try:
                return dtypes.canonical(value, key)
            except BadArgument:
                raise self.wrong(key, "the name of a known dtype") from None
        return None

    def wrong(self, key: str, wanted: str) -> BadModel:
        """The refusal of one field."""
        value = self.values.get(key)
        shown = "missing" if value is None else repr(value)[:64]
        return BadModel(
            f"{key} is {shown}; it must be {wanted}",
            reason="ConfigUnreadable",
            field=key,
            value=value,
        )


def heads_of(fields: Fields, *, hidden: int, heads: int, head_dim: int | None) -> tuple[int, int]:
    """KV heads and head size, by the rules that Llama-like configs share.

    Absent or null KV heads mean as many as query heads. ``head_dim`` wins when stated and positive;
    0 and null mean absent; then the given default, else hidden / heads.

    Raises:
        BadModel: More KV heads than heads, or a number that does not divide them.
    """
    kv_heads = fields.optional("num_key_value_heads", MAX_DIM) or heads
    if kv_heads > heads or heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of the {heads} query heads")
    stated = fields.optional("head_dim", MAX_DIM, least=0)
    size = stated or head_dim or hidden // heads
    if size < 1:
        raise fields.wrong("hidden_size", f"at least num_attention_heads, {heads}")
    return kv_heads, size
