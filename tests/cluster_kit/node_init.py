"""The first process of a node's pid namespace: makes the node's mounts, starts its daemons, restarts those that end.

``python -m tests.cluster_kit.node_init CONFIG`` is started by :mod:`tests.cluster_kit.worker` in fresh mount and pid
namespaces, inside the node's network namespace. When it dies, the kernel ends everything in the node.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import linux

# Folders in which kubelet, containerd and CNI write at fixed paths: each node sees its own, and the host's stay clean.
PRIVATE = ("/run", "/var/lib", "/var/log")
RESTART_SECONDS = 1.0


def main() -> None:
    """Run the node until it is killed."""
    config: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    # As PID 1 it is immune to signals without a handler; the launcher ends it by SIGKILL from outside.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    isolate(config["keep"], Path(config["state"]))
    daemons = Daemons(config)
    daemons.start("containerd")
    _wait_for(Path(config["containerd_socket"]))
    subprocess.run(
        config["import_pause"],
        check=True,
        env=config["env"],
        stdout=subprocess.DEVNULL,
    )
    _wait_for(Path(config["go"]))
    for name in config["commands"]:
        if name != "containerd":
            daemons.start(name)
    daemons.watch()


def isolate(keep: Sequence[str], state: Path) -> None:
    """Make this mount namespace the node's own.

    Host mounts still come and go here (slave), which lets the host unmount its disks; ours stay here. Shared below that
    again, since the kubelet needs it for volumes that propagate.

    Args:
        keep: folders that must stay visible although a private folder may hide them.
        state: the node's folder; its ``kubelet`` becomes /var/lib/kubelet, on disk.
    """
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_SLAVE)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_SHARED)
    # Also keeps this node from holding other clusters' network namespaces open.
    for point, _ in reversed(linux.mount_points()):
        if any(point.startswith(f"{folder}/") for folder in PRIVATE):
            linux.unmount(point)
    held = {path: os.open(path, os.O_PATH) for path in keep if Path(path).is_dir()}
    for folder in PRIVATE:
        linux.mount("tmpfs", Path(folder).resolve(), "tmpfs", data="mode=755")
    for path, handle in held.items():
        if not Path(path).exists():
            Path(path).mkdir(parents=True)
            linux.mount(f"/proc/self/fd/{handle}", path, flags=linux.MS_BIND | linux.MS_REC)
        os.close(handle)
    for folder in ("/run/netns", "/run/lock", "/var/lib/cni", "/var/lib/kubelet"):
        Path(folder).mkdir()
    linux.mount(str(state / "kubelet"), "/var/lib/kubelet", flags=linux.MS_BIND)


class Daemons:
    """The node's daemons by name, each started again when it ends."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._running: dict[int, str] = {}

    def start(self, name: str) -> None:
        """Start one daemon, its output appended to its log."""
        with (Path(self._config["state"]) / "log" / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                self._config["commands"][name],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._config["env"],
                start_new_session=True,
            )
        self._running[process.pid] = name
        process.returncode = 0  # its end is collected below, together with every orphan's

    def watch(self) -> None:
        """Collect every process that ends, orphaned container shims too, and start daemons again. Never returns."""
        while True:
            pid, status = os.wait()
            name = self._running.pop(pid, None)
            if name is None:
                continue
            print(f"{name} ended with wait status {status}; starting it again", flush=True)
            time.sleep(RESTART_SECONDS)
            self.start(name)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    main()
