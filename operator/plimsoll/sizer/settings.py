"""What the controller asks: the environment of the sizer container, read once and checked."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.core.errors import BadArgument, MeasurementFailed
from plimsoll.core.records import dataclass
from plimsoll.core.request import SizingRequest
from plimsoll.sizer.guard import Stamp
from plimsoll.sizer.nvml import names_replicas

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKENS_KEY = (
    "PLIMSOLL_TOKENS"  # the key in the env file, and the name the server's argument refers to
)
DEFAULT_ENV_FILE = "/plimsoll/env"
DEFAULT_TERMINATION_LOG = "/dev/termination-log"
DEFAULT_NVML_WAIT = 60.0  # seconds; a driver container restarting takes tens of seconds
DEFAULT_SETTLE = 60.0  # seconds; a predecessor in its grace period has stopped serving long before
DEFAULT_DEADLINE = 300.0  # seconds; a healthy run takes well under one
PROBES = ("NVML", "Torch")
_FLAG = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]{0,99}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_HASH = re.compile(r"[0-9a-f]{40}")
_MAX_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where results go. Split from :class:`Settings`, for these must be known even if the rest is bad.

    Attributes:
        pod_uid: nonce of the message: the pod's UID from the downward API.
        request_hash: name of the question, 40 hex digits.
        env_file: file for ``PLIMSOLL_TOKENS='N'`` and, in the server's pod, for its arguments.
        termination_log: file the kubelet reads the message from.
        deadline: seconds from the start after which the program gives up, message included.
    """

    pod_uid: str
    request_hash: str
    env_file: Path
    termination_log: Path
    deadline: float


@dataclass(frozen=True, slots=True)
class InPodTemplate:
    """What the server beside this container takes from the env file, see :mod:`plimsoll.core.engines.inpod`.

    Attributes:
        flags: flags with a value there, as the engine spells them (``PLIMSOLL_ARGS``).
        env_names: environment variables with a value there (``PLIMSOLL_ENVS``).
    """

    flags: tuple[str, ...]
    env_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """The question.

    Attributes:
        request: what shall be served, and how.
        model_path: folder or file of the mounted model.
        device_count: devices this container was given; NVML must show exactly these.
        visible_devices: the container runtime's ``NVIDIA_VISIBLE_DEVICES``, None when not set.
        nvml_wait: seconds to go on asking a driver that is not up yet.
        inpod: set where the server's numbers come from this very run, not from its template.
        probe: who is asked for the devices' total: NVML, or Torch as well (``PLIMSOLL_PROBE``).
        sharing: how the devices are shared with other pods, as far as a container can tell; None: not.
        stamp: what the server was given (guard); empty for a sizing.
        refuses: whether the guard may keep the server from starting (``PLIMSOLL_GUARD=Refuse``).
        settle: seconds that a guard, or a sizing for the server beside it, gives memory that is still
            being released.
    """

    request: SizingRequest
    model_path: Path
    device_count: int
    visible_devices: str | None
    nvml_wait: float
    inpod: InPodTemplate | None
    probe: str
    sharing: str | None
    stamp: Stamp
    refuses: bool
    settle: float


def read_outputs(env: Mapping[str, str]) -> Outputs:
    """Read where to answer. Never fails: a bad deadline becomes the default, and Settings refuses it."""
    try:
        deadline = _seconds(env, "PLIMSOLL_DEADLINE", DEFAULT_DEADLINE)
    except MeasurementFailed:
        deadline = DEFAULT_DEADLINE
    return Outputs(
        pod_uid=env.get("PLIMSOLL_POD_UID", ""),
        request_hash=env.get("PLIMSOLL_REQUEST_HASH", ""),
        env_file=Path(env.get("PLIMSOLL_ENV_FILE") or DEFAULT_ENV_FILE),
        termination_log=Path(env.get("PLIMSOLL_TERMINATION_LOG") or DEFAULT_TERMINATION_LOG),
        deadline=deadline,
    )


def read_settings(env: Mapping[str, str], *, guard: bool) -> Settings:
    """Read and check the question.

    Args:
        env: the process environment.
        guard: whether to read what was stamped.

    Raises:
        MeasurementFailed: a variable is missing or has a value outside its range; ``field`` names it.
            The operator renders them all, so this is no fault of the user's spec: it means that the
            operator and this image differ in version, and is retried.
    """
    _required(env, "PLIMSOLL_POD_UID")
    if not _HASH.fullmatch(_required(env, "PLIMSOLL_REQUEST_HASH")):
        raise _bad("PLIMSOLL_REQUEST_HASH", env["PLIMSOLL_REQUEST_HASH"], "40 hex digits")
    _seconds(env, "PLIMSOLL_DEADLINE", DEFAULT_DEADLINE)
    return Settings(
        request=_request(env),
        model_path=Path(_required(env, "PLIMSOLL_MODEL_PATH")),
        device_count=_count(env, "PLIMSOLL_DEVICE_COUNT", _required(env, "PLIMSOLL_DEVICE_COUNT")),
        visible_devices=env.get("NVIDIA_VISIBLE_DEVICES"),
        nvml_wait=_seconds(env, "PLIMSOLL_NVML_WAIT", DEFAULT_NVML_WAIT),
        inpod=_inpod(env),
        probe=_probe(env),
        sharing=_sharing(env),
        stamp=_stamp(env) if guard else Stamp(),
        refuses=guard and _refuses(env),
        settle=_seconds(env, "PLIMSOLL_SETTLE", DEFAULT_SETTLE),
    )


def _inpod(env: Mapping[str, str]) -> InPodTemplate | None:
    lists = []
    for name, form in (("PLIMSOLL_ARGS", _FLAG), ("PLIMSOLL_ENVS", _NAME)):
        items = tuple(env.get(name, "").split())
        if not all(form.fullmatch(item) for item in items):
            raise _bad(name, env[name], "a list of names with spaces between")
        lists.append(items)
    return InPodTemplate(*lists) if any(lists) else None


def _probe(env: Mapping[str, str]) -> str:
    text = env.get("PLIMSOLL_PROBE") or PROBES[0]
    if text not in PROBES:
        raise _bad("PLIMSOLL_PROBE", text, " or ".join(PROBES))
    return text


def _sharing(env: Mapping[str, str]) -> str | None:
    # NVML shows a container no processes of others, so only what the runtime sets can tell.
    if text := env.get("PLIMSOLL_SHARING"):
        if not _WORD.fullmatch(text):
            raise _bad("PLIMSOLL_SHARING", text, "one word, such as time-slicing or mps")
        return text
    if env.get("CUDA_MPS_PIPE_DIRECTORY"):
        return "mps"
    return "time-slicing" if names_replicas(env.get("NVIDIA_VISIBLE_DEVICES")) else None


def _refuses(env: Mapping[str, str]) -> bool:
    text = env.get("PLIMSOLL_GUARD", "")
    if text not in {"", "Refuse", "Report"}:
        raise _bad("PLIMSOLL_GUARD", text, "Refuse or Report")
    return text == "Refuse"


def _stamp(env: Mapping[str, str]) -> Stamp:
    # A template without PLIMSOLL_GUARD is of an operator that always stamps tokens.
    if not env.get("PLIMSOLL_GUARD"):
        _required(env, "PLIMSOLL_STAMPED_TOKENS")
    tokens, size = (
        _count(env, name, "") if env.get(name) else None
        for name in ("PLIMSOLL_STAMPED_TOKENS", "PLIMSOLL_STAMPED_BYTES")
    )
    return Stamp(
        tokens=tokens,
        pool_bytes=size,
        device_class=env.get("PLIMSOLL_STAMPED_CLASS") or None,
        model_digest=env.get("PLIMSOLL_STAMPED_MODEL") or None,
    )


def _request(env: Mapping[str, str]) -> SizingRequest:
    try:
        return SizingRequest.from_json(_required(env, "PLIMSOLL_REQUEST"))
    except BadArgument as error:
        raise MeasurementFailed(
            f"PLIMSOLL_REQUEST: {error.message}; the operator and the sizer image must be one version",
            field="PLIMSOLL_REQUEST",
        ) from error


def _bad(name: str, value: str, want: str) -> MeasurementFailed:
    return MeasurementFailed(f"{name}={value!r} is not {want}", field=name, value=value)


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise MeasurementFailed(
            f"{name} is not set; the operator renders it into the sizer container", field=name
        )
    return value


def _count(env: Mapping[str, str], name: str, default: str) -> int:
    text = env.get(name, default)
    # int() would also take " 7 ", "1_000" and other alphabets' digits.
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise _bad(name, text, "a whole number above 0")
    return int(text)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MAX_SECONDS:  # NaN is refused too: it compares false
        raise _bad(name, text, f"seconds between 0 and {_MAX_SECONDS:.0f}")
    return value
