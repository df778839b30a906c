"""PyTorch's ``.bin`` files: sizes from the zip's directory, names by looking at the pickle.

The pickle inside is a program, and loading it runs it. Here it is only read: its opcodes are walked
with a stack of our own on which nothing is ever called or imported. Files older than PyTorch 1.6 are
no zip; of them only the size counts.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from plimsoll.checkpoint.files import unreadable
from plimsoll.checkpoint.opcodes import Unfamiliar, tensors_in
from plimsoll.core.weights import TensorKind

if TYPE_CHECKING:
    from plimsoll.core.errors import BadModel

_END: Final = struct.Struct("<4s4H2LH")  # end of central directory
_LOCATOR: Final = struct.Struct("<4sLQL")  # where the 64-bit one stands
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")  # one entry of the directory
_LOCAL: Final = struct.Struct("<4s5H3L2H")  # the head of a member itself
_MAX_COMMENT: Final = 1 << 16
_MAX_ENTRIES: Final = 1 << 17
_MAX_DIRECTORY: Final = 1 << 25
_MAX_PICKLE: Final = 1 << 22  # some 20,000 tensors
_FULL16, _FULL32 = (1 << 16) - 1, (1 << 32) - 1
_ZIP64: Final = 1  # id of the extra field with 64-bit sizes
#: How a file of PyTorch before 1.6 starts: a pickle of protocol 2 with this number.
_LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


class Member(NamedTuple):
    """One file of the archive."""

    name: str
    size: int
    offset: int


class TorchFile(NamedTuple):
    """What one file holds.

    Attributes:
        tensors: By name. A storage that two names share counts for the first of them.
        digest: SHA-256 of what was read.
        note: What could not be read; None when all was.
    """

    tensors: dict[str, TensorKind]
    digest: str
    note: str | None


def read_torch(file: BinaryIO, size: int, name: str) -> TorchFile:
    """Read one file's directory and pickle.

    Args:
        file: Open at its start.
        size: Bytes of the whole file.
        name: For messages.

    Raises:
        BadModel: Neither a zip of torch nor an older file, or a directory that lies.
    """
    head = file.read(len(_LEGACY))
    if head == _LEGACY:
        kind = TensorKind("U8", (size,), size)
        note = f"{name[:80]} is older than PyTorch 1.6; all its {size} bytes are taken as weights"
        return TorchFile({f"{name}/all": kind}, sha256(head + str(size).encode()).hexdigest(), note)
    if not head.startswith(b"PK\x03\x04"):
        raise _bad(name, "it is neither a zip of PyTorch nor its older format")
    directory, count = _directory(file, size, name)
    members = _members(directory, count, size, name)
    storages = {m.name.rpartition("/data/")[2]: m.size for m in members if "/data/" in m.name}
    pickles = [m for m in members if m.name.endswith("/data.pkl") or m.name == "data.pkl"]
    if len(pickles) != 1 or not storages:
        raise _bad(name, "it holds no tensors of PyTorch")
    if sum(member.size for member in members) > size:
        raise _bad(name, "its members claim more bytes than the file has")
    code = _content(file, pickles[0], size, name)
    digest = sha256(directory + code).hexdigest()
    try:
        return TorchFile(_tensors(code, storages, name), digest, None)
    except Unfamiliar as error:
        note = f"{name[:80]}: the names of its tensors are not readable ({error}); each rank is taken to hold all"
        kinds = {f"{name}/{key}": TensorKind("U8", (n,), n) for key, n in storages.items()}
        return TorchFile(kinds, digest, note)


def _tensors(code: bytes, storages: dict[str, int], name: str) -> dict[str, TensorKind]:
    """Tensors by name, each storage once."""
    seen: set[str] = set()
    tensors: dict[str, TensorKind] = {}
    for key, tensor in tensors_in(code).items():
        if tensor.storage not in storages:
            raise _bad(name, f"tensor {key!r:.80} has no data")
        held = storages[tensor.storage]
        if tensor.storage in seen:
            continue
        seen.add(tensor.storage)
        width = tensor.width
        if prod(tensor.shape) * width > held:
            raise _bad(name, f"tensor {key!r:.80} is larger than its data of {held} bytes")
        # A view keeps its whole storage on disk; the device gets what is seen of it.
        tensors[key] = TensorKind(tensor.dtype, tensor.shape, prod(tensor.shape) * width)
    return tensors


def _directory(file: BinaryIO, size: int, name: str) -> tuple[bytes, int]:
    """The central directory and the number of its entries."""
    tail_length = min(size, _END.size + _MAX_COMMENT + _LOCATOR.size)
    file.seek(size - tail_length)
    tail = file.read(tail_length)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise _bad(name, "its zip directory is missing; it may be cut off")
    _, disk, first, _, count, length, offset, _ = _END.unpack_from(tail, at)
    if count == _FULL16 or _FULL32 in {length, offset}:
        place = at - _LOCATOR.size
        if place < 0 or tail[place : place + 4] != b"PK\x06\x07":
            raise _bad(name, "its zip directory is missing; it may be cut off")
        where = _LOCATOR.unpack_from(tail, place)[2]
        data = _at(file, where, _END64.size, size, name)
        found = _END64.unpack(data)
        if found[0] != b"PK\x06\x06":
            raise _bad(name, "its zip directory is not where it should be")
        disk, first, count, length, offset = found[4], found[5], found[7], found[8], found[9]
    if disk or first or count > _MAX_ENTRIES or length > _MAX_DIRECTORY:
        raise _bad(name, f"its zip directory has {count} entries, more than {_MAX_ENTRIES}")
    return _at(file, offset, length, size, name), count


def _members(directory: bytes, count: int, size: int, name: str) -> list[Member]:
    """Entries of the directory, which must be stored as they are."""
    members: list[Member] = []
    names: set[str] = set()
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(directory) or directory[at : at + 4] != b"PK\x01\x02":
            raise _bad(name, "its zip directory is broken")
        entry = _ENTRY.unpack_from(directory, at)
        method, packed, unpacked = entry[4], entry[8], entry[9]
        name_length, extra_length, comment_length, offset = (
            entry[10],
            entry[11],
            entry[12],
            entry[16],
        )
        at += _ENTRY.size
        member = directory[at : at + name_length].decode("utf-8", "replace")
        extra = directory[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length + comment_length
        if _FULL32 in {packed, unpacked, offset}:
            unpacked, packed, offset = _wide(extra, (unpacked, packed, offset), name)
        if method or packed != unpacked:
            raise _bad(name, f"its member {member!r:.80} is compressed, which PyTorch never does")
        if unpacked > size or offset > size or member in names:
            raise _bad(name, f"its member {member!r:.80} is repeated or ends beyond the file")
        names.add(member)
        members.append(Member(member, unpacked, offset))
    return members


def _wide(extra: bytes, values: tuple[int, int, int], name: str) -> tuple[int, int, int]:
    """The 64-bit values of those that have no room in 32 bits, from the extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _ZIP64:
            field = extra[at + 4 : at + 4 + length]
            found = list(values)
            for index, value in enumerate(values):
                if value == _FULL32:
                    number, field = field[:8], field[8:]
                    if len(number) < 8:  # noqa: PLR2004 - bytes of 64 bits
                        break
                    found[index] = int.from_bytes(number, "little")
            return found[0], found[1], found[2]
        at += 4 + length
    raise _bad(name, "its zip directory lacks the sizes of a large member")


def _content(file: BinaryIO, member: Member, size: int, name: str) -> bytes:
    if member.size > _MAX_PICKLE:
        raise _bad(name, f"its data.pkl has {member.size} bytes, more than {_MAX_PICKLE}")
    local = _LOCAL.unpack(_at(file, member.offset, _LOCAL.size, size, name))
    if local[0] != b"PK\x03\x04":
        raise _bad(name, "its data.pkl is not where the zip directory says")
    return _at(file, member.offset + _LOCAL.size + local[9] + local[10], member.size, size, name)


def _at(file: BinaryIO, offset: int, length: int, size: int, name: str) -> bytes:
    """Exactly these bytes of the file."""
    if offset + length > size:
        raise _bad(name, "its zip directory points beyond the file; it may be cut off")
    file.seek(offset)
    data = file.read(length)
    if len(data) < length:
        raise _bad(name, "it was cut off while being read")
    return data


def _bad(name: str, why: str) -> BadModel:
    return unreadable(name, why, "WeightsUnreadable")
