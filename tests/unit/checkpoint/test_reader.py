"""Folders: which files count, and the traps in them."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy

import plimsoll
from plimsoll.checkpoint import Checkpoint, fit_checkpoint, read_checkpoint
from plimsoll.checkpoint.files import MAX_ENTRIES, MAX_STRUCTURE
from plimsoll.core.budget import Device
from plimsoll.core.errors import BadModel, Unsupported
from plimsoll.core.request import SizingRequest
from plimsoll.core.units import GIB
from tests.unit.checkpoint.test_gguf import ARCH, build, info, write

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "torch_dtype": "float16",
}
#: Names and shapes of a whole small model.
SHAPES = {
    "model.embed_tokens.weight": (10, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.1.mlp.up_proj.weight": (12, 8),
    "lm_head.weight": (10, 8),
}


def save(path: Path, *names: str, width: int = 8) -> None:
    arrays = {n: np.zeros((SHAPES.get(n, (4, 8))[0], width), np.float16) for n in names}
    safetensors.numpy.save_file(arrays, path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def model(folder: Path) -> Path:
    """A whole model in one file."""
    save(folder / "model.safetensors", *SHAPES)
    return folder


def names(checkpoint: Checkpoint) -> set[str]:
    assert checkpoint.tensors is not None
    return {part.role.replace("*", str(part.layer), 1) for part in checkpoint.tensors.parts}


def refuse(
    path: Path, reason: str, file: str | None = None, *, named: str | None = None
) -> BadModel:
    with pytest.raises(BadModel) as caught:
        read_checkpoint(path, named)
    assert caught.value.reason == reason
    if file is not None:
        assert caught.value.file == file
    return caught.value


def test_one_file(model: Path) -> None:
    checkpoint = read_checkpoint(model)
    assert (checkpoint.format, checkpoint.config, checkpoint.file) == ("safetensors", CONFIG, None)
    assert names(checkpoint) == set(SHAPES)
    assert checkpoint.tensors is not None
    assert checkpoint.tensors.total == 2 * 8 * (10 + 12 + 12 + 10)


def index(folder: Path, weight_map: object, **more: object) -> None:
    document = {"metadata": {"total_size": 1}, "weight_map": weight_map, **more}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))


def test_the_index_decides_which_files_count(folder: Path) -> None:
    save(folder / "model-00001-of-00002.safetensors", "a", "b")
    save(folder / "model-00002-of-00002.safetensors", "c")
    save(folder / "model.fp16.safetensors", "a", "b", "c", "d")
    index(
        folder,
        dict.fromkeys(["a", "b"], "model-00001-of-00002.safetensors")
        | {"c": "model-00002-of-00002.safetensors"},
    )
    assert names(read_checkpoint(folder)) == {"a", "b", "c"}


def test_a_tensor_in_two_shards_is_counted_once(folder: Path) -> None:
    save(folder / "x.safetensors", "a", "b")
    save(folder / "y.safetensors", "b", "c")
    index(folder, {"a": "x.safetensors", "b": "x.safetensors", "c": "y.safetensors"})
    checkpoint = read_checkpoint(folder)
    assert checkpoint.tensors is not None
    assert checkpoint.tensors.total == 3 * 4 * 8 * 2
    save(folder / "y.safetensors", "b", "c", width=16)
    refuse(folder, "WeightsUnreadable", "y.safetensors")


def test_without_an_index_the_second_copy_does_not_count(folder: Path) -> None:
    save(folder / "consolidated.safetensors", "x")
    assert names(read_checkpoint(folder)) == {"x"}
    save(folder / "model-00001-of-00001.safetensors", "a")
    save(folder / "adapter_model.safetensors", "lora")
    assert names(read_checkpoint(folder)) == {"a"}


def test_subfolders_do_not_count(model: Path) -> None:
    (model / "original").mkdir()
    save(model / "original" / "model.safetensors", "z")
    assert names(read_checkpoint(model)) == set(SHAPES)


@pytest.mark.parametrize(
    ("weight_map", "file"),
    [
        ({"a": "missing.safetensors"}, "missing.safetensors"),
        ({"a": "../x.safetensors"}, "../x.safetensors"),
        ({"a": "/etc/x.safetensors"}, "/etc/x.safetensors"),
        ({"a": "sub/../../x.safetensors"}, "sub/../../x.safetensors"),
        ({"a": "x\0.safetensors"}, None),
        ({"a": "pytorch_model.bin"}, "model.safetensors.index.json"),
        ({"a": 5}, "model.safetensors.index.json"),
        ({}, "model.safetensors.index.json"),
        ([], "model.safetensors.index.json"),
        ({str(i): f"{i}.safetensors" for i in range(1025)}, "model.safetensors.index.json"),
        ({"absent": "model.safetensors"}, "model.safetensors"),
    ],
)
def test_hostile_and_broken_indexes(model: Path, weight_map: object, file: str | None) -> None:
    (model / "sub").mkdir()
    index(model, weight_map)
    refuse(model, "WeightsUnreadable", file)


def test_an_index_may_not_climb_even_where_it_comes_back(model: Path) -> None:
    (model / "sub").mkdir()
    index(model, dict.fromkeys(SHAPES, "sub/../model.safetensors"))
    refuse(model, "WeightsUnreadable", "sub/../model.safetensors")
    index(model, dict.fromkeys(SHAPES, "model.safetensors"))
    assert names(read_checkpoint(model)) == set(SHAPES)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a":' * 5000, "null"])
def test_an_index_that_is_none(model: Path, content: str) -> None:
    (model / "model.safetensors.index.json").write_text(content)
    refuse(model, "WeightsUnreadable", "model.safetensors.index.json")


def test_an_index_that_would_grow_twentyfold_is_refused(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(
        '{"weight_map":[' + "[]," * (MAX_STRUCTURE // 2) + "[]]}"
    )
    assert "values" in refuse(model, "WeightsUnreadable").message


def test_no_model_at_all(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "ModelNotFound")
    refuse(tmp_path, "ModelNotFound")
    (tmp_path / "README.md").write_text("x")
    refuse(tmp_path, "ModelNotFound")
    (tmp_path / "loop").symlink_to("loop")
    refuse(tmp_path / "loop", "ModelNotFound")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_bare_pickles_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\x80\x02c__builtin__\nexec\n.")
    refuse(folder, "WeightsUnreadable", name)
    with pytest.raises(BadModel):
        plimsoll.fit_path(folder)


@pytest.mark.parametrize(("again", "accepted"), [('"llama"', True), ('"qwen2"', False)])
def test_a_repeated_key_must_repeat_its_value(folder: Path, again: str, accepted: bool) -> None:  # noqa: FBT001
    text = json.dumps(CONFIG)[:-1] + f', "model_type": {again}}}'
    (folder / "config.json").write_text(text)
    if accepted:
        assert read_checkpoint(folder, require_weights=False).config == CONFIG
    else:
        with pytest.raises(BadModel, match="model_type"):
            read_checkpoint(folder, require_weights=False)


def test_infinity_is_a_number_that_configs_hold(folder: Path) -> None:
    text = json.dumps(CONFIG | {"time_step_limit": [0.0, float("inf")]})  # as Mamba 2's do
    (folder / "config.json").write_text(text)
    assert "time_step_limit" in read_checkpoint(folder, require_weights=False).config


def test_modelopts_own_file_says_how_the_weights_are_quantised(model: Path) -> None:
    before = read_checkpoint(model)
    block = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (model / "hf_quant_config.json").write_text(json.dumps(block))
    after = read_checkpoint(model)
    assert after.config == CONFIG | {"quantization_config": block}
    assert after.digest != before.digest
    (model / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"bits": 4}}))
    assert read_checkpoint(model).config["quantization_config"] == {"bits": 4}


def test_a_pickle_beside_safetensors_does_not_count(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"x")
    assert names(read_checkpoint(model)) == set(SHAPES)


def test_a_config_alone(folder: Path) -> None:
    refuse(folder, "WeightsUnreadable")
    checkpoint = read_checkpoint(folder, require_weights=False)
    assert (checkpoint.tensors, checkpoint.format) == (None, "config")
    assert read_checkpoint(folder / "config.json").config == CONFIG


def test_weights_alone(model: Path) -> None:
    (model / "config.json").unlink()
    refuse(model, "ConfigUnreadable", "config.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
        b" " * ((1 << 20) + 1),
    ],
)
def test_configs_that_are_none(model: Path, content: bytes) -> None:
    (model / "config.json").write_bytes(content)
    refuse(model, "ConfigUnreadable", "config.json")


def test_links_out_of_the_folder_are_refused(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    save(outside / "model.safetensors", "a")
    (folder / "model.safetensors").symlink_to(outside / "model.safetensors")
    refuse(folder, "WeightsUnreadable", "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "sub").symlink_to(outside)
    index(folder, {"a": "sub/model.safetensors"})
    refuse(folder, "WeightsUnreadable", "sub/model.safetensors")


def test_links_within_the_folder_are_followed(model: Path) -> None:
    (model / "blobs").mkdir()
    shutil.move(model / "model.safetensors", model / "blobs" / "abc")
    (model / "model.safetensors").symlink_to("blobs/abc")
    assert names(read_checkpoint(model)) == set(SHAPES)


def test_a_hugging_face_snapshot_links_to_its_repositorys_blobs(
    model: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.move(model / name, repository / "blobs" / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert names(read_checkpoint(snapshot)) == set(SHAPES)
    (tmp_path / "secret.json").write_text("{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../../secret.json")
    refuse(snapshot, "ConfigUnreadable", "config.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_pipes_and_folders_in_the_place_of_files(model: Path, name: str) -> None:
    reason = "ConfigUnreadable" if name == "config.json" else "WeightsUnreadable"
    (model / name).unlink()
    os.mkfifo(model / name)
    # And it does not wait for a writer.
    assert "regular file" in refuse(model, reason, name).message
    (model / name).unlink()
    (model / name).mkdir()
    refuse(model, reason, name)


def test_a_device_in_the_place_of_a_file_is_refused(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/dev/zero")
    refuse(model, "ConfigUnreadable", "config.json")


def test_git_lfs_pointers_are_named(model: Path) -> None:
    (model / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    )
    assert "Git LFS" in refuse(model, "WeightsUnreadable", "model.safetensors").message


def test_a_folder_of_a_million_files(folder: Path) -> None:
    for number in range(MAX_ENTRIES):
        (folder / str(number)).touch()
    assert str(MAX_ENTRIES) in refuse(folder, "ModelNotFound").message


def test_the_digest_tells_models_apart_and_ignores_data(model: Path) -> None:
    first = read_checkpoint(model).digest
    assert len(first) == 64
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[:-1] + b"x")
    assert read_checkpoint(model).digest == first
    save(model / "model.safetensors", *SHAPES, "more")
    second = read_checkpoint(model).digest
    (model / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 1}))
    assert len({first, second, read_checkpoint(model).digest}) == 3
    (model / "model.safetensors").rename(model / "other.safetensors")
    assert read_checkpoint(model).digest not in {first, second}


def test_gguf_the_only_file_is_found(tmp_path: Path) -> None:
    write(tmp_path / "model-q4.gguf")
    (tmp_path / "mmproj-f16.gguf").write_bytes(b"x")
    (tmp_path / "README.md").write_text("x")
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.format, checkpoint.file) == ("gguf", "model-q4.gguf")
    assert read_checkpoint(tmp_path / "model-q4.gguf") == checkpoint


def test_gguf_several_need_a_name(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "b.gguf", big=1)
    shutil.copy(tmp_path / "a.gguf", tmp_path / "c.gguf")
    error = refuse(tmp_path, "ModelNotFound")
    assert error.field == "spec.model.file"
    assert "a.gguf, c.gguf" in error.message
    assert read_checkpoint(tmp_path, "c.gguf").file == "c.gguf"
    assert read_checkpoint(tmp_path, "sub/b.gguf").file == "sub/b.gguf"
    for name in ("../a.gguf", "/a.gguf", "sub/../../a.gguf", "missing.gguf"):
        refuse(tmp_path, "WeightsUnreadable", name, named=name)
    refuse(tmp_path, "WeightsUnreadable", named="a.bin")


def test_gguf_beside_safetensors_needs_a_name(model: Path) -> None:
    write(model / "a.gguf")
    assert read_checkpoint(model).format == "safetensors"
    assert read_checkpoint(model, "a.gguf").format == "gguf"


def shard(folder: Path, number: int, count: int, tensor: str, promised: int | None = None) -> Path:
    path = folder / f"m-{number:05}-of-{count:05}.gguf"
    split = (promised or count).to_bytes(2, "little")
    pairs = [ARCH, (11).to_bytes(8, "little") + b"split.count" + (2).to_bytes(4, "little") + split]
    path.write_bytes(build(pairs, [info(tensor, (32,), 0, 0)], 128))
    return path


def test_gguf_shards_are_one_model(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        shard(tmp_path, number, 3, f"blk.{number}.x")
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.file == "m-00001-of-00003.gguf"
    assert names(checkpoint) == {"blk.1.x", "blk.2.x", "blk.3.x"}
    refuse(tmp_path, "WeightsUnreadable", named="m-00002-of-00003.gguf")
    shard(tmp_path, 3, 3, "blk.1.x")
    refuse(tmp_path, "WeightsUnreadable")
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    refuse(tmp_path, "WeightsUnreadable", "m-00003-of-00003.gguf")
    (tmp_path / "m-00001-of-00003.gguf").unlink()
    refuse(tmp_path, "WeightsUnreadable")


def test_gguf_one_of_several_shards_under_another_name(tmp_path: Path) -> None:
    shard(tmp_path, 1, 1, "blk.0.x", promised=3).rename(tmp_path / "renamed.gguf")
    assert "00003" in refuse(tmp_path, "WeightsUnreadable").message


def test_refusals_of_the_content_name_the_file(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 2000}))
    with pytest.raises(BadModel) as bad:
        plimsoll.fit_path(model)
    assert (bad.value.file, bad.value.field) == ("config.json", "num_hidden_layers")
    (model / "config.json").write_text(json.dumps({"model_type": "nobody"}))
    with pytest.raises(Unsupported) as unsupported:
        plimsoll.fit_path(model)
    assert unsupported.value.file == "config.json"
    with pytest.raises(Unsupported) as engine:
        plimsoll.fit_path(model, settings=SizingRequest("Vllm"))
    assert engine.value.file == "config.json"  # the model is read first


def test_fit_path_sizes_from_headers(model: Path) -> None:
    device = Device("x", 8 * GIB, 8 * GIB, 8 * GIB)
    request = SizingRequest("LightLLM", "1.2.0")
    answer = plimsoll.fit_path(model, device, request)
    assert answer.budget is not None
    assert answer.budget.weights == 2 * 8 * (10 + 12 + 12 + 10)
    assert not any("computed" in warning for warning in answer.warnings)
    assert answer.tokens == fit_checkpoint(read_checkpoint(model), device, request).tokens


def test_fit_path_carries_the_gguf_file_to_the_report(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    device = Device("x", GIB, GIB, GIB)
    answer = plimsoll.fit_path(tmp_path, device, SizingRequest("LlamaCpp", "2026.10+cpu"))
    report = answer.report(pod_uid="u", request_hash="h", model_digest="d")
    assert report.model_file == "a.gguf"
    picked = replace(answer.request, model_file="a.gguf")
    assert plimsoll.fit_path(tmp_path, device, picked).tokens == answer.tokens
