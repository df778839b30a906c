"""Strict reading of one untrusted object: every refusal names the field's full path.

The API server has usually checked all of this already. It is checked again because its schema may
be older or newer than this program, and because a bound that holds only elsewhere is no bound.
``null`` counts as absent everywhere, as it does for the API server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from plimsoll.core.errors import PlimsollError
from plimsoll.core.units import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_D = TypeVar("_D")

# One shown value must not flood a condition's message.
_SHOWN: Final = 80

# Characters that would break a log line, a path or, with "$", be expanded by the kubelet.
PLAIN: Final = r"[^\x00-\x1f\x7f$\\]+"
ANYTHING: Final = r"[\s\S]*"
ENV_NAME: Final = r"[-._a-zA-Z][-._a-zA-Z0-9]*"
SUBDOMAIN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_NAME_PART: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_VALUE: Final = rf"({_NAME_PART})?"
LABEL_KEY: Final = rf"({SUBDOMAIN}/)?{_NAME_PART}"
EXTENDED_RESOURCE: Final = rf"{SUBDOMAIN}/{_NAME_PART}"


class InvalidSpec(PlimsollError):  # noqa: N818 - named as the reason in the condition
    """A field of the resource holds what this operator cannot accept."""

    default_reason = "InvalidSpec"
    exit_code = 2


def invalid(path: str, value: object, need: str) -> InvalidSpec:
    """The refusal of ``value`` at ``path``; ``need`` completes "must be ..."."""
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[: _SHOWN - 3]}..."
    return InvalidSpec(f"{path} must be {need}; it is {shown}", field=path, value=shown)


@dataclass(frozen=True, slots=True)
class Fields:
    """A cursor on one object of the resource: ``path`` is how messages call it."""

    path: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, path: str, value: object, known: Collection[str] | None = None) -> Fields:
        """Takes an object that may hold only ``known`` fields (``None``: any).

        Raises:
            InvalidSpec: not an object, or a field this operator does not know has a value. A newer
                schema may admit it, but ignoring it could serve something else than was asked for.
        """
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise invalid(path, value, "an object")
        if known is not None:
            for name in value:
                if name not in known and value[name] is not None:
                    raise InvalidSpec(
                        f"{path}.{name} is not known to this version of the operator; remove it, "
                        "or install an operator as new as the CustomResourceDefinition",
                        field=f"{path}.{name}",
                        value=str(name),
                    )
        return cls(path, value)

    def at(self, name: str) -> str:
        """The full path of the field ``name``."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Whether ``name`` is given (``null`` is not)."""
        return self.values.get(name) is not None

    def get(self, name: str, default: object) -> object:
        """The unchecked value of ``name``, or ``default`` when it is absent."""
        value = self.values.get(name)
        return default if value is None else value

    def child(self, name: str, known: Collection[str] | None = None) -> Fields:
        """The object ``name``; an absent one reads as empty."""
        return Fields.of(self.at(name), self.values.get(name), known)

    def items(self, name: str, most: int, known: Collection[str]) -> tuple[Fields, ...]:
        """The objects of the list ``name``, at most ``most``."""
        return tuple(
            Fields.of(f"{self.at(name)}[{index}]", item, known)
            for index, item in enumerate(self._list(name, most))
        )

    @overload
    def text(self, name: str, limit: int, pattern: str = ..., *, need: str = ...) -> str: ...
    @overload
    def text(
        self, name: str, limit: int, pattern: str = ..., *, need: str = ..., default: _D
    ) -> str | _D: ...
    def text(
        self,
        name: str,
        limit: int,
        pattern: str = ANYTHING,
        *,
        need: str = "a text",
        default: object = ...,
    ) -> object:
        """A text of 1 to ``limit`` characters that matches ``pattern`` from end to end.

        Without ``default`` the field is required.
        """
        value = self.values.get(name)
        if value is None:
            if default is ...:
                raise invalid(self.at(name), None, f"given: {need}")
            return default
        return _text(self.at(name), value, limit, pattern, need)

    def choice(self, name: str, options: Iterable[str], default: str | None = None) -> str:
        """One of ``options``; required without ``default``."""
        options = tuple(options)
        value = self.get(name, default)
        if not isinstance(value, str) or value not in options:
            raise invalid(self.at(name), value, f"one of {', '.join(options)}")
        return value

    @overload
    def integer(self, name: str, low: int, high: int) -> int | None: ...
    @overload
    def integer(self, name: str, low: int, high: int, *, default: int) -> int: ...
    def integer(self, name: str, low: int, high: int, *, default: int | None = None) -> int | None:
        """A whole number within ``low`` and ``high``, both included."""
        value = self.values.get(name)
        if value is None:
            return default
        return _integer(self.at(name), value, low, high)

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(self.at(name), value, "true or false")
        return value

    def texts(
        self, name: str, most: int, limit: int, pattern: str = ANYTHING, *, need: str = "a text"
    ) -> tuple[str, ...]:
        """A list of at most ``most`` texts, each as :meth:`text`; absent reads as empty."""
        return tuple(
            _text(f"{self.at(name)}[{index}]", item, limit, pattern, need)
            for index, item in enumerate(self._list(name, most))
        )

    def integers(self, name: str, most: int, low: int, high: int) -> tuple[int, ...]:
        """A list of at most ``most`` whole numbers; absent reads as empty."""
        return tuple(
            _integer(f"{self.at(name)}[{index}]", item, low, high)
            for index, item in enumerate(self._list(name, most))
        )

    def text_map(
        self, name: str, most: int, limit: int, check_key: Callable[[str, str], None]
    ) -> dict[str, str]:
        """A map of at most ``most`` texts; ``check_key(path, key)`` refuses keys."""
        found = self.child(name)
        if len(found.values) > most:
            raise invalid(found.path, len(found.values), f"at most {most} entries")
        for key, value in found.values.items():
            check_key(found.path, key)
            if not isinstance(value, str) or len(value) > limit:
                raise invalid(f"{found.path}[{key}]", value, f"a text of at most {limit} letters")
        return dict(found.values)

    def _list(self, name: str, most: int) -> list[object]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise invalid(self.at(name), value, "a list")
        if len(value) > most:
            raise invalid(self.at(name), len(value), f"a list of at most {most} items")
        return list(value)


def quantity(path: str, value: object, *, least: int, parts: int = 1) -> int:
    """A Kubernetes Quantity of at least ``least``, in whole units (bytes), rounded up.

    Of how many ``parts`` a unit is counted in: 1000 reads CPUs as millicores.

    Raises:
        InvalidSpec: not a Quantity, or too small.
    """
    need = f"a Kubernetes quantity of at least {least}, such as 2Gi"
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise invalid(path, value, need)
    try:
        number = parse_quantity(value, parts=parts)
    except ValueError:
        raise invalid(path, value, need) from None
    if number < least:
        raise invalid(path, value, need)
    return number


def optional_quantity(parent: Fields, name: str) -> int | None:
    """The Quantity ``name``, of at least 1, in whole units; None when it is absent."""
    return quantity(parent.at(name), parent.get(name, None), least=1) if parent.has(name) else None


def _text(path: str, value: object, limit: int, pattern: str, need: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= limit:
        raise invalid(path, value, f"{need} of 1 to {limit} characters")
    if re.fullmatch(pattern, value) is None:
        raise invalid(path, value, need)
    return value


def _integer(path: str, value: object, low: int, high: int) -> int:
    # bool is an int in Python, and the API server admits 1.0 where an integer is asked for.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(path, value, f"a whole number from {low} to {high}")
    return value
