"""A mount that is slow, and one that hangs in the middle of a model, by a library that is preloaded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bench.sizer import build_shim

from .models import safetensors_folder
from .outcomes import failure, report

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Sizer


@pytest.fixture
def mounted(bare: Sizer, tmp_path: Path) -> Sizer:
    """Four shards on such a mount."""
    model = safetensors_folder(tmp_path / "model", shards=4)
    bare.env |= {"LD_PRELOAD": str(build_shim(tmp_path)), "PLIMSOLL_SLOW_MOUNT": str(model)}
    return bare


@pytest.mark.parametrize("file", ["00003-of-00004.safetensors", "index.json", "config.json"])
def test_the_deadline_ends_a_read_that_never_returns(mounted: Sizer, file: str) -> None:
    mounted.env |= {"PLIMSOLL_SLOW_MOUNT_HANG": file, "PLIMSOLL_DEADLINE": "0.5"}
    start = time.monotonic()
    why = failure(mounted.run(), 5, "MeasurementFailed")
    assert "the deadline of 0.5 s passed while reading the model" in why.message
    assert 0.5 <= time.monotonic() - start < 20


def test_a_slow_mount_gives_the_same_answer(mounted: Sizer) -> None:
    fast = report(mounted.run())
    mounted.env["PLIMSOLL_SLOW_MOUNT_US"] = "5000"
    start = time.monotonic()
    assert report(mounted.run()) == fast
    assert time.monotonic() - start > 0.05  # at least ten round trips, one after the other
