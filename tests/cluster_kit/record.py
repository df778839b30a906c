"""What runs under a cluster's name, written down when its start is complete."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from .node import Node
from .process import start_time


@dataclass(frozen=True, slots=True)
class Record:
    """A cluster that was started.

    Attributes:
        nodes: as they were declared.
        pids: name of each process -> (pid, start time): the control plane's four, and a keeper named ``node NAME``
            for each node.
    """

    nodes: tuple[Node, ...]
    pids: dict[str, tuple[int, str | None]]

    @classmethod
    def now(cls, nodes: Sequence[Node], pids: dict[str, int]) -> Self:
        """Return the record of processes that have just been started."""
        return cls(tuple(nodes), {name: (pid, start_time(pid)) for name, pid in pids.items()})

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return what is written at ``path``, or None."""
        if not path.exists():
            return None
        found = json.loads(path.read_text())
        pids = {name: (pid, began) for name, (pid, began) in found["pids"].items()}
        return cls(tuple(Node(**node) for node in found["nodes"]), pids)

    def write(self, path: Path) -> None:
        """Write it down."""
        nodes = [{**asdict(node), "labels": dict(node.labels)} for node in self.nodes]
        path.write_text(json.dumps({"nodes": nodes, "pids": self.pids}, indent=1))

    def ended(self) -> list[str]:
        """Return the names of the processes that no longer run."""
        return [name for name, (pid, began) in self.pids.items() if start_time(pid) != began]

    def keepers(self) -> dict[str, int]:
        """Return the keeper process of each node, by the node's name."""
        prefix = "node "
        return {
            name.removeprefix(prefix): pid
            for name, (pid, _) in self.pids.items()
            if name.startswith(prefix)
        }


def ready_nodes(listed: dict[str, Any], nodes: Sequence[Node]) -> set[str]:
    """Return the names of the nodes that are Ready and offer all of their GPUs.

    Args:
        listed: the API server's list of nodes.
        nodes: what was declared.
    """
    gpus = {node.name: node.gpus for node in nodes}
    found = set()
    for item in listed["items"]:
        name, status = item["metadata"]["name"], item["status"]
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        offered = int(status.get("allocatable", {}).get("nvidia.com/gpu", "0"))
        if conditions.get("Ready") == "True" and offered == gpus.get(name):
            found.add(name)
    return found
