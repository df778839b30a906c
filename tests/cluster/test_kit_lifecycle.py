"""Starting, healing, interrupting and stopping a cluster: nothing of it may stay. Each test has its own."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster_kit import BusyError, Cluster, KitError, Node, leftovers
from tests.cluster_kit.busybox import REFERENCE, busybox_image
from tests.cluster_kit.linux import mount_points
from tests.cluster_kit.lock import name_lock

pytestmark = pytest.mark.cluster
NAME = "t-life"
NODES = (Node("node-a", gpus=1, product="ACME-T600-0.6GB", memory=0.6),)
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def name() -> Iterator[str]:
    """A name that nothing uses before, and nothing after."""
    Cluster(NAME).down()
    assert leftovers(NAME) == []
    yield NAME
    Cluster(NAME).down()


@contextmanager
def cli(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster_kit", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def finish(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run the command line to its end and return (exit status, what it said)."""
    with cli(*arguments, **environment) as process:
        words, _ = process.communicate(timeout=60)
        return process.returncode, words


def wait_for_leftover(name: str, word: str) -> None:
    """Wait until the start has come so far that the kernel knows something with this word in its line."""
    end = time.monotonic() + 60
    while not any(word in line for line in leftovers(name)):
        assert time.monotonic() < end, f"no {word} in {leftovers(name)}"
        time.sleep(0.02)


def network_namespaces(name: str) -> set[int]:
    """Every network namespace that a process or a mount holds, as its inode; not those of other clusters."""
    found = set()
    for path in [*Path("/proc").glob("[0-9]*/ns/net"), *Path("/run/netns").glob("*")]:
        try:
            if not (path.name == "net" and in_another_cluster(path.parents[1], name)):
                found.add(path.stat().st_ino)
        except OSError:
            continue
    return found


def in_another_cluster(process: Path, name: str) -> bool:
    """Whether the process belongs to a cluster that another worker uses meanwhile. Raises OSError."""
    groups = re.findall(r"/plimsoll\.([^/\n]+)", (process / "cgroup").read_text())
    return bool(groups) and name not in groups


def test_down_removes_all_of_a_cluster_with_a_running_pod(name: str) -> None:
    spaces, mounts = network_namespaces(name), set(mount_points())
    cluster = Cluster(name, NODES)
    cluster.up()
    cluster.load_image(busybox_image(print))
    cluster.kubectl(
        "run", "p", f"--image={REFERENCE}", "--command", "--", "/busybox", "sleep", "999"
    )
    cluster.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=60s")
    kinds = {line.split()[0] for line in leftovers(name)}
    assert kinds == {"process", "mount", "network", "cgroup", "folder"}
    assert any("/busybox sleep 999" in line for line in leftovers(name))

    cluster.down()

    assert leftovers(name) == []
    # Others may start clusters meanwhile, which is why ours are looked for by what is new and has our name.
    assert not [p for p, _ in set(mount_points()) - mounts if name in p]
    assert not any("999" in line for line in command_lines())
    # Nor is there one that stays: others make some for a moment.
    end = time.monotonic() + 10
    while stayed := network_namespaces(name) - spaces - others(name):
        assert time.monotonic() < end, stayed
        time.sleep(0.2)


def others(name: str) -> set[int]:
    """Network namespaces that stand in other clusters."""
    return {p.stat().st_ino for p in Path("/run/netns").glob("*") if f".{name}" not in p.name}


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if line.startswith("/busybox sleep")]


def test_up_again_keeps_the_cluster_and_heals_a_broken_one(name: str) -> None:
    cluster = Cluster(name)
    cluster.up()
    first = cluster.record()
    cluster.up()
    assert first is not None
    assert cluster.record() == first
    assert finish("status", "--name", name)[0] == 0

    # The API server would still say that it is ready.
    os.kill(first.pids["kube-scheduler"][0], signal.SIGKILL)
    while "kube-scheduler" not in first.ended():
        time.sleep(0.05)
    assert not cluster.healthy()
    assert finish("status", "--name", name)[0] == 1
    cluster.up()
    second = cluster.record()
    assert second is not None
    assert cluster.healthy()
    assert second.pids["kube-scheduler"] != first.pids["kube-scheduler"]


def test_a_running_cluster_with_other_nodes_is_not_replaced(name: str) -> None:
    Cluster(name).up()
    with pytest.raises(KitError, match="runs with other nodes; stop it first"):
        Cluster(name, NODES).up()
    assert Cluster(name).healthy()


def test_a_killed_kubelet_comes_back_with_its_gpu(name: str) -> None:
    cluster = Cluster(name, NODES)
    cluster.up()
    kubelets = [line for line in leftovers(name) if "kubernetes kubelet" in line]
    assert len(kubelets) == 1
    pid = int(kubelets[0].split()[1].rstrip(":"))
    # A node that kept the host's mounts of network namespaces would keep those of stopped clusters alive.
    assert "/run/netns/plimsoll" not in Path(f"/proc/{pid}/mountinfo").read_text()
    os.kill(pid, signal.SIGKILL)
    plugin_log = cluster.state / "nodes" / "node-a" / "log" / "device-plugin.log"
    end = time.monotonic() + 60
    while plugin_log.read_text().count("registered") < 2:
        assert time.monotonic() < end, plugin_log.read_text()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("number", "stage", "status"),
    [
        (signal.SIGINT, "folder", 130),
        (signal.SIGINT, "kube-apiserver", 130),
        (signal.SIGINT, "kubernetes kubelet", 130),
        (signal.SIGTERM, "node_init", 143),
        (signal.SIGHUP, "containerd -c", 129),
    ],
)
def test_an_interrupted_start_leaves_nothing(
    name: str, number: signal.Signals, stage: str, status: int
) -> None:
    with cli("up", "--name", name) as process:
        wait_for_leftover(name, stage)
        process.send_signal(number)
        words, _ = process.communicate(timeout=30)
    assert process.returncode == status, words
    assert leftovers(name) == []


def test_what_a_killed_start_leaves_is_removed_by_down(name: str) -> None:
    with cli("up", "--name", name) as process:
        wait_for_leftover(name, "kubernetes kubelet")
        process.kill()
    assert leftovers(name)
    assert finish("down", "--name", name)[0] == 0
    assert leftovers(name) == []


def test_up_while_another_up_runs_names_its_pid_and_exits_2(name: str) -> None:
    with cli("up", "--name", name) as first:
        wait_for_leftover(name, "kube-apiserver")
        status, words = finish("up", "--name", name)
        assert status == 2
        assert f"`up` is running as pid {first.pid}" in words
        words, _ = first.communicate(timeout=60)
        assert first.returncode == 0, words
    assert Cluster(name).record() is not None


def test_two_clusters_run_at_once_with_the_same_addresses(name: str) -> None:
    one, two = Cluster(name), Cluster(f"{name}-2")
    try:
        one.up()
        two.up()
        one.kubectl("create", "namespace", "only-here")
        assert one.get("/api/v1/namespaces/only-here")[0] == 200
        assert two.get("/api/v1/namespaces/only-here")[0] == 404
        two.down()
        assert one.healthy()
    finally:
        two.down()
    assert leftovers(f"{name}-2") == []


def test_a_cluster_of_another_cache_folder_is_left_alone(name: str, tmp_path: Path) -> None:
    cluster = Cluster(name)
    cluster.up()
    status, words = finish("down", "--name", name, PLIMSOLL_CACHE=str(tmp_path))
    assert status == 2
    assert str(cluster.state) in words
    assert cluster.healthy()


def test_the_lock_refuses_and_frees_a_name(name: str) -> None:
    with name_lock(name, "up"):
        with pytest.raises(BusyError) as raised, name_lock(name, "down"):
            pass
        assert raised.value.pid == os.getpid()
    with name_lock(name, "down"):
        pass


def test_shell_runs_a_command_inside_with_kubectl(name: str) -> None:
    Cluster(name).up()
    words = ("kubectl", "get", "namespaces", "-o", "name")
    status, said = finish("shell", "--name", name, *words)
    assert status == 0, said
    assert "namespace/kube-system" in said
