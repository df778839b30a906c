"""The table of well-known GPUs."""

from __future__ import annotations

import pytest

from plimsoll.core.catalogue import CATALOGUE, find_gpu
from plimsoll.core.errors import BadArgument
from plimsoll.core.units import GIB


def test_rows_are_sane_and_sorted_by_size() -> None:
    assert [gpu.total for gpu in CATALOGUE] == sorted(gpu.total for gpu in CATALOGUE)
    for gpu in CATALOGUE:
        # The driver keeps 0.3 to 1.8 GiB that CUDA does not see.
        assert 0.25 * GIB < gpu.nvml_total - gpu.total < 1.8 * GIB, gpu.name
        assert gpu.source
    names = [name.casefold() for gpu in CATALOGUE for name in (gpu.name, gpu.product)]
    assert len(set(names)) == len(names)


def test_it_is_found_by_either_name_in_any_case() -> None:
    assert find_gpu("h200") is find_gpu("NVIDIA H200") is find_gpu("H200")


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(BadArgument, match=r"did you mean.*H100-80GB"):
        find_gpu("H100-80")
    with pytest.raises(BadArgument, match="--gpu-total"):
        find_gpu("\x00" * 10_000)
