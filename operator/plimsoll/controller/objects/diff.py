"""The first difference between the object we want and the one that is there, as text.

Everything we render must be there and equal. What the API server or others add is not looked at:
defaulted fields, foreign labels, containers, environment and volumes (removing foreign additions
is later work). The text names the path, and becomes the reason of an Event, so a person can read
why a server was rolled out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

# How the API server identifies the items of its "list maps"; everything else is compared by
# position. (Mounts and owners have names as well, but those are not what makes them unique.)
_IDENTITIES: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "name",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
}

_AMOUNTS: Final = frozenset({"requests", "limits"})
_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]+|[A-Za-z]{0,2})")
_SUFFIXES: Final = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20),
    "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip

_LONGEST_VALUE: Final = 120


def first_difference(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Say how the live object first differs from the desired one.

    Args:
        desired: what a builder rendered.
        live: what the API server holds, with its defaults filled in.

    Returns:
        For example ``spec.template.spec.containers[server].args[3]: "--ctx-size=5" is not
        "--ctx-size=24576"``, or None when everything desired is there.
    """
    return None if covers(desired, live) else _difference("", "", desired, live)


def covers(desired: Any, live: Any, field: str = "") -> bool:  # noqa: ANN401 -- two JSON values
    """Whether everything desired is there: the comparison alone, without the words for a difference.

    Nearly every pass finds nothing to change, so this is what it mostly costs.

    Args:
        desired: what a builder rendered.
        live: what the API server holds.
        field: the field that both are the value of.
    """
    if isinstance(desired, dict):
        if not isinstance(live, dict):
            return not desired
        return all(
            covers(value, live.get(key), _child_field(field, key)) for key, value in desired.items()
        )
    if isinstance(desired, list | tuple):
        if not isinstance(live, list | tuple):
            return not desired
        return not desired or _covers_list(desired, live, _IDENTITIES.get(field))
    return _is_nothing(desired) or _same(field, desired, live)


def _covers_list(desired: Sequence[Any], live: Sequence[Any], identity: str | None) -> bool:
    if identity is None:
        return len(desired) == len(live) and all(map(covers, desired, live))
    by_key = {item.get(identity): item for item in live if isinstance(item, dict)}
    return all(covers(item, by_key.get(item[identity])) for item in desired)


def _difference(path: str, field: str, desired: Any, live: Any) -> str | None:  # noqa: ANN401
    if _is_nothing(desired):
        return None
    if live is None:
        return f"{path}: missing, wanted {_show(path, desired)}"
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        return _first(
            (_join(path, key), _child_field(field, key), value, live.get(key))
            for key, value in desired.items()
        )
    if _is_list(desired) and _is_list(live):
        identity = _IDENTITIES.get(field)
        return _named(path, identity, desired, live) if identity else _listed(path, desired, live)
    return None if _same(field, desired, live) else _unequal(path, desired, live)


def _first(parts: Any) -> str | None:  # noqa: ANN401 -- an iterator of _difference's arguments
    return next((found for part in parts if (found := _difference(*part)) is not None), None)


def _named(path: str, key: str, desired: Sequence[Any], live: Sequence[Any]) -> str | None:
    """Items of a list map, each found by its identity; further live items are not ours to judge."""
    by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    return _first((f"{path}[{item[key]}]", "", item, by_key.get(item[key])) for item in desired)


def _listed(path: str, desired: Sequence[Any], live: Sequence[Any]) -> str | None:
    """Ordered lists (args, command, tolerations, terms): same length, same items."""
    pairs = zip(desired, live, strict=False)
    found = _first((f"{path}[{i}]", "", want, have) for i, (want, have) in enumerate(pairs))
    if found is not None:
        return found
    if len(live) > len(desired):
        extra = live[len(desired)]
        return f"{path}[{len(desired)}]: {_show(path, extra)} is there and not wanted"
    if len(live) < len(desired):
        return f"{path}[{len(live)}]: missing, wanted {_show(path, desired[len(live)])}"
    return None


def _child_field(field: str, key: str) -> str:
    """The name under which a value is compared: quantities are known by where they are."""
    return "quantity" if field in _AMOUNTS or key == "sizeLimit" else key


def _same(field: str, desired: Any, live: Any) -> bool:  # noqa: ANN401 -- two JSON scalars
    if field == "quantity":
        return _quantity(desired) == _quantity(live)
    # True equals 1 in Python, and not in JSON.
    return type(desired) is type(live) and bool(desired == live)


def _quantity(value: Any) -> Decimal | str:  # noqa: ANN401 -- a JSON scalar
    """The exact value ("100m" is a tenth), or the text itself where it is no quantity."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return str(value)
    number, suffix = match.groups()
    scale = _SUFFIXES.get(suffix)
    if scale is None:
        return Decimal(number + suffix) if suffix[:1] in "eE" else str(value)
    return Decimal(number) * scale


def _is_list(value: Any) -> bool:  # noqa: ANN401 -- any JSON value
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_nothing(value: Any) -> bool:  # noqa: ANN401 -- any JSON value
    """None, and what the API server drops on its way in: empty texts, lists and objects."""
    return value is None or (not value and isinstance(value, str | Sequence | Mapping))


def _join(path: str, key: str) -> str:
    if not path:
        return key
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f"{path}[{key}]"


def _unequal(path: str, desired: Any, live: Any) -> str:  # noqa: ANN401 -- two JSON values
    return f"{path}: {_show(path, live)} is not {_show(path, desired)}"


def _show(path: str, value: Any) -> str:  # noqa: ANN401 -- any JSON value
    """The value, shortened; never one of the environment, which may be a password."""
    if re.search(r"\.env(\[|$)", path):
        return "(a value that is not shown)"
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
