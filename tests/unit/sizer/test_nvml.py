"""Reading the devices: which ones, which numbers, how long to wait for a driver."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING

import pynvml
import pytest

from plimsoll.core.errors import DeviceUnavailable
from plimsoll.sizer.nvml import DriverReading, given_uuids, read_driver
from tests.cluster_kit.nvml import STATE_VARIABLE, FakeGpu, write_state

from .conftest import GPU, OTHER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SLICE = FakeGpu(
    "MIG-99999999-0000-1111-2222-333333333333",
    f"{GPU.name} MIG 1g.10gb",
    total=9728 << 20,
    reserved=13 << 20,
    used=1 << 20,
    parent=GPU.uuid,
)


class Driver:
    """The fake library inside this process, with a clock that only sleeping moves."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.now = 1000.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        self.on_sleep()

    def read(self, visible: str | None, expected: int, wait: float = 0) -> DriverReading:
        return read_driver(visible, expected, wait, clock=lambda: self.now, sleep=self.sleep)


@pytest.fixture
def driver(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "devices.conf"))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    fake = Driver(tmp_path / "devices.conf")
    write_state(fake.state, [GPU, OTHER])
    return fake


def test_numbers_of_a_device(driver: Driver) -> None:
    reading = driver.read(OTHER.uuid, 1)
    assert reading.driver == "580.159.04"
    (device,) = reading.devices
    assert (device.uuid, device.product, device.mig) == (OTHER.uuid, OTHER.name, None)
    assert (device.total, device.reserved) == (OTHER.total, OTHER.reserved)
    assert device.free == OTHER.total - OTHER.reserved - OTHER.used
    assert device.usable == OTHER.total - OTHER.reserved


def test_given_devices_keep_their_order(driver: Driver) -> None:
    reading = driver.read(f"{OTHER.uuid},{GPU.uuid}", 2)
    assert [device.uuid for device in reading.devices] == [OTHER.uuid, GPU.uuid]


@pytest.mark.parametrize(
    "visible", ["all", None, "void", "/var/run/nvidia-container-devices", "0,1"]
)
def test_without_uuids_all_that_the_runtime_let_in_are_taken(
    driver: Driver, visible: str | None
) -> None:
    assert [device.uuid for device in driver.read(visible, 2).devices] == [GPU.uuid, OTHER.uuid]


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("GPU-a,GPU-b", ("GPU-a", "GPU-b")),
        ("GPU-a, GPU-a", ("GPU-a", "GPU-a")),
        ("nvidia.com/gpu=GPU-a,nvidia.com/gpu=MIG-b", ("GPU-a", "MIG-b")),
        ("all", ()),
        ("", ()),
        (None, ()),
        ("0,1", ()),
    ],
)
def test_given_uuids(visible: str | None, uuids: tuple[str, ...]) -> None:
    assert given_uuids(visible) == uuids


@pytest.mark.parametrize("visible", [SLICE.uuid, "all"])
def test_a_slice_is_measured_not_its_gpu(driver: Driver, visible: str) -> None:
    write_state(driver.state, [GPU, SLICE])
    (device,) = driver.read(visible, 1).devices
    assert (device.uuid, device.product, device.mig) == (SLICE.uuid, GPU.name, "1g.10gb")
    assert (device.total, device.reserved, device.free) == (SLICE.total, SLICE.reserved, SLICE.free)


OTHER_SLICE = dataclasses.replace(
    SLICE, uuid=SLICE.uuid.replace("99999999", "88888888"), name=f"{GPU.name} MIG 2g.20gb", slot=4
)


@pytest.mark.parametrize("visible", [GPU.uuid, "all"])
@pytest.mark.parametrize("aggregate", [False, True])
def test_a_parents_memory_is_never_taken(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    aggregate: bool,  # noqa: FBT001 - table
) -> None:
    """What the runtime shows is NVIDIA_VISIBLE_DEVICES of the process; what we ask for is ``visible``."""
    parent = dataclasses.replace(GPU, aggregate=aggregate)
    write_state(driver.state, [parent, OTHER_SLICE, SLICE])
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", OTHER_SLICE.uuid)
    (device,) = driver.read(visible, 1).devices
    assert (device.uuid, device.mig, device.total) == (
        OTHER_SLICE.uuid,
        "2g.20gb",
        OTHER_SLICE.total,
    )
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", GPU.uuid)
    with pytest.raises(DeviceUnavailable, match="given none of its slices"):
        driver.read(visible, 1, wait=60)
    assert driver.slept == []


def test_slices_of_two_profiles_are_both_read(driver: Driver) -> None:
    write_state(driver.state, [GPU, SLICE, OTHER_SLICE])
    reading = driver.read(f"{OTHER_SLICE.uuid},{SLICE.uuid}", 2)
    assert [device.mig for device in reading.devices] == ["2g.20gb", "1g.10gb"]


def test_a_driver_that_comes_up_is_waited_for(driver: Driver) -> None:
    write_state(driver.state, [GPU], fail=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def recover_after_20_seconds() -> None:
        if driver.now >= 1020:
            write_state(driver.state, [GPU])

    driver.on_sleep = recover_after_20_seconds
    assert driver.read(GPU.uuid, 1, wait=60).devices[0].uuid == GPU.uuid
    assert sum(driver.slept) == 20


def test_a_driver_that_stays_down_is_an_error_that_says_so(driver: Driver) -> None:
    write_state(driver.state, [GPU], fail=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(DeviceUnavailable) as caught:
        driver.read(GPU.uuid, 1, wait=60)
    assert caught.value.reason == "NVMLUnavailable"
    assert caught.value.exit_code == 4
    assert "Driver Not Loaded (code 9); tried 61 times in 60 s" in caught.value.message
    assert "check the GPU driver" in caught.value.message
    assert sum(driver.slept) == 60


def test_no_wait_asks_once(driver: Driver) -> None:
    write_state(driver.state, [GPU], fail=pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(DeviceUnavailable, match="tried 1 times"):
        driver.read(GPU.uuid, 1, wait=0)
    assert driver.slept == []


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH]
)
def test_what_only_a_new_container_cures_is_not_waited_for(driver: Driver, code: int) -> None:
    write_state(driver.state, [GPU], fail=code)
    with pytest.raises(DeviceUnavailable, match="not worth a retry"):
        driver.read(GPU.uuid, 1, wait=60)
    assert driver.slept == []


def test_a_library_that_is_not_there(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", absent)
    with pytest.raises(DeviceUnavailable, match=r"NVML Shared Library Not Found \(code 12\)"):
        driver.read(GPU.uuid, 1, wait=60)


def test_a_device_that_appears_late_is_waited_for(driver: Driver) -> None:
    write_state(driver.state, [GPU])
    driver.on_sleep = lambda: write_state(driver.state, [GPU, OTHER])
    assert len(driver.read(f"{GPU.uuid},{OTHER.uuid}", 2, wait=60).devices) == 2
    write_state(driver.state, [GPU])
    assert len(driver.read("all", 2, wait=60).devices) == 2


def test_other_peoples_devices_are_refused_at_once(driver: Driver) -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        driver.read("all", 1, wait=60)
    assert "NVML shows 2 devices, the pod was given 1" in caught.value.message
    assert "only its own devices" in caught.value.message
    assert driver.slept == []


def test_nvml_is_shut_down_whether_or_not_it_worked(driver: Driver) -> None:
    driver.read("all", 2)
    with pytest.raises(DeviceUnavailable):
        driver.read("all", 1)
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlShutdown()
    assert caught.value.value == pynvml.NVML_ERROR_UNINITIALIZED


def test_impossible_numbers_are_refused(driver: Driver) -> None:
    write_state(driver.state, [dataclasses.replace(GPU, reserved=GPU.total)])
    with pytest.raises(DeviceUnavailable, match="not a possible state"):
        driver.read(GPU.uuid, 1)
