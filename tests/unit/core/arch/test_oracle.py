"""Every reader against the sizes that were measured with transformers on the meta device."""

from __future__ import annotations

from typing import Final

import pytest

from tests.oracle import differences, records

#: Records that do not pass yet -> why. A listed record that passes fails the test.
PENDING: Final[dict[str, str]] = {}


@pytest.mark.parametrize("name", records())
def test_bytes_equal_the_measured_ones_and_parameters_agree(name: str) -> None:
    found = differences(records()[name])
    if name in PENDING:
        assert found, f"{name} passes: remove it from PENDING"
    else:
        assert not found, "; ".join(found)


def test_pending_names_records() -> None:
    assert PENDING.keys() <= records().keys()
