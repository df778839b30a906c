"""The kit's decisions that need no cluster: names, labels, generated configuration, locks, progress."""

import io
import json
import os
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster_kit import Cluster, KitError, Node, cgroups, distribution, fixtures, network
from tests.cluster_kit.__main__ import parser
from tests.cluster_kit.build import linker_flags, staging_go_mod
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.control_plane import audit_policy
from tests.cluster_kit.errors import BusyError
from tests.cluster_kit.lock import Users, lock_path, name_lock
from tests.cluster_kit.node import GIB, gpu_labels, gpu_uuid
from tests.cluster_kit.pause import write_docker_archive
from tests.cluster_kit.presets import PRESETS
from tests.cluster_kit.progress import Progress
from tests.cluster_kit.record import Record, ready_nodes
from tests.cluster_kit.worker import Place, cni_config, kubelet_config

UPSTREAM = """\
module k8s.io/kubernetes

go 1.26.0

require (
\tgithub.com/example/thing v1.0.0
\tk8s.io/api v0.0.0
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""


class _Item:
    """As much of a collected test as the hook looks at."""

    def __init__(self, path: str, *markers: str) -> None:
        self.path = Path("/repository/tests") / path
        self.nodeid = f"tests/{path}::test_a"
        self.markers = list(markers)
        self.added: list[str] = []

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.added.append(mark.kwargs["reason"])


def _collected(*items: _Item, **worker: object) -> list[_Item]:
    found = list(items)
    fixtures.pytest_collection_modifyitems(SimpleNamespace(**worker), found)  # type: ignore[arg-type]  # stand-ins
    return found


@pytest.mark.parametrize(
    ("platform", "user", "reason"),
    [("darwin", 0, "needs Linux"), ("linux", 1000, "needs root"), ("linux", 0, None)],
)
def test_cluster_tests_are_skipped_only_where_none_can_run(
    monkeypatch: pytest.MonkeyPatch, platform: str, user: int, reason: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    items = _collected(
        _Item("unit/test_a.py"),
        _Item("contract/test_a.py", "contract"),
        _Item("cluster/test_a.py", "cluster"),
    )
    plain, *marked = (item.added for item in items)
    assert plain == []
    for added in marked:
        assert [reason in text for text in added] == [True] if reason else added == []


@pytest.mark.parametrize(
    ("file", "scope"),
    [
        ("tests/unit/cluster/test_a.py", "tests/unit/cluster/test_a.py"),
        ("tests/chart/test_a.py", "tests/chart/test_a.py"),
        ("tests/cluster/test_a.py", "cluster"),
        ("tests/cluster/behaviour/test_a.py", "cluster"),
        ("tests/cluster/test_kit_lifecycle.py", "lifecycle"),
        ("tests/cluster/test_demo.py", "demo"),
        ("tests/contract/test_a.py", "contract"),
        ("tests/scale/test_a.py", "scale"),
    ],
)
def test_what_shares_a_cluster_is_one_scope(file: str, scope: str) -> None:
    """One worker of pytest-xdist runs it, one test after the other."""
    assert distribution.scope(f"{file}::test_a[tests/cluster/]") == scope


def test_workers_start_with_what_takes_longest() -> None:
    folders = ("unit", "contract", "scale", "cluster", "chart")
    items = [_Item(f"{folder}/test_a.py") for folder in folders]

    def order(**worker: object) -> list[str]:
        return [item.nodeid.split("/")[1] for item in _collected(*items, **worker)]

    assert order() == list(folders)
    assert order(workerinput={}) == ["cluster", "scale", "contract", "chart", "unit"]


def _hierarchy(root: Path, files: dict[str, str]) -> Path:
    root.mkdir()
    for name, text in files.items():
        (root / name).write_text(text)
    return root


def test_a_v1_group_gets_its_parents_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = _hierarchy(tmp_path / "pids", {})
    cpuset = _hierarchy(tmp_path / "cpuset", {"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"})
    # The kernel makes these files with the folder; here they are made before.
    for folder in (cpuset / "plimsoll.t", cpuset / "plimsoll.t" / "n"):
        _hierarchy(folder, {"cpuset.cpus": "", "cpuset.mems": ""})
    unified = _hierarchy(tmp_path / "unified", {})
    found = [(cpuset, False), (pids, False), (unified, True)]
    monkeypatch.setattr(cgroups, "hierarchies", lambda: found)

    members = cgroups.create("t", ("n",))

    assert members == pids / "plimsoll.t" / "system" / "cgroup.procs"
    assert (cpuset / "plimsoll.t" / "n" / "cpuset.cpus").read_text() == "0-1\n"
    assert (unified / "plimsoll.t" / "n").is_dir()
    assert len(cgroups.groups("t")) == 7


def test_a_v2_group_is_given_every_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _hierarchy(tmp_path / "cgroup", {"cgroup.controllers": "cpu memory pids\n"})
    top = _hierarchy(root / "plimsoll.t", {"cgroup.controllers": "cpu memory pids\n"})
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [(root, True)])

    members = cgroups.create("t", ("n",))

    assert members == top / "system" / "cgroup.procs"
    for parent in (root, top):
        assert (parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    return tmp_path


def test_go_mod_replaces_each_staging_module_by_its_release() -> None:
    assert staging_go_mod(UPSTREAM, "v1.37.2") == (
        "module plimsoll.dev/testcluster\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.37.2\n\n"
        "replace (\n\tk8s.io/api => k8s.io/api v0.37.2\n"
        "\tk8s.io/kubelet => k8s.io/kubelet v0.37.2\n)\n"
    )


def test_go_mod_of_an_unknown_layout_is_refused() -> None:
    with pytest.raises(KitError, match="another layout"):
        staging_go_mod("module k8s.io/kubernetes\n\ngo 1.26.0\n", "v1.37.2")


def test_the_build_is_stamped_with_its_version() -> None:
    flags = linker_flags("v1.37.2")
    assert "version.gitVersion=v1.37.2 " in flags
    assert "version.gitMajor=1 " in flags
    assert flags.endswith("version.gitMinor=37")


def test_a_node_with_slices(tmp_path: Path) -> None:
    node = Node("n", gpus=3, product="NVIDIA-H100-80GB-HBM3", memory=10, mig="1g.10gb")
    labels = gpu_labels(node)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.memory"]) == ("3", "10240")
    place = Place("t", tmp_path, 0, node)
    (parent,) = place.parents
    assert {(each.name, each.parent) for each in place.gpus} == {
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", parent.uuid)
    }
    assert len({each.uuid for each in place.gpus}) == 3
    assert all(each.uuid.startswith("MIG-") for each in place.gpus)
    assert (parent.name, parent.total) == ("NVIDIA H100 80GB HBM3", 30 << 30)
    assert Place("t", tmp_path, 0, Node("n")).parents == ()


def test_labels_of_a_default_node_are_those_of_an_h100() -> None:
    labels = gpu_labels(Node("n"))
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["nvidia.com/gpu.memory"] == "81559"
    assert labels["nvidia.com/gpu.count"] == "2"
    assert labels["nvidia.com/gpu.replicas"] == "1"
    assert labels["nvidia.com/gpu.family"] == "hopper"


def test_own_labels_win_and_a_node_without_gpus_has_only_those() -> None:
    assert (
        gpu_labels(Node("n", labels={"nvidia.com/gpu.family": "x"}))["nvidia.com/gpu.family"] == "x"
    )
    assert gpu_labels(Node("n", gpus=0, labels={"a": "b"})) == {"a": "b"}


def test_label_values_are_valid() -> None:
    for nodes in PRESETS.values():
        for node in nodes:
            for value in gpu_labels(node).values():
                assert len(value) <= 63
                assert value.replace("-", "").replace(".", "").replace("_", "").isalnum()


def test_memory_is_in_bytes_and_reserved_follows_it() -> None:
    small = Node("n", memory=0.9)
    assert small.total_bytes == int(0.9 * GIB)
    assert small.reserved_bytes == int(0.9 * 0.0058 * GIB)
    assert Node("n", reserved=0.25).reserved_bytes == GIB // 4


def test_uuids_are_stable_and_all_different() -> None:
    found = [gpu_uuid(c, n, i) for c in ("a", "b") for n in ("x", "y") for i in (0, 1)]
    assert len(set(found)) == 8
    assert found[0] == gpu_uuid("a", "x", 0)
    assert all(len(uuid) == 40 and uuid.startswith("GPU-") for uuid in found)


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a-", "a" * 31, "../x", "a b"])
def test_names_that_could_be_confused_are_refused(name: str) -> None:
    with pytest.raises(KitError, match="at most 30"):
        Node(name)
    with pytest.raises(KitError, match="at most 30"):
        Cluster(name)


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(KitError, match="repeated names"):
        Cluster("a", (Node("x"), Node("x")))


def test_a_name_that_begins_like_another_owns_none_of_its_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "NAMESPACES", tmp_path)
    for cluster, node in (("a", "b-c"), ("a-b", "c"), ("ab", "c")):
        network.control_namespace(cluster).touch()
        network.node_namespace(cluster, node).touch()
    assert [p.name for p in network.namespaces("a")] == ["plimsoll.a", "plimsoll.a.b-c"]
    assert [p.name for p in network.namespaces("a-b")] == ["plimsoll.a-b", "plimsoll.a-b.c"]
    assert network.namespaces("b") == []


def test_nodes_have_addresses_and_ranges_of_their_own(tmp_path: Path) -> None:
    places = [Place("t", tmp_path, i, Node(f"n{i}")) for i in range(3)]
    configs = [cni_config(place) for place in places]
    ranges = {c["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for c in configs}
    assert ranges == {"10.96.10.0/24", "10.96.11.0/24", "10.96.12.0/24"}
    roots = {kubelet_config(place)["cgroupRoot"] for place in places}
    assert roots == {"/plimsoll.t/n0", "/plimsoll.t/n1", "/plimsoll.t/n2"}


def test_the_audit_policy_keeps_bodies_out_and_secrets_in() -> None:
    policy = json.loads(audit_policy())
    assert {rule["level"] for rule in policy["rules"]} == {"None", "Metadata"}
    assert policy["rules"][-1] == {"level": "Metadata"}
    assert "secrets" not in json.dumps(policy)


def _node(name: str, ready: str, gpus: str | None) -> dict[str, Any]:
    allocatable = {} if gpus is None else {"nvidia.com/gpu": gpus}
    conditions = [{"type": "Ready", "status": ready}]
    return {
        "metadata": {"name": name},
        "status": {"conditions": conditions, "allocatable": allocatable},
    }


def test_a_node_counts_as_ready_once_it_offers_all_its_gpus() -> None:
    nodes = (Node("a", gpus=1), Node("b", gpus=2), Node("c", gpus=0), Node("d", gpus=1))
    listed = {
        "items": [
            _node("a", "True", "1"),
            _node("b", "True", "1"),
            _node("c", "True", None),
            _node("d", "Unknown", "1"),
            _node("stranger", "True", None),
        ]
    }
    assert ready_nodes(listed, nodes) == {"a", "c"}


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    nodes = (Node("a", memory=0.9, labels={"x": "y"}), Node("b", gpus=0))
    record = Record(nodes, {"etcd": (1, "12"), "node a": (2, None)})
    record.write(tmp_path / "r.json")
    assert Record.read(tmp_path / "r.json") == record
    assert record.keepers() == {"a": 2}
    assert Record.read(tmp_path / "other.json") is None


def test_a_record_tells_a_reused_pid_from_its_process() -> None:
    running = Record.now((), {"me": os.getpid()})
    assert running.ended() == []
    assert Record((), {"me": (os.getpid(), "1")}).ended() == ["me"]


def test_the_name_lock_names_its_holder_and_vanishes(cache: Path) -> None:
    with name_lock("a", "up"):
        assert lock_path("a").is_relative_to(cache)
        with name_lock("b", "up"):
            pass
        with (
            pytest.raises(BusyError, match=rf"`up` is running as pid {os.getpid()}"),
            name_lock("a", "down"),
        ):
            pass
        assert lock_path("a").exists()
    assert not lock_path("a").exists()


def test_the_last_of_two_sessions_takes_a_cluster_down(cache: Path) -> None:
    assert cache.exists()
    first, second = Users("a"), Users("a")
    with first.leave() as last:
        assert not last
    with second.leave() as last:
        assert last


def test_the_cache_follows_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "x"))
    assert cache_root() == tmp_path / "x"
    monkeypatch.delenv("PLIMSOLL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "plimsoll"


def test_progress_lines_carry_the_elapsed_time() -> None:
    out = io.StringIO()
    times = iter([10.0, 13.25])
    Progress(out, lambda: next(times))("building")
    assert out.getvalue() == "[   3.2 s] building\n"


def test_a_docker_archive_names_its_image_and_layer(tmp_path: Path) -> None:
    path = tmp_path / "i.tar"
    write_docker_archive(path, "localhost/x:1", {"run": b"#!"}, ["/run"])
    with tarfile.open(path) as tar:
        [entry] = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]  # a file, never a folder
        config = json.load(tar.extractfile(entry["Config"]))  # type: ignore[arg-type]
        layer = tar.extractfile(entry["Layers"][0])
        with tarfile.open(fileobj=layer) as files:
            assert [(m.name, m.mode) for m in files] == [("run", 0o755)]
    assert entry["RepoTags"] == ["localhost/x:1"]
    assert config["config"]["Entrypoint"] == ["/run"]


def test_the_command_line_defaults_to_the_demo() -> None:
    given = parser().parse_args(["up"])
    assert (given.name, given.nodes) == ("demo", "demo")
    assert [node.name for node in PRESETS["demo"]] == ["node-a", "node-b"]
    given = parser().parse_args(["shell", "--name", "x", "kubectl", "get", "-o", "json", "pods"])
    assert given.words == ["kubectl", "get", "-o", "json", "pods"]
