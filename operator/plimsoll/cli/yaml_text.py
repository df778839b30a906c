"""Objects as YAML that people read and kubectl takes: block style, plain words where they are safe."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# Words that no YAML reader takes for anything else than this text.
_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?:[:=][A-Za-z0-9_./-]+)*")
_NOT_TEXT: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def to_yaml(value: Any) -> str:  # noqa: ANN401 - any JSON
    """One document."""
    return "".join(f"{line}\n" for line in _block(value, ""))


def _block(value: Any, pad: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{pad}{_scalar(key)}:", item, pad)
    elif isinstance(value, list) and value:
        for item in value:
            first, *rest = _block(item, f"{pad}  ")
            yield f"{pad}- {first.removeprefix(f'{pad}  ')}"
            yield from rest
    else:
        yield f"{pad}{_scalar(value)}"


def _entry(head: str, item: Any, pad: str) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if isinstance(item, dict) and item:
        yield head
        yield from _block(item, f"{pad}  ")
    elif isinstance(item, list) and item:
        yield head
        yield from _block(item, pad)
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: Any) -> str:  # noqa: ANN401 - any JSON
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value)
