"""PyTorch's files: what torch.save writes is read without running it, and lies are told."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.checkpoint import read_checkpoint
from plimsoll.checkpoint.opcodes import Unfamiliar, tensors_in
from plimsoll.checkpoint.torchzip import TorchFile, read_torch
from plimsoll.core.errors import BadModel
from tests.unit.checkpoint.test_reader import CONFIG, names, refuse

DATA = json.loads((Path(__file__).parents[2] / "data" / "torch_files.json").read_text())
FILES = {n: zlib.decompress(base64.b64decode(text)) for n, text in DATA["files"].items()}


def read(content: bytes) -> TorchFile:
    return read_torch(io.BytesIO(content), len(content), "x.bin")


def refused(content: bytes) -> str:
    with pytest.raises(BadModel) as caught:
        read(content)
    assert (caught.value.reason, caught.value.file) == ("WeightsUnreadable", "x.bin")
    return caught.value.message


def test_a_storage_of_two_names_counts_once() -> None:
    found = read(FILES["tied"])
    assert found.note is None
    assert {name: kind.size for name, kind in found.tensors.items()} == {
        "model.embed_tokens.weight": 160,
        "model.layers.0.mlp.up_proj.weight": 192,
        "model.layers.1.mlp.up_proj.weight": 192,
    }


def test_dtypes_and_shapes() -> None:
    found = {name: tuple(kind) for name, kind in read(FILES["kinds"]).tensors.items()}
    assert found == {
        "a": ("BF16", (3, 4), 24),
        "b": ("I64", (2,), 16),
        "c": ("F64", (), 8),
        "d": ("BOOL", (4,), 4),
        "e": ("F8_E4M3", (2, 2), 4),
        "f": ("U8", (0, 3), 0),
    }


@pytest.mark.parametrize(
    ("file", "name", "size"),
    [
        ("view", "v", 320),  # ten rows of a hundred
        ("parameter", "p", 48),
        ("nested", "x.weight", 16),
        ("protocol4", "x.weight", 16),
    ],
)
def test_spellings(file: str, name: str, size: int) -> None:
    found = read(FILES[file])
    assert {key: kind.size for key, kind in found.tensors.items()} == {name: size}


def test_an_older_file_is_taken_whole() -> None:
    found = read(FILES["legacy"])
    assert [kind.size for kind in found.tensors.values()] == [len(FILES["legacy"])]
    assert "1.6" in (found.note or "")


def test_a_whole_object_is_not_built_and_its_storages_count() -> None:
    found = read(FILES["whole_object"])
    assert sum(kind.size for kind in found.tensors.values()) == (4 + 2) * 4
    assert "names" in (found.note or "")


class Bomb:
    """Runs a command when it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def archive(code: bytes, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        target.writestr("archive/data.pkl", code)
        for name, data in members.items():
            target.writestr(f"archive/data/{name.removeprefix('s')}", data)
    return file.getvalue()


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_never_run(protocol: int, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    code = pickle.dumps({"a": Bomb(f"touch {canary}")}, protocol)
    with pytest.raises(Unfamiliar):
        tensors_in(code)
    found = read(archive(code, s0=bytes(16)))
    assert sum(kind.size for kind in found.tensors.values()) == 16
    assert not canary.exists()


def test_a_dictionary_of_dictionaries_of_itself_ends() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"a": deep, "b": deep}
    loop: dict[str, Any] = {}
    loop["again"] = loop
    for value in (deep, loop):
        with pytest.raises(Unfamiliar):
            tensors_in(pickle.dumps(value, 4))


def test_a_folder_of_bin_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(FILES["tied"])
    for other in ("training_args.bin", "optimizer.pt", "adapter_model.bin"):
        (tmp_path / other).write_bytes(b"\x80\x02.")
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.format == "pytorch"
    assert "model.layers.1.mlp.up_proj.weight" in names(checkpoint)
    assert checkpoint.tensors is not None
    assert checkpoint.tensors.total == 160 + 2 * 192
    (tmp_path / "model-00001-of-00001.bin").write_bytes(FILES["view"])
    assert "v" in names(read_checkpoint(tmp_path))
    index = {"weight_map": {"v": "model-00001-of-00001.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert names(read_checkpoint(tmp_path)) == {"v"}
    index["weight_map"]["w"] = "../x.bin"
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    refuse(tmp_path, "WeightsUnreadable", "../x.bin")
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}.")
    refuse(tmp_path, "WeightsUnreadable", "pytorch_model.bin")


def end_record(content: bytes) -> int:
    return content.rindex(b"PK\x05\x06")


def patched(at: int, layout: str, value: int, content: bytes = FILES["tied"]) -> bytes:
    changed = bytearray(content)
    struct.pack_into(layout, changed, at, value)
    return bytes(changed)


FIRST = FILES["tied"].index(b"PK\x01\x02")
END = end_record(FILES["tied"])


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "neither"),
        (b"PK\x03\x04", "missing"),
        (FILES["tied"][:-30], "missing"),
        (patched(END + 12, "<L", 1 << 30), "entries"),
        (patched(END + 12, "<L", 1 << 20), "beyond"),
        (patched(END + 16, "<L", 1 << 31), "beyond"),
        (patched(END + 10, "<H", 60_000), "broken"),
        (patched(FIRST + 10, "<H", 8), "compressed"),
        (patched(FIRST + 20, "<L", 5), "compressed"),
        (patched(FIRST, "<L", 0), "broken"),
        (archive(b"N.", s0=b"x").replace(b"data.pkl", b"data.pkx"), "no tensors"),
        (archive(b"N."), "no tensors"),
    ],
)
def test_zips_that_lie(content: bytes, word: str) -> None:
    assert word in refused(content)


def test_a_tensor_larger_than_its_storage_is_refused() -> None:
    content = FILES["view"]
    code = content.index(b"K\x0aK\x08\x86")  # the shape (10, 8)
    assert "larger" in refused(content[: code + 1] + b"\xff" + content[code + 2 :])


@given(st.integers(0, len(FILES["tied"]) - 1), st.integers(0, 255))
def test_one_changed_byte(position: int, code: int) -> None:
    changed = bytearray(FILES["tied"])
    changed[position] = code
    try:
        found = read(bytes(changed))
    except BadModel:
        return
    assert sum(kind.size for kind in found.tensors.values()) <= len(changed)


@given(st.binary(max_size=300))
def test_arbitrary_opcodes(code: bytes) -> None:
    try:
        tensors_in(code)
    except Unfamiliar:
        return
