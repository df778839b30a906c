"""Counting the tensors of many regular headers without an object for each of them.

A model may have 200,000 tensors, almost all of them experts. What they have in common is looked at
once: the text of dtype and shape, the name without the expert's number. For each tensor that leaves
a split, a hash, and the comparison of its offsets with those that the sizes before it imply.

Whatever is not as the safetensors library or Python's ``json.dump`` write it ends with None, and the
caller reads it again by the strict way, which tells what is wrong. So nothing is accepted here that
would be refused there (tested side by side).
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from itertools import accumulate, islice
from operator import lt
from typing import TYPE_CHECKING, Final, NamedTuple

from plimsoll.checkpoint.safetensors import MAX_SIZE, kind_of, parse_strictly
from plimsoll.core.errors import BadModel
from plimsoll.core.weights import Part, TensorKind, role_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

_BLOCK: Final = 1 << 18
#: Names with a layer's number and without an expert's. Real models have some 10,000.
MAX_ROLES: Final = 1 << 15
_MAX_METADATA: Final = 1 << 16
_EXPERT: Final = re.compile(rb"\.experts\.[0-9]{1,9}(?![^.\"])")  # in names joined by quotes
_STARRED: Final = b".experts.*"
_NAME: Final = re.compile(rb"[ !#-\[\]-~]*")  # printable ASCII without quote and backslash
_METADATA: Final = b'"__metadata__":'
_PRINTABLE: Final = bytes(range(0x20, 0x7F)).replace(b"\\", b"")


class _Style(NamedTuple):
    """Where spaces stand."""

    between: bytes  # after the last tensor's brace, before the next name's quote
    middle: bytes  # between shape and offsets
    tail: re.Pattern[bytes]  # from the name's quote to the shape's last number
    offsets: str


_NUMBER: Final = "(?:0|[1-9][0-9]{0,18})"
_COMPACT: Final = _Style(
    b",",
    b'],"data_offsets":[',
    re.compile(
        rf':\{{"dtype":"(\w{{1,16}})","shape":\[((?:{_NUMBER}(?:,{_NUMBER}){{0,63}})?)'.encode()
    ),
    "%d,%d]},",
)
_SPACED: Final = _Style(
    b", ",
    b'], "data_offsets": [',
    re.compile(
        rf': \{{"dtype": "(\w{{1,16}})", "shape": \[((?:{_NUMBER}(?:, {_NUMBER}){{0,63}})?)'.encode()
    ),
    "%d, %d]}, ",
)


class Tally:
    """Tensors of several files, counted."""

    def __init__(self) -> None:
        self._roles: dict[bytes, tuple[str, int]] = {}
        self._kinds: dict[bytes, TensorKind] = {}
        self._sizes: dict[bytes, int] = {}
        self._counts: Counter[tuple[bytes, bytes]] = Counter()
        # Of names, by Python's keyed hash: nobody can choose names that collide.
        self._hashes = array("q")

    def add(self, header: bytes, data: int) -> bool:
        """Count one header whose tensors fill ``data`` bytes; False when it is not regular."""
        start = _behind_metadata(header)
        end = header.rfind(b"}")  # spaces may follow
        behind = len(header) - end - 1
        if start is None or b"\\" in header or behind > _BLOCK or header[end + 1 :].strip(b" "):
            return False
        style = _SPACED if header.startswith(b'": {', header.find(b'"', start + 1)) else _COMPACT
        if start == end:
            return data == 0 and header[start - 1 : start] == b"{"
        names: set[bytes] = set()
        count = position = 0
        gap = len(style.between)
        while start < end:
            cut = header.find(b"]}" + style.between + b'"', min(start + _BLOCK, end))
            cut = end if cut < 0 else cut + 2
            regular = cut - start <= 2 * _BLOCK  # no entry is as long as a block
            found = self._block(header[start:cut], style, position) if regular else None
            if found is None:
                return False
            position, block = found
            count += len(block)
            names.update(block)
            start = cut + gap
        # Beyond the last tensor stands the closing brace, not a comma that was taken for a gap.
        return start == end + gap and position == data and len(names) == count

    def _block(
        self, text: bytes, style: _Style, position: int
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Whole entries: the position behind them, and their names. None when not regular."""
        pieces = (b"]}" + style.between + text).split(style.middle)
        last = pieces.pop()
        try:
            offsets, names, tails = zip(*[p.split(b'"', 2) for p in pieces], strict=True)
        except ValueError:  # a piece without its two quotes, or no piece at all
            return None
        roles = _EXPERT.sub(_STARRED, b'"'.join(names)).split(b'"')
        counts = Counter(zip(roles, tails, strict=True))
        if offsets[0] != b"]}" + style.between or not self._learn(counts, style):
            return None
        ends = list(accumulate(map(self._sizes.__getitem__, tails), initial=position))
        flat = [0] * (2 * len(names))
        flat[0::2], flat[1::2] = ends[:-1], ends[1:]
        wanted = (style.offsets * len(names)) % tuple(flat)
        if b"".join(offsets[1:]) + last + style.between != wanted.encode():
            return None
        self._counts.update(counts)
        self._hashes.extend(map(hash, names))
        return ends[-1], names

    def _learn(self, pairs: Iterable[tuple[bytes, bytes]], style: _Style) -> bool:
        """Look at each role and each kind that is new; False when one is not regular."""
        return all(
            (role in self._roles or self._learn_role(role))
            and (tail in self._kinds or self._learn_kind(tail, style))
            for role, tail in pairs
        )

    def _learn_role(self, role: bytes) -> bool:
        if _NAME.fullmatch(role) is None or len(self._roles) >= MAX_ROLES:
            return False
        self._roles[role] = role_of(role.decode())
        return True

    def _learn_kind(self, tail: bytes, style: _Style) -> bool:
        match = style.tail.fullmatch(tail)
        if match is None:
            return False
        shape = tuple(int(length) for length in match[2].split(b",")) if match[2] else ()
        if any(length > MAX_SIZE for length in shape):
            return False
        try:
            kind = kind_of("", match[1].decode(), shape, "")
        except BadModel:
            return False
        self._kinds[tail], self._sizes[tail] = kind, kind.size
        return True

    def parts(self) -> Counter[Part]:
        """What was counted."""
        parts: Counter[Part] = Counter()
        for (role, tail), count in self._counts.items():
            parts[Part(*self._roles[role], self._kinds[tail])] += count
        return parts

    def fingerprint(self) -> tuple[int, int]:
        """Number of names and sum of their hashes."""
        return len(self._hashes), sum(self._hashes)

    def repeats(self) -> bool:
        """Whether two files hold a tensor of one name."""
        return len(set(self._hashes)) != len(self._hashes)


def _behind_metadata(header: bytes) -> int | None:
    """Where the first tensor's name starts; None when what stands before is not regular."""
    if not header.startswith(b"{"):
        return None
    if not header.startswith(_METADATA, 1):
        return 1
    start = 1 + len(_METADATA)
    text = header[start : start + _MAX_METADATA].decode("latin-1")
    try:
        end = json.JSONDecoder().raw_decode(text.lstrip(" "))[1] + len(text) - len(text.lstrip(" "))
        value = parse_strictly(header[start : start + end].decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        return None
    start += end
    if header.startswith(b"}", start):
        return None  # nothing but metadata: rare enough for the strict way
    gap = b', "' if header.startswith(b', "', start) else b',"'
    return start + len(gap) - 1 if header.startswith(gap, start) else None


class IndexScan(NamedTuple):
    """What a regular index says.

    Attributes:
        files: The files that it names.
        fingerprint: As ``Tally.fingerprint``, of the tensors that it promises.
        sorted: Its names ascend, as transformers writes them: then none is repeated.
    """

    files: frozenset[bytes]
    fingerprint: tuple[int, int]
    sorted: bool


_MAP: Final = re.compile(rb'"weight_map"[ \n\r\t]*:[ \n\r\t]*\{')
_SPACE: Final = b" \n\r\t"
_MAX_REST: Final = 1 << 16


def scan_index(file: BinaryIO, most_files: int, most_bytes: int = 1 << 25) -> IndexScan | None:
    """Read an index block by block; None when it is not regular.

    A regular one has nothing nested in its ``weight_map``, no backslash, and little around it.
    """
    head = file.read(_MAX_REST)
    opening = _MAP.search(head)
    if opening is None:
        return None
    rest, text = head[: opening.end() - 1], head[opening.end() :]
    files: set[bytes] = set()
    count = total = read = 0
    ascending, before = True, b""
    while True:
        closing = text.find(b"}")
        cut = closing if closing >= 0 else text.rfind(b'",') + 2  # 1 when there is none
        # No comma within a block: no entry has 256 KiB.
        names = _entries(text[:cut], files, last=closing >= 0) if cut > 1 else None
        if names is None or len(files) > most_files:
            return None
        count += len(names)
        total += sum(map(hash, names))
        ascending = ascending and before < names[0] and all(map(lt, names, islice(names, 1, None)))
        before = names[-1]
        if closing >= 0:
            break
        read += _BLOCK
        if read > most_bytes:  # it grows while it is read
            return None
        text = text[cut:] + file.read(_BLOCK)
    rest += b"{}" + text[closing + 1 :] + file.read(_MAX_REST)
    try:
        document = parse_strictly(rest.decode(), floats=True)
    except (ValueError, RecursionError):
        return None
    if file.read(1) or not isinstance(document, dict) or document.get("weight_map") != {}:
        return None
    return IndexScan(frozenset(files), (count, total), ascending)


def _entries(text: bytes, files: set[bytes], *, last: bool) -> list[bytes] | None:
    """Names of whole ``"tensor": "file"`` entries; their files are added to ``files``."""
    parts = text.split(b'"')
    if len(parts) % 4 != 1 or len(parts) == 1 or b"\\" in text:
        return None
    names, found = parts[1::4], set(parts[3::4])
    if b"".join((*names, *found)).translate(None, _PRINTABLE):
        return None  # the strict reader says what is wrong with it
    ends = (parts[0].strip(_SPACE), parts[-1].strip(_SPACE))
    regular = _are_all(parts[4:-1:4], b",") and _are_all(parts[2::4], b":")
    if ends != (b"", b"" if last else b",") or not regular:
        return None
    files.update(found)
    return names


def _are_all(gaps: list[bytes], mark: bytes) -> bool:
    """Whether each of these texts between quotes is that mark with white space."""
    alike = b'"'.join(gaps) == b'"'.join(gaps[:1] * len(gaps))  # a fifth of the time of a set
    return all(gap.strip(_SPACE) == mark for gap in (gaps[:1] if alike else gaps))
