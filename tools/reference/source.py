"""What an expression in the sources can be, as far as text decides it: names, constants, tables.

Nothing is imported or run. What cannot be followed is an error of whoever asks, never left out.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = Path(__file__).resolve().parents[2] / "operator" / "plimsoll"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One parsed file: its constants, classes, functions and imported names by name."""

    name: str
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)


@cache
def modules(package: Path = PACKAGE) -> dict[str, Module]:
    """Every module below the package, by dotted name. Read once; callers change nothing in it."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = _module(name, ast.parse(path.read_text()))
    return found


def _module(name: str, tree: ast.Module) -> Module:
    made = Module(name, tree)
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                made.constants[target] = value
            case ast.AnnAssign(target=ast.Name(id=target), value=value) if value is not None:
                made.constants[target] = value
            case ast.ClassDef():
                made.classes[node.name] = node
    for inner in ast.walk(tree):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            made.functions[inner.name] = inner
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            made.imports |= _imported(inner)
    return made


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str | None]]:
    names = ((alias.asname or alias.name, alias.name) for alias in node.names)
    if isinstance(node, ast.Import):
        return {local: (name, None) for local, name in names}
    return {local: (node.module or "", name) for local, name in names}


def calls(module: Module) -> Iterator[tuple[Function | None, ast.Call]]:
    """Every call, with the innermost function around it."""

    def walk(node: ast.AST, around: Function | None) -> Iterator[tuple[Function | None, ast.Call]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            around = node
        if isinstance(node, ast.Call):
            yield around, node
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    yield from walk(module.tree, None)


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression may be: texts, parameters of the function around it, or not known.

    Attributes:
        texts: string constants that it may be.
        parameters: parameters of the enclosing function that it may be.
        passed: attributes and keys of that name that it is read from, such as ``halt.reason``.
        unknown: source text of what could not be followed.
    """

    texts: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()

    def __or__(self, other: Value) -> Value:
        return Value(
            self.texts | other.texts,
            self.parameters | other.parameters,
            self.passed | other.passed,
            self.unknown | other.unknown,
        )


def value(  # noqa: PLR0911 - one return for each kind of expression
    every: dict[str, Module],
    module: Module,
    around: Function | None,
    node: ast.expr,
    depth: int = 8,
) -> Value:
    """Follow the expression through constants, local variables, tables and simple functions."""
    if depth == 0:
        return Value(unknown=frozenset({ast.unparse(node)}))

    def follow(part: ast.expr) -> Value:
        return value(every, module, around, part, depth - 1)

    match node:
        case ast.Constant(value=text):
            return Value(texts=frozenset({text})) if isinstance(text, str) else Value()
        case ast.IfExp():
            return follow(node.body) | follow(node.orelse)
        case ast.BoolOp():
            return _union(follow(part) for part in node.values)
        case ast.Name():
            return _name(every, module, around, node, depth)
        case ast.Attribute():
            return _attribute(every, module, node, depth)
        case ast.Call():
            return _call(every, module, around, node, depth)
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return Value(passed=frozenset({key}))
        case _:
            return Value(unknown=frozenset({ast.unparse(node)}))


def _attribute(every: dict[str, Module], module: Module, node: ast.Attribute, depth: int) -> Value:
    owner = node.value.id if isinstance(node.value, ast.Name) else ""
    found = _foreign(every, module, owner, node.attr)
    if found is None:
        return Value(passed=frozenset({node.attr}))
    return value(every, *found, depth - 1)


def _call(
    every: dict[str, Module],
    module: Module,
    around: Function | None,
    node: ast.Call,
    depth: int,
) -> Value:
    """``str(x)``, ``mapping.get("key")``, ``TABLE.get(x)`` and functions of the same module."""
    match node.func, node.args:
        case ast.Name(id="str"), [inner]:
            return value(every, module, around, inner, depth - 1)
        case ast.Attribute(attr="get"), [ast.Constant(value=str(key)), *_]:
            return Value(passed=frozenset({key}))
        case ast.Attribute(value=ast.Name(id=table), attr="get"), _:
            found = module.constants.get(table)
            if isinstance(found, ast.Dict):
                return _union(value(every, module, None, v, depth - 1) for v in found.values)
        case ast.Name(id=called), _ if called in module.functions:
            return _returned(every, module, module.functions[called], depth)
    return Value(unknown=frozenset({ast.unparse(node)}))


def _union(values: Iterator[Value]) -> Value:
    found = Value()
    for one in values:
        found |= one
    return found


def _name(
    every: dict[str, Module], module: Module, around: Function | None, node: ast.Name, depth: int
) -> Value:
    name = node.id
    if around is not None:
        local = _assigned(around, name)
        parameter = name in parameters(around)
        if local or parameter:
            own = Value(parameters=frozenset({name})) if parameter else Value()
            return own | _union(value(every, module, around, e, depth - 1) for e in local)
    if name in module.constants:
        return value(every, module, None, module.constants[name], depth - 1)
    origin, original = module.imports.get(name, ("", None))
    there = every.get(origin)
    if there is not None and original in there.constants:
        return value(every, there, None, there.constants[original], depth - 1)
    return Value(unknown=frozenset({name}))


def _foreign(
    every: dict[str, Module], module: Module, owner: str, attr: str
) -> tuple[Module, None, ast.expr] | None:
    """The constant behind ``module.NAME``; None where owner is no module of ours."""
    origin, original = module.imports.get(owner, ("", None))
    there = every.get(f"{origin}.{original}" if original else origin)
    return (there, None, there.constants[attr]) if there and attr in there.constants else None


def _returned(every: dict[str, Module], module: Module, function: Function, depth: int) -> Value:
    returns = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return _union(value(every, module, function, one, depth - 1) for one in returns)


def _assigned(function: Function, name: str) -> list[ast.expr]:
    """What the function binds the name to; of a tuple, the part with its index."""
    found: list[ast.expr] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=bound):
                for target in targets:
                    found.extend(_bound(target, bound, name))
            case ast.AnnAssign(target=ast.Name(id=target_name), value=bound) if bound is not None:
                found.extend([bound] if target_name == name else [])
            case ast.NamedExpr(target=ast.Name(id=target_name), value=bound):
                found.extend([bound] if target_name == name else [])
    return found


def _bound(target: ast.expr, bound: ast.expr, name: str) -> list[ast.expr]:
    match target, bound:
        case ast.Name(id=found), _ if found == name:
            return [bound]
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            pairs = zip(targets, values, strict=True)
            return [part for one, other in pairs for part in _bound(one, other, name)]
        case ast.Tuple(elts=targets), _:
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            return [bound] if name in names else []
    return []


def parameters(function: Function) -> list[str]:
    """The names of its parameters in order, without self and cls, keyword-only ones last."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in {"self", "cls"}]
