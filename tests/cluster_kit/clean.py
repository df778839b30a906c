"""Finds and removes everything of a cluster, by the kernel's own tables: nothing needs to be written down."""

import re
import shutil
from pathlib import Path

from . import cgroups, network
from .cache import clusters_folder
from .errors import KitError
from .linux import mount_points, unmount
from .process import command_line, kill_and_wait


def state_folder(cluster: str) -> Path:
    """Return the folder with everything a cluster writes."""
    return clusters_folder() / cluster


def leftovers(cluster: str) -> list[str]:
    """Return one line for each process, mount, network namespace, cgroup or folder of a cluster. Empty: it is gone."""
    pids = cgroups.members(cluster) | _pids_in_namespaces(cluster)
    found = [f"process {pid}: {command_line(pid)}" for pid in sorted(pids)]
    found += [f"mount {point}" for point in _mounts(cluster)]
    found += [f"network namespace {path}" for path in network.namespaces(cluster)]
    found += [f"cgroup {path}" for path in cgroups.groups(cluster)]
    state = state_folder(cluster)
    return found + ([f"folder {state}"] if state.exists() else [])


def refuse_foreign(cluster: str) -> None:
    """Refuse a name that a cluster of another cache folder uses: namespaces and cgroups are the whole machine's.

    Raises:
        KitError: such a cluster runs.
    """
    ours = str(state_folder(cluster))
    for pid in cgroups.members(cluster):
        found = re.search(r"--data-dir=(\S+)/etcd\b", command_line(pid))
        if found and found[1] != ours:
            raise KitError(
                f"a cluster {cluster} runs from another cache folder ({found[1]}): use another --name, or stop "
                f"that one with PLIMSOLL_CACHE={Path(found[1]).parents[1]}"
            )


def clean(cluster: str) -> None:
    """End and remove everything of a cluster.

    Processes go by SIGKILL all at once: nothing of theirs is kept, and an API server that outlives its etcd to
    stop gracefully would hold its port for half a minute.

    Raises:
        KitError: something resisted; with its name.
    """
    cgroups.destroy(cluster)
    # A daemon that never reached its cgroup (killed launcher) still stands in the cluster's network.
    stuck = kill_and_wait(_pids_in_namespaces(cluster), 10.0)
    if stuck:
        raise KitError(
            f"processes {stuck} of cluster {cluster} do not die; look at /proc/PID/stack"
        )
    state = state_folder(cluster)
    for point in reversed(_mounts(cluster)):
        if point.startswith(str(state)):
            unmount(point)
    network.remove(cluster)
    if state.exists():
        _remove_tree(state)


def _remove_tree(state: Path) -> None:
    """Remove the state folder. First renamed, so that nobody takes a half-removed one for a cluster."""
    doomed = state.with_name(f".{state.name}.removed")
    if doomed.exists():
        shutil.rmtree(doomed)
    state.replace(doomed)
    shutil.rmtree(doomed)


def _mounts(cluster: str) -> list[str]:
    """Return this mount namespace's mount points below the cluster's state and of its network namespaces."""
    below = f"{state_folder(cluster)}/"
    names = {str(path) for path in network.namespaces(cluster)}
    return [p for p, _ in mount_points() if p.startswith(below) or p in names]


def _pids_in_namespaces(cluster: str) -> set[int]:
    """Return the processes whose network namespace is one of the cluster's, except this one (tests enter it)."""
    wanted = {path.stat().st_ino for path in network.namespaces(cluster)}
    if not wanted:
        return set()
    return {
        pid
        for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal())
        if _network_inode(pid) in wanted and _is_ours(pid)
    }


def _network_inode(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def _is_ours(pid: int) -> bool:
    """Return whether the kit started the process: tests and shells may stand in the network too and must live."""
    return str(clusters_folder()) in command_line(pid)
