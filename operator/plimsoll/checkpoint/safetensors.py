"""safetensors headers: 8 bytes of length, a JSON object, then data that is never read.

Stricter than the reference library in one point only: a repeated tensor name is refused, where the
library takes the last. Everything else that it refuses is refused here too (tested side by side).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from plimsoll.checkpoint.files import unreadable
from plimsoll.core.dtypes import SAFETENSORS_BITS
from plimsoll.core.weights import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from plimsoll.core.errors import BadModel

MAX_HEADER: Final = 100_000_000
_PREFIX: Final = 8
_MAX_DIMENSIONS: Final = 64
_MAX_SIZE: Final = (1 << 63) - 1


def read_header(file: BinaryIO, size: int, name: str) -> tuple[tuple[Tensor, ...], bytes]:
    """Read one file's header.

    Args:
        file: Open at its start.
        size: Bytes of the whole file; the header must account for every one of them.
        name: For messages.

    Returns:
        The tensors in the order of their data, and the header's bytes (for the digest).

    Raises:
        BadModel: The header is not one, or does not match the file.
    """
    prefix = file.read(_PREFIX)
    length = int.from_bytes(prefix, "little")
    # Checked before anything is read or allocated: a hostile length is up to 2^64 - 1.
    if len(prefix) < _PREFIX or length > min(MAX_HEADER, size - _PREFIX):
        raise _bad(name, f"its header claims {length} bytes; the file may be cut off")
    header = file.read(length)
    if len(header) < length:
        raise _bad(name, "it was cut off while being read")
    tensors = _parse(header, name)
    _check_layout(tensors, size - _PREFIX - length, name)
    return tuple(tensor for _, _, tensor in tensors), header


def _parse(header: bytes, name: str) -> list[tuple[int, int, Tensor]]:
    """Begin, end and description of each tensor, by begin."""
    try:
        document = json.loads(
            header.decode(),
            object_pairs_hook=_no_repeats,
            parse_constant=_refuse,
            parse_float=_refuse,
        )
    except (ValueError, RecursionError) as error:
        raise _bad(name, f"its header is not JSON as expected: {str(error)[:100]}") from error
    if not isinstance(document, dict):
        raise _bad(name, "its header is not a JSON object")
    metadata = document.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())
    ):
        raise _bad(name, "its __metadata__ is not a map of texts")
    return sorted(
        (_tensor(key, value, name) for key, value in document.items()), key=lambda item: item[:2]
    )


def _tensor(key: str, value: Any, name: str) -> tuple[int, int, Tensor]:  # noqa: ANN401 - any JSON
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad(name, f"tensor {key!r:.80} lacks or adds a key")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_BITS:
        raise _bad(name, f"tensor {key!r:.80} has the unknown dtype {dtype!r:.32}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise _bad(name, f"tensor {key!r:.80} has the impossible shape {shape!r:.64}")
    if not _are_sizes(offsets) or len(offsets) != 2:  # noqa: PLR2004 - begin and end
        raise _bad(name, f"tensor {key!r:.80} has the impossible offsets {offsets!r:.64}")
    bits = SAFETENSORS_BITS[dtype]
    for length in shape:
        bits *= length
        if bits > _MAX_SIZE * 8:
            raise _bad(name, f"tensor {key!r:.80} is larger than any memory")
    begin, end = offsets
    if bits % 8 or end - begin != bits // 8:
        raise _bad(
            name, f"tensor {key!r:.80} has {end - begin} bytes where its shape needs {bits / 8:g}"
        )
    return begin, end, Tensor(key, dtype, tuple(shape), end - begin)


def _check_layout(tensors: Iterable[tuple[int, int, Tensor]], data: int, name: str) -> None:
    """Tensors must follow each other without hole or overlap and fill the file."""
    position = 0
    for begin, end, tensor in tensors:
        if begin != position:
            raise _bad(name, f"tensor {tensor.name!r:.80} starts at {begin}, not at {position}")
        position = end
    if position != data:
        raise _bad(
            name, f"its tensors have {position} bytes, the file holds {data}; it may be cut off"
        )


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _MAX_SIZE
        for item in value
    )


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name is repeated")
    return document


def _refuse(text: str) -> Any:  # noqa: ANN401 - the signature that json wants
    raise ValueError(f"{text[:20]} is not an integer")


def _bad(name: str, why: str) -> BadModel:
    return unreadable(name, why, "WeightsUnreadable")
