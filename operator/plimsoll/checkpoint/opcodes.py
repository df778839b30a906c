"""What a pickle of PyTorch would build, told from its opcodes without building it.

Only the opcodes that ``torch.save`` writes for a dictionary of tensors are followed, with texts,
numbers and tuples of our own in the place of objects. Nothing is imported and nothing is called; any
other opcode, or any name beyond the few in the tables, ends the walk.
"""

from __future__ import annotations

import pickletools
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from plimsoll.core.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_STEPS: Final = 1 << 19  # half a second; a file of 10,000 tensors has 300,000
_MAX_DIMENSIONS: Final = 64
_MAX_SIZE: Final = (1 << 63) - 1
_MAX_NAME: Final = 1024
_MAX_DEPTH: Final = 16  # of dictionaries within dictionaries

#: Storage class -> dtype as safetensors writes it, and bytes of an element.
_STORAGES: Final = {
    "FloatStorage": ("F32", 4), "DoubleStorage": ("F64", 8), "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2), "ByteStorage": ("U8", 1), "CharStorage": ("I8", 1),
    "ShortStorage": ("I16", 2), "IntStorage": ("I32", 4), "LongStorage": ("I64", 8),
    "BoolStorage": ("BOOL", 1), "UntypedStorage": ("U8", 1),
    "Float8_e4m3fnStorage": ("F8_E4M3", 1), "Float8_e5m2Storage": ("F8_E5M2", 1),
}  # fmt: skip
_DICTIONARY: Final = ("collections", "OrderedDict")
_REBUILD: Final = {
    ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor"),
}  # fmt: skip
#: Newer dtypes have no storage class: the tensor itself names them.
_REBUILD_TYPED: Final = ("torch._utils", "_rebuild_tensor_v3")
_TYPES: Final = {
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "float8_e8m0fnu": ("F8_E8M0", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1), "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "uint16": ("U16", 2), "uint32": ("U32", 4), "uint64": ("U64", 8),
}  # fmt: skip
_PARAMETER: Final = ("torch._utils", "_rebuild_parameter")
_WRAPPERS: Final = ("model", "state_dict", "module")


class Unfamiliar(Exception):  # noqa: N818 - not an error of the file: its names stay unknown
    """Something that a plain dictionary of tensors does not need."""


class Seen(NamedTuple):
    """A tensor that the pickle would build."""

    dtype: str
    width: int
    shape: tuple[int, ...]
    storage: str


class _Name(NamedTuple):
    module: str
    name: str


class _Storage(NamedTuple):
    dtype: str
    width: int
    key: str


@dataclass(slots=True)
class _Machine:
    """Stack, marks and memory of the walk. ``None`` stands for all that does not matter."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def pop(self) -> Any:  # noqa: ANN401 - text, number, tuple, dictionary, name
        if not self.stack or (self.marks and len(self.stack) <= self.marks[-1]):
            raise Unfamiliar("its stack runs empty")
        return self.stack.pop()

    def top(self) -> Any:  # noqa: ANN401 - as pop
        value = self.pop()
        self.stack.append(value)
        return value

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise Unfamiliar("a mark is missing")
        at = self.marks.pop()
        items, self.stack[at:] = self.stack[at:], []
        return items


def tensors_in(code: bytes) -> dict[str, Seen]:
    """Tensors of the dictionary that a pickle builds; nested ones with dotted names.

    Raises:
        Unfamiliar: It does more than that, or is no pickle.
    """
    machine = _Machine()
    # Odd escapes in protocol 0 would only be told to the user as Python's own deprecation.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _run(machine, code)


def _run(machine: _Machine, code: bytes) -> dict[str, Seen]:
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(code)):
            if step > _MAX_STEPS:
                raise Unfamiliar("it is too long")
            if opcode.name == "STOP":
                break
            handler = _HANDLERS.get(opcode.name)
            if handler is None:
                raise Unfamiliar(f"opcode {opcode.name}")
            handler(machine, argument)
        found: dict[str, Seen] = {}
        _collect(_unwrapped(machine.pop()), found)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        OverflowError,
    ) as error:
        raise Unfamiliar(type(error).__name__) from error
    if not found:
        raise Unfamiliar("it names no tensors")
    return found


def _unwrapped(value: object) -> object:
    """Training scripts put the weights under a word of their own."""
    if isinstance(value, dict):
        for key in _WRAPPERS:
            if isinstance(value.get(key), dict):
                return value[key]
    return value


def _collect(value: object, found: dict[str, Seen]) -> None:
    """Walk dictionaries of dictionaries. Bounded: one that holds itself, or another twice, is deep."""
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    steps = 0
    while waiting:
        prefix, item, depth = waiting.pop()
        steps += 1
        if steps > _MAX_STEPS or depth > _MAX_DEPTH:
            raise Unfamiliar("it is nested too deep")
        if isinstance(item, Seen):
            found[prefix] = item
        elif isinstance(item, dict):
            for key, inner in reversed(item.items()):
                if isinstance(inner, Seen | dict):
                    if not isinstance(key, str):
                        raise Unfamiliar("a tensor's name is no text")
                    name = f"{prefix}.{key}" if prefix else key
                    waiting.append((name[:_MAX_NAME], inner, depth + 1))


def _push(machine: _Machine, argument: object) -> None:
    machine.stack.append(argument)


def _constant(value: object) -> Callable[[_Machine, object], None]:
    def push(machine: _Machine, argument: object) -> None:
        del argument
        machine.stack.append(value)

    return push


def _empty_dictionary(machine: _Machine, argument: object) -> None:
    del argument
    machine.stack.append({})


def _empty_list(machine: _Machine, argument: object) -> None:
    del argument
    machine.stack.append([])


def _nothing(machine: _Machine, argument: object) -> None:
    del machine, argument


def _mark(machine: _Machine, argument: object) -> None:
    del argument
    machine.marks.append(len(machine.stack))


def _tuple_of(count: int) -> Callable[[_Machine, object], None]:
    def pack(machine: _Machine, argument: object) -> None:
        del argument
        items = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(items)))

    return pack


def _tuple(machine: _Machine, argument: object) -> None:
    del argument
    items = machine.since_mark()
    machine.stack.append(tuple(items))


def _memoize(machine: _Machine, argument: object) -> None:
    index = argument if isinstance(argument, int) else len(machine.memo)
    machine.memo[index] = machine.top()


def _recall(machine: _Machine, argument: object) -> None:
    if isinstance(argument, int):  # genops gives nothing else
        machine.stack.append(machine.memo[argument])


def _global(machine: _Machine, argument: object) -> None:
    module, _, name = str(argument).partition(" ")
    machine.stack.append(_Name(module, name))


def _stack_global(machine: _Machine, argument: object) -> None:
    del argument
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise Unfamiliar("a name that is no text")
    machine.stack.append(_Name(module, name))


def _persistent(machine: _Machine, argument: object) -> None:
    """A storage: ``("storage", class, key, device, elements)``."""
    del argument
    kind, storage, key, *_ = machine.pop()
    if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str):
        raise Unfamiliar("an object that is kept elsewhere and is no storage")
    if storage.name not in _STORAGES:
        raise Unfamiliar(f"storage {storage.name[:40]}")
    machine.stack.append(_Storage(*_STORAGES[storage.name], key))


def _reduce(machine: _Machine, argument: object) -> None:
    """A call: of what builds a tensor, a parameter or an empty dictionary; no other is known."""
    del argument
    arguments, name = machine.pop(), machine.pop()
    if not isinstance(name, _Name) or not isinstance(arguments, tuple):
        raise Unfamiliar("a call of something else than a name")
    if tuple(name) in _REBUILD:
        machine.stack.append(_seen(arguments))
    elif tuple(name) == _REBUILD_TYPED:
        dtype, width = _TYPES[arguments[6].name]
        machine.stack.append(_seen(arguments)._replace(dtype=dtype, width=width))
    elif tuple(name) == _PARAMETER:
        machine.stack.append(arguments[0] if isinstance(arguments[0], Seen) else None)
    elif tuple(name) == _DICTIONARY and not arguments:
        machine.stack.append({})
    else:
        raise Unfamiliar(f"{name.module[:40]}.{name.name[:40]}")


def _seen(arguments: tuple[Any, ...]) -> Seen:
    storage, _, shape = arguments[:3]
    if not isinstance(storage, _Storage) or not _is_shape(shape):
        raise Unfamiliar("a tensor without a storage")
    return Seen(storage.dtype, storage.width, shape, storage.key)


def _is_shape(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) > _MAX_DIMENSIONS:
        return False
    elements = 1
    for length in value:
        if type(length) is not int or not 0 <= length <= _MAX_SIZE:
            return False
        elements *= length
        if elements > _MAX_SIZE:
            return False
    return True


def _set_item(machine: _Machine, argument: object) -> None:
    del argument
    value, key = machine.pop(), machine.pop()
    _store(machine.top(), [key, value])


def _set_items(machine: _Machine, argument: object) -> None:
    del argument
    items = machine.since_mark()
    _store(machine.top(), items)


def _store(target: object, items: list[Any]) -> None:
    if not isinstance(target, dict) or len(items) % 2:
        raise Unfamiliar("items for something that is no dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, str | int):
            target[key] = value


def _build(machine: _Machine, argument: object) -> None:
    """Attributes of the dictionary (``_metadata``), which do not matter."""
    del argument
    machine.pop()
    if not isinstance(machine.top(), dict):
        raise Unfamiliar("attributes of something that is no dictionary")


def _append(machine: _Machine, argument: object) -> None:
    """Lists hold nothing that matters."""
    del argument
    machine.pop()


def _appends(machine: _Machine, argument: object) -> None:
    del argument
    machine.since_mark()


_HANDLERS: Final[dict[str, Callable[[_Machine, Any], None]]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINUNICODE", "BINUNICODE8",
         "SHORT_BINUNICODE", "UNICODE", "BINFLOAT", "FLOAT", "SHORT_BINSTRING", "BINSTRING"), _push),
    "NONE": _constant(None),
    "NEWTRUE": _constant(1),
    "NEWFALSE": _constant(0),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_DICT": _empty_dictionary,
    "EMPTY_LIST": _empty_list,
    "MARK": _mark,
    "TUPLE": _tuple,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _recall),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "BINPERSID": _persistent,
    "REDUCE": _reduce,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "BUILD": _build,
    "APPEND": _append,
    "APPENDS": _appends,
}  # fmt: skip
