"""The engine's own spelling of a setting, taken over into the request (``plimsoll fit`` only)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from plimsoll.core.errors import BadArgument
from plimsoll.core.records import fields, replace
from plimsoll.core.request import SizingRequest

if TYPE_CHECKING:
    from plimsoll.core.engines.flags import FlagTable

_DEFAULTS: Final = {field.name: field.default for field in fields(SizingRequest)}
_TEXTS: Final = frozenset({"kv_cache_dtype"})


def absorb(table: FlagTable, request: SizingRequest) -> SizingRequest:
    """Move flags that ``table.fields`` knows from the arguments into the request's fields.

    Raises:
        BadArgument: No value, not a number, or another value than the field already has.
    """
    values: dict[str, tuple[str, Any]] = {}
    kept: list[str] = []
    arguments = iter(request.engine_args)
    for arg in arguments:
        name = table.resolve(arg)
        attribute = table.fields.get(name or "")
        if name is None or attribute is None:
            kept.append(arg)
            continue
        spelled, equals, text = arg.partition("=")
        value = _value(attribute, spelled, text if equals else next(arguments, ""))
        before = values.get(attribute, (None, value))[1]
        stated = getattr(request, attribute)
        if before != value or stated not in {_DEFAULTS[attribute], value}:
            other = before if before != value else stated
            raise BadArgument(
                f"{spelled} is {value} but the same setting is {other} elsewhere; give it once",
                field=spelled,
                value=value,
            )
        values[attribute] = (spelled, value)
    changes = {attribute: value for attribute, (_, value) in values.items()}
    return replace(request, engine_args=tuple(kept), **changes)


def _value(attribute: str, spelled: str, text: str) -> int | str:
    if attribute in _TEXTS and text:
        return text
    if not text.isascii() or not text.isdigit() or len(text) > 15:  # noqa: PLR2004 - well below 2^53
        raise BadArgument(
            f"{spelled} needs a whole number, not {text[:32]!r}", field=spelled, value=text
        )
    return int(text)
