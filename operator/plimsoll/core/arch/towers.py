"""Weights of the parts that see and hear: a small notation for lists of tensors.

Towers are many and alike, and only their sizes matter here. Each is written as lines::

    side = image_size / patch_size      a name for a number
    patch_embedding  d c p p +b         a weight of that shape, +b with a bias of the first length
    =class_embedding d                  a parameter without the suffix ``.weight``
    @L blocks.*.norm d                  one for each of L layers
    ?use_head head d                    only where the config says so; ``!use_head`` where it does not
    vit L d w bias=qvo                  L layers of a vision transformer, see ``layers``

A name in an expression is a field of the tower's config; ``field:7`` means 7 where neither the
file nor the class has it, ``#field`` the length of a list, ``vision.d`` a field of a neighbour.
Short names stand for the usual spellings, see ``SPELLINGS``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from plimsoll.core.arch.fields import MAX_LAYERS
from plimsoll.core.arch.spec import TensorGroup
from plimsoll.core.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from plimsoll.core.arch.fields import Fields

MAX_NUMBER: Final = 1 << 31

#: Short name -> the words that configs use for it.
SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "d": ("hidden_size", "embed_dim", "d_model", "hidden_dim", "width"),
    "L": ("num_hidden_layers", "depth", "encoder_layers", "num_layers", "layers"),
    "w": ("intermediate_size", "encoder_ffn_dim", "ffn_dim", "mlp_dim"),
    "H": ("num_attention_heads", "num_heads", "encoder_attention_heads", "heads"),
    "c": ("num_channels", "in_channels", "in_chans"),
    "p": ("patch_size",),
    "m": ("spatial_merge_size",),
    "out": ("out_hidden_size", "output_dim"),
}
_USUAL: Final = {"c": 3, "m": 2}

_TOKEN: Final = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|([#A-Za-z_][\w.]*(?::\d+)?)|(.))")
_BRACES: Final = re.compile(r"\{([^}]*)\}")


class Missing(Exception):  # noqa: N818 - control flow inside this module, never an error outside
    """A tower needs a number that neither its file nor its class states."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where the names of a layout get their numbers.

    Attributes:
        own: The part's own config.
        near: Configs of its neighbours by name: ``vision``, ``audio``, ``text``, ``wrapper``.
        named: Numbers that earlier lines, or the reader, gave a name.
    """

    own: Fields
    near: Mapping[str, Fields] = field(default_factory=dict)
    named: dict[str, float] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """The number behind a name.

        Raises:
            BadModel: A field of the wrong type or out of range.
            Missing: No such field, and no default.
        """
        name, _, usual = name.partition(":")
        if name in self.named:
            return self.named[name]
        length = name.startswith("#")
        where, _, key = name.removeprefix("#").rpartition(".")
        fields = self.part(where)
        spellings = SPELLINGS.get(key, (key,))
        if key == "d":
            # Some files also state the width by a word that their class does not know.
            spellings = tuple(word for word in spellings if word in fields.defaults) or spellings
        stated = [word for word in spellings if fields.values.get(word) is not None]
        found = stated or [word for word in spellings if fields.has(word)]
        if length:
            value = fields.get(found[0]) if found else None
            if value is None:
                return int(usual or 0)
            return len(value) if isinstance(value, list) else 1
        if not found:
            if usual or key in _USUAL:
                return int(usual or _USUAL[key])
            raise Missing(f"{fields.path}{spellings[0]}")
        return _plain(fields, found[0])

    def part(self, where: str) -> Fields:
        """A neighbour's config, or the part's own when ``where`` is empty.

        Raises:
            Missing: The model has no such part.
        """
        if where and where not in self.near:
            raise Missing(f"{self.own.path}{where}_config")
        return self.near[where] if where else self.own

    def holds(self, condition: str) -> bool:
        """Whether a condition holds: a flag, a number that is not 0, or ``field=word``."""
        name, _, word = condition.partition("=")
        try:
            if word:
                where, _, key = name.rpartition(".")
                return bool(self.part(where).get(key) == word)
            return self.number(name) != 0
        except Missing:
            return False


def _plain(fields: Fields, key: str) -> float:
    """A number, the first of a list of them (image sizes), or a flag as 0 or 1."""
    value = fields.get(key)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list) and value:
        value = value[0]
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value <= MAX_NUMBER
    ):
        raise fields.wrong(key, f"a number from 0 to {MAX_NUMBER}")
    return value


def calculate(text: str, scope: Scope) -> float:
    """The value of an expression of names, numbers, ``+ - * / ( )``; ``/`` rounds down.

    Raises:
        BadModel: A field of the wrong type, or 0 where something is divided by it.
        Missing: A field that is not there.
    """
    tokens = [match.groups() for match in _TOKEN.finditer(text.strip())]
    value = _sum(tokens, scope)
    if tokens:
        raise ValueError(f"{text!r} is no expression")
    return value


_Tokens = list[tuple[str | None, ...]]


def _sum(tokens: _Tokens, scope: Scope) -> float:
    value = _product(tokens, scope)
    while tokens and tokens[0][2] in ("+", "-"):
        sign = 1 if tokens.pop(0)[2] == "+" else -1
        value += sign * _product(tokens, scope)
    return value


def _product(tokens: _Tokens, scope: Scope) -> float:
    value = _atom(tokens, scope)
    while tokens and tokens[0][2] in ("*", "/"):
        times = tokens.pop(0)[2] == "*"
        name = next((token[1] for token in tokens if token[1]), None)
        factor = _atom(tokens, scope)
        if not times and factor == 0:
            raise scope.own.wrong(SPELLINGS.get(name or "", (name or "",))[0], "more than 0")
        value = value * factor if times else value // factor
    return value


def _atom(tokens: _Tokens, scope: Scope) -> float:
    number, name, other = tokens.pop(0)
    if number is not None:
        return float(number) if "." in number else int(number)
    if name is not None:
        return scope.number(name)
    if other != "(":
        raise ValueError(f"{other!r} is no operand")
    value = _sum(tokens, scope)
    tokens.pop(0)
    return value


def tensors(layout: str, scope: Scope, prefix: str = "") -> Iterator[TensorGroup]:
    """The tensors of a layout, under a prefix that ends with a dot.

    Raises:
        BadModel: A field of the wrong type or out of range.
        Missing: A field that is not there.
    """
    for line in layout.strip().splitlines():
        words = line.split()
        if not words or not _wanted(words, scope):
            continue
        if words[1:2] == ["="]:
            scope.named[words[0]] = calculate(line.partition("=")[2], scope)
        elif words[0] == "vit":
            yield from _vit(words[1:], scope, prefix)
        else:
            yield from _line(words, scope, prefix)


def _wanted(words: list[str], scope: Scope) -> bool:
    """Take the conditions off a line; whether all of them hold."""
    while words[0][0] in "?!":
        condition = words.pop(0)
        if scope.holds(condition[1:]) == (condition[0] == "!"):
            return False
    return True


def _line(words: list[str], scope: Scope, prefix: str) -> Iterator[TensorGroup]:
    indices = count(words.pop(0)[1:], scope) if words[0].startswith("@") else None
    if indices == ():
        return
    bias = False
    if words[-1].startswith("+b"):
        condition = words.pop()[2:]
        bias = not condition or scope.holds(condition[1:])
    shape = tuple(int(calculate(word, scope)) for word in words[1:])
    if any(size < 0 for size in shape):
        # Differences and fractions of sizes that do not belong together.
        name = next(
            found[1]
            for found in _TOKEN.findall(words[1 + min(range(len(shape)), key=shape.__getitem__)])
            if found[1]
        )
        raise scope.own.wrong(SPELLINGS.get(name, (name,))[0], "a size that the others allow")
    for name in _names(words[0].removeprefix("=")):
        suffix = "" if words[0].startswith("=") else ".weight"
        yield TensorGroup(f"{prefix}{name}{suffix}", shape, indices)
        if bias:
            yield TensorGroup(f"{prefix}{name}.bias", shape[:1], indices)


def count(text: str, scope: Scope) -> tuple[int, ...]:
    """The indices ``0 .. n - 1`` of n layers.

    Raises:
        BadModel: More layers than any model has.
    """
    number = int(calculate(text, scope))
    if not 0 <= number <= MAX_LAYERS:
        raise scope.own.wrong(SPELLINGS.get(text, (text,))[0], f"at most {MAX_LAYERS} layers")
    return tuple(range(number))


def _names(pattern: str) -> Iterator[str]:
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    for choice in match[1].split(","):
        yield from _names(pattern[: match.start()] + choice + pattern[match.end() :])


def _vit(words: list[str], scope: Scope, prefix: str) -> Iterator[TensorGroup]:
    """Layers of a vision transformer.

    Options after the sizes: ``bias=qkvo`` which projections have one; ``norm=rms``; ``mlp=gated``
    ``gated+b`` or ``gated+b?flag``; ``scale`` for one vector at each branch;
    ``head=N`` for norms of q and k over N; ``kv=N`` for their width; ``q=N`` for the queries'.
    """
    layers, width, inner = words[:3]
    options = dict(word.partition("=")[::2] for word in words[3:])
    name = options.get("name", "layers")
    bias = "".join(_when(part, scope) for part in options.get("bias", "qkvo").split("+"))
    norm = "" if _when(options.get("norm", ""), scope) == "rms" else " +b"
    query, other = options.get("q", width), options.get("kv", options.get("q", width))
    lines = [
        f"{name}.*.self_attn.{side}_proj {rows} {columns}{' +b' if side in bias else ''}"
        for side, rows, columns in (
            ("q", query, width), ("k", other, width), ("v", other, width), ("o", width, query),
        )
    ]  # fmt: skip
    lines.append(f"{name}.*.layer_norm{{1,2}} {width}{norm}")
    kind, stated, condition = options.get("mlp", "plain+b").partition("+b")
    rest = " +b" if stated and (not condition or scope.holds(condition[1:])) else ""
    if kind == "gated":
        lines.append(f"{name}.*.mlp.{{gate,up}}_proj {inner} {width}{rest}")
        lines.append(f"{name}.*.mlp.down_proj {width} {inner} {rest or options.get('down', '')}")
    else:
        lines += [
            f"{name}.*.mlp.fc1 {inner} {width}{rest}",
            f"{name}.*.mlp.fc2 {width} {inner}{rest}",
        ]
    if "scale" in options:
        lines.append(f"={name}.*.lambda_{{1,2}} {width}")
    if "head" in options:
        lines.append(f"{name}.*.self_attn.{{q,k}}_norm {options['head']}")
    yield from tensors("\n".join(f"@{layers} {line}" for line in lines), scope, prefix)


def _when(text: str, scope: Scope) -> str:
    """The word before ``?`` where the condition after it holds; the whole word without one."""
    word, _, condition = text.partition("?")
    return word if not condition or scope.holds(condition) else ""
