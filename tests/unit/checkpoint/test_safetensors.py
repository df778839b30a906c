"""Our safetensors reader beside the reference library: same files, same verdicts."""

from __future__ import annotations

import io
import json
import math
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plimsoll.checkpoint.files import MAX_STRUCTURE
from plimsoll.checkpoint.safetensors import MAX_HEADER, read_header
from plimsoll.core.dtypes import SAFETENSORS_BITS
from plimsoll.core.errors import BadModel

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.core.weights import TensorKind


def build(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def ours(content: bytes) -> dict[str, TensorKind] | BadModel:
    try:
        return read_header(io.BytesIO(content), len(content), "x.safetensors")[0]
    except BadModel as error:
        return error


def library_accepts(content: bytes, path: Path) -> bool:
    path.write_bytes(content)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            file.keys()
    except (safetensors.SafetensorError, OSError, MemoryError):
        return False
    return True


def entry(
    dtype: str = "F32", shape: Any = (2, 2), offsets: Any = (0, 16), **more: Any
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets} | more


GOOD = build({"a": entry(), "__metadata__": {"format": "pt"}}, bytes(16))

CASES: dict[str, bytes] = {
    "good": GOOD,
    "no tensors": build({}),
    "two in any order": build({"b": entry("U8", [4], [16, 20]), "a": entry()}, bytes(20)),
    "scalar": build({"a": entry("F32", [], [0, 4])}, bytes(4)),
    "empty tensor": build({"a": entry("F32", [0, 7], [0, 0])}),
    "trailing spaces": build(json.dumps({"a": entry()}).encode() + b"   ", bytes(16)),
    "four bits": build({"a": entry("F4", [8], [0, 4])}, bytes(4)),
    "four bits, odd": build({"a": entry("F4", [7], [0, 4])}, bytes(4)),
    "four bits, rounded down": build({"a": entry("F4", [7], [0, 3])}, bytes(3)),
    "8-bit scale": build({"a": entry("F8_E8M0", [4], [0, 4])}, bytes(4)),
    "empty file": b"",
    "seven bytes": b"1234567",
    "length 2^63": build({"a": entry()}, bytes(16), length=1 << 63),
    "length 2^64-1": build({"a": entry()}, bytes(16), length=(1 << 64) - 1),
    "length beyond the file": build({"a": entry()}, b"", length=1000),
    "length above the cap": build({"a": entry()}, b"", length=MAX_HEADER + 1),
    "header cut off": GOOD[:40],
    "data cut off": GOOD[:-1],
    "trailing data": GOOD + b"x",
    "overlap": build({"a": entry(), "b": entry("U8", [4], [12, 16])}, bytes(16)),
    "hole": build({"a": entry(), "b": entry("U8", [4], [20, 24])}, bytes(24)),
    "hole at the start": build({"a": entry("U8", [4], [4, 8])}, bytes(8)),
    "beyond the file": build({"a": entry("F32", [100], [0, 400])}, bytes(16)),
    "size differs from shape": build({"a": entry("F32", [3], [0, 16])}, bytes(16)),
    "end before begin": build({"a": entry("F32", [0], [16, 0])}, bytes(16)),
    "shape overflows to zero": build({"a": entry("F32", [1 << 32, 1 << 32], [0, 0])}),
    "shape overflows 2^64": build({"a": entry("U8", [(1 << 63), 2, 2], [0, 0])}),
    "negative length": build({"a": entry("F32", [-1, -4], [0, 16])}, bytes(16)),
    "float length": build({"a": entry("F32", [4.0], [0, 16])}, bytes(16)),
    "negative offset": build({"a": entry("F32", [4], [-16, 0])}, bytes(16)),
    "three offsets": build({"a": entry("F32", [4], [0, 16, 16])}, bytes(16)),
    "false for an offset": build({"a": entry("F32", [4], [False, 16])}, bytes(16)),
    "text for an offset": build({"a": entry("F32", [4], ["0", 16])}, bytes(16)),
    "huge offset": build({"a": entry("F32", [4], [0, 10**30])}, bytes(16)),
    "unknown dtype": build({"a": entry("F33")}, bytes(16)),
    "dtype is a number": build({"a": entry() | {"dtype": 5}}, bytes(16)),
    "no dtype": build({"a": {"shape": [4], "data_offsets": [0, 16]}}, bytes(16)),
    "tensor is a list": build({"a": [1]}, bytes(16)),
    "a list": build([1, 2]),
    "not JSON": build(b"{not json}"),
    "padded with NUL": build(json.dumps({"a": entry()}).encode() + b"\0\0", bytes(16)),
    "not UTF-8": build(b'{"\xff\xfe": 1}'),
    "starts with a space": build(b" " + json.dumps({"a": entry()}).encode(), bytes(16)),
    "metadata of numbers": build({"a": entry(), "__metadata__": {"n": 1}}, bytes(16)),
    "metadata is a list": build({"a": entry(), "__metadata__": []}, bytes(16)),
    "deep nesting": build(b'{"a":' + b"[" * 100_000, b""),
    "NaN": build(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}', bytes(16)),
    "git lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_the_librarys(name: str, tmp_path: Path) -> None:
    accepted = library_accepts(CASES[name], tmp_path / "x.safetensors")
    verdict = ours(CASES[name])
    assert accepted == isinstance(verdict, dict)
    if isinstance(verdict, BadModel):
        assert (verdict.reason, verdict.file) == ("WeightsUnreadable", "x.safetensors")


ONE = json.dumps(entry())
REPEATED = {
    "tensor": f'{{"a":{ONE},"a":{ONE}}}',
    "escaped": f'{{"a":{ONE},"\\u0061":{ONE}}}',
    "with a colon": f'{{"a:b":{ONE},"a:b":{ONE}}}',
    "in metadata": f'{{"a":{ONE},"__metadata__":{{"b":"1","b":"2"}}}}',
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_repeated_name_is_refused_where_the_library_takes_the_last(
    name: str, tmp_path: Path
) -> None:
    content = build(REPEATED[name].encode(), bytes(16))
    assert library_accepts(content, tmp_path / "x.safetensors")
    assert isinstance(ours(content), BadModel)


@pytest.mark.parametrize("key", ["shape", "dtype", "data_offsets"])
def test_a_repeated_key_of_a_tensor_is_refused(key: str) -> None:
    one = ONE[:-1] + f', "{key}": {json.dumps(entry()[key])}}}'
    assert isinstance(ours(build(f'{{"a":{one}}}'.encode(), bytes(16))), BadModel)


def test_repeated_metadata_is_refused() -> None:
    # With a colon in a text for the one that the repeated key lost.
    head = f'{{"__metadata__":null,"__metadata__":null,"a":{ONE}}}'
    assert isinstance(ours(build(head.encode(), bytes(16))), BadModel)


def test_colons_in_texts_are_no_repeated_names() -> None:
    accepted = ours(build({"a:b": entry(), "__metadata__": {"when": "12:00:00"}}, bytes(16)))
    assert accepted == {"a:b": ("F32", (2, 2), 16)}


def test_a_shape_beyond_any_memory_is_not_printed_in_full() -> None:
    verdict = ours(build({"a": entry("F32", [(1 << 63) - 1] * 64, [0, 16])}, bytes(16)))
    assert isinstance(verdict, BadModel)
    assert len(verdict.message) < 400


@pytest.mark.parametrize("shape", [[True, 4], [4, True], [False]])
def test_true_is_no_length_though_a_tensor_of_that_shape_came_before(shape: list[Any]) -> None:
    same = [int(length) for length in shape]
    size = 4 * math.prod(same)
    header = {"a": entry("F32", same, [0, size]), "b": entry("F32", shape, [size, 2 * size])}
    assert isinstance(ours(build(header, bytes(2 * size))), BadModel)


def test_a_text_that_would_grow_twentyfold_is_refused() -> None:
    content = build(b'{"a":[' + b"[]," * (MAX_STRUCTURE // 2) + b"[]]}")
    tracemalloc.start()
    verdict = ours(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(verdict, BadModel)
    assert "values" in verdict.message
    assert peak < 4 * len(content)


def test_an_unknown_key_of_a_tensor_is_refused() -> None:
    assert isinstance(ours(build({"a": entry(extra=1)}, bytes(16))), BadModel)


class Counting(io.BytesIO):
    """Counts the bytes asked for."""

    asked = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked += size or 0
        return super().read(size)


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 1 << 40, (1 << 64) - 1])
def test_a_hostile_length_is_refused_before_it_is_read(length: int) -> None:
    file = Counting(build({"a": entry()}, bytes(16), length=length))
    with pytest.raises(BadModel):
        read_header(file, 1 << 50, "x")
    assert file.asked == 8


def test_the_header_ends_where_it_says() -> None:
    content = build({"a": entry("U8", [1 << 20], [0, 1 << 20])}, bytes(1 << 20))
    file = Counting(content)
    read_header(file, len(content), "x")
    assert file.asked == len(content) - (1 << 20)


@pytest.mark.parametrize("dtype", SAFETENSORS_BITS)
def test_every_dtype_has_the_librarys_width(dtype: str, tmp_path: Path) -> None:
    size = SAFETENSORS_BITS[dtype]  # eight elements
    content = build({"a": entry(dtype, [8], [0, size])}, bytes(size))
    wrong = build({"a": entry(dtype, [8], [0, size + 8])}, bytes(size + 8))
    assert isinstance(ours(content), dict)
    assert isinstance(ours(wrong), BadModel)
    if library_accepts(content, tmp_path / "x"):
        assert not library_accepts(wrong, tmp_path / "x")


def test_the_libraries_own_files_read_the_same(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.zeros((3, 4), np.float16),
        "b.weight": np.zeros((5,), np.int64),
        "c": np.zeros((), np.float32),
        "d": np.zeros((0, 3), np.uint8),
    }
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays, path, {"format": "np"})
    found = ours(path.read_bytes())
    assert isinstance(found, dict)
    with safetensors.safe_open(path, framework="numpy") as file:
        theirs = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no mapping
        kinds = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118 - no mapping
    assert {name: kind.shape for name, kind in found.items()} == theirs
    assert {name: kind.dtype for name, kind in found.items()} == kinds
    assert sum(kind.size for kind in found.values()) == sum(
        array.nbytes for array in arrays.values()
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(position=st.integers(0, 10_000), code=st.integers(0, 255))
def test_one_changed_byte_gets_the_librarys_verdict(
    position: int, code: int, tmp_path: Path
) -> None:
    content = bytearray(build({"a": entry(), "b": entry("U8", [4], [16, 20])}, bytes(20)))
    content[position % len(content)] = code
    verdict = ours(bytes(content))
    accepted = library_accepts(bytes(content), tmp_path / "x.safetensors")
    if isinstance(verdict, dict):
        assert accepted, "we accept what the library refuses"
    elif accepted:
        # The known differences: repeated names, and keys beside the three.
        assert "repeated" in verdict.message or "lacks or adds" in verdict.message


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(content: bytes) -> None:
    ours(content)
