# ruff: noqa: PLW0108 - a lambda makes a large file when it is asked for
"""Some 300 models that somebody made to break a reader: each a small function that fills a folder."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.checkpoint.test_gguf import ARCH, GOOD, build, info, pair, text

Fill = Callable[[Path], object]

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 100, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
NUMBERS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
           "num_key_value_heads", "vocab_size", "max_position_embeddings")  # fmt: skip
#: Ways for a number to be none.
VALUES: dict[str, Any] = {
    "zero": 0, "negative": -1, "huge": 1 << 63, "overflow": 10**400, "true": True, "text": "7",
    "nan": math.nan, "infinity": math.inf, "fraction": 7.5, "list": [7], "object": {"a": 7},
    "deep": [[[[[[7]]]]]],
}  # fmt: skip
INDEX = "model.safetensors.index.json"
ENTRY = {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}


def config(folder: Path, content: Any = CONFIG) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "config.json").write_bytes(data)


def configured(**changes: Any) -> Fill:
    return lambda folder: config(folder, CONFIG | changes)


def raw(data: bytes) -> Fill:
    return lambda folder: config(folder, data)


def weights(header: Any, data: int = 64, *, length: int | None = None) -> Fill:
    """A config and one safetensors file."""

    def fill(folder: Path) -> None:
        config(folder)
        content = header if isinstance(header, bytes) else json.dumps(header).encode()
        size = len(content) if length is None else length
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + content + bytes(data))

    return fill


def one(**changes: Any) -> Fill:
    return weights({"a": ENTRY | changes})


def indexed(content: Any) -> Fill:
    """A config, one good file of one tensor, and an index."""

    def fill(folder: Path) -> None:
        weights({"a": ENTRY})(folder)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / INDEX).write_bytes(data)

    return fill


def mapped(weight_map: Any) -> Fill:
    return indexed({"metadata": {}, "weight_map": weight_map})


def file(name: str, data: bytes) -> Fill:
    def fill(folder: Path) -> None:
        config(folder)
        (folder / name).write_bytes(data)

    return fill


def instead(name: str, make: Callable[[Path], object]) -> Fill:
    """Something else in the place of a file."""

    def fill(folder: Path) -> None:
        weights({"a": ENTRY})(folder)
        (folder / name).unlink()
        make(folder / name)

    return fill


def plug(path: Path) -> None:
    """A Unix socket. Its path may be longer than the kernel allows, so it is bound from its folder."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def outside(path: Path) -> None:
    target = path.parent.parent / (path.parent.name + "-outside")
    target.write_bytes(b"{}")
    path.symlink_to(target)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


THINGS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "socket": plug,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "random": lambda path: path.symlink_to("/dev/urandom"),
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "password": lambda path: path.symlink_to("/etc/passwd"),
    "outside": outside,
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": loop,
    "lfs": lambda path: path.write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    ),
    "empty": lambda path: path.write_bytes(b""),
}

CONFIGS: dict[str, Fill] = {
    **{
        f"{field} {name}": configured(**{field: value})
        for field in NUMBERS
        for name, value in VALUES.items()
        # Some families state one width for each layer.
        if (field, name) not in {("intermediate_size", "list"), ("intermediate_size", "deep")}
    },
    **{f"head_dim {n}": configured(head_dim=v) for n, v in VALUES.items() if n != "zero"},
    **{
        f"{field} {name}": configured(**{field: VALUES[name]})
        for field in ("model_type", "torch_dtype", "tie_word_embeddings")
        for name in ("zero", "huge", "nan", "list", "object")
    },
    "model_type long": lambda folder: config(folder, {"model_type": "x" * 100_000}),
    "model_type of codes": lambda folder: config(folder, {"model_type": "\x1b[2J\n\0"}),
    "architectures of numbers": configured(architectures=[5]),
    "architectures object": configured(architectures={"a": 1}),
    "more KV heads": configured(num_key_value_heads=16),
    "odd KV heads": configured(num_key_value_heads=3),
    "more heads than width": configured(
        num_attention_heads=128, num_key_value_heads=128, head_dim=None
    ),
    "every size huge": configured(**dict.fromkeys(NUMBERS, 10**18)),
    "quantisation text": configured(quantization_config="awq"),
    "quantisation list": configured(quantization_config=[{}]),
    "missing sizes": lambda folder: config(folder, {"model_type": "llama", "hidden_size": "x"}),
    "empty file": raw(b""),
    "empty list": raw(b"[]"),
    "null": raw(b"null"),
    "text": raw(b'"llama"'),
    "cut off": raw(json.dumps(CONFIG).encode()[:-5]),
    "not UTF-8": raw(b"\xff\xfe{}"),
    "UTF-16": raw(json.dumps(CONFIG).encode("utf-16")),
    "mark": raw(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode()),
    "deep lists": raw(b"[" * 100_000),
    "deep objects": raw(b'{"a":' * 100_000),
    "closed deep lists": raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "long number": raw(b'{"hidden_size":' + b"9" * 100_000 + b"}"),
    "repeated key": raw(json.dumps(CONFIG).encode()[:-1] + b', "hidden_size": 128}'),
    "a mebibyte of lists": raw(b'{"a":[' + b"[]," * 340_000 + b"[]]}"),
    "too long": raw(b" " * (1 << 20) + b"{}"),
    "comment": raw(b"// no\n" + json.dumps(CONFIG).encode()),
    "lone surrogate": lambda folder: config(folder, {"model_type": "\ud800"}),
}


def numbered_later(count: int) -> Fill:
    return lambda folder: numbered(count, dtype="U8", shape=[0], data_offsets=[0, 0])(folder)


HEADERS: dict[str, Fill] = {
    **{
        f"length {n}": weights({"a": ENTRY}, length=n)
        for n in (0, 1, 1 << 25, 1 << 40, (1 << 64) - 1)
    },
    **{f"shape {name}": one(shape=value) for name, value in VALUES.items() if name != "list"},
    **{f"row {name}": one(shape=[value, 8]) for name, value in VALUES.items()},
    **{
        f"start {name}": one(data_offsets=[value, 64])
        for name, value in VALUES.items()
        if name != "zero"
    },
    **{f"end {name}": one(data_offsets=[0, value]) for name, value in VALUES.items()},
    **{f"dtype {name}": one(dtype=value) for name, value in VALUES.items()},
    "product overflows": one(shape=[1 << 32, 1 << 32]),
    "product wraps to the size": one(shape=[(1 << 63) + 16, 2]),
    "too many lengths": one(shape=[1] * 65),
    "no offsets": weights({"a": {"dtype": "BF16", "shape": [4, 8]}}),
    "three offsets": one(data_offsets=[0, 64, 64]),
    "further key": one(extra=1),
    "overlap": weights({"a": ENTRY, "b": ENTRY}),
    "hole": weights({"a": ENTRY | {"data_offsets": [8, 72]}}, 72),
    "data behind": weights({"a": ENTRY}, 65),
    "data missing": weights({"a": ENTRY}, 63),
    "reversed": one(data_offsets=[64, 0]),
    "repeated": weights(f'{{"a":{json.dumps(ENTRY)},"a":{json.dumps(ENTRY)}}}'.encode()),
    "list": weights(b"[]"),
    "not UTF-8": weights(b'{"\xff":{}}'),
    "deep": weights(b'{"a":' * 50_000),
    "NUL": weights(b"{}\0\0\0\0"),
    "metadata of numbers": weights({"__metadata__": {"a": 1}, "a": ENTRY}),
    "metadata list": weights({"__metadata__": [], "a": ENTRY}),
    "other layers": weights({"model.layers.0.x": ENTRY}),
    "kinds of names": numbered_later(17_000),
    "other width": weights({"model.embed_tokens.weight": ENTRY}),
    "seven bytes": file("model.safetensors", bytes(7)),
    "text file": file("model.safetensors", b"hello, world, this is no header at all"),
}

INDEXES: dict[str, Fill] = {
    **{
        f"file {name}": mapped({"a": name})
        for name in (
            "../model.safetensors", "/etc/passwd.safetensors", "/etc/passwd", "..", ".", "",
            "a/../../model.safetensors", "model.safetensors/x.safetensors", "x\0.safetensors",
            "missing.safetensors", "pytorch_model.bin", "x" * 5000 + ".safetensors",
            "./../x/model.safetensors", "//etc/x.safetensors", "MODEL.safetensors",
            "mod\u0435l.safetensors",  # a Cyrillic letter
        )
    },
    **{f"value {name}": mapped({"a": value}) for name, value in VALUES.items() if name != "text"},
    **{f"map {name}": mapped(value) for name, value in VALUES.items()},
    "empty": mapped({}),
    "no map": indexed({}),
    "promises more": mapped({"a": "model.safetensors", "b": "model.safetensors"}),
    "promises another": mapped({"b": "model.safetensors"}),
    "2,000 files": mapped({str(i): f"{i}.safetensors" for i in range(2000)}),
    "repeated": indexed(b'{"weight_map":{"a":"model.safetensors","a":"x.safetensors"}}'),
    "cut off": indexed(b'{"weight_map":{"a":"model.safetensors"'),
    "not UTF-8": indexed(b'{"weight_map":{"\xff":"model.safetensors"}}'),
    "deep": indexed(b'{"weight_map":' * 50_000),
}  # fmt: skip


def gguf(content: bytes) -> Fill:
    return lambda folder: (folder / "model.gguf").write_bytes(content)


def gguf_counts(tensors: int, pairs: int) -> Fill:
    return gguf(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + bytes(64))


def quantised(content: bytes) -> Fill:
    def fill(folder: Path) -> None:
        weights({"a": ENTRY})(folder)
        (folder / "hf_quant_config.json").write_bytes(content)

    return fill


OTHERS: dict[str, Fill] = {
    **{f"config.json {name}": instead("config.json", make) for name, make in THINGS.items()},
    **{f"model.safetensors {n}": instead("model.safetensors", make) for n, make in THINGS.items()},
    "gguf empty": gguf(b""),
    "gguf version": gguf(build([ARCH], [], version=99)),
    "gguf magic": gguf(build([ARCH], [], magic=b"GGML")),
    "gguf cut off": gguf(GOOD[:-100]),
    "gguf tensors": gguf_counts(1 << 63, 1),
    "gguf pairs": gguf_counts(1, 1 << 63),
    "gguf text": gguf(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(64)),
    "gguf array": gguf(build([pair("a", 9, struct.pack("<IQ", 4, 1 << 61))], [])),
    "gguf texts": gguf(build([pair("a", 9, struct.pack("<IQ", 8, 1 << 20))], [])),
    "gguf nested array": gguf(build([pair("a", 9, struct.pack("<IQ", 9, 1))], [])),
    "gguf overlap": gguf(build([ARCH], [info("a", (32,), 0, 0), info("b", (32,), 0, 32)], 256)),
    "gguf shape": gguf(build([ARCH], [info("a", (1 << 63, 1 << 63), 0, 0)], 256)),
    "gguf type": gguf(build([ARCH], [info("a", (32,), 99, 0)], 256)),
    "gguf repeated key": gguf(build([ARCH, ARCH], [])),
    "gguf alignment": gguf(build([ARCH, pair("general.alignment", 4, struct.pack("<I", 0))], [])),
    "gguf architecture": gguf(build([pair("general.architecture", 8, text("x" * 900))], [])),
    "gguf no sizes": gguf(build([ARCH], [info("a", (32,), 0, 0)], 128)),
    "bin empty": file("pytorch_model.bin", b""),
    "bin pickle": file("pytorch_model.bin", b"\x80\x02cos\nsystem\n(S'true'\ntR."),
    "bin zip": file("pytorch_model.bin", b"PK\x05\x06" + bytes(18)),
    "bin cut off": file("pytorch_model.bin", b"PK\x03\x04" + bytes(500)),
    "pt pickle": file("model.pt", b"\x80\x02cos\nsystem\n(S'true'\ntR."),
    "quantisation file": quantised(b"["),
    "quantisation list": quantised(b"[]"),
    "empty folder": lambda _: None,
    "only a readme": lambda folder: (folder / "README.md").write_text("x"),
}  # fmt: skip

CORPUS: dict[str, Fill] = {
    f"{kind}: {name[:60]}": fill
    for kind, cases in (("config", CONFIGS), ("header", HEADERS), ("index", INDEXES), ("", OTHERS))
    for name, fill in cases.items()
}


def repeat(kind: Callable[[bytes], Fill], head: bytes, body: bytes, tail: bytes) -> Fill:
    """Ten million times the same, made when asked for."""
    return lambda folder: kind(head + body * 10_000_000 + tail)(folder)


def numbered(count: int, **entry: Any) -> Fill:
    """So many empty tensors, each of a name of its own."""
    return lambda folder: weights({f"t{i}": entry for i in range(count)}, 0)(folder)


def both(first: Fill, second: Fill) -> Fill:
    """One after the other."""

    def fill(folder: Path) -> None:
        first(folder)
        second(folder)

    return fill


def many(folder: Path) -> None:
    for number in range(20_000):
        (folder / f"{number}.safetensors").touch()


BOMBS: dict[str, Fill] = {
    "index of a million": lambda f: mapped({f"t{i}": "x.safetensors" for i in range(1_000_000)})(f),
    "index of 700,000": lambda f: mapped({f"t{i}": "m.safetensors" for i in range(700_000)})(f),
    "odd index of 700,000": lambda f: mapped({f"t\\{i}": "m.safetensors" for i in range(700_000)})(f),
    "odd index of 400,000": lambda f: mapped({f"t\\{i}": "m.safetensors" for i in range(400_000)})(f),
    "index of lists": repeat(indexed, b'{"weight_map":{"a":[', b"[],", b"[]]}}"),
    "header of lists": repeat(weights, b'{"a":[', b"[],", b"[]]}"),
    "header of objects": repeat(weights, b'{"a":[', b"{},", b"{}]}"),
    "header of texts": repeat(weights, b'{"a":[', b'"",', b'""]}'),
    "header of empties": numbered(300_000, dtype="U8", shape=[0], data_offsets=[0, 0]),
    "header of odd empties": numbered(300_000, shape=[0], dtype="U8", data_offsets=[0, 0]),
    "header of fewer odd empties": numbered(70_000, shape=[0], dtype="U8", data_offsets=[0, 0]),
    "one long text": lambda f: weights(b'{"' + b"a" * (30 << 20) + b'":1}')(f),
    "one long number": lambda f: weights(b'{"a":' + b"9" * (30 << 20) + b"}")(f),
    "config of a gibibyte": lambda f: sparse(f / "config.json", 1 << 30),
    "index of a gibibyte": both(weights({"a": ENTRY}), lambda f: sparse(f / INDEX, 1 << 30)),
    "gguf of texts": lambda f: sparse_gguf(f / "model.gguf"),
    "bin of 8 GiB": both(config, lambda f: sparse(f / "pytorch_model.bin", 1 << 33)),
    "20,000 files": both(config, many),
}  # fmt: skip


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as target:
        target.truncate(size)


def sparse_gguf(path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("a", 9, struct.pack("<IQ", 8, 1 << 21))
    path.write_bytes(head)
    with path.open("r+b") as target:
        target.truncate(1 << 34)
