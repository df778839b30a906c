"""``dataclasses`` without its start-up cost: import ``dataclass``, ``field``, ``fields`` and ``replace`` from here.

The standard module writes six methods as source text for every class and compiles them, and imports ``inspect`` for
it: half of what the sizer took to start. Here all classes share the same few functions. To the type checker they are
the standard ones, and instances are to the standard module too (``dataclasses.replace``, ``asdict``, ``fields``).

What is left out is refused, not ignored: order, ``__post_init__``, inheritance of fields, ``init=False``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MISSING: Final = object()


class _Field:
    """One field: its default, or what makes one, and whether it counts for equality."""

    __slots__ = ("compare", "default", "default_factory", "name")

    def __init__(
        self,
        *,
        default: Any = _MISSING,  # noqa: ANN401 - any value
        default_factory: Any = _MISSING,  # noqa: ANN401 - a callable, or the marker
        compare: bool = True,
    ) -> None:
        self.name = ""
        self.default = default
        self.default_factory = default_factory
        self.compare = compare


class _StandardFields:
    """``__dataclass_fields__``, made by the standard module when it is first asked for."""

    def __get__(self, instance: object, owner: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a class
        import dataclasses  # noqa: PLC0415 - what this module avoids

        columns = []
        for column in owner.__record__:
            given = {"compare": column.compare}
            for option in ("default", "default_factory"):
                if getattr(column, option) is not _MISSING:
                    given[option] = getattr(column, option)
            columns.append(
                (column.name, owner.__annotations__[column.name], dataclasses.field(**given))
            )
        made = dataclasses.make_dataclass(owner.__name__, columns, kw_only=True)
        owner.__dataclass_fields__ = vars(made)["__dataclass_fields__"]
        return owner.__dataclass_fields__  # type: ignore[no-any-return] # the line above


def _dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False
) -> Callable[[type], type]:
    """As ``dataclasses.dataclass``: with the same three options, the same behaviour."""

    def decorate(cls: type) -> type:
        names = tuple(cls.__annotations__)
        if hasattr(cls, "__record__") or hasattr(cls, "__post_init__"):
            raise TypeError(f"{cls.__name__}: fields of a base and __post_init__ are not supported")
        columns = []
        for name in names:
            default = cls.__dict__.get(name, _MISSING)
            column = default if isinstance(default, _Field) else _Field(default=default)
            column.name = name
            columns.append(column)
        members: dict[str, Any] = {
            "__record__": tuple(columns),
            "__dataclass_fields__": _StandardFields(),
            "__match_args__": () if kw_only else names,
            "__init__": _init_of(cls, columns, kw_only=kw_only),
            "__repr__": _repr,
            "__eq__": _eq_of([column.name for column in columns if column.compare]),
            "__hash__": _hash if frozen else None,
            **({"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}),
        }
        if not slots:
            for name, member in members.items():
                setattr(cls, name, member)
            return cls
        # Slots are laid out when a class is made: make it once more, as the standard module does.
        kept = {
            name: value
            for name, value in vars(cls).items()
            if name not in {*names, "__dict__", "__weakref__"}
        }
        members |= {"__slots__": names, "__getstate__": _state, "__setstate__": _restore}
        made = type(cls)(cls.__name__, cls.__bases__, {**kept, **members})
        made.__qualname__ = cls.__qualname__
        return made

    return decorate


def _init_of(cls: type, columns: list[_Field], *, kw_only: bool) -> Callable[..., None]:
    names = tuple(column.name for column in columns)
    by_position = 0 if kw_only else len(names)
    assign = object.__setattr__  # what a frozen class refuses for itself
    title = cls.__qualname__

    def __init__(self: object, *values: Any, **named: Any) -> None:  # noqa: ANN401, N807 - any
        if len(values) > by_position:
            raise TypeError(f"{title}() takes {by_position} values by position, not {len(values)}")
        for name, value in zip(names, values, strict=False):
            assign(self, name, value)
        for column in columns[len(values) :]:
            if column.name in named:
                value = named.pop(column.name)
            elif column.default is not _MISSING:
                value = column.default
            elif column.default_factory is not _MISSING:
                value = column.default_factory()
            else:
                raise TypeError(f"{title}() needs {column.name!r}")
            assign(self, column.name, value)
        if named:
            raise TypeError(f"{title}() does not take {min(named)!r} here")

    return __init__


def _eq_of(compared: list[str]) -> Callable[[object, object], bool]:
    values = _values_of(compared)

    def __eq__(self: object, other: object) -> bool:  # noqa: N807 - the method's name
        return values(self) == values(other) if type(self) is type(other) else NotImplemented

    return __eq__


def _values_of(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    if not names:
        return lambda _: ()
    get = attrgetter(*names)  # of one name it gives no tuple
    return get if len(names) > 1 else lambda item: (get(item),)


def _hash(self: Any) -> int:  # noqa: ANN401 - an instance of a record, here and below
    return hash(tuple(getattr(self, c.name) for c in self.__record__ if c.compare))


def _repr(self: Any) -> str:  # noqa: ANN401
    values = ", ".join(f"{c.name}={getattr(self, c.name)!r}" for c in self.__record__)
    return f"{type(self).__qualname__}({values})"


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    from dataclasses import FrozenInstanceError  # noqa: PLC0415 - what this module avoids

    raise FrozenInstanceError(f"cannot change field {name!r} of {type(self).__qualname__}")


def _state(self: Any) -> list[Any]:  # noqa: ANN401
    return [getattr(self, c.name) for c in self.__record__]


def _restore(self: Any, state: list[Any]) -> None:  # noqa: ANN401
    for column, value in zip(self.__record__, state, strict=True):
        object.__setattr__(self, column.name, value)


def _fields(record: Any) -> tuple[_Field, ...]:  # noqa: ANN401 - a record or its class
    """As ``dataclasses.fields``; each with ``name``, ``default``, ``default_factory`` and ``compare``."""
    return record.__record__  # type: ignore[no-any-return] # set by the decorator


def _replace(record: Any, /, **changes: Any) -> Any:  # noqa: ANN401
    """As ``dataclasses.replace``."""
    for column in record.__record__:
        if column.name not in changes:
            changes[column.name] = getattr(record, column.name)
    return type(record)(**changes)


if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, replace
else:
    dataclass, field, fields, replace = _dataclass, _Field, _fields, _replace

__all__ = ["dataclass", "field", "fields", "replace"]
