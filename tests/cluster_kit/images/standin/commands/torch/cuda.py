"""``torch.cuda`` of the stand-in image: a context costs memory for as long as its process lives, as CUDA's does."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# By name: it is a package of the image, beside this one, and of nothing else.
_STANDIN: Any = importlib.import_module("standin.device")

CONTEXT = 480 << 20


@dataclass(frozen=True)
class Properties:
    """What is asked of a device's properties."""

    total_memory: int


_devices: list[Any] = []


def init() -> None:
    """Make a context on each device."""
    given = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    state = Path(os.environ.get("PLIMSOLL_FAKE_NVML") or _STANDIN.DEFAULT_STATE)
    _devices[:] = [
        _STANDIN.Device(state, uuid, index)
        for index, uuid in enumerate(u for u in given.split(",") if u)
    ]
    for device in _devices:
        device.take(CONTEXT)


def device_count() -> int:
    """Devices of this container."""
    return len(_devices)


def mem_get_info(index: int) -> tuple[int, int]:
    """Free and total bytes, beside this process's own context."""
    return _devices[index].free, _devices[index].total


def get_device_properties(index: int) -> Properties:
    """The properties of a device."""
    return Properties(_devices[index].total)
