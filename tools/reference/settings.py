"""docs/reference/settings.md: every environment variable of the operator and of the sizer."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from plimsoll.controller.settings import Settings, SettingsError
from plimsoll.sizer import settings as sizer
from tools.reference import source
from tools.reference.text import code, page, table

if TYPE_CHECKING:
    from collections.abc import Mapping

INTRODUCTION: Final = """\
The operator has no configuration file and no flags: it reads its environment once, as it starts, and ends with code
2 and a sentence that names the variable where a value makes no sense. The chart sets these variables from its
values; see [Chart](chart.md)."""
SIZER: Final = """\
The operator renders these into the sizer container of sizing and server pods. They are an interface between the
two, not settings: `spec.engine.env` refuses every name that begins with `PLIMSOLL_`. They stand here because they
show in `kubectl describe pod`."""

# Variable -> what it does, and its default for people where the code's is not a plain text.
OPERATOR_TEXT: Final[Mapping[str, str]] = {
    "PLIMSOLL_SIZER_IMAGE": "Image of the sizer, in sizing pods and in templates that change anyway.",
    "PLIMSOLL_SIZER_PULL_POLICY": "When kubelets pull that image: `Always`, `IfNotPresent` or `Never`.",
    "PLIMSOLL_NAMESPACES": "Namespaces to watch, with commas between; empty: the whole cluster.",
    "PLIMSOLL_HEALTH_HOST": "Address on which `/livez`, `/readyz` and `/metrics` listen; empty: all.",
    "PLIMSOLL_HEALTH_PORT": "Their port; 0 lets the system choose.",
    "PLIMSOLL_LOG_LEVEL": "`DEBUG`, `INFO`, `WARNING` or `ERROR`.",
    "PLIMSOLL_LOG_FORMAT": "`json` or `text`.",
    "PLIMSOLL_RESYNC_SECONDS": "Seconds between two looks at everything, for what a watch may have missed; at least 1.",
    "PLIMSOLL_LEARN": "`off`: no reserve is learned from servers that ran out of memory, and none is used.",
    "POD_NAMESPACE": "Namespace of the operator's Lease. Set from the downward API.",
    "POD_NAME": "Identity in the Lease; the host's name when absent. Set from the downward API.",
    "KUBERNETES_SERVICE_HOST": "Set by the kubelet: where the API server is.",
    "KUBERNETES_SERVICE_PORT": "Set by the kubelet, as above.",
}
SIZER_TEXT: Final[Mapping[str, tuple[str, str]]] = {
    "PLIMSOLL_REQUEST": ("required", "The question: what is served, and how, as JSON."),
    "PLIMSOLL_REQUEST_HASH": ("required", "Name of the question, 40 hex digits."),
    "PLIMSOLL_POD_UID": ("required", "The pod's UID from the downward API; the answer must carry it."),
    "PLIMSOLL_MODEL_PATH": ("required", "Folder or file of the mounted model."),
    "PLIMSOLL_DEVICE_COUNT": ("required", "Devices of the container; NVML must show exactly these."),
    "PLIMSOLL_ENV_FILE": (sizer.DEFAULT_ENV_FILE, "File for the server's numbers (`PLIMSOLL_TOKENS` ...)."),
    "PLIMSOLL_TOKENS": ("", "Not read: the key in that file."),
    "PLIMSOLL_TERMINATION_LOG": (sizer.DEFAULT_TERMINATION_LOG, "File from which the kubelet takes the answer."),
    "PLIMSOLL_DEADLINE": (f"{sizer.DEFAULT_DEADLINE:g}", "Seconds after which the program gives up."),
    "PLIMSOLL_NVML_WAIT": (f"{sizer.DEFAULT_NVML_WAIT:g}", "Seconds to go on asking a driver that is not up yet."),
    "PLIMSOLL_SETTLE": (f"{sizer.DEFAULT_SETTLE:g}", "Seconds that a guard gives memory that is still being released."),
    "PLIMSOLL_PROBE": (sizer.PROBES[0], "`NVML`, or `Torch` to ask CUDA as well."),
    "PLIMSOLL_SHARING": ("", "How the devices are shared, in one word, where the container cannot see it."),
    "PLIMSOLL_ARGS": ("", "InPod: flags whose values the server takes from the file."),
    "PLIMSOLL_ENVS": ("", "InPod: variables whose values the server takes from the file."),
    "PLIMSOLL_GUARD": ("", "`Refuse`: no start where the stamped number does not fit; `Report` only says so."),
    "PLIMSOLL_STAMPED_TOKENS": ("", "Guard: the stamped tokens."),
    "PLIMSOLL_STAMPED_BYTES": ("", "Guard: the stamped bytes of the pool."),
    "PLIMSOLL_STAMPED_CLASS": ("", "Guard: the kind of device that was measured, as JSON."),
    "PLIMSOLL_STAMPED_MODEL": ("", "Guard: the digest of the model that was measured."),
    "NVIDIA_VISIBLE_DEVICES": ("", "Set by the device plugin; only read."),
    "CUDA_MPS_PIPE_DIRECTORY": ("", "Set by the device plugin where MPS shares the device; only read."),
}  # fmt: skip

_NAME: Final = re.compile(r"(PLIMSOLL|POD|KUBERNETES|NVIDIA|CUDA)_[A-Z][A-Z_]*[A-Z]")
# Where the operator reads its environment; elsewhere such names are rendered into pods.
_OPERATOR_MODULES: Final = ("settings", "handlers", "__main__")


def operator_variables() -> frozenset[str]:
    """The variables that the operator's sources name where they read the environment."""
    return frozenset().union(
        *(_named(f"plimsoll.controller.{module}") for module in _OPERATOR_MODULES)
    )


def sizer_variables() -> frozenset[str]:
    """The variables that the sizer's sources name."""
    every = [name for name in source.modules() if name.startswith("plimsoll.sizer")]
    return frozenset().union(*(_named(name) for name in every))


def _named(module: str) -> frozenset[str]:
    found = source.modules()[module].tree
    texts = (n.value for n in ast.walk(found) if isinstance(n, ast.Constant))
    return frozenset(t for t in texts if isinstance(t, str) and _NAME.fullmatch(t))


def operator_default(variable: str) -> str:
    """What holds without the variable: asked of the code, by leaving it out."""
    try:
        Settings.from_env({})
    except SettingsError as error:
        if variable in str(error).split()[0]:
            return "required"
    settings = Settings.from_env({"PLIMSOLL_SIZER_IMAGE": "x"})
    fields = {
        "PLIMSOLL_SIZER_PULL_POLICY": settings.sizer_pull_policy,
        "PLIMSOLL_HEALTH_PORT": settings.health_port,
        "PLIMSOLL_LOG_LEVEL": {20: "INFO"}[settings.log_level],
        "PLIMSOLL_LOG_FORMAT": settings.log_format,
        "PLIMSOLL_RESYNC_SECONDS": f"{settings.resync_seconds:g}",
        "PLIMSOLL_LEARN": "on" if settings.learn else "off",
        "POD_NAMESPACE": settings.namespace,
    }
    return str(fields.get(variable, ""))


def render() -> str:
    """The page."""
    operator = [
        (code(name), _default(operator_default(name)), text) for name, text in OPERATOR_TEXT.items()
    ]
    sizer_rows = [
        (code(name), _default(default), text) for name, (default, text) in SIZER_TEXT.items()
    ]
    head = ("variable", "default", "what it does")
    return page(
        "Settings",
        INTRODUCTION,
        "## Operator",
        table(head, operator),
        "## Sizer",
        SIZER,
        table(head, sizer_rows),
    )


def _default(text: str) -> str:
    return "**required**" if text == "required" else code(text) if text else ""
