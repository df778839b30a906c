"""Control groups of a cluster, on cgroup v1 or hybrid (proved) and v2 (untested, see docs/limits.md).

A cluster ``demo`` owns ``plimsoll.demo`` in every hierarchy. Its daemons are members of ``plimsoll.demo/system`` in one
hierarchy, its pods live below ``plimsoll.demo/<node>`` in all: every process of a cluster is found by its cgroup.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from .errors import KitError
from .linux import mount_points
from .process import kill_and_wait

PREFIX = "plimsoll."


def hierarchies() -> list[tuple[Path, bool]]:
    """Return each mounted hierarchy as (mount point, whether it is version 2)."""
    found = {
        point: kind == "cgroup2" for point, kind in mount_points() if kind in ("cgroup", "cgroup2")
    }
    return [(Path(point), v2) for point, v2 in found.items()]


def is_unified() -> bool:
    """Return whether this machine has cgroup v2 only."""
    return all(v2 for _, v2 in hierarchies())


def group_name(cluster: str) -> str:
    """Return the cluster's folder name below each hierarchy's root."""
    return PREFIX + cluster


def create(cluster: str, nodes: tuple[str, ...]) -> Path:
    """Make the cluster's groups and return the ``cgroup.procs`` that its daemons join.

    Raises:
        KitError: no hierarchy is mounted, or a controller cannot be enabled for the group (v2).
    """
    found = hierarchies()
    if not found:
        raise KitError("no cgroup hierarchy is mounted at /sys/fs/cgroup: mount one and try again")
    top = group_name(cluster)
    for root, v2 in found:
        for folder in (root / top, *(root / top / node for node in nodes)):
            folder.mkdir(exist_ok=True)
            _prepare(folder, v2=v2, unified=is_unified())
    procs = daemons(cluster)
    procs.parent.mkdir(exist_ok=True)
    return procs


def daemons(cluster: str) -> Path:
    """Return the ``cgroup.procs`` that the daemons of an existing cluster join."""
    return _home(hierarchies()) / group_name(cluster) / "system" / "cgroup.procs"


def _home(found: list[tuple[Path, bool]]) -> Path:
    """Choose the hierarchy whose membership marks a daemon as the cluster's: v1 pids where there is one."""
    by_name = {root.name: root for root, _ in found}
    return by_name.get("pids") or found[0][0]


def _prepare(folder: Path, *, v2: bool, unified: bool) -> None:
    """Make a new group usable for children with resources."""
    if not v2:
        # A v1 cpuset starts empty, and no process can join it: copy what the parent may use.
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (folder / name).exists():
                (folder / name).write_text((folder.parent / name).read_text())
        return
    if not unified:
        return  # beside v1 the v2 tree has no controllers
    wanted = (folder.parent / "cgroup.controllers").read_text().split()
    try:
        (folder.parent / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in wanted))
    except OSError as error:
        raise KitError(
            f"{folder.parent}/cgroup.subtree_control: {error.strerror}: the kubelet needs the controllers "
            f"{' '.join(wanted)} there; move the processes of that group into a child group and try again"
        ) from None


def groups(cluster: str) -> list[Path]:
    """Return every existing group of the cluster in every hierarchy, deepest first."""
    found: list[Path] = []
    for root, _ in hierarchies():
        top = root / group_name(cluster)
        if top.is_dir():
            found += [*sorted(_folders(top), key=lambda path: -len(path.parts)), top]
    return found


def _folders(top: Path) -> Iterator[Path]:
    for path in top.iterdir():
        if path.is_dir() and not path.is_symlink():
            yield path
            yield from _folders(path)


def members(cluster: str) -> set[int]:
    """Return the pids of every process in any group of the cluster, as this pid namespace numbers them."""
    pids: set[int] = set()
    for folder in groups(cluster):
        try:
            pids.update(int(word) for word in (folder / "cgroup.procs").read_text().split())
        except OSError:
            continue  # the kubelet removed it meanwhile
    return pids - {0}


def destroy(cluster: str, seconds: float = 20.0) -> None:
    """Kill every member, again until none is left, then remove the groups.

    Raises:
        KitError: a process or group is still there after ``seconds``.
    """
    end = time.monotonic() + seconds
    while pids := members(cluster):
        stuck = kill_and_wait(pids, 1.0)
        if stuck and time.monotonic() > end:
            raise KitError(
                f"processes {stuck} of cluster {cluster} do not die; look at /proc/PID/stack"
            )
    while left := groups(cluster):
        for folder in left:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if time.monotonic() > end:
                    raise KitError(f"cgroup {folder}: {error.strerror}") from None
                time.sleep(0.02)
