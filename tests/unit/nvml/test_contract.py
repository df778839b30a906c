"""The fake behaves as NVIDIA's NVML does, as far as documents and pynvml say.

No GPU is needed, so nothing here was compared with a real driver. Sources of the facts:

- NVML API Reference Guide R590 (docs.nvidia.com/deploy/nvml-api), ``nvmlMemory_t``
 : "The total amount is equal to
  the sum of the amounts of free and used memory"; used is the "Sum of Reserved and Allocated
  device memory".
- Same guide, ``nvmlMemory_v2_t``: ``used`` is "Allocated device memory"; ``reserved`` is
  "reserved for system use (driver or firmware)"; version "must be 2". The guide of R525 said that
  v2's used "also includes the reserved amount"; newer ones do not, and nvidia-smi prints
  Reserved, Used and Free that add up to Total. The sizer reads total, reserved and free only, so
  it does not depend on which is right.
- Same guide, ``nvmlDeviceGetMemoryInfo``: "In MIG mode, if device handle is provided, the API
  returns aggregate information, only if the caller has appropriate privileges. Per-instance
  information can be queried by using specific MIG device handles."
- Same guide, section Initialization and Cleanup: "should be called once before invoking any other
  methods"; "A reference count of the number of initializations is maintained. Shutdown only
  occurs when the reference count reaches zero"; NVML_ERROR_DRIVER_NOT_LOADED "if NVIDIA driver is
  not running".
- Same guide, ``nvmlDeviceGetUUID``: "a 5 part hexadecimal string", at most 96 characters with the
  NUL (NVML_DEVICE_UUID_V2_BUFFER_SIZE), and NVML_ERROR_INSUFFICIENT_SIZE where the buffer is too
  small; ``nvmlDeviceGetHandleByUUID`` takes "The UUID of the target GPU or MIG instance".
- Same guide, ``nvmlDeviceGetMaxMigDeviceCount``: "Returns zero if MIG is not supported or
  enabled".
- Same guide, ``nvmlDeviceGetMigDeviceHandleByIndex``: NVML_ERROR_NOT_SUPPORTED "if this query is not
  supported by the device", NVML_ERROR_NOT_FOUND "if no valid MIG device was found at index",
  NVML_ERROR_INVALID_ARGUMENT if the index is invalid; ``nvmlDeviceGetIndex``: "MIG device indices are unique
  within a device".
- pynvml (nvidia-ml-py 13): struct layouts, version constants, function names, and the texts of
  errors.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import pynvml
import pytest

from tests.cluster_kit.nvml import FakeGpu

from .conftest import H100, SECOND

if TYPE_CHECKING:
    from .conftest import Nvml

UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Every call that this project makes, with the symbol that pynvml looks up for it.
QUERIES = {
    "nvmlSystemGetDriverVersion": "",
    "nvmlSystemGetNVMLVersion": "",
    "nvmlSystemGetCudaDriverVersion_v2": "",
    "nvmlDeviceGetCount": "",
    "nvmlDeviceGetHandleByIndex": "0",
    "nvmlDeviceGetHandleByUUID": f"{H100.uuid!r}",
    "nvmlDeviceGetName": "handle",
    "nvmlDeviceGetUUID": "handle",
    "nvmlDeviceGetMemoryInfo": "handle",
    "nvmlDeviceIsMigDeviceHandle": "handle",
    "nvmlDeviceGetMaxMigDeviceCount": "handle",
}


def test_memory_v1_and_v2_relations(nvml: Nvml) -> None:
    v1, v2 = nvml.ask(
        """
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
v1 = pynvml.nvmlDeviceGetMemoryInfo(handle)
v2 = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
answer = [{name: getattr(memory, name) for name, _ in memory._fields_} for memory in (v1, v2)]
"""
    )
    assert v1["total"] == v1["free"] + v1["used"]
    assert v2["total"] == v2["reserved"] + v2["free"] + v2["used"]
    assert (v1["total"], v1["free"]) == (v2["total"], v2["free"])
    assert v1["used"] == v2["used"] + v2["reserved"]
    assert v2["version"] == pynvml.nvmlMemory_v2
    assert (v2["total"], v2["reserved"], v2["used"]) == (H100.total, H100.reserved, H100.used)


def test_the_struct_layouts_are_pynvmls(nvml: Nvml) -> None:
    """The library writes all of the struct and not one byte behind it."""
    answer = nvml.ask(
        """
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = {}
for kind, name in ((pynvml.c_nvmlMemory_t, ""), (pynvml.c_nvmlMemory_v2_t, "_v2")):
    size = ctypes.sizeof(kind)
    buffer = ctypes.create_string_buffer(b"\\xa5" * (size + 64), size + 64)
    if name:
        kind.from_buffer(buffer).version = pynvml.nvmlMemory_v2
    code = getattr(pynvml.nvmlLib, "nvmlDeviceGetMemoryInfo" + name)(handle, buffer)
    touched = max(i for i in range(size + 64) if buffer.raw[i] != 0xA5) + 1
    answer["v1" + name] = [code, touched == size]
"""
    )
    assert answer == {"v1": [0, True], "v1_v2": [0, True]}


def test_the_version_is_size_and_number(nvml: Nvml) -> None:
    assert (
        nvml.ask("answer = ctypes.sizeof(pynvml.c_nvmlMemory_v2_t) | 2 << 24")
        == pynvml.nvmlMemory_v2
    )


def test_another_struct_version_is_refused(nvml: Nvml) -> None:
    answer = nvml.ask(
        """
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
versions = (2, 0x01000028, 0x02000020)
answer = [attempt(pynvml.nvmlDeviceGetMemoryInfo, handle, version)["code"] for version in versions]
"""
    )
    assert answer == [pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH] * 3


@pytest.mark.parametrize("query", sorted(QUERIES))
def test_a_query_before_init_or_after_shutdown_is_refused(nvml: Nvml, query: str) -> None:
    before, after = nvml.ask(
        f"""
pynvml._LoadNvmlLibrary()
handle = pynvml.c_nvmlDevice_t()
answer = [attempt(pynvml.{query}, {QUERIES[query]})]
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
assert not isinstance(attempt(pynvml.{query}, {QUERIES[query]}), dict)
pynvml.nvmlShutdown()
answer.append(attempt(pynvml.{query}, {QUERIES[query]}))
"""
    )
    assert before == after == {"code": pynvml.NVML_ERROR_UNINITIALIZED, "text": "Uninitialized"}


def test_init_is_counted(nvml: Nvml) -> None:
    answer = nvml.ask(
        """
pynvml._LoadNvmlLibrary()
answer = [attempt(pynvml.nvmlShutdown)]
pynvml.nvmlInit(); pynvml.nvmlInit(); pynvml.nvmlShutdown()
answer.append(pynvml.nvmlDeviceGetCount())
pynvml.nvmlShutdown()
answer.append(attempt(pynvml.nvmlDeviceGetCount))
"""
    )
    refused = {"code": 1, "text": "Uninitialized"}
    assert answer == [refused, 2, refused]


def test_error_texts_are_pynvmls(nvml: Nvml) -> None:
    texts = pynvml.NVMLError._errcode_to_string
    answer = nvml.ask(
        f"""
pynvml._LoadNvmlLibrary()
answer = {{code: pynvml.nvmlErrorString(code) for code in {sorted(texts)}}}
"""
    )
    assert {int(code): text for code, text in answer.items()} == texts


def test_errors_of_bad_arguments(nvml: Nvml) -> None:
    answer = nvml.ask(
        """
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
small = ctypes.create_string_buffer(5)
nobody = pynvml.c_nvmlDevice_t()
answer = [
    attempt(pynvml.nvmlDeviceGetHandleByIndex, 2)["code"],
    attempt(pynvml.nvmlDeviceGetHandleByUUID, "GPU-0")["code"],
    attempt(pynvml.nvmlDeviceGetName, nobody)["code"],
    pynvml.nvmlLib.nvmlDeviceGetUUID(handle, small, ctypes.c_uint(5)),
    pynvml.nvmlLib.nvmlDeviceGetName(handle, None, ctypes.c_uint(96)),
    pynvml.nvmlLib.nvmlDeviceGetMemoryInfo(handle, None),
]
"""
    )
    assert answer == [
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    ]


def test_formats_of_names_and_versions(nvml: Nvml) -> None:
    driver, library, cuda, uuids = nvml.ask(
        """
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
answer = [
    pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetNVMLVersion(),
    pynvml.nvmlSystemGetCudaDriverVersion_v2(),
    [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
]
"""
    )
    assert re.fullmatch(r"\d{3}\.\d{2,3}(\.\d{2})?", driver)
    assert library == f"13.{driver}"
    assert cuda == 13 * 1000 + 0 * 10  # nvml.h: major * 1000 + minor * 10
    assert uuids == [H100.uuid, SECOND.uuid]
    assert all(UUID.fullmatch(uuid) for uuid in uuids)


def slice_of(number: int, *, slot: int | None = None) -> FakeGpu:
    uuid = f"MIG-0000000{number}-0000-1111-2222-333333333333"
    total = (10 + number) << 30
    return FakeGpu(uuid, f"{H100.name} MIG 1g.10gb", total, 1 << 20, number << 20, H100.uuid, slot)


SLICES = (slice_of(1), slice_of(2, slot=4), slice_of(3, slot=2))

INDICES = """
pynvml.nvmlInit()
parent = pynvml.nvmlDeviceGetHandleByIndex(0)
def at(index):
    found = attempt(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, index)
    return found["code"] if isinstance(found, dict) else pynvml.nvmlDeviceGetUUID(found)
answer = [at(index) for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent) + 1)]
"""


@pytest.mark.parametrize(
    ("visible", "shown"),
    [("all", (0, 1, 2)), (SLICES[1].uuid, (1,)), (H100.uuid, ())],
)
def test_indices_of_slices_have_holes(nvml: Nvml, visible: str, shown: tuple[int, ...]) -> None:
    """Also where a slice is another container's: the parent is in MIG mode all the same."""
    nvml.write(H100, *SLICES, SECOND)
    places = {0: 0, 4: 1, 2: 2}
    holes: list[object] = [pynvml.NVML_ERROR_NOT_FOUND] * 7 + [pynvml.NVML_ERROR_INVALID_ARGUMENT]
    for index, place in places.items():
        if place in shown:
            holes[index] = SLICES[place].uuid
    assert nvml.ask(INDICES, visible) == holes


def test_a_gpu_without_slices_has_no_slice_at_any_index(nvml: Nvml) -> None:
    nvml.write(H100)
    assert nvml.ask(INDICES) == [pynvml.NVML_ERROR_NOT_SUPPORTED]


SIZES = """
pynvml.nvmlInit()
def free(handle):
    return attempt(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).free)
parent = pynvml.nvmlDeviceGetHandleByIndex(0)
slices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index) for index in (0, 4, 2)]
answer = [free(parent), [[pynvml.nvmlDeviceGetName(s), free(s)] for s in slices]]
"""


def test_a_slice_tells_its_own_memory_and_the_parent_all_of_it_or_nothing(nvml: Nvml) -> None:
    own = [[each.name, each.free] for each in SLICES]
    nvml.write(H100, *SLICES)
    refused = {"code": pynvml.NVML_ERROR_NO_PERMISSION, "text": "Insufficient Permissions"}
    assert nvml.ask(SIZES) == [refused, own]
    nvml.write(dataclasses.replace(H100, aggregate=True), *SLICES)
    assert nvml.ask(SIZES) == [H100.free - (6 << 20), own]
