"""Which files of a folder are the model, and what they say.

By the rules that engines follow: the index's files and no others; else every ``*.safetensors``
(without ``consolidated*`` beside ``model*``); else a GGUF file. Never a pickle: ``.bin`` and ``.pt``
files run code when they are loaded, so they are refused with advice.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from plimsoll.checkpoint import gguf, safetensors
from plimsoll.checkpoint.files import Folder, check_structure, not_found, unreadable
from plimsoll.core.errors import BadModel
from plimsoll.core.weights import Manifest, TensorKind

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
MAX_CONFIG: Final = 1 << 20
MAX_INDEX: Final = 1 << 25
MAX_SHARDS: Final = 1024
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_PICKLES: Final = (".bin", ".pt", ".pth")
_CONFIG_REASON: Final = "ConfigUnreadable"
_WEIGHTS_REASON: Final = "WeightsUnreadable"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as its files describe it.

    Attributes:
        config: Parsed config.json, or GGUF metadata.
        tensors: All tensors; None when only a config was found and weights were not required.
        digest: SHA-256 over file names, headers and config: another model gives another digest.
        format: ``safetensors``, ``gguf``, or ``config`` without weights.
        path: Folder, or file, that was read.
        file: The GGUF file below the folder (first shard); None for a folder.
    """

    config: dict[str, Any]
    tensors: Manifest | None
    digest: str
    format: str
    path: Path
    file: str | None = None


def read_checkpoint(
    path: Path, file: str | None = None, *, require_weights: bool = True
) -> Checkpoint:
    """Read the headers of a model.

    Args:
        path: A model folder, a ``config.json`` or a ``.gguf`` file.
        file: File below the folder; needed when it holds several GGUF models.
        require_weights: Whether a config without weights is an error.

    Raises:
        BadModel: ModelNotFound, ConfigUnreadable or WeightsUnreadable; names the file.
    """
    if not path.is_dir():
        # A single file: its folder is the tree, so that shards beside it are found.
        if not path.exists():
            raise not_found(path, "it does not exist")
        path, file = path.parent, path.name
    folder = Folder(path)
    names = folder.names()
    if not names:
        raise not_found(path, "the folder is empty")
    if file is not None:
        return _read_named(folder, file)
    models = [n for n in names if n.endswith(".gguf") and not n.startswith("mmproj")]
    has_tensors = INDEX in names or any(n.endswith(".safetensors") for n in names)
    if models and not has_tensors:
        return _read_gguf(folder, _only_model(models))
    if CONFIG not in names:
        raise _no_config(path, names, has_tensors=has_tensors)
    if has_tensors:
        return _read_safetensors(folder, names)
    pickles = [n for n in names if n.endswith(_PICKLES)]
    if require_weights or pickles:
        raise _no_weights(path, pickles)
    return _read_config_only(folder, CONFIG)


def _read_named(folder: Folder, file: str) -> Checkpoint:
    """One file that the user named."""
    if file.endswith(".gguf"):
        return _read_gguf(folder, file)
    if file.endswith(".json"):
        return _read_config_only(folder, file)
    raise unreadable(file, "only a .gguf file can be named", _WEIGHTS_REASON)


def parse_config(data: bytes, name: str = CONFIG) -> dict[str, Any]:
    """Parse a config.json.

    Raises:
        BadModel: ConfigUnreadable: too large, not JSON, or not an object.
    """
    if len(data) > MAX_CONFIG:
        raise unreadable(name, f"it has more than {MAX_CONFIG} bytes", _CONFIG_REASON)
    try:
        config = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise unreadable(name, f"it is not JSON: {str(error)[:100]}", _CONFIG_REASON) from error
    if not isinstance(config, dict):
        raise unreadable(name, "it is not a JSON object", _CONFIG_REASON)
    return config


def _read_bytes(folder: Folder, name: str, most: int, reason: str) -> bytes:
    with folder.open(name, reason) as (file, size):
        if size > most:
            raise unreadable(name, f"it has {size} bytes, more than {most}", reason)
        return file.read(most + 1)


def _read_config_only(folder: Folder, name: str) -> Checkpoint:
    data = _read_bytes(folder, name, MAX_CONFIG, _CONFIG_REASON)
    digest = _digest([(name, hashlib.sha256(data).hexdigest())])
    return Checkpoint(parse_config(data, name), None, digest, "config", folder.path / name)


def _read_safetensors(folder: Folder, names: tuple[str, ...]) -> Checkpoint:
    config = _read_bytes(folder, CONFIG, MAX_CONFIG, _CONFIG_REASON)
    parsed = parse_config(config)
    parts = [(CONFIG, hashlib.sha256(config).hexdigest())]
    index = _read_index(folder) if INDEX in names else {}
    shards = sorted(set(index.values())) or _loose_files(names)
    tensors: dict[str, TensorKind] = {}
    for shard in shards:
        with folder.open(shard, _WEIGHTS_REASON) as (file, size):
            found, header_digest = safetensors.read_header(file, size, shard)
        parts.append((shard, header_digest))
        # Two shards may repeat a tensor, the GPU holds it once; two different ones are a mix-up.
        for name in sorted(tensors.keys() & found.keys()):
            if tensors[name] != found[name]:
                raise unreadable(
                    shard,
                    f"tensor {name!r:.80} differs from the one in another file",
                    _WEIGHTS_REASON,
                )
        tensors.update(found)
        for name in found:
            index.pop(name, None)  # what is left in the end is missing
    if index:
        missing = min(index)
        raise unreadable(
            index[missing],
            f"it lacks tensor {missing!r:.80}, which the index promises",
            _WEIGHTS_REASON,
        )
    manifest = Manifest.of(tensors, "safetensors")
    return Checkpoint(parsed, manifest, _digest(parts), "safetensors", folder.path)


def _read_index(folder: Folder) -> dict[str, str]:
    """Tensor name -> file name, from the index."""
    try:
        # The bytes are gone once decoded, the text once parsed: an index may have 20 MiB.
        text = _read_bytes(folder, INDEX, MAX_INDEX, _WEIGHTS_REASON).decode()
        check_structure(text)
        document = json.loads(text)
        del text
    except (ValueError, RecursionError) as error:
        raise unreadable(INDEX, f"it is not JSON: {str(error)[:100]}", _WEIGHTS_REASON) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise unreadable(INDEX, "it has no weight_map", _WEIGHTS_REASON)
    files: dict[str, str] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors"):
            raise unreadable(
                INDEX,
                f"weight_map sends {tensor!r:.80} to {file!r:.80}, no safetensors file",
                _WEIGHTS_REASON,
            )
        weight_map[tensor] = files.setdefault(file, file)  # one text for all tensors of a file
    if len(files) > MAX_SHARDS:
        raise unreadable(INDEX, f"weight_map names more than {MAX_SHARDS} files", _WEIGHTS_REASON)
    return weight_map


def _loose_files(names: tuple[str, ...]) -> list[str]:
    """Without an index: every safetensors file, less Mistral's second copy."""
    files = [n for n in names if n.endswith(".safetensors") and not n.startswith("adapter_model")]
    if any(n.startswith("model") for n in files):
        files = [n for n in files if not n.startswith("consolidated")]
    return files


def _read_gguf(folder: Folder, name: str) -> Checkpoint:
    shards = _shards(name)
    parts: list[tuple[str, str]] = []
    tensors: dict[str, TensorKind] = {}
    count = 0
    config: dict[str, Any] = {}
    for shard in shards:
        with folder.open(shard, _WEIGHTS_REASON) as (file, size):
            header = gguf.read_header(file, size, shard)
        config = config or header.metadata
        parts.append((shard, header.digest))
        tensors.update(header.tensors)
        count += len(header.tensors)
    if len(tensors) != count:
        raise unreadable(name, "two of its shards hold the same tensor", _WEIGHTS_REASON)
    promised = config.get("split.count", len(shards))
    if promised not in {0, len(shards)}:
        raise unreadable(
            name, f"it is one of {promised} shards; name the first one, as NAME-00001-of-{promised:05}.gguf"
            if isinstance(promised, int) else "its split.count is not a number", _WEIGHTS_REASON
        )  # fmt: skip
    return Checkpoint(
        config, Manifest.of(tensors, "gguf"), _digest(parts), "gguf", folder.path / name, name
    )


def _shards(name: str) -> list[str]:
    """All shards of a model, given the first."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    if int(match["number"]) != 1 or not 1 <= count <= MAX_SHARDS:
        raise unreadable(name, "it is not the first shard of a model", _WEIGHTS_REASON)
    return [f"{match['stem']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def _only_model(models: list[str]) -> str:
    """The only GGUF model, or the only one's first shard."""
    firsts = [n for n in models if (m := _SHARD.fullmatch(n)) is None or int(m["number"]) == 1]
    if len(firsts) == 1:
        return firsts[0]
    if not firsts:
        raise unreadable(models[0], "the first shard is missing", _WEIGHTS_REASON)
    raise BadModel(
        f"the folder holds {len(firsts)} GGUF models ({', '.join(firsts)[:200]}); name one in spec.model.file",
        reason="ModelNotFound",
        field="spec.model.file",
        value=len(firsts),
    )


def _no_config(path: Path, names: tuple[str, ...], *, has_tensors: bool) -> BadModel:
    if has_tensors or any(n.endswith(_PICKLES) for n in names):
        return BadModel(
            f"the model folder has weights but no {CONFIG}",
            reason=_CONFIG_REASON,
            file=CONFIG,
        )
    return not_found(path, f"it holds no {CONFIG} and no .gguf file")


def _no_weights(path: Path, pickles: list[str]) -> BadModel:
    if pickles:
        return unreadable(
            pickles[0],
            "pickled weights run code when loaded and are never read; convert them to safetensors",
            _WEIGHTS_REASON,
        )
    return BadModel(
        f"the model folder {str(path)[-100:]!r} holds a {CONFIG} but no safetensors or GGUF weights",
        reason=_WEIGHTS_REASON,
        field="spec.model.source",
    )


def _digest(parts: list[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(parts)).encode()).hexdigest()
