"""The program for every engine: the operator writes from its message the words that the arithmetic gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from plimsoll.checkpoint import fit_checkpoint, read_checkpoint
from plimsoll.core.device import Device
from plimsoll.core.engines import ENGINES, lookup
from plimsoll.core.request import SizingRequest

from .conftest import GPU
from .models import gguf_folder, safetensors_folder
from .outcomes import report

if TYPE_CHECKING:
    from .conftest import Sizer

#: Engine -> version, and whether its report needs an object of its own for what becomes flags.
ROWS: Final = {
    "LightLLM": ("1.2.0", True),
    "LlamaCpp": ("b6000", False),
    "SGLang": ("0.5.23", True),
    "TensorRTLLM": ("1.2.0", True),
    "TGI": ("3.3.7", True),
    "VLLM": ("0.25.0", True),
}


def test_every_engine_has_a_row() -> None:
    assert set(ROWS) == set(ENGINES)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_words_of_the_message_are_those_of_the_arithmetic(bare: Sizer, name: str) -> None:
    engine, (version, has_pinned) = lookup(name), ROWS[name]
    folder = bare.folder / "model"
    if "gguf" in engine.formats:
        gguf_folder(folder)
    else:
        safetensors_folder(folder)
    bare.request = {"engineType": name, "engineVersion": version}
    answer = report(bare.run())
    free = GPU.total - GPU.reserved
    device = Device(GPU.name, free, GPU.total, free, driver=answer.driver, uuids=(GPU.uuid,))
    request = SizingRequest(name, version)
    found = fit_checkpoint(read_checkpoint(folder), device, request)
    assert (answer.pinned is not None) == has_pinned
    assert found.args
    assert tuple(engine.pinned_args(answer.all_pinned(), request)) == found.args
    assert tuple(engine.pinned_env(answer.all_pinned(), request).items()) == found.env
