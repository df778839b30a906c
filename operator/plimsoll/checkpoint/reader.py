"""Which files of a folder are the model, and what they say.

By the rules that engines follow: the index's files and no others; else every ``*.safetensors``
(without ``consolidated*`` beside ``model*``); else PyTorch's ``.bin`` files by the same two rules; else
a GGUF file. A pickle is looked at and never loaded, because loading it runs it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from plimsoll.checkpoint.files import Folder, not_found, unreadable
from plimsoll.checkpoint.shards import (
    INDEX,
    MAX_SHARDS,
    Digests,
    counted,
    join,
    read_index,
    read_safetensors,
)
from plimsoll.core.errors import BadModel
from plimsoll.core.quantization import quantization_of
from plimsoll.core.records import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from plimsoll.core.weights import Manifest, TensorKind

CONFIG: Final = "config.json"
TORCH_INDEX: Final = "pytorch_model.bin.index.json"
QUANTIZATION: Final = "hf_quant_config.json"
MAX_CONFIG: Final = 1 << 20
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_PICKLES: Final = (".pt", ".pth", ".bin")
#: Files of a training run, not of the model. Source: vLLM, filter_files_not_needed_for_inference.
_TRAINING: Final = frozenset(
    {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}
)
_MAX_WORD: Final = 64
#: File names with contents, or with the SHA-256 of a header.
Parts = tuple[tuple[str, str | bytes], ...]
_CONFIG_REASON: Final = "ConfigUnreadable"
_WEIGHTS_REASON: Final = "WeightsUnreadable"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as its files describe it.

    Attributes:
        config: Parsed config.json, or GGUF metadata.
        tensors: All tensors; None when only a config was found and weights were not required.
        parts: Name of each file that was read, with its content (config) or its header's SHA-256.
        format: ``safetensors``, ``pytorch``, ``gguf``, or ``config`` without weights.
        path: Folder, or file, that was read.
        file: The GGUF file below the folder (first shard); None for a folder.
    """

    config: dict[str, Any]
    tensors: Manifest | None
    parts: Parts
    format: str
    path: Path
    file: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 over file names, headers and config: another model gives another digest.

        Worked out when asked for: ``plimsoll fit`` never does, and loading OpenSSL costs it 4 ms.
        """
        from hashlib import sha256  # noqa: PLC0415 - see above

        named = sorted(
            (name, sha256(part).hexdigest() if isinstance(part, bytes) else part)
            for name, part in self.parts
        )
        return sha256(json.dumps(named).encode()).hexdigest()


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
        return _read_folder(folder, names, *read_safetensors(folder, names))
    if TORCH_INDEX in names or _torch_files(names):
        return _read_folder(folder, names, *_read_pytorch(folder, names))
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
        config = json.loads(data.decode(), object_pairs_hook=_one_value_each)
    except (ValueError, RecursionError) as error:
        raise unreadable(name, f"it is not JSON: {str(error)[:100]}", _CONFIG_REASON) from error
    if not isinstance(config, dict):
        raise unreadable(name, "it is not a JSON object", _CONFIG_REASON)
    return config


def _one_value_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose repeated keys agree; where they do not, readers differ in which one they take."""
    document = dict(pairs)
    if len(document) != len(pairs):
        for key, value in pairs:
            if document[key] != value:
                raise ValueError(f"the key {key[:60]!r} is repeated with another value")
    return document


def _read_config_only(folder: Folder, name: str) -> Checkpoint:
    data = folder.read(name, MAX_CONFIG, _CONFIG_REASON)
    parts = ((name, data),)
    return Checkpoint(parse_config(data, name), None, parts, "config", folder.path / name)


def _read_folder(
    folder: Folder, names: tuple[str, ...], manifest: Manifest, digests: Digests
) -> Checkpoint:
    """A folder as Hugging Face lays it out: weights, config, perhaps a file about quantisation."""
    data = folder.read(CONFIG, MAX_CONFIG, _CONFIG_REASON)
    config = parse_config(data)
    parts: list[tuple[str, str | bytes]] = [*digests, (CONFIG, data)]
    if QUANTIZATION in names and quantization_of(config) is None:
        more = folder.read(QUANTIZATION, MAX_CONFIG, _CONFIG_REASON)
        config["quantization_config"] = parse_config(more, QUANTIZATION)
        parts.append((QUANTIZATION, more))
    return Checkpoint(config, manifest, tuple(parts), manifest.format, folder.path)


def _torch_files(names: tuple[str, ...]) -> list[str]:
    """Without an index: every ``.bin`` of the model."""
    return [
        n
        for n in names
        if n.endswith(".bin") and n not in _TRAINING and not n.startswith("adapter_")
    ]


def _read_pytorch(folder: Folder, names: tuple[str, ...]) -> tuple[Manifest, Digests]:
    from plimsoll.checkpoint.torchzip import read_torch  # noqa: PLC0415 - loads pickletools

    index = read_index(folder, TORCH_INDEX, ".bin") if TORCH_INDEX in names else {}
    files = sorted(set(index.values())) or _torch_files(names)
    if len(files) > MAX_SHARDS:
        raise unreadable(files[0], f"it is one of more than {MAX_SHARDS} files", _WEIGHTS_REASON)
    tensors: dict[str, TensorKind] = {}
    digests: Digests = []
    notes: list[str] = []
    for name in files:
        with folder.open(name, _WEIGHTS_REASON) as (file, size):
            found = read_torch(file, size, name)
        digests.append((name, found.digest))
        join(tensors, found.tensors, name)
        if found.note is not None:
            notes.append(found.note)
    # Not checked against the index: a name that shares its storage with another is not kept.
    return counted(tensors, "pytorch", files[0], tuple(notes[:1])), digests


def _read_gguf(folder: Folder, name: str) -> Checkpoint:
    from plimsoll.checkpoint import gguf  # noqa: PLC0415 - most models are not GGUF

    shards = _shards(name)
    parts: list[tuple[str, str]] = []
    tensors: dict[str, TensorKind] = {}
    count = 0
    config: dict[str, Any] = {}
    for shard in shards:
        with folder.open(shard, _WEIGHTS_REASON) as (file, size):
            header = gguf.read_header(file, size, shard)
        config = config or header.metadata
        architecture = config.get("general.architecture")
        if isinstance(architecture, str) and len(architecture) > _MAX_WORD:
            why = f"general.architecture has {len(architecture)} characters"
            raise unreadable(shard, why, _WEIGHTS_REASON)
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
        config, counted(tensors, "gguf", name), tuple(parts), "gguf", folder.path / name, name
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
            "a pickle of this kind is never read; convert the weights to safetensors",
            _WEIGHTS_REASON,
        )
    return BadModel(
        f"the model folder {str(path)[-100:]!r} holds a {CONFIG} but no weights",
        reason=_WEIGHTS_REASON,
        field="spec.model.source",
    )
