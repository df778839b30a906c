"""The fake NVML library, driven through the real pynvml: what it shows and how it fails."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

import pytest

from tests.cluster_kit.images.standin.device import Devices, OutOfMemoryError, open_devices
from tests.cluster_kit.nvml import FakeGpu, build_library, held_bytes, read_state, write_state

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Nvml

GPU = FakeGpu("GPU-11111111-2222-3333-4444-555555555555", "NVIDIA H100 80GB HBM3", 100, 10, 5)
SECOND = FakeGpu("GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "NVIDIA L4", 50, 1, 2)
SLICE = FakeGpu(
    "MIG-99999999-0000-1111-2222-333333333333", f"{GPU.name} MIG 1g.10gb", 12, 1, 2, parent=GPU.uuid
)

LIST = """
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
answer = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
"""


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        ("all", [GPU.uuid, SECOND.uuid]),
        (SECOND.uuid, [SECOND.uuid]),
        (f"{SECOND.uuid},{GPU.uuid}", [GPU.uuid, SECOND.uuid]),  # indices follow the bus
        (f"{GPU.uuid[:-1]}", []),  # half a UUID is not a UUID
        (f"{GPU.uuid}0", []),
        (f"{SECOND.uuid}::1", [SECOND.uuid]),  # a replica of a time-sliced device
        ("void", []),
        ("none", []),
        ("", []),
        (None, []),
    ],
)
def test_only_visible_devices_are_shown(nvml: Nvml, visible: str | None, shown: list[str]) -> None:
    nvml.write(GPU, SECOND)
    assert nvml.ask(LIST, visible) == shown


def test_handle_by_uuid_finds_only_visible_devices(nvml: Nvml) -> None:
    nvml.write(GPU, SECOND)
    answer = nvml.ask(
        f"""
pynvml.nvmlInit()
mine = pynvml.nvmlDeviceGetHandleByUUID({SECOND.uuid!r})
answer = [pynvml.nvmlDeviceGetName(mine), attempt(pynvml.nvmlDeviceGetHandleByUUID, {GPU.uuid!r})]
""",
        SECOND.uuid,
    )
    assert answer == ["NVIDIA L4", {"code": 6, "text": "Not Found"}]


def test_memory_changes_while_the_process_runs(nvml: Nvml) -> None:
    nvml.write(GPU)
    answer = nvml.ask(
        f"""
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = [pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).free]
write_state(STATE, [FakeGpu({GPU.uuid!r}, "x", 100, 10, 30)])
answer.append(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).free)
"""
    )
    assert answer == [85, 60]


def test_a_device_that_goes_away_is_lost(nvml: Nvml) -> None:
    nvml.write(GPU, SECOND)
    answer = nvml.ask(
        """
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
write_state(STATE, read_state(STATE).gpus[1:])
answer = attempt(pynvml.nvmlDeviceGetUUID, handle)
"""
    )
    assert answer == {"code": 15, "text": "GPU is lost"}


@pytest.mark.parametrize(
    ("code", "text"),
    [(9, "Driver Not Loaded"), (4, "Insufficient Permissions"), (999, "Unknown Error")],
)
def test_fails_on_demand_and_recovers(nvml: Nvml, code: int, text: str) -> None:
    nvml.write(GPU, fail=code)
    answer = nvml.ask(
        f"""
answer = [attempt(pynvml.nvmlInit)]
write_state(STATE, read_state(STATE).gpus)
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
write_state(STATE, read_state(STATE).gpus, fail={code})
answer.append(attempt(pynvml.nvmlDeviceGetMemoryInfo, handle))
answer.append(attempt(pynvml.nvmlDeviceGetCount))
"""
    )
    assert answer == [{"code": code, "text": text}] * 3


def test_no_state_file_is_no_driver(nvml: Nvml) -> None:
    nvml.state.unlink()
    assert nvml.ask("answer = attempt(pynvml.nvmlInit)") == {"code": 9, "text": "Driver Not Loaded"}


def test_a_slice_has_its_own_memory_and_hides_its_parents(nvml: Nvml) -> None:
    nvml.write(GPU, SECOND, SLICE)
    answer = nvml.ask(
        f"""
pynvml.nvmlInit()
parent = pynvml.nvmlDeviceGetHandleByIndex(0)
slice_ = pynvml.nvmlDeviceGetHandleByUUID({SLICE.uuid!r})
first = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 0)
back = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
answer = [
    pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetUUID(parent),
    pynvml.nvmlDeviceGetMigMode(parent),
    pynvml.nvmlDeviceGetMaxMigDeviceCount(parent), pynvml.nvmlDeviceGetUUID(first),
    attempt(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, 1), pynvml.nvmlDeviceGetUUID(back),
    pynvml.nvmlDeviceIsMigDeviceHandle(slice_).value,
    pynvml.nvmlDeviceIsMigDeviceHandle(parent).value,
    attempt(pynvml.nvmlDeviceGetMemoryInfo, parent), pynvml.nvmlDeviceGetMemoryInfo(slice_).free,
]
""",
        SLICE.uuid,
    )
    refused = {"code": 4, "text": "Insufficient Permissions"}
    missing = {"code": 6, "text": "Not Found"}
    assert answer == [1, GPU.uuid, [1, 1], 7, SLICE.uuid, missing, GPU.uuid, 1, 0, refused, 9]


def test_without_slices_mig_is_not_supported(nvml: Nvml) -> None:
    answer = nvml.ask(
        """
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
mode = attempt(pynvml.nvmlDeviceGetMigMode, handle)
answer = [mode, pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)]
"""
    )
    assert answer == [{"code": 3, "text": "Not Supported"}, 0]


def test_state_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "new" / "devices.conf"
    gpus = (
        GPU,
        SLICE,
        dataclasses.replace(SECOND, aggregate=True),
        dataclasses.replace(SLICE, uuid="MIG-b", slot=3),
    )
    write_state(path, gpus, driver="1.2", fail=15)
    state = read_state(path)
    assert (state.gpus, state.driver, state.fail) == (gpus, "1.2", 15)
    assert {entry.name for entry in path.parent.iterdir()} == {"devices.conf", "held"}
    assert {entry.name for entry in (path.parent / "held").iterdir()} == {g.uuid for g in gpus}


def test_readers_never_see_half_a_state(tmp_path: Path) -> None:
    path = tmp_path / "devices.conf"
    many = [dataclasses.replace(GPU, uuid=f"GPU-{i}", name="n" * 90) for i in range(64)]
    write_state(path, many)
    stop = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(len(read_state(path).gpus))

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(50):
        write_state(path, many)
    stop.set()
    thread.join()
    assert set(seen) == {64}


@pytest.mark.parametrize(
    "gpus",
    [
        [dataclasses.replace(GPU, name="a\nfail=9")],
        [dataclasses.replace(GPU, uuid="x" * 96)],
        [dataclasses.replace(GPU, total=-1)],
        [GPU] * 65,
    ],
)
def test_states_that_the_file_cannot_hold_are_refused(tmp_path: Path, gpus: list[FakeGpu]) -> None:
    with pytest.raises(ValueError, match=r"bytes|at most 64"):
        write_state(tmp_path / "devices.conf", gpus)
    assert not list(tmp_path.iterdir())


def test_a_line_that_is_no_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("driver=1\nnonsense\n")
    with pytest.raises(ValueError, match="nonsense"):
        read_state(tmp_path / "f")


def test_the_library_is_compiled_once(tmp_path: Path) -> None:
    first = build_library(tmp_path)
    inode = first.stat().st_ino
    assert build_library(tmp_path) == first
    assert first.stat().st_ino == inode
    assert [entry.name for entry in first.parent.iterdir()] == ["libnvidia-ml.so.1"]


MEMORY = """
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID({uuid!r})
memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
answer = [memory.free, memory.used]
"""


def holder(nvml: Nvml, *uuids: str) -> Devices:
    listed = {"PLIMSOLL_FAKE_NVML": str(nvml.state), "NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}
    return open_devices(listed, len(uuids))


def test_what_servers_hold_is_used_in_every_other_process(nvml: Nvml) -> None:
    nvml.write(GPU, SLICE)
    first, second = holder(nvml, GPU.uuid), holder(nvml, GPU.uuid, SLICE.uuid)
    first.take(20)
    second.take(7)
    second.take(1)
    assert nvml.ask(MEMORY.format(uuid=SLICE.uuid)) == [12 - 1 - 2 - 8, 2 + 8]
    nvml.write(GPU)  # without a slice the device may be asked; a rewritten file loses no holder
    assert nvml.ask(MEMORY.format(uuid=GPU.uuid)) == [100 - 10 - 5 - 28, 5 + 28]
    assert held_bytes(nvml.state, GPU.uuid) == 28
    assert (first.free, first.held, second.held) == (57, 20, 8)
    assert held_bytes(nvml.state, "GPU-that-never-was") == 0


def test_nobody_takes_more_than_is_free(nvml: Nvml) -> None:
    nvml.write(GPU)
    first, second = holder(nvml, GPU.uuid), holder(nvml, GPU.uuid)
    first.take(60)
    with pytest.raises(OutOfMemoryError, match="Tried to allocate"):
        second.take(26)
    second.take(25)
    assert held_bytes(nvml.state, GPU.uuid) == 85
