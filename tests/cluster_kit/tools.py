"""What every cluster runs, built and downloaded into the cache once."""

from dataclasses import dataclass
from pathlib import Path

from .build import build_kubernetes
from .cache import Log, cache_root
from .debian import Runtime, prerequisites, unpack_runtime
from .messages import plugin_messages
from .nvml import build_library
from .pause import pause_image


@dataclass(frozen=True, slots=True)
class Tools:
    """What every node runs.

    Attributes:
        kubernetes: the binary with kubelet and kube-proxy.
        runtime: containerd and what belongs to it.
        pause: archive of the pause image.
        nvml: the fake ``libnvidia-ml.so.1``.
        messages: folder with the device plugin's generated messages.
    """

    kubernetes: Path
    runtime: Runtime
    pause: Path
    nvml: Path
    messages: Path


def prepare_tools(log: Log) -> Tools:
    """Return what the nodes run, building and downloading what the cache lacks. Raises KitError."""
    prerequisites()
    return Tools(
        kubernetes=build_kubernetes(log),
        runtime=unpack_runtime(log),
        pause=pause_image(),
        nvml=build_library(cache_root() / "nvml"),
        messages=plugin_messages(log),
    )
