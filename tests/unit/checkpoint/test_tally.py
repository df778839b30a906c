"""The quick way to count tensors: never another answer than the strict way's."""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.checkpoint import shards
from plimsoll.checkpoint.files import Folder
from plimsoll.checkpoint.safetensors import tensors_of
from plimsoll.checkpoint.tally import Tally, scan_index
from plimsoll.core.errors import BadModel
from plimsoll.core.weights import Manifest

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = {
    "model.embed_tokens.weight": (10, 8),
    "model.norm.weight": (8,),
    "scalar": (),
    **{
        f"model.layers.{layer}.mlp.experts.{number}.w{part}.weight": (3, 8)
        for layer in (0, 1, 10)
        for number in range(12)
        for part in (1, 2)
    },
}


def entries(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, Any], int]:
    document: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        document[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    return document, end


DOCUMENT, DATA = entries(SHAPES)
COMPACT = json.dumps(DOCUMENT, separators=(",", ":"))
SPACED = json.dumps(DOCUMENT)


def quick(header: str | bytes, data: int = DATA) -> dict[Any, int] | None:
    tally = Tally()
    regular = tally.add(header.encode() if isinstance(header, str) else header, data)
    return dict(tally.parts()) if regular else None


def strict(header: str | bytes, data: int = DATA) -> dict[Any, int] | None:
    try:
        found = tensors_of(header.encode() if isinstance(header, str) else header, data, "x")
    except BadModel:
        return None
    return dict(Manifest.of(found, "safetensors").parts)


@pytest.mark.parametrize("header", [COMPACT, SPACED, COMPACT + "   "])
def test_what_writers_write_is_regular(header: str) -> None:
    found = quick(header)
    assert found is not None
    assert found == strict(header)
    assert sum(found.values()) == len(SHAPES)
    assert len(found) == 3 + 3 * 2  # the experts of a layer are one part


@pytest.mark.parametrize("metadata", [{"format": "pt"}, {"a": 'quo"ted', "b": "}"}, {}])
def test_metadata_first(metadata: dict[str, str]) -> None:
    for separators in ((",", ":"), (", ", ": ")):
        header = json.dumps({"__metadata__": metadata, **DOCUMENT}, separators=separators)
        # A backslash is left to the strict way.
        assert quick(header) == (strict(header) if "\\" not in header else None)


def test_files_of_the_library_are_regular(tmp_path: Path) -> None:
    arrays = {name: np.zeros(shape, np.float16) for name, shape in SHAPES.items()}
    safetensors.numpy.save_file(arrays, tmp_path / "x", {"format": "np"})
    content = (tmp_path / "x").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], len(content) - 8 - length
    assert quick(header, data) == strict(header, data) is not None


def test_blocks_join_without_a_seam() -> None:
    many: dict[str, tuple[int, ...]] = {
        f"model.layers.{i % 50}.mlp.experts.{i // 50}.w1.weight": (3, 8) for i in range(9000)
    }
    document, data = entries(many)
    for separators in ((",", ":"), (", ", ": ")):
        header = json.dumps(document, separators=separators)
        assert len(header) > 3 << 18
        found = quick(header, data)
        assert found == strict(header, data)
        assert sum((found or {}).values()) == 9000
        assert quick(header, data + 1) is None


#: What must be left to the strict way, whatever that says.
ODD_NAMES = ("x.experts.7.w", "x.experts.7", "x.experts.7a.w", "experts.7.3.w", "x.experts.7.3.w",
             "x.experts.1234567890.w", "x.experts.*.w", "x.experts.7.experts.8.w", "", ".", "3")  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_roles_of_odd_names_are_the_same(name: str) -> None:
    document, data = entries({name: (2,)})
    header = json.dumps(document, separators=(",", ":"))
    assert quick(header, data) == strict(header, data) is not None


IRREGULAR = {
    "hole": COMPACT.replace("[0,160]", "[0,159]", 1),
    "late": COMPACT.replace("[160,176]", "[161,177]", 1),
    "negative": COMPACT.replace("[10,8]", "[-10,-8]", 1),
    "zero first": COMPACT.replace("[10,8]", "[010,8]", 1),
    "huge": COMPACT.replace("[10,8]", "[99999999999999999999,8]", 1),
    "zero and huge": COMPACT.replace("[10,8]", "[0,9999999999999999999]", 1),
    "float": COMPACT.replace("[10,8]", "[10.0,8]", 1),
    "true": COMPACT.replace("[10,8]", "[true,8]", 1),
    "text": COMPACT.replace("[10,8]", '["10",8]', 1),
    "unknown dtype": COMPACT.replace("BF16", "BF17", 1),
    "another dtype": COMPACT.replace("BF16", "F32", 1),
    "repeated": COMPACT.replace("experts.1.w1", "experts.0.w1", 1),
    "escaped": COMPACT.replace("scalar", "sc\\u0061lar", 1),
    "control": COMPACT.replace("scalar", "sca\nlar", 1),
    "not ascii": COMPACT.replace("scalar", "scalár", 1),
    "other order": COMPACT.replace('"dtype":"BF16","shape":[8]', '"shape":[8],"dtype":"BF16"', 1),
    "further key": COMPACT.replace('"shape":[8]', '"shape":[8],"x":1', 1),
    "no brace": COMPACT[:-1],
    "comma for brace": COMPACT[:-1] + ",",
    "trailing comma": COMPACT[:-1] + ",}",
    "two commas": COMPACT.replace("},", "},,", 1),
    "semicolon": COMPACT.replace("},", "};", 1),
    "leading space": "{ " + COMPACT[1:],
    "mixed style": COMPACT.replace('","shape', '", "shape', 1),
    "trailing text": COMPACT + "x",
    "empty": "",
    "list": "[]",
    "metadata twice": '{"__metadata__":{"a":"b"},"__metadata__":{"a":"b"},' + COMPACT[1:],
    "metadata of numbers": '{"__metadata__":{"a":1},' + COMPACT[1:],
    "metadata last": COMPACT[:-1] + ',"__metadata__":{"a":"b"}}',
    "metadata repeated": '{"__metadata__":{"a":"b","a":"b"},' + COMPACT[1:],
    "braces in a name": COMPACT.replace("scalar", "sca]},lar]}", 1),
}


@pytest.mark.parametrize("name", IRREGULAR)
def test_nothing_irregular_is_counted(name: str) -> None:
    assert name == "braces in a name" or IRREGULAR[name] != COMPACT
    found = quick(IRREGULAR[name])
    assert found is None or found == strict(IRREGULAR[name])
    if name != "braces in a name":
        assert found is None


@given(st.integers(0, len(COMPACT) - 1), st.integers(0, 255), st.booleans())
def test_one_changed_byte_is_accepted_by_both_or_by_the_strict_way_alone(
    position: int,
    code: int,
    spaced: bool,  # noqa: FBT001
) -> None:
    header = bytearray((SPACED if spaced else COMPACT).encode())
    header[position] = code
    found = quick(bytes(header))
    assert found is None or found == strict(bytes(header))


PIECES = ['{"', '"', '":', "{", "}", ",", "]},", '"dtype":"BF16"', '"shape":[', "8", '],"data_offsets":[',
          "0,16", "16,32", "]}", "a", ".experts.1", " ",
          '{"a":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}']  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.sampled_from([0, 16, 32]))
def test_pieces_in_any_order(header: str, data: int) -> None:
    found = quick(header, data)
    assert found is None or found == strict(header, data)


FILES = {name: f"model-0000{i % 3}.safetensors" for i, name in enumerate(SHAPES)}


def index(weight_map: object = FILES, **more: Any) -> dict[str, Any]:
    return {"metadata": {"total_size": 5}, "weight_map": weight_map, **more}


@pytest.mark.parametrize("indent", [None, 2, "\t"])
@pytest.mark.parametrize("sort", [True, False])
def test_an_index(indent: int | str | None, sort: bool) -> None:  # noqa: FBT001
    text = json.dumps(index(), indent=indent, sort_keys=sort).encode()
    found = scan_index(io.BytesIO(text), 9)
    assert found is not None
    assert sorted(found.files) == sorted({name.encode() for name in FILES.values()})
    assert found.fingerprint == (len(FILES), sum(hash(name.encode()) for name in FILES))
    assert found.sorted is sort
    assert scan_index(io.BytesIO(text), 2) is None


def test_a_long_index_has_no_seam() -> None:
    weight_map = {f"model.layers.{i}.weight": f"{i % 7}.safetensors" for i in range(40_000)}
    text = json.dumps(index(weight_map), indent=2).encode()
    assert len(text) > 6 << 18
    found = scan_index(io.BytesIO(text), 9)
    assert found is not None
    assert found.fingerprint == (40_000, sum(hash(name.encode()) for name in weight_map))


GOOD = json.dumps(index())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        json.dumps(index({})),
        json.dumps(index({"a": 5})),
        json.dumps(index({"a": {"b": "c"}})),
        json.dumps(index({'a"b': "c"})),
        json.dumps(index({"a}": "c"})),
        GOOD[:-1],
        GOOD[:-2],
        GOOD + "x",
        GOOD.replace('", "', '" "', 1),
        GOOD.replace('": "', '", "', 1),
        GOOD.replace('"}', '",}', 1),
        GOOD.replace("{", "{,", 2),
        GOOD[:-1] + ', "weight_map": {}}',
        '{"other": ' + GOOD + "}",
        GOOD[:-1] + ', "more": "' + "x" * (1 << 17) + '"}',
    ],
)
def test_an_irregular_index_is_left_to_the_strict_way(text: str) -> None:
    assert scan_index(io.BytesIO(text.encode()), 9) is None


def write(folder: Path, name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    document, data = entries(shapes)
    header = json.dumps(document, separators=(",", ":")).encode()
    (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(data))


def ways(folder: Path) -> tuple[Any, Any]:
    """Verdicts of both ways; the message where the strict one refuses."""
    opened = Folder(folder)
    names = opened.names()
    try:
        slow: Any = shards._read_strictly(opened, names)
    except BadModel as error:
        slow = error.message
    return shards._count(opened, names), slow


def test_folders_read_the_same_by_both_ways(tmp_path: Path) -> None:
    write(tmp_path, "a.safetensors", {"x.0.w": (2,), "x.1.w": (2,)})
    write(tmp_path, "b.safetensors", {"x.2.w": (2,)})
    quickly, slowly = ways(tmp_path)
    assert quickly == slowly
    weight_map = {"x.0.w": "a.safetensors", "x.1.w": "a.safetensors", "x.2.w": "b.safetensors"}
    (tmp_path / shards.INDEX).write_text(json.dumps(index(weight_map)))
    quickly, slowly = ways(tmp_path)
    assert quickly == slowly
    assert quickly is not None


def test_files_that_share_a_name_are_left_to_the_strict_way(tmp_path: Path) -> None:
    write(tmp_path, "a.safetensors", {"x": (2,), "y": (2,)})
    write(tmp_path, "b.safetensors", {"y": (2,)})
    quickly, slowly = ways(tmp_path)
    assert quickly is None
    assert slowly[0].count == 2
    # An index that repeats the name as well has the same sum.
    text = '{"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "y": "b.safetensors"}}'
    (tmp_path / shards.INDEX).write_text(text)
    quickly, slowly = ways(tmp_path)
    assert quickly is None
    assert "repeated" in slowly


def test_an_index_that_promises_another_tensor_is_left_to_the_strict_way(tmp_path: Path) -> None:
    write(tmp_path, "a.safetensors", {"x": (2,), "y": (2,)})
    (tmp_path / shards.INDEX).write_text(
        json.dumps(index({"x": "a.safetensors", "z": "a.safetensors"}))
    )
    quickly, slowly = ways(tmp_path)
    assert quickly is None
    assert "'z'" in slowly
