"""Reads the InferenceServers of a manifest file.

YAML needs a parser that the standard library lacks: PyYAML where it is installed, else kubectl itself, which
converts a file without a cluster. JSON needs neither.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from plimsoll.cli.kubectl import Kubectl
from plimsoll.core.errors import BadArgument, PlimsollError

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "InferenceServer"
_GROUP: Final = "plimsoll.dev/"
_MOST: Final = 4 << 20
_STDIN: Final = "-"


def read_servers(name: str) -> tuple[list[dict[str, Any]], int]:
    """The InferenceServers in a file, and how many other objects it holds.

    Args:
        name: a path, or ``-`` for standard input.

    Raises:
        BadArgument: it cannot be read, is neither JSON nor YAML, or holds no InferenceServer.
    """
    text = _text(name)
    objects = [found for document in _documents(text, name) for found in _flat(document, name)]
    servers = [found for found in objects if _is_ours(found)]
    if not servers:
        kinds = ", ".join(sorted({str(found.get("kind")) for found in objects})) or "nothing"
        raise BadArgument(f"it holds no InferenceServer but {kinds}", field="-f", value=name)
    return servers, len(objects) - len(servers)


def _text(name: str) -> str:
    try:
        if name == _STDIN:
            data = sys.stdin.buffer.read(_MOST + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(_MOST + 1)
        if len(data) > _MOST:
            raise BadArgument(f"{name} is larger than {_MOST} bytes", field="-f", value=name)
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadArgument(f"{name} cannot be read: {why}", field="-f", value=name) from error


def _documents(text: str, name: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore] # noqa: PLC0415 - optional, and slow to load
    except ImportError:
        return list(_by_kubectl(text, name))
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise BadArgument(f"{name} is no YAML: {said[:300]}", field="-f", value=name) from error


def _by_kubectl(text: str, name: str) -> Iterator[Any]:
    """Let kubectl patch the file with nothing, locally: it prints JSON, one document after the other."""
    words = ["patch", "--local", "--type=merge", "--patch={}", "--filename=-", "--output=json"]
    try:
        printed = Kubectl().run(words, stdin=text)
    except PlimsollError as error:
        raise BadArgument(
            f"{name} is no JSON, and YAML needs PyYAML (pip install pyyaml) or a kubectl that reads it: "
            f"{error.message}",
            field="-f",
            value=name,
        ) from error
    decoder, at = json.JSONDecoder(), 0
    while printed[at:].strip():
        at += len(printed[at:]) - len(printed[at:].lstrip())
        document, at = decoder.raw_decode(printed, at)
        yield document


def _flat(document: Any, name: str) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - any JSON
    if not isinstance(document, dict):
        raise BadArgument(f"{name} holds something that is no object", field="-f", value=name)
    if isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _flat(item, name)
    else:
        yield document


def _is_ours(document: dict[str, Any]) -> bool:
    return document.get("kind") == KIND and str(document.get("apiVersion", "")).startswith(_GROUP)
