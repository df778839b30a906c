"""Every cache dtype that vLLM is said to have gets through ``fit``, with its scales and packed rows."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.core import fit
from plimsoll.core.engines import lookup
from plimsoll.core.request import SizingRequest
from tests.unit.core.test_engines import LLAMA3


def cell(config: dict[str, Any], word: str, version: str = "0.33.0") -> int | None:
    request = SizingRequest("VLLM", version, kv_cache_dtype=word)
    return fit(config, None, None, request).kv_bytes_per_rank


@pytest.mark.parametrize("word", [w for w in lookup("VLLM").kv_dtypes if not w.endswith("ds_mla")])
def test_every_offered_word_is_sized(word: str) -> None:
    assert cell(LLAMA3, word)


# 32 layers, 8 heads, 128 wide; a scale of four bytes for each head of keys and of values.
@pytest.mark.parametrize(
    ("word", "size"),
    [
        ("int8_per_token_head", 32 * 8 * 2 * (128 + 4)),
        ("fp8_per_token_head", 32 * 8 * 2 * (128 + 4)),
        ("int4_per_token_head", 32 * 8 * 2 * (64 + 4)),
        ("nvfp4", 32 * 8 * 2 * (64 + 8)),
    ],
)
def test_scales_are_in_the_page(word: str, size: int) -> None:
    assert cell(LLAMA3, word) == size
    if word.endswith("head"):  # the CPU backend keeps none; measured with 0.32.0 for int8
        assert cell(LLAMA3, word, "0.32.0+cpu") == size - 32 * 8 * 2 * 4
