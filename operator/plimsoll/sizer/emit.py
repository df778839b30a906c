"""The three outputs of a run: the env file, the termination message and one line of log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.sizer.progress import Progress


def write_env(path: Path, values: Mapping[str, str]) -> None:
    """Write one ``KEY='value'`` a line, by rename: a reader sees all of the file or none.

    The form (single quotes, no space, each key once) is what kubelets from 1.35 on accept for
    ``fileKeyRef`` (Kubernetes' pkg/kubelet/util/env); a shell can source it too. Neither has an escape for a
    quote inside, and a kubelet takes an empty value for a missing key.

    Args:
        path: the file; its folder must exist and be writable.
        values: printable text without single quotes, never empty.

    Raises:
        OSError: the folder is missing, full or read-only.
    """
    # One writer per pod, so a fixed name will do; what a killed run left is overwritten, not piled up.
    temporary = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(temporary, flags, 0o644), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)  # whatever the umask: the server may run as another user
        file.writelines(f"{key}='{value}'\n" for key, value in values.items())
    temporary.replace(path)


def write_message(path: Path, text: str) -> None:
    """Write the termination message, replacing what an earlier run left.

    Never by rename: the kubelet binds this one file into the container, and a rename over a bind mount
    fails. One write of at most 2 KiB is the best that can be had; the end marker shows a torn one.

    Args:
        path: the file.
        text: the message, ASCII or UTF-8, within the size that ``core.report.encode`` keeps.

    Raises:
        OSError: the file cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def log(document: Mapping[str, Any], *, descriptor: int = 1) -> None:
    """Write one line of JSON, past Python's buffers: the other thread may hold their locks."""
    line = json.dumps(document, separators=(",", ":"), default=str) + "\n"
    try:
        os.write(descriptor, line.encode())
    except OSError:
        return  # a closed log must not change the answer, which is in the message


def log_document(
    mode: str, exit_code: int, message: str, progress: Progress, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the line of log: the message with every term, each device, the times and the peak memory.

    Args:
        mode: ``size`` or ``guard``.
        exit_code: what the process is about to return.
        message: the termination message, JSON.
        progress: devices and phases.
        extra: further top-level keys, such as the guard's comparison.

    Returns:
        A document for :func:`log`; sizes in bytes, times in milliseconds.
    """
    devices = [
        {"uuid": d.uuid, "total": d.total, "reserved": d.reserved, "free": d.free}
        for d in progress.devices
    ]
    return {
        "event": "plimsoll.sizer",
        "mode": mode,
        "exitCode": exit_code,
        **extra,
        "report": json.loads(message),
        "warnings": list(progress.warnings),
        "memory": devices,
        "phasesMs": {name: round(s * 1000, 3) for name, s in progress.seconds.items()},
        "peakRssBytes": peak_rss_bytes(),
    }


def peak_rss_bytes() -> int | None:
    """Peak resident memory of this process in bytes, None where /proc does not tell.

    From VmHWM, not getrusage: the latter also counts the process that existed before exec.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
