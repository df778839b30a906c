"""What stands for Kubernetes around a FakeCluster: scheduler, kubelet, Deployment controller.

Each `turn` does one thing, so that a test can put the operator between any two of them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.controller.objects.labels import SERVER_LABEL, SIZING_LABEL
from tests.unit.controller.builders import REPORT, crashed, ended, node, server_pod, unschedulable

if TYPE_CHECKING:
    from plimsoll.core.report import Failure, Report
    from tests.unit.controller.fake_cluster import FakeCluster

Outcome = tuple["Report | Failure | str", int]


@dataclass
class Kubernetes:
    """Moves the pods of one namespace.

    Attributes:
        cluster: where everything lives.
        gpus: how many pods may hold a GPU at once.
        outcomes: how the next sizers end; then they succeed.
        ooms: how many engines, of those that start next, run out of device memory.
    """

    cluster: FakeCluster
    gpus: int = 4
    outcomes: list[Outcome] = field(default_factory=list)
    ooms: int = 0
    born: int = 0

    def __post_init__(self) -> None:
        self.cluster.put(node())

    def turn(self) -> bool:
        """Do one thing; False when there is nothing to do."""
        return self._finish_deletion() or self._deploy() or self._run()

    def settle(self) -> None:
        """Until there is nothing to do."""
        while self.turn():
            pass

    def _pods(self, label: str | None = None) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.cluster.of_kind("Pod")
            if label is None or label in pod["metadata"]["labels"]
        ]

    def _finish_deletion(self) -> bool:
        for pod in self._pods():
            if "deletionTimestamp" in pod["metadata"]:
                self._remove(pod)
                return True
        return False

    def _deploy(self) -> bool:
        for live in self.cluster.of_kind("Deployment"):
            if self._roll(live):
                return True
        known = {d["metadata"]["name"] for d in self.cluster.of_kind("Deployment")}
        for pod in self._pods(SERVER_LABEL):
            if pod["metadata"]["labels"][SERVER_LABEL] not in known:
                self._remove(pod)
                return True
        return False

    def _roll(self, live: dict[str, Any]) -> bool:
        name = live["metadata"]["name"]
        template = live["spec"]["template"]
        owned = [
            p for p in self._pods(SERVER_LABEL) if p["metadata"]["labels"][SERVER_LABEL] == name
        ]
        current = [p for p in owned if _made_from(p) == template["metadata"].get("annotations")]
        wanted = live["spec"]["replicas"]
        for pod in [*(p for p in owned if p not in current), *current[wanted:]]:
            self._remove(pod)
            return True
        if len(current) < wanted:
            self.born += 1
            pod = server_pod(live, self.born)
            del pod["spec"]["nodeName"]
            pod["status"] = {"phase": "Pending"}
            self.cluster.put(pod)
            return True
        ready = sum(p["status"]["phase"] == "Running" for p in current)
        status = {
            "observedGeneration": live["metadata"]["generation"],
            "replicas": len(current),
            "updatedReplicas": len(current),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        if live.get("status") == status:
            return False
        self.cluster.put({**copy.deepcopy(live), "status": status})
        return True

    def _run(self) -> bool:
        for pod in self._pods():
            if (pod.get("status") or {}).get("phase", "Pending") == "Pending" and self._start(pod):
                return True
        return False

    def _start(self, pod: dict[str, Any]) -> bool:
        if sum(p.get("status", {}).get("phase") == "Running" for p in self._pods()) >= self.gpus:
            waits = unschedulable(pod, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
            if waits == pod:
                return False
            self.cluster.put(waits)
        elif SIZING_LABEL in pod["metadata"]["labels"]:
            outcome, code = self.outcomes.pop(0) if self.outcomes else (REPORT, 0)
            self.cluster.put(ended(pod, outcome, code))
        else:
            live = {
                "metadata": {"name": pod["metadata"]["labels"][SERVER_LABEL]},
                "spec": {"template": {"metadata": pod["metadata"], "spec": pod["spec"]}},
            }
            ready = server_pod(live)
            ready["metadata"] = pod["metadata"]
            if self.ooms > 0:
                self.ooms -= 1
                ready = crashed(ready, 1, "Error", "torch.OutOfMemoryError: CUDA out of memory.")
            self.cluster.put(ready)
        return True

    def _remove(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        self.cluster.remove("Pod", metadata["namespace"], metadata["name"])


def _made_from(pod: dict[str, Any]) -> Any:  # annotations as they are
    return pod["metadata"].get("annotations")
