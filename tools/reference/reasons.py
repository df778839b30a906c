"""Every reason that the code can give: of conditions, Events, refusals and sizing reports.

A reason is whatever reaches a parameter or field called ``reason``: of the dataclasses that carry one
(``Condition``, ``EventNote``, ``Halt`` ...), of the errors, and of every function that hands one on.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from tools.reference import source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tools.reference.source import Module

    Key = tuple[str, str]  # module, name

# The layers whose reasons reach a user through conditions and Events. The command line's are its own.
LAYERS: Final = ("core", "checkpoint", "sizer", "controller")
# Carriers of a word called reason that is somebody else's: an HTTP answer, a node's lack of room.
OTHERS: Final = frozenset({"Refused", "Refusal"})
# Modules that read a reason back from where Plimsoll put it: the status, a sizer's message.
READ_BACK: Final = frozenset({"attempts", "halt", "conclusion", "report"})


@dataclass(slots=True)
class Found:
    """One reason: the condition types it was seen with, whether it is an Event's, and its places."""

    kinds: set[str] = field(default_factory=set)
    event: bool = False
    errors: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Carrier:
    """A callable with a parameter that becomes a reason; ``kinds``: the conditions it makes."""

    position: int | None
    keyword: str
    kinds: frozenset[str] = frozenset()
    event: bool = False
    error: bool = False


class Untraceable(Exception):  # noqa: N818 - named for what a reader is told
    """An expression that becomes a reason and cannot be followed: the message names the place."""


@cache
def collect() -> dict[str, Found]:
    """All reasons of the sources by name.

    Raises:
        Untraceable: a reason that is put together at run time.
    """
    return collected(source.modules())


def collected(every: Mapping[str, Module]) -> dict[str, Found]:
    """All reasons of these modules by name. Raises as :func:`collect`."""
    found: dict[str, Found] = defaultdict(Found)
    everything = dict(every)
    carriers = _carriers(everything)
    todo = True
    while todo:  # functions that hand a parameter on become carriers, until there are no more
        todo = False
        for module in _layers(everything):
            for around, call in source.calls(module):
                carrier = _carrier_of(every=everything, module=module, call=call, carriers=carriers)
                expression = _argument(call, carrier) if carrier else None
                if carrier is None or expression is None:
                    continue
                seen = source.value(everything, module, around, expression)
                _check(module, call, seen)
                kinds = carrier.kinds | _kinds(everything, module, around, call)
                _note(found, seen.texts, module, carrier, kinds, _called(call))
                for name in seen.parameters:
                    key = (module.name, around.name if around else "")
                    todo |= _hand_on(carriers, key, around, name, carrier, kinds)
    _classes(found, everything)
    return dict(found)


def _layers(every: Mapping[str, Module]) -> Iterator[Module]:
    for name, module in every.items():
        if name.split(".")[1:2] and name.split(".")[1] in LAYERS:
            yield module


def _carriers(every: Mapping[str, Module]) -> dict[Key, Carrier]:
    """The classes that are built with a reason, and errors of every kind."""
    found = {}
    for module in _layers(every):
        for name, node in module.classes.items():
            fields = [
                n.target.id
                for n in node.body
                if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
            ]
            if "reason" in fields and name not in OTHERS:
                event = name == "EventNote"
                key = (module.name, name)
                found[key] = Carrier(fields.index("reason"), "reason", event=event)
            if _is_error(every, module, name):
                found[module.name, name] = Carrier(None, "reason", error=True)
    return found


def _is_error(every: Mapping[str, Module], module: Module, name: str) -> bool:
    node = module.classes.get(name)
    if node is None:
        return False
    if name == "PlimsollError":
        return True
    for base in node.bases:
        if isinstance(base, ast.Name):
            origin, original = module.imports.get(base.id, (module.name, base.id))
            there = every.get(origin)
            if there is not None and _is_error(every, there, original or base.id):
                return True
    return False


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _carrier_of(
    every: Mapping[str, Module], module: Module, call: ast.Call, carriers: Mapping[Key, Carrier]
) -> Carrier | None:
    """The carrier that is called: by its name here, by import, or as somebody's method."""
    match call.func:
        case ast.Name(id=name):
            origin, original = module.imports.get(name, (module.name, name))
            return carriers.get((_home(every, origin, original or name), original or name))
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in module.imports:
            origin, original = module.imports[owner]
            there = f"{origin}.{original}" if original else origin
            return carriers.get((_home(every, there, name), name))
        case ast.Attribute(attr=name):
            layer = module.name.split(".")[1]
            known = (c for (m, n), c in carriers.items() if n == name and m.split(".")[1] == layer)
            return next(known, None)
    return None


def _home(every: Mapping[str, Module], origin: str, name: str) -> str:
    """The module that defines the name, followed through packages that only hand it on."""
    there = every.get(origin)
    if there is None or name in there.functions or name in there.classes:
        return origin
    further, original = there.imports.get(name, ("", None))
    return _home(every, further, original) if original else origin


def _argument(call: ast.Call, carrier: Carrier) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == carrier.keyword:
            return keyword.value
    if carrier.position is not None and len(call.args) > carrier.position:
        return call.args[carrier.position]
    return None


def _check(module: Module, call: ast.Call, seen: source.Value) -> None:
    lost = seen.unknown | (seen.passed - {"reason"})
    if lost and module.name.rsplit(".", 1)[-1] not in READ_BACK:
        where = f"{module.name}, line {call.lineno}"
        raise Untraceable(f"{where}: the reason is {', '.join(sorted(lost))}, which is no constant")


def _kinds(
    every: dict[str, Module], module: Module, around: source.Function | None, call: ast.Call
) -> frozenset[str]:
    if _called(call) != "Condition" or not call.args:
        return frozenset()
    return source.value(every, module, around, call.args[0]).texts


def _note(
    found: dict[str, Found],
    texts: frozenset[str],
    module: Module,
    carrier: Carrier,
    kinds: frozenset[str],
    called: str,
) -> None:
    for text in texts:
        entry = found[text]
        entry.kinds |= kinds
        entry.event |= carrier.event
        entry.places.add(module.name)
        if carrier.error:
            entry.errors.add(called)


def _hand_on(
    carriers: dict[Key, Carrier],
    key: Key,
    around: source.Function | None,
    name: str,
    carrier: Carrier,
    kinds: frozenset[str],
) -> bool:
    assert around is not None
    if around.name == "__init__":  # the class itself is the carrier
        return False
    made = Carrier(source.parameters(around).index(name), name, kinds, carrier.event, carrier.error)
    before = carriers.get(key)
    if before is not None:
        event, error = made.event or before.event, made.error or before.error
        made = Carrier(made.position, name, kinds | before.kinds, event, error)
    carriers[key] = made
    return made != before


def _classes(found: dict[str, Found], every: dict[str, Module]) -> None:
    """The reasons that errors have by themselves, and those of properties called ``reason``."""
    for module in _layers(every):
        for name, node in module.classes.items():
            for inner in node.body:
                match inner:
                    case ast.Assign(
                        targets=[ast.Name(id="default_reason")], value=ast.Constant(value=str(text))
                    ) if name not in OTHERS:
                        found[text].errors.add(name)
                        found[text].places.add(module.name)
                    case ast.FunctionDef(name="reason") if name not in OTHERS:
                        for part in ast.walk(inner):
                            if isinstance(part, ast.Return) and part.value is not None:
                                seen = source.value(every, module, inner, part.value)
                                for text in seen.texts:
                                    found[text].places.add(module.name)
