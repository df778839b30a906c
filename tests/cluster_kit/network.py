"""The addresses of a cluster and its network namespaces. Two clusters may use the same addresses: nothing is shared."""

from pathlib import Path

from .errors import KitError
from .linux import mount_points, unmount
from .process import run

NAMESPACES = Path("/run/netns")
PREFIX = "plimsoll."
BRIDGE = "nodes"
API_ADDRESS = "10.98.0.1"
API_PORT = 6443
# Outside the pods' range on purpose: kube-proxy then masquerades what nodes and the launcher send to a Service, so that
# the answer comes back the same way.
NODE_PREFIX = "10.98.0."
POD_CIDR = "10.96.0.0/16"
SERVICE_CIDR = "10.97.0.0/16"
API_SERVICE_ADDRESS = "10.97.0.1"
FIRST_NODE = 10
MAX_NODES = 200


def control_namespace(cluster: str) -> Path:
    """Return the path of the network namespace with the API server, which is also the one to run tests in."""
    return NAMESPACES / f"{PREFIX}{cluster}"


def node_namespace(cluster: str, node: str) -> Path:
    """Return the path of a node's network namespace. The dot cannot occur in either name, so none is ambiguous."""
    return NAMESPACES / f"{PREFIX}{cluster}.{node}"


def node_address(index: int) -> str:
    """Return the address of the node with this index, from 0."""
    return f"{NODE_PREFIX}{FIRST_NODE + index}"


def pod_cidr(index: int) -> str:
    """Return the range of the pods on the node with this index, from 0."""
    return f"10.96.{FIRST_NODE + index}.0/24"


def namespaces(cluster: str) -> list[Path]:
    """Return the existing network namespaces of a cluster."""
    if not NAMESPACES.is_dir():
        return []
    top = control_namespace(cluster).name
    return sorted(p for p in NAMESPACES.iterdir() if p.name == top or p.name.startswith(top + "."))


def inside(namespace: Path, *argv: str | Path) -> list[str]:
    """Return the command that runs ``argv`` in a network namespace.

    Not ``ip netns exec``: that mounts a new /sys, which hides the cgroups from a kubelet.
    """
    return ["nsenter", f"--net={namespace}", "--", *map(str, argv)]


def _make(namespace: Path) -> None:
    """Make an empty namespace where ``ip netns`` looks for it.

    Not with ``ip netns add``: that turns /run/netns into a mount of its own, which would stay behind.
    """
    namespace.parent.mkdir(exist_ok=True)
    namespace.touch()
    run("unshare", f"--net={namespace}", "true")


def make_control(cluster: str) -> None:
    """Make the control plane's namespace with the bridge that the nodes are plugged into."""
    namespace = control_namespace(cluster)
    _make(namespace)
    batch = (
        "link set lo up\n"
        f"link add {BRIDGE} type bridge\n"
        f"addr add {API_ADDRESS}/24 dev {BRIDGE}\n"
        f"link set {BRIDGE} up\n"
    )
    _batch(namespace, batch)


def make_node(cluster: str, node: str, index: int) -> None:
    """Make a node's namespace and connect it. The first node also routes Service addresses for the launcher."""
    control, own = control_namespace(cluster), node_namespace(cluster, node)
    _make(own)
    link = f"node{index}"
    routes = f"route add {pod_cidr(index)} via {node_address(index)}\n"
    if index == 0:
        routes += f"route add {SERVICE_CIDR} via {node_address(index)}\n"
    plug = (
        f"link add {link} type veth peer name eth0 netns {own.name}\n"
        f"link set {link} master {BRIDGE}\nlink set {link} up\n"
    )
    _batch(control, plug)
    _batch(
        own,
        "link set lo up\n"
        f"addr add {node_address(index)}/24 dev eth0\n"
        "link set eth0 up\n"
        f"route add default via {API_ADDRESS}\n",
    )
    _batch(control, routes)
    run(*inside(own, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))


def connect_nodes(cluster: str, nodes: tuple[str, ...]) -> None:
    """Teach every node the way to the others' pods."""
    for index, node in enumerate(nodes):
        routes = "".join(
            f"route add {pod_cidr(other)} via {node_address(other)}\n"
            for other in range(len(nodes))
            if other != index
        )
        if routes:
            _batch(node_namespace(cluster, node), routes)


def set_connected(cluster: str, index: int, *, connected: bool) -> None:
    """Plug the node with this index into the bridge, or unplug it. Its own addresses and routes stay."""
    _batch(control_namespace(cluster), f"link set node{index} {'up' if connected else 'down'}\n")


def _batch(namespace: Path, commands: str) -> None:
    script = f"ip -batch - <<'END'\n{commands}END\n"
    run(*inside(namespace, "sh", "-c", script))


def remove(cluster: str) -> None:
    """Remove the cluster's network namespaces; their links go with them.

    Raises:
        KitError: one cannot be removed.
    """
    mounted = [point for point, _ in mount_points()]
    for path in namespaces(cluster):
        try:
            for _ in range(mounted.count(str(path))):
                unmount(path)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise KitError(f"network namespace {path}: {error.strerror}") from None
