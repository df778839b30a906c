"""Mode Engine: the engine's own flags say what the request's fields say in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from plimsoll.core.engines.values import count
from plimsoll.core.errors import BadArgument
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll.core.engines.flags import FlagTable
    from plimsoll.core.request import SizingRequest

_TEXTS: Final = frozenset({"kv_cache_dtype", "dtype", "state_dtype"})
_UNSTATED: Final = frozenset({None, "auto"})


def _plain(text: str | None, flag: str) -> int:
    return count({flag: text}, flag, 0)


def adopt_owned(
    table: FlagTable,
    request: SizingRequest,
    values: Mapping[str, str | None],
    number: Callable[[str | None, str], int] = _plain,
) -> SizingRequest:
    """Fill the request's fields from the flags of the same meaning. The flags stay where they are.

    Args:
        table: The engine's flags; ``fields`` says which field a flag fills.
        request: The question.
        values: The flags, parsed with ``owned=True``.
        number: How the engine reads a number. Negative ones mean "switched off" and fill nothing.

    Raises:
        BadArgument: No number, out of range, or flag and field are both given and differ.
    """
    changes: dict[str, int | str] = {}
    for flag, attribute in table.fields.items():
        text = values.get(flag)
        if flag not in values or (text or "").startswith("-"):
            continue
        value = (text or "auto") if attribute in _TEXTS else number(text, flag)
        stated = changes.get(attribute, getattr(request, attribute))
        default = stated in _UNSTATED or (attribute == "tensor" and stated == 1)
        if not default and stated != value:
            raise BadArgument(
                f"{table.spell(flag)} is {value} but the same setting is {stated} elsewhere; give it once",
                field=table.spell(flag),
                value=value,
            )
        changes[attribute] = value
    return replace(request, **changes).validated()  # type: ignore[arg-type]
