"""Headers that are read side by side come in order, are bounded, and fail at their turn."""

from __future__ import annotations

import os
import struct
import threading
from contextlib import closing
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.checkpoint import ahead
from plimsoll.checkpoint.files import Folder
from plimsoll.core.errors import BadModel

if TYPE_CHECKING:
    from pathlib import Path

REASON = "WeightsUnreadable"


def write(folder: Path, texts: list[bytes]) -> list[str]:
    names = [f"model-{index:05}.safetensors" for index in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + b"data")
    return names


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.sampled_from([0, 1, 70_000, ahead.FIRST, ahead.FIRST + 1]), max_size=40))
def test_in_order_and_whole(lengths: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    texts = [bytes([65 + index]) * length for index, length in enumerate(lengths)]
    names = write(folder, texts)
    found = list(ahead.headers(Folder(folder), names, REASON))
    assert [header.text for header in found] == texts
    assert [header.digest for header in found] == [sha256(text).hexdigest() for text in texts]
    assert {header.data for header in found} <= {4}


def test_an_error_comes_at_its_turn(tmp_path: Path) -> None:
    names = write(tmp_path, [b"a"] * 9)
    (tmp_path / names[5]).write_bytes(b"cut")
    (tmp_path / names[7]).unlink()
    found = ahead.headers(Folder(tmp_path), names, REASON)
    seen = [next(found).text for _ in range(5)]
    with pytest.raises(BadModel, match=names[5]):
        next(found)
    assert seen == [b"a"] * 5
    assert len(list(ahead.headers(Folder(tmp_path), names[:5], REASON))) == 5


def test_side_by_side_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files are opened before the first is taken; never many more than were taken."""
    names = write(tmp_path, [b"a"] * 60)
    opened: list[str] = []
    several = threading.Event()
    inside = threading.Barrier(4, action=several.set)
    plain = Folder.open

    def opening(self: Folder, name: str, reason: str) -> object:
        opened.append(name)
        if name in names[:4]:
            inside.wait(20)  # ends only when four are being opened at the same time
        return plain(self, name, reason)

    monkeypatch.setattr(Folder, "open", opening)
    with closing(ahead.headers(Folder(tmp_path), names, REASON)) as found:
        next(found)
        assert several.is_set()
        assert len(opened) <= 1 + 16
        for _ in range(10):
            next(found)
        assert len(opened) <= 11 + 16
    # Whoever stops early leaves no thread waiting.
    for thread in threading.enumerate():
        if thread.name == "header":
            thread.join(20)
            assert not thread.is_alive()
    assert len(opened) < len(names)


def test_no_thread_for_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = write(tmp_path, [b"a"])
    monkeypatch.setattr(threading, "Thread", None)
    assert [header.text for header in ahead.headers(Folder(tmp_path), names, REASON)] == [b"a"]


def test_most_headers_take_one_read(tmp_path: Path) -> None:
    """On a network file system each read is a round trip."""
    name = write(tmp_path, [b"a" * 60_000])[0]
    with Folder(tmp_path).open(name, REASON) as (file, _):
        at_open = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    assert at_open == 60_012
