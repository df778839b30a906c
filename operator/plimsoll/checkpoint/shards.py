"""The tensors of a folder of safetensors files: the index's files and no others, else all of them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from plimsoll.checkpoint import safetensors
from plimsoll.checkpoint.ahead import headers
from plimsoll.checkpoint.files import check_structure, unreadable
from plimsoll.checkpoint.tally import IndexScan, Tally, scan_index
from plimsoll.core.weights import Manifest

if TYPE_CHECKING:
    from plimsoll.checkpoint.files import Folder
    from plimsoll.core.weights import TensorKind

INDEX: Final = "model.safetensors.index.json"
MAX_INDEX: Final = 1 << 25
MAX_SHARDS: Final = 1024
_MAX_KINDS: Final = 1 << 14  # without layers' and experts' numbers a few hundred are left
_SUFFIX: Final = ".safetensors"
_REASON: Final = "WeightsUnreadable"

#: Files with the SHA-256 of what was read of them.
Digests = list[tuple[str, str]]


def read_safetensors(folder: Folder, names: tuple[str, ...]) -> tuple[Manifest, Digests]:
    """All tensors, by the quick way, or by the strict one when a file is not regular.

    Raises:
        BadModel: A file is missing, is no safetensors file, or contradicts another.
    """
    return _count(folder, names) or _read_strictly(folder, names)


def _count(folder: Folder, names: tuple[str, ...]) -> tuple[Manifest, Digests] | None:
    """See ``Tally``; None when anything is not regular."""
    index = None
    shards = _loose_files(names)
    if INDEX in names:
        index = _scan(folder)
        if index is None:
            return None
        shards = sorted(file.decode("latin-1") for file in index.files)
        if not all(name.isascii() and name.endswith(_SUFFIX) for name in shards):
            return None
    tally = Tally()
    digests: Digests = []
    with closing(headers(folder, shards, _REASON)) as found:
        for shard, header in zip(shards, found, strict=True):
            if not tally.add(header.text, header.data):
                return None
            digests.append((shard, header.digest))
    if index is not None and index.fingerprint != tally.fingerprint():
        return None
    # An index may promise what the files hold and still repeat a name, unless its names ascend.
    if len(shards) > 1 and not (index is not None and index.sorted) and tally.repeats():
        return None
    manifest = Manifest(tally.parts(), "safetensors")
    return None if too_varied(manifest) else (manifest, digests)


def _scan(folder: Folder) -> IndexScan | None:
    with folder.open(INDEX, _REASON) as (file, size):
        if size > MAX_INDEX:
            raise unreadable(INDEX, f"it has {size} bytes, more than {MAX_INDEX}", _REASON)
        return scan_index(file, MAX_SHARDS)


def _read_strictly(folder: Folder, names: tuple[str, ...]) -> tuple[Manifest, Digests]:
    """Every tensor by its name; tells what is wrong."""
    index = read_index(folder, INDEX, _SUFFIX) if INDEX in names else {}
    shards = sorted(set(index.values())) or _loose_files(names)
    tensors: dict[str, TensorKind] = {}
    digests: Digests = []
    for shard in shards:
        with folder.open(shard, _REASON) as (file, size):
            found, header_digest = safetensors.read_header(file, size, shard)
        digests.append((shard, header_digest))
        join(tensors, found, shard)
        for name in found:
            index.pop(name, None)  # what is left in the end is missing
    if index:
        missing = min(index)
        raise unreadable(
            index[missing], f"it lacks tensor {missing!r:.80}, which the index promises", _REASON
        )
    return counted(tensors, "safetensors", shards[0]), digests


def too_varied(manifest: Manifest) -> bool:
    """Whether there are more kinds of names than any model has."""
    return len({part.role for part in manifest.parts}) > _MAX_KINDS


def counted(
    tensors: dict[str, TensorKind], form: str, file: str, notes: tuple[str, ...] = ()
) -> Manifest:
    """The manifest of tensors by name.

    Raises:
        BadModel: More kinds of names than any model has; each would cost time later.
    """
    manifest = Manifest.of(tensors, form, notes)
    if too_varied(manifest):
        raise unreadable(file, f"its tensors have more than {_MAX_KINDS} kinds of names", _REASON)
    return manifest


def join(tensors: dict[str, TensorKind], found: dict[str, TensorKind], shard: str) -> None:
    """Add one file's tensors.

    Two files may repeat a tensor, the GPU holds it once; two different ones are a mix-up.

    Raises:
        BadModel: Two files hold different tensors of one name.
    """
    for name in sorted(tensors.keys() & found.keys()):
        if tensors[name] != found[name]:
            raise unreadable(
                shard, f"tensor {name!r:.80} differs from the one in another file", _REASON
            )
    tensors.update(found)


def read_index(folder: Folder, index: str, suffix: str) -> dict[str, str]:
    """Tensor name -> file name, from an index.

    Raises:
        BadModel: Not JSON, without a weight_map, or with other files in it than weights.
    """
    try:
        # The bytes are gone once decoded, the text once parsed: an index may have 20 MiB.
        text = folder.read(index, MAX_INDEX, _REASON).decode()
        check_structure(text)
        document = safetensors.parse_strictly(text, floats=True)
        del text
    except (ValueError, RecursionError) as error:
        raise unreadable(index, f"it is not JSON: {str(error)[:100]}", _REASON) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise unreadable(index, "it has no weight_map", _REASON)
    files: dict[str, str] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(suffix):
            raise unreadable(
                index,
                f"weight_map sends {tensor!r:.80} to {file!r:.80}, no {suffix[1:]} file",
                _REASON,
            )
        weight_map[tensor] = files.setdefault(file, file)  # one text for all tensors of a file
    if len(files) > MAX_SHARDS:
        raise unreadable(index, f"weight_map names more than {MAX_SHARDS} files", _REASON)
    return weight_map


def _loose_files(names: tuple[str, ...]) -> list[str]:
    """Without an index: every safetensors file, less Mistral's second copy and adapters."""
    files = [n for n in names if n.endswith(_SUFFIX) and not n.startswith("adapter_")]
    if any(n.startswith("model") for n in files):
        files = [n for n in files if not n.startswith("consolidated")]
    return files
