"""Starts the nodes of a cluster and reaches into them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cgroups, network
from .cache import cache_root
from .debian import Runtime
from .errors import KitError
from .node import Node, gpu_labels, gpu_uuid, slice_uuid
from .nvml import FakeGpu, write_state
from .pause import REFERENCE
from .process import start_daemon
from .tools import Tools

_REPOSITORY = Path(__file__).parents[2]
# Inside the node, whose /run is its own: socket paths have a limit of 107 bytes that a long cache path would exceed.
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


@dataclass(frozen=True, slots=True)
class Place:
    """One node of one cluster, with its index, which gives it its addresses."""

    cluster: str
    cluster_state: Path
    index: int
    node: Node

    @property
    def state(self) -> Path:
        """The node's folder."""
        return self.cluster_state / "nodes" / self.node.name

    @property
    def nvml_state(self) -> Path:
        """The file from which the fake NVML takes its numbers."""
        return self.state / "nvml" / "devices.conf"

    @property
    def gpus(self) -> tuple[FakeGpu, ...]:
        """The devices that the node offers, as they are at the start."""
        node = self.node
        parent = gpu_uuid(self.cluster, node.name, 0) if node.mig else ""
        name_of = slice_uuid if node.mig else gpu_uuid
        return tuple(
            FakeGpu(
                uuid=name_of(self.cluster, node.name, index),
                name=node.device_name,
                total=node.total_bytes,
                reserved=node.reserved_bytes,
                used=0,
                parent=parent,
            )
            for index in range(node.gpus)
        )

    @property
    def parents(self) -> tuple[FakeGpu, ...]:
        """The GPU that the offered slices are cut from, if they are; it is offered to nobody."""
        if not self.node.mig or not self.gpus:
            return ()
        return (
            FakeGpu(
                uuid=gpu_uuid(self.cluster, self.node.name, 0),
                name=self.node.product.replace("-", " "),
                total=sum(gpu.total for gpu in self.gpus),
                reserved=sum(gpu.reserved for gpu in self.gpus),
            ),
        )


def prepare(place: Place, tools: Tools, go: Path) -> None:
    """Write every file that the node's daemons read.

    Args:
        place: the node.
        tools: what it runs.
        go: a file that appears when the API server is ready; the kubelet starts then, not to waste its first tries.
    """
    for folder in ("kubelet", "containerd", "log", "nvml", "cni", "pods"):
        (place.state / folder).mkdir(parents=True)
    write_state(place.nvml_state, [*place.gpus, *place.parents])
    (place.state / "containerd.toml").write_text(containerd_config(place, tools))
    (place.state / "cni" / "10-bridge.conflist").write_text(json.dumps(cni_config(place)))
    (place.state / "kubelet.json").write_text(json.dumps(kubelet_config(place)))
    # Pods have no name service here; a file of our own keeps the host's resolver out of them.
    (place.state / "resolv.conf").write_text("nameserver 10.97.0.10\n")
    config = {
        "state": str(place.state),
        "go": str(go),
        "keep": [str(cache_root()), str(_REPOSITORY), sys.prefix, sys.base_prefix],
        "env": {**tools.runtime.environment(), "HOME": "/root"},
        "containerd_socket": CONTAINERD_SOCKET,
        "import_pause": ["ctr", "-n", "k8s.io", "images", "import", str(tools.pause)],
        "commands": commands(place, tools),
    }
    (place.state / "init.json").write_text(json.dumps(config, indent=1))


def commands(place: Place, tools: Tools) -> dict[str, list[str]]:
    """Return the node's daemons by name, with their arguments."""
    labels = ",".join(f"{key}={value}" for key, value in gpu_labels(place.node).items())
    binary, state = str(tools.kubernetes), place.state
    found = {
        "containerd": ["containerd", "-c", f"{state}/containerd.toml"],
        "kubelet": [
            *(binary, "kubelet", f"--config={state}/kubelet.json"),
            f"--kubeconfig={place.cluster_state}/node.{place.node.name}.kubeconfig",
            f"--hostname-override={place.node.name}",
            f"--node-ip={network.node_address(place.index)}",
            f"--node-labels={labels}",
        ],
        "kube-proxy": [
            *(binary, "kube-proxy", f"--kubeconfig={place.cluster_state}/proxy.kubeconfig"),
            f"--hostname-override={place.node.name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={network.POD_CIDR}",
            "--conntrack-max-per-core=0",  # a limit of the whole machine: not ours to change
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ],
    }
    if place.node.gpus:
        found["device-plugin"] = [
            *(sys.executable, str(Path(__file__).with_name("device_plugin.py"))),
            *("--messages", str(tools.messages), "--library", str(tools.nvml)),
            *("--state", str(place.nvml_state.parent)),
            *(gpu.uuid for gpu in place.gpus),
        ]
    return found


def containerd_config(place: Place, tools: Tools) -> str:
    """Return containerd 1.6's configuration."""
    return f"""\
version = 2
root = "{place.state}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.restart",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{place.state}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{REFERENCE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{tools.runtime.cni}"
    conf_dir = "{place.state}/cni"
"""


def cni_config(place: Place) -> dict[str, Any]:
    """Return the network of the node's pods: a bridge in the node, routed to the other nodes."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": network.pod_cidr(place.index)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": ipam,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "plimsoll", "plugins": [bridge, ports]}


def kubelet_config(place: Place) -> dict[str, Any]:
    """Return the kubelet's configuration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{place.cluster_state}/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        # A root of its own: kubelets that share one remove each other's pods.
        "cgroupRoot": f"/{cgroups.group_name(place.cluster)}/{place.node.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "clusterDomain": "cluster.local",
        "clusterDNS": ["10.97.0.10"],
        "resolvConf": f"{place.state}/resolv.conf",
        "podLogsDir": f"{place.state}/pods",
        "volumePluginDir": f"{place.state}/kubelet/volume-plugins",
        # GPUs show up in the node's status at its next update: the default of 10 s would be most of a start.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "5m0s",
    }


def start(place: Place, members: Path) -> int:
    """Start the node's first process in its namespaces and return the pid (on the host) of its keeper.

    The keeper is ``unshare``: SIGKILL to it ends the pid namespace, and so everything in the node.
    """
    command = network.inside(
        network.node_namespace(place.cluster, place.node.name),
        *("unshare", "--mount", "--propagation=slave", "--pid", "--mount-proc"),
        *("--fork", "--kill-child"),
        *(sys.executable, "-m", f"{__package__}.node_init", place.state / "init.json"),
    )
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(_REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PLIMSOLL_CACHE": str(cache_root()),
        "LANG": "C.UTF-8",
    }
    log = place.state / "log" / "init.log"
    return start_daemon(command, log, members=members, env=environment)


def inside_node(keeper: int, *argv: str | Path) -> list[str]:
    """Return the command that runs ``argv`` in all of a node's namespaces. Raises KitError when it is not running."""
    try:
        init = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    except (OSError, IndexError):
        raise KitError(f"the node kept by process {keeper} is not running") from None
    return ["nsenter", f"--target={init}", "--mount", "--net", "--pid", "--", *map(str, argv)]


def ctr(keeper: int, runtime: Runtime, *arguments: str | Path) -> str:
    """Run containerd's client in a node and return its output. Raises KitError."""
    command = inside_node(keeper, "ctr", "-n", "k8s.io", *arguments)
    done = subprocess.run(
        command, env=dict(runtime.environment()), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise KitError(f"ctr {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout
