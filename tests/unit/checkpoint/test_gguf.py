"""Our GGUF reader beside the reference package, and on files built to break it."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.checkpoint.gguf import GgufHeader, read_header
from plimsoll.core.dtypes import GGUF_TYPES
from plimsoll.core.errors import BadModel

if TYPE_CHECKING:
    from pathlib import Path


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def build(
    pairs: list[bytes],
    infos: list[bytes],
    data: int = 0,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    head = magic + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs + infos)
    return head + bytes(-len(head) % 32) + bytes(data)


ARCH = pair("general.architecture", 8, text("llama"))
GOOD = build([ARCH], [info("a", (32, 2), 0, 0), info("b", (32,), 2, 256)], 256 + 18)


def ours(content: bytes) -> GgufHeader | BadModel:
    try:
        return read_header(io.BytesIO(content), len(content), "x.gguf")
    except BadModel as error:
        return error


def write(path: Path, *, big: int = 3000) -> dict[str, Any]:
    """A file by the reference writer; returns what it holds."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(2048)
    writer.add_rope_freq_base(10_000.0)
    writer.add_token_list([f"t{i}" for i in range(big)])
    writer.add_token_types([1] * big)
    writer.add_chat_template("x" * 5000)
    writer.add_bool("general.flag", True)  # noqa: FBT003 - their signature
    writer.add_array("general.small", [1, 2, 3])
    tensors = {
        "token_embd.weight": np.zeros((10, 64), np.float32),
        "blk.0.x.weight": np.zeros((4, 64), np.float16),
    }
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    quantised = gguf.quants.quantize(np.zeros((8, 64), np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("blk.1.x.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {
        "token_embd.weight": ("F32", (10, 64), 2560),
        "blk.0.x.weight": ("F16", (4, 64), 512),
        "blk.1.x.weight": ("Q4_1", (8, 64), 320),
    }


def test_the_reference_writers_file_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    expected = write(path)
    header = ours(path.read_bytes())
    assert isinstance(header, GgufHeader)
    assert header.tensors == expected
    reader = gguf.GGUFReader(path)
    assert {t.name: int(t.n_bytes) for t in reader.tensors} == {
        name: kind.size for name, kind in header.tensors.items()
    }
    assert {t.name: t.tensor_type.name for t in reader.tensors} == {
        name: kind.dtype for name, kind in header.tensors.items()
    }
    for key, value in header.metadata.items():
        if not key.endswith("#length"):
            assert reader.fields[key].contents() == value
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["general.flag"] is True
    assert header.metadata["general.small"] == [1, 2, 3]
    # Long things leave their length only.
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert header.metadata["tokenizer.ggml.tokens#length"] == 3000
    assert header.metadata["tokenizer.ggml.token_type#length"] == 3000
    assert header.metadata["tokenizer.chat_template#length"] == 5000


def test_the_table_of_types_is_the_references() -> None:
    theirs = {int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGML_QUANT_SIZES}
    assert theirs == GGUF_TYPES


def test_good_files() -> None:
    for content in (GOOD, build([ARCH], [], version=2), build([], [])):
        assert isinstance(ours(content), GgufHeader)


def test_the_digest_covers_the_header_and_not_the_data() -> None:
    header = ours(GOOD)
    same = ours(GOOD[:-1] + b"x")
    other = ours(GOOD.replace(b"llama", b"qwen2"))
    assert isinstance(header, GgufHeader)
    assert isinstance(same, GgufHeader)
    assert isinstance(other, GgufHeader)
    assert header.digest == same.digest != other.digest


U32 = struct.pack("<I", 1)
BROKEN: dict[str, bytes] = {
    "empty": b"",
    "not GGUF": build([], [], magic=b"GGML"),
    "version 1": build([], [], version=1),
    "version 4": build([], [], version=4),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "too many tensors": b"GGUF" + struct.pack("<IQQ", 3, (1 << 64) - 1, 0),
    "a tensor more than a model has": b"GGUF" + struct.pack("<IQQ", 3, (1 << 16) + 1, 0),
    "a pair more than a model has": b"GGUF" + struct.pack("<IQQ", 3, 0, (1 << 11) + 1),
    "too many pairs": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 32),
    "pairs promised, none there": b"GGUF" + struct.pack("<IQQ", 3, 0, 5),
    "key beyond the file": build([struct.pack("<Q", 1000)], []),
    "key of 2^63": build([struct.pack("<Q", 1 << 63) + b"x" * 64], []),
    "key not UTF-8": build([pair(b"\xff\xfe", 4, U32)], []),
    "repeated key": build([pair("a", 4, U32), pair("a", 4, U32)], []),
    "unknown value type": build([pair("a", 13, U32)], []),
    "text of 2^62": build([pair("a", 8, struct.pack("<Q", 1 << 62))], []),
    "array of arrays": build([pair("a", 9, struct.pack("<IQ", 9, 1))], []),
    "array of unknown": build([pair("a", 9, struct.pack("<IQ", 99, 1))], []),
    "array of 2^62 texts": build([pair("a", 9, struct.pack("<IQ", 8, 1 << 62))], []),
    "array of 2^62 numbers": build([pair("a", 9, struct.pack("<IQ", 10, 1 << 62))], []),
    "array of 2^64-1 bytes": build([pair("a", 9, struct.pack("<IQ", 0, (1 << 64) - 1))], []),
    "five dimensions": build([], [info("a", (1, 1, 1, 1, 1), 0, 0)], 4),
    "unknown tensor type": build([], [info("a", (32,), 99, 0)], 128),
    "a type that was removed": build([], [info("a", (32,), 4, 0)], 128),
    "not whole blocks": build([], [info("a", (33,), 2, 0)], 128),
    "shape overflows": build([], [info("a", (1 << 32, 1 << 32), 0, 0)], 128),
    "beyond the file": build([], [info("a", (32,), 0, 0)], 127),
    "offset beyond the file": build([], [info("a", (32,), 0, 1 << 40)], 128),
    "offset not aligned": build([], [info("a", (8,), 0, 8)], 64),
    "overlap": build([], [info("a", (32,), 0, 0), info("b", (32,), 0, 64)], 256),
    "repeated tensor": build([], [info("a", (8,), 0, 0), info("a", (8,), 0, 32)], 64),
    "alignment 0": build([pair("general.alignment", 4, struct.pack("<I", 0))], []),
    "alignment 33": build([pair("general.alignment", 4, struct.pack("<I", 33))], []),
    "alignment is text": build([pair("general.alignment", 8, text("32"))], []),
    "git lfs pointer": b"version https://git-lfs.github.com/spec/v1\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(name: str) -> None:
    verdict = ours(BROKEN[name])
    assert isinstance(verdict, BadModel)
    assert (verdict.reason, verdict.file) == ("WeightsUnreadable", "x.gguf")
    assert len(verdict.message) < 400


def texts(key: str, count: int) -> bytes:
    return pair(key, 9, struct.pack("<IQ", 8, count))


@pytest.mark.parametrize("sizes", [(5, 0, 70_000, 1), (1 << 16,), (65_520, 65_520, 3)])
def test_a_walk_over_texts_ends_where_they_end(sizes: tuple[int, ...]) -> None:
    listed = b"".join(text(b"x" * size) for size in sizes)
    header = ours(build([texts("a", len(sizes)) + listed, ARCH], []))
    assert isinstance(header, GgufHeader)
    assert header.metadata == {"a#length": len(sizes), "general.architecture": "llama"}


class Sparse(io.RawIOBase):
    """A head, then a terabyte of nothing: what a hole in a file costs an attacker."""

    size = 1 << 40

    def __init__(self, head: bytes) -> None:
        self.head, self.position, self.given = head, 0, 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.position = offset + (self.position if whence else 0)
        return self.position

    def read(self, size: int = -1, /) -> bytes:
        data = self.head[self.position : self.position + size]
        data += bytes(size - len(data))
        self.position += size
        self.given += size
        return data


def test_texts_cut_off_anywhere_are_refused() -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + texts("a", 3)
    whole = head + text("one") + text("") + text("three")
    assert isinstance(ours(whole + bytes(32)), GgufHeader)
    for length in range(len(head), len(whole)):
        assert isinstance(ours(whole[:length]), BadModel)


def test_the_texts_of_all_arrays_count_together() -> None:
    # Empty ones: eight bytes each, and nothing at all in a hole of a file.
    verdict = ours(build([texts(key, 1 << 20) + bytes(8 << 20) for key in "abc"], []))
    assert isinstance(verdict, BadModel)
    assert "texts" in verdict.message


SPARSE = {
    "one long text": (100, texts("a", 1) + struct.pack("<Q", 1 << 39)),
    "long numbers": (1, pair("a", 9, struct.pack("<IQ", 10, 1 << 36))),
    "a long scalar text": (2000, pair("a", 8, struct.pack("<Q", 1 << 26))),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_header_in_a_hole_is_refused_before_it_takes_time(name: str) -> None:
    pairs, first = SPARSE[name]
    file = Sparse(b"GGUF" + struct.pack("<IQQ", 3, 0, pairs) + first)
    with pytest.raises(BadModel):
        read_header(file, Sparse.size, "x")  # type: ignore[arg-type] # what it uses of one
    assert file.given < 64 << 20


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_file_cut_off_anywhere_is_refused(length: int) -> None:
    assert isinstance(ours(GOOD[:length]), BadModel)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_changed_byte_raises_nothing_else(position: int, code: int) -> None:
    content = bytearray(GOOD)
    content[position] = code
    ours(bytes(content))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(content: bytes) -> None:
    ours(content)
    ours(b"GGUF\x03\x00\x00\x00" + content)
