"""GGUF headers, versions 2 and 3: metadata and tensor table. Tensor data is never read.

Layout: magic, version, counts, key-value pairs, tensor infos; then aligned data. Long arrays (the
token list) are walked over, only their length is kept.
"""

from __future__ import annotations

import hashlib
import struct
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from plimsoll.checkpoint.files import unreadable
from plimsoll.core.arch.gguf import LENGTH_SUFFIX
from plimsoll.core.dtypes import GGUF_TYPES
from plimsoll.core.records import dataclass, field
from plimsoll.core.weights import TensorKind

if TYPE_CHECKING:
    from plimsoll.core.errors import BadModel

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = frozenset({2, 3})
# Real files: some 50 pairs, 3,000 tensors (experts are stacked), 500,000 texts, 20 MiB.
_MAX_HEADER: Final = 1 << 27
_MAX_PAIRS: Final = 1 << 11
_MAX_TENSORS: Final = 1 << 16
_MAX_KEY: Final = 1 << 16
_MAX_NAME: Final = 1 << 10
_MAX_STRING: Final = 1 << 26
_MAX_TEXTS: Final = 1 << 21
_MAX_DIMENSIONS: Final = 4
_MAX_SIZE: Final = (1 << 63) - 1
_KEPT_STRING: Final = 1024
_KEPT_ARRAY: Final = 1024
_DEFAULT_ALIGNMENT: Final = 32
_MAX_ALIGNMENT: Final = 1 << 20
_CHUNK: Final = 1 << 20
_CUT_OFF: Final = "its header runs beyond the end of the file; it may be cut off"

#: Value type -> struct code. 8 is a string, 9 an array.
_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What one file says of itself.

    Attributes:
        metadata: Scalars, short texts and short arrays; of others the length, under ``KEY#length``.
        tensors: The tensor table.
        digest: SHA-256 of the header's bytes.
    """

    metadata: dict[str, Any]
    tensors: dict[str, TensorKind]
    digest: str


@dataclass(slots=True)
class _Cursor:
    """Reads little-endian values and never beyond the file."""

    file: BinaryIO
    size: int
    name: str
    position: int = field(default=0)
    texts: int = field(default=0)

    def take(self, count: int) -> bytes:
        self._claim(count)
        data = self.file.read(count)
        if len(data) < count:
            raise self.bad("it was cut off while being read")
        return data

    def skip(self, count: int) -> None:
        self._claim(count)
        self.file.seek(count, 1)

    def skip_texts(self, count: int) -> None:
        """Walk over an array of texts, by windows: token lists have hundreds of thousands."""
        self.texts += count  # of all arrays: a sparse file holds billions of empty ones for nothing
        if self.texts > _MAX_TEXTS:
            raise self.bad(f"its header claims {self.texts} texts, more than {_MAX_TEXTS}")
        length_of = struct.Struct("<Q").unpack_from
        while count:
            window = self.file.read(_CHUNK)
            offset, last = 0, len(window) - 8
            while count and offset <= last:
                offset += 8 + length_of(window, offset)[0]
                count -= 1
            if not offset:
                raise self.bad(_CUT_OFF)
            self._claim(offset)  # before seeking: the last length may be any number
            self.file.seek(self.position)

    def _claim(self, count: int) -> None:
        if count > self.size - self.position:
            raise self.bad(_CUT_OFF)
        self.position += count
        if self.position > _MAX_HEADER:
            raise self.bad(f"its header has more than {_MAX_HEADER} bytes")

    def scalar(self, code: str) -> Any:  # noqa: ANN401 - int, float or bool by its code
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, what: str, most: int) -> int:
        number: int = self.scalar("Q")
        if number > most:
            raise self.bad(f"its header claims {number} {what}, more than {most}")
        return number

    def text(self, most: int) -> str:
        data = self.take(self.count("bytes of text", most))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.bad("its header holds text that is not UTF-8") from None

    def bad(self, why: str) -> BadModel:
        return unreadable(self.name, why, "WeightsUnreadable")


def read_header(file: BinaryIO, size: int, name: str) -> GgufHeader:
    """Read one file's header.

    Args:
        file: Open at its start.
        size: Bytes of the whole file; every tensor must lie within.
        name: For messages.

    Raises:
        BadModel: Not GGUF, a version or type that is not known, or a table that does not fit.
    """
    cursor = _Cursor(file, size, name)
    if size < len(_MAGIC) or cursor.take(len(_MAGIC)) != _MAGIC:
        raise cursor.bad("it is not a GGUF file")
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise cursor.bad(f"GGUF version {version} is not supported (2 and 3 are, little-endian)")
    tensor_count = cursor.count("tensors", _MAX_TENSORS)
    pairs = cursor.count("metadata pairs", _MAX_PAIRS)
    metadata: dict[str, Any] = {}
    seen: set[str] = set()
    for _ in range(pairs):
        key = cursor.text(_MAX_KEY)
        if key in seen:
            raise cursor.bad(f"metadata key {key!r:.80} is repeated")
        seen.add(key)
        _read_value(cursor, key, metadata)
    infos = [_read_info(cursor) for _ in range(tensor_count)]
    _check_layout(cursor, infos, _alignment(cursor, metadata))
    digest = _digest(file, cursor.position)
    return GgufHeader(metadata, {name: kind for _, name, kind in infos}, digest)


def _read_value(cursor: _Cursor, key: str, metadata: dict[str, Any]) -> None:
    """Read one value; keep it when it is small."""
    kind = cursor.scalar("I")
    if kind in _SCALARS:
        metadata[key] = cursor.scalar(_SCALARS[kind])
    elif kind == _STRING:
        length = cursor.count("bytes of text", _MAX_STRING)
        if length <= _KEPT_STRING:
            metadata[key] = cursor.take(length).decode(errors="replace")
        else:
            cursor.skip(length)
            metadata[key + LENGTH_SUFFIX] = length
    elif kind == _ARRAY:
        _read_array(cursor, key, metadata)
    else:
        raise cursor.bad(f"metadata key {key!r:.80} has the unknown type {kind}")


def _read_array(cursor: _Cursor, key: str, metadata: dict[str, Any]) -> None:
    kind = cursor.scalar("I")
    if kind == _STRING:
        length = cursor.count(f"texts in {key!r:.80}", _MAX_TEXTS)
        cursor.skip_texts(length)
    elif kind in _SCALARS:
        length = cursor.count(f"values in {key!r:.80}", _MAX_SIZE)
        width = struct.calcsize("<" + _SCALARS[kind])
        if length <= _KEPT_ARRAY:
            packed = cursor.take(length * width)
            metadata[key] = list(struct.unpack(f"<{length}{_SCALARS[kind]}", packed))
        else:
            cursor.skip(length * width)
    else:
        # Arrays of arrays: allowed by the text of the format, refused by llama.cpp too.
        raise cursor.bad(f"metadata key {key!r:.80} is an array of the unsupported type {kind}")
    metadata[key + LENGTH_SUFFIX] = length


def _read_info(cursor: _Cursor) -> tuple[int, str, TensorKind]:
    """Offset within the data, name and kind of one tensor."""
    name = cursor.text(_MAX_NAME)
    dimensions = cursor.scalar("I")
    if dimensions > _MAX_DIMENSIONS:
        raise cursor.bad(
            f"tensor {name!r:.80} has {dimensions} dimensions, more than {_MAX_DIMENSIONS}"
        )
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))
    kind = cursor.scalar("I")
    if kind not in GGUF_TYPES:
        raise cursor.bad(f"tensor {name!r:.80} has the unknown type {kind}")
    dtype, block, block_bytes = GGUF_TYPES[kind]
    elements = prod(shape)
    if elements > _MAX_SIZE or (shape and shape[0] % block):
        raise cursor.bad(
            f"tensor {name!r:.80} has the impossible shape {list(shape)!r:.64} for {dtype}"
        )
    size = elements // block * block_bytes
    offset = cursor.scalar("Q")
    # Rows of the file are columns of a matrix: the reversed order is the one people write.
    return offset, name, TensorKind(dtype, tuple(reversed(shape)), size)


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 < value <= _MAX_ALIGNMENT
        or value & (value - 1)
    ):
        raise cursor.bad(f"general.alignment is {value!r:.32}, not a small power of two")
    return value


def _check_layout(
    cursor: _Cursor, infos: list[tuple[int, str, TensorKind]], alignment: int
) -> None:
    """Names once, offsets aligned, no overlap, all within the file."""
    if len({name for _, name, _ in infos}) != len(infos):
        raise cursor.bad("a tensor name is repeated")
    start = -(-cursor.position // alignment) * alignment
    position = 0
    for offset, name, kind in sorted(infos, key=lambda info: info[0]):
        if offset % alignment or offset < position:
            raise cursor.bad(f"tensor {name!r:.80} at {offset} overlaps or is not aligned")
        position = offset + kind.size
        if start + position > cursor.size:
            raise cursor.bad(f"tensor {name!r:.80} ends beyond the file; it may be cut off")


def _digest(file: BinaryIO, length: int) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while length > 0:
        chunk = file.read(min(_CHUNK, length))
        if not chunk:
            break
        digest.update(chunk)
        length -= len(chunk)
    return digest.hexdigest()
