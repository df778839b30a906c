"""safetensors headers: 8 bytes of length, a JSON object, then data that is never read.

Stricter than the reference library in two points: a repeated tensor name is refused, where the
library takes the last, and so is a header beyond 32 MiB (the library: 100 MB), which would take more
memory than a sizing may have. What the library refuses is refused here too (tested side by side).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from plimsoll.checkpoint.files import check_structure, unreadable
from plimsoll.core.dtypes import SAFETENSORS_BITS
from plimsoll.core.weights import TensorKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.core.errors import BadModel

MAX_HEADER: Final = 1 << 25
#: What is not as writers write it takes more memory to read, and is no large model.
MAX_IRREGULAR: Final = 1 << 24
_PREFIX: Final = 8
_MAX_DIMENSIONS: Final = 64
MAX_SIZE: Final = (1 << 63) - 1
_MEMBERS: Final = frozenset({"dtype", "shape", "data_offsets"})


def read_header(file: BinaryIO, size: int, name: str) -> tuple[dict[str, TensorKind], str]:
    """Read one file's header.

    Args:
        file: Open at its start.
        size: Bytes of the whole file; the header must account for every one of them.
        name: For messages.

    Returns:
        The tensors by name, and the SHA-256 of the header's bytes.

    Raises:
        BadModel: The header is not one, or does not match the file.
    """
    from hashlib import sha256  # noqa: PLC0415 - loads OpenSSL, and a config alone needs none

    header = read_bytes(file, size, name)
    digest = sha256(header).hexdigest()
    return tensors_of(header, size - _PREFIX - len(header), name), digest


def read_bytes(file: BinaryIO, size: int, name: str) -> bytes:
    """The header's bytes, which may still be anything.

    Raises:
        BadModel: Its length is a lie.
    """
    return read_text(file, header_length(file, size, name), name)


def header_length(file: BinaryIO, size: int, name: str) -> int:
    """What the first eight bytes say.

    Raises:
        BadModel: Its length is a lie.
    """
    prefix = file.read(_PREFIX)
    length = int.from_bytes(prefix, "little")
    # Checked before anything is read or allocated: a hostile length is up to 2^64 - 1.
    if len(prefix) < _PREFIX or length > min(MAX_HEADER, size - _PREFIX):
        raise _bad(name, f"its header claims {length} bytes; the file may be cut off")
    return length


def read_text(file: BinaryIO, length: int, name: str) -> bytes:
    """The header behind its length.

    Raises:
        BadModel: The file ends before it.
    """
    header = file.read(length)
    if len(header) < length:
        raise _bad(name, "it was cut off while being read")
    return header


def data_bytes(header: bytes, size: int) -> int:
    """Bytes of data behind a header in a file of that size."""
    return size - _PREFIX - len(header)


def tensors_of(header: bytes, data: int, name: str) -> dict[str, TensorKind]:
    """The strict way: every tensor of a header by name.

    Raises:
        BadModel: Anything that is not a header of exactly ``data`` bytes of tensors.
    """
    if len(header) > MAX_IRREGULAR:
        raise _bad(name, f"its header is irregular and has more than {MAX_IRREGULAR} bytes")
    try:
        text = header.decode()
    except UnicodeDecodeError as error:
        raise _bad(name, f"its header is not UTF-8: {error.reason}") from error
    return _tensors(text, data, name)


def parse_strictly(text: str, *, floats: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """JSON without repeated names or NaN, and without fractions unless ``floats``.

    Raises:
        ValueError: Anything else.
        RecursionError: Nested too deep.
    """
    parse_float = None if floats else _refuse
    return json.loads(
        text, object_pairs_hook=_no_repeats, parse_constant=_refuse, parse_float=parse_float
    )


def _tensors(text: str, data: int, name: str) -> dict[str, TensorKind]:
    """Check every tensor, and that together they fill the file's ``data`` bytes."""
    document = _parse(text, name, None)
    if not isinstance(document, dict):
        raise _bad(name, "its header is not a JSON object")
    metadata = document.pop("__metadata__", None)
    _check_metadata(metadata, name)
    kinds: dict[tuple[str, tuple[int, ...]], TensorKind] = {}
    found: dict[str, TensorKind] = {}
    spans: list[tuple[int, int, str]] = []
    for key, value in document.items():
        begin, end, found[key] = _tensor(key, value, kinds, name)
        spans.append((begin, end, key))
    # Every pair has its colon, so as many colons as pairs kept means that no key was repeated.
    # Otherwise texts may hold some: the slow way, a call of Python for each object, decides.
    pairs = len(found) * (1 + len(_MEMBERS)) + (0 if metadata is None else 1 + len(metadata))
    if text.count(":") != pairs:
        _parse(text, name, _no_repeats)
    spans.sort()
    _check_layout(spans, data, name)
    return found


def _parse(
    text: str, name: str, hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None
) -> Any:  # noqa: ANN401 - any JSON
    try:
        check_structure(text)
        return json.loads(text, object_pairs_hook=hook, parse_constant=_refuse, parse_float=_refuse)
    except (ValueError, RecursionError) as error:
        raise _bad(name, f"its header is not JSON as expected: {str(error)[:100]}") from error


def _check_metadata(value: object, name: str) -> None:
    if value is not None and not (
        isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    ):
        raise _bad(name, "its __metadata__ is not a map of texts")


def _tensor(
    key: str,
    value: Any,  # noqa: ANN401 - any JSON
    kinds: dict[tuple[str, tuple[int, ...]], TensorKind],
    name: str,
) -> tuple[int, int, TensorKind]:
    """Check one tensor. ``kinds`` keeps those of this file: most tensors share theirs."""
    if not isinstance(value, dict) or value.keys() != _MEMBERS:
        raise _bad(name, f"tensor {key!r:.80} lacks or adds a key")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise _bad(name, f"tensor {key!r:.80} has the unknown dtype {dtype!r:.32}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise _bad(name, f"tensor {key!r:.80} has the impossible shape {shape!r:.64}")
    # Not isinstance(): to it True is an integer. Their range follows from size and layout below.
    if not isinstance(offsets, list) or [*map(type, offsets)] != [int, int]:
        raise _bad(name, f"tensor {key!r:.80} has the impossible offsets {offsets!r:.64}")
    kind = kinds.get((dtype, tuple(shape)))
    if kind is None:
        kind = kind_of(key, dtype, tuple(shape), name)
        kinds[dtype, kind.shape] = kind
    begin, end = offsets
    if end - begin != kind.size:
        raise _bad(
            name, f"tensor {key!r:.80} has {end - begin} bytes where its shape needs {kind.size}"
        )
    return begin, end, kind


def kind_of(key: str, dtype: str, shape: tuple[int, ...], name: str) -> TensorKind:
    """The kind of tensor ``key`` of file ``name``.

    Raises:
        BadModel: An unknown dtype, or a size that is beyond any memory or no whole number of bytes.
    """
    if dtype not in SAFETENSORS_BITS:
        raise _bad(name, f"tensor {key!r:.80} has the unknown dtype {dtype!r:.32}")
    bits = SAFETENSORS_BITS[dtype]
    for length in shape:
        bits *= length
        if bits > MAX_SIZE * 8:
            raise _bad(name, f"tensor {key!r:.80} is larger than any memory")
    if bits % 8:
        raise _bad(name, f"tensor {key!r:.80} has {bits} bits, no whole number of bytes")
    return TensorKind(dtype, shape, bits // 8)


def _check_layout(spans: list[tuple[int, int, str]], data: int, name: str) -> None:
    """Tensors (begin, end, name) must follow each other without hole or overlap and fill the file."""
    position = 0
    for begin, end, key in spans:
        if begin != position:
            raise _bad(name, f"tensor {key!r:.80} starts at {begin}, not at {position}")
        position = end
    if position != data:
        raise _bad(
            name, f"its tensors have {position} bytes, the file holds {data}; it may be cut off"
        )


def _are_sizes(value: object) -> bool:
    if not isinstance(value, list):
        return False
    for item in value:  # noqa: SIM110 - all() with a generator takes four times as long
        # Not isinstance(): True and False are integers to it, and equal to 1 and 0 as keys.
        if type(item) is not int or not 0 <= item <= MAX_SIZE:
            return False
    return True


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name is repeated")
    return document


def _refuse(text: str) -> Any:  # noqa: ANN401 - the signature that json wants
    raise ValueError(f"{text[:20]} is not an integer")


def _bad(name: str, why: str) -> BadModel:
    return unreadable(name, why, "WeightsUnreadable")
