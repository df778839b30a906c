"""Asks CUDA itself, through the torch of the engine's own image.

NVML's total less what it calls reserved is CUDA's total within some MiB; torch gives CUDA's own figure, which is
the base of every share that an engine takes. For that the sizer runs in the engine's image: ``copy`` has put
this package into a shared folder (:mod:`plimsoll.sizer.bundle`).

Torch is asked in a process of its own, which ends before anything else happens: a CUDA context holds hundreds of MiB
as long as its process lives. What torch calls free is beside that context, so free memory stays NVML's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from plimsoll.core.errors import DeviceUnavailable
from plimsoll.core.terms import CudaMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_SECONDS: Final = 60.0  # importing torch from a cold disk takes tens of seconds
_FIELD: Final = "spec.sizing.probe"
_ADVICE: Final = f"set {_FIELD} to NVML"
_TAIL: Final = 300  # characters of an error of torch that a message can take

# The last line of its output is the answer: torch and its extensions print warnings where they like.
_PROGRAM: Final = """
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {}
try:
    import torch
except Exception as error:
    answer["torch"] = "%s: %s" % (type(error).__name__, error)
else:
    try:
        torch.cuda.init()
        devices = []
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            own = torch.cuda.get_device_properties(index).total_memory
            devices.append([int(free), min(int(total), int(own))])
        answer["devices"] = devices
    except Exception as error:
        answer["cuda"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(answer))
"""


def ask_torch(
    count: int,
    *,
    python: str = sys.executable,
    timeout: float = TIMEOUT_SECONDS,
) -> CudaMemory:
    """The smallest of this container's devices as CUDA sees them.

    Args:
        count: Devices that the pod was given.
        python: Interpreter whose torch is asked.
        timeout: Seconds that it may take.

    Raises:
        DeviceUnavailable: TorchUnavailable: the image's Python has no torch. CudaUnavailable: torch has no CUDA,
            finds no device or other ones, crashes, or does not answer in time.
    """
    command = [python, "-c", _PROGRAM]
    try:
        done = subprocess.run(  # noqa: S603 - our own program and the interpreter that we run in
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        _refuse("CudaUnavailable", f"torch did not answer within {timeout:g} s")
    except OSError as error:
        _refuse("TorchUnavailable", f"{python} cannot be started: {error.strerror}")
    answer = _answer(done.stdout)
    if answer is None:
        how = f"ended with {done.returncode}: {_tail(done.stderr)}"
        _refuse("CudaUnavailable", f"the process that asks torch {how}")
    if "torch" in answer:
        _refuse("TorchUnavailable", f"{python} cannot import torch: {_tail(answer['torch'])}")
    if "cuda" in answer:
        _refuse("CudaUnavailable", f"torch cannot use CUDA: {_tail(answer['cuda'])}")
    return _smallest(answer["devices"], count)


def _smallest(devices: Sequence[Sequence[int]], count: int) -> CudaMemory:
    if len(devices) != count:
        _refuse("CudaUnavailable", f"CUDA shows {len(devices)} devices, the pod was given {count}")
    return CudaMemory(
        total_bytes=min(total for _, total in devices),
        free_bytes=min(free for free, _ in devices),
    )


def _answer(output: str) -> dict[str, Any] | None:
    lines = output.splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and found else None


def _refuse(reason: str, problem: str) -> NoReturn:
    raise DeviceUnavailable(f"{problem}; {_ADVICE}", reason=reason, field=_FIELD)


def _tail(text: str) -> str:
    return " ".join(text.split())[-_TAIL:] or "it said nothing"
