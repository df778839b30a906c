"""The stand-in engine on two fake devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .standin_kit import GPU, SECOND, Standin, lay_out, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def standin_app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_out(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def standin(standin_app: Path, tmp_path: Path) -> Iterator[Standin]:
    made = Standin(standin_app, tmp_path, write_model(tmp_path / "model"))
    made.devices(GPU, SECOND)
    yield made
    made.close()
