"""Bytes per token and rank of every engine against arithmetic from the engines' own sources."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from bench.accuracy_architectures import measured_cell
from tests.oracle import DATA

DOCUMENT: Final[dict[str, Any]] = json.loads((DATA / "engine_vectors.json").read_text())

#: (engine, config, tensor, cache dtype) that do not pass yet -> why. One that passes fails the test.
PENDING: Final[dict[tuple[str, str, int, str], str]] = {}


def key(row: dict[str, Any]) -> tuple[str, str, int, str]:
    return row["engine"], row["config"], row["tensor"], row["kv_cache_dtype"]


@pytest.mark.parametrize("row", DOCUMENT["vectors"], ids=lambda row: "-".join(map(str, key(row))))
def test_cell_is_what_the_engine_stores(row: dict[str, Any]) -> None:
    found = measured_cell(row, DOCUMENT["configs"][row["config"]])
    if key(row) in PENDING:
        assert found != row["expected"], "passes: remove it from PENDING"
    else:
        assert found == row["expected"], row["note"]
