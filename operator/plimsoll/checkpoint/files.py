"""Opening files of a folder that somebody else filled.

A model folder may hold symbolic links out of it, pipes that never answer, or a million entries. So
every file is reached by a walk that follows no link and leaves no root, is opened without blocking,
and must be a regular file.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from plimsoll.core.errors import BadModel

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ENTRIES: Final = 10_000
#: Brackets, commas and colons of one JSON text. Each can become an object of 64 bytes and more, so
#: this, not the text's length, bounds the memory of parsing it: ``[],[],[]`` grows twentyfold.
MAX_STRUCTURE: Final = 1 << 19
_LFS_POINTER: Final = b"version https://git-lfs"
#: Bytes of the first read: the whole header of most files, in one round trip on a network file system.
_FIRST: Final = 1 << 16
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Folder:
    """A model folder, and the tree that its files may lie in.

    Hugging Face's cache keeps ``snapshots/REVISION/*`` as links to ``blobs/*`` of the same
    repository; there the repository's folder is the tree. Everywhere else it is the folder itself.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.path = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise not_found(path, _reason(error)) from error
        if not self.path.is_dir():
            raise not_found(path, "it is not a folder")
        parents = self.path.parents
        in_cache = self.path.parent.name == "snapshots" and parents[1].name.startswith("models--")
        self._root = parents[1] if in_cache else self.path

    def names(self) -> tuple[str, ...]:
        """Entries of the folder itself, sorted.

        Raises:
            BadModel: Unreadable, or more entries than any model has.
        """
        found: list[str] = []
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) > MAX_ENTRIES:
                        raise not_found(self.path, f"it has more than {MAX_ENTRIES} entries")
        except OSError as error:
            raise not_found(self.path, _reason(error)) from error
        return tuple(sorted(found))

    @contextmanager
    def open(self, name: str, reason: str) -> Iterator[tuple[BinaryIO, int]]:
        """Open one file below the folder.

        Args:
            name: Path relative to the folder.
            reason: Reason of the refusal: ConfigUnreadable or WeightsUnreadable.

        Yields:
            The file, and its size in bytes.

        Raises:
            BadModel: Missing, out of the tree, not a regular file, or a Git LFS pointer.
        """
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts or "\0" in name:
            raise unreadable(name, "its path leaves the model folder", reason)
        try:
            target = (self.path / relative).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise unreadable(name, _reason(error), reason) from error
        if not target.is_relative_to(self._root):
            raise unreadable(name, "it is a link out of the model folder", reason)
        try:
            handle = _walk(self._root, target.relative_to(self._root).parts)
        except OSError as error:
            raise unreadable(name, _reason(error), reason) from error
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise unreadable(name, "it is not a regular file", reason)
        with BufferedReader(FileIO(handle), _FIRST) as file:
            if file.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
                raise unreadable(name, "it is a Git LFS pointer; fetch the real file", reason)
            yield file, status.st_size

    def read(self, name: str, most: int, reason: str) -> bytes:
        """All bytes of one small file.

        Raises:
            BadModel: As ``open``, or more than ``most`` bytes.
        """
        with self.open(name, reason) as (file, size):
            if size > most:
                raise unreadable(name, f"it has {size} bytes, more than {most}", reason)
            data = file.read(most + 1)
        if len(data) > most:  # it grows while it is read
            raise unreadable(name, f"it has more than {most} bytes", reason)
        return data


def check_structure(text: str) -> None:
    """Refuse JSON that would take far more memory than its text.

    Raises:
        ValueError: More brackets, commas and colons than ``MAX_STRUCTURE``.
    """
    if len(text) > MAX_STRUCTURE and sum(map(text.count, "[{,:")) > MAX_STRUCTURE:
        raise ValueError(f"it has more than {MAX_STRUCTURE} values")


def unreadable(name: str, why: str, reason: str, *, value: object = None) -> BadModel:
    """The refusal of one file."""
    return BadModel(
        f"cannot read {name!r:.200}: {why}", reason=reason, file=name[:200], value=value
    )


def not_found(path: Path, why: str) -> BadModel:
    """The refusal of a model's path."""
    return BadModel(
        f"no model at {str(path)[-200:]!r}: {why}; check the claim, subPath and file",
        reason="ModelNotFound",
        field="spec.model.source",
        value=str(path),
    )


def _walk(root: Path, parts: tuple[str, ...]) -> int:
    """Open step by step without following links: what was resolved may have been swapped since."""
    handle = os.open(root, _FLAGS | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=handle)
            os.close(handle)
            handle = deeper
        return os.open(parts[-1], _FLAGS, dir_fd=handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    return error.strerror or "unreadable" if isinstance(error, OSError) else "a loop of links"
