"""How long one server's life takes, part by part, on the local cluster: `make measure`.

Prints JSON: seconds from `kubectl apply` to each step of three servers one after the other (the first pays
for cold page caches), the sizer's own time and memory from its log line, the operator's memory at rest as the
kubelet reports it, and the sizes of the images.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.world import NODE_A, Tenant, World, make_models, wait
from tests.cluster_kit import Cluster
from tests.cluster_kit.cache import cache_root
from tests.cluster_kit.images import build_images, model_folder
from tests.cluster_kit.presets import DEMO_NODES
from tests.cluster_kit.rest import Rest
from tests.demo import install

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 3
AT_REST_SECONDS = 20


def main() -> int:
    """Boot a cluster named `bench`, measure, stop it."""
    cache = cache_root()
    archives = build_images(cache, log=_note)
    cluster = Cluster("bench", DEMO_NODES)
    with tempfile.TemporaryDirectory(prefix="plimsoll-models-") as folder:
        try:
            cluster.up()
            for archive in archives.values():
                cluster.load_image(archive)
            install.install(cluster)
            make_models(Path(folder), model_folder(cache))
            with cluster.enter_network():
                rest = Rest.from_kubectl(cluster.kubectl)
                world = World(cluster, rest, Path(folder))
                lives = [measure(world, number) for number in range(ROUNDS)]
                time.sleep(AT_REST_SECONDS)
                operator = operator_memory(rest)
        finally:
            cluster.down()
    images = {name: image_sizes(path) for name, path in archives.items()}
    print(json.dumps({"lives": lives, "operatorAtRest": operator, "images": images}, indent=1))
    return 0


def measure(world: World, number: int) -> dict[str, Any]:
    """One server from apply to Ready; returns seconds since apply for each step."""
    tenant = Tenant(world, f"bench-{number}")
    tenant.create()
    clock = _Clock(world.rest, tenant)
    clock.start()
    tenant.apply(node=NODE_A)
    tenant.wait_ready()
    wait(lambda: "ready" in clock.stamps, 10, "the watch sees Ready")
    pod = tenant.pods("plimsoll.dev/server=smollm2")[0]["metadata"]["name"]
    log = world.cluster.kubectl("-n", tenant.namespace, "logs", pod, "-c", "sizer").stdout
    line = json.loads(next(text for text in log.splitlines() if text.startswith("{")))
    result = {"seconds": clock.stamps, "sizerLog": _timings(line)}
    tenant.delete()
    return result


def _timings(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: line[key] for key in ("phasesMs", "peakRssBytes")}


class _Clock:
    """Stamps each step when a watch shows it, in seconds since `start`."""

    def __init__(self, rest: Rest, tenant: Tenant) -> None:
        self._rest = rest
        self._tenant = tenant
        self._began = 0.0
        self.stamps: dict[str, float] = {}

    def start(self) -> None:
        """Open the watches, then start counting."""
        core = self._tenant.core
        deployments = core.replace("/api/v1", "/apis/apps/v1")
        for path, see in (
            (f"{core}/pods", self._pod),
            (f"{deployments}/deployments", self._deployment),
            (self._tenant.servers, self._server),
        ):
            threading.Thread(target=self._watch, args=(path, see), daemon=True).start()
        time.sleep(0.5)
        self._began = time.monotonic()

    def _watch(self, path: str, see: Callable[[dict[str, Any]], None]) -> None:
        for event in self._rest.watch(path, seconds=120):
            see(event["object"])

    def _stamp(self, step: str) -> None:
        self.stamps.setdefault(step, round(time.monotonic() - self._began, 3))

    def _pod(self, pod: dict[str, Any]) -> None:
        sizing = "plimsoll.dev/sizing-for" in pod["metadata"].get("labels", {})
        who = "sizingPod" if sizing else "serverPod"
        self._stamp(f"{who}Created")
        if pod["spec"].get("nodeName"):
            self._stamp(f"{who}Scheduled")
        for init in pod["status"].get("initContainerStatuses", []):
            if "terminated" in init.get("state", {}):
                self._stamp(f"{who}InitDone")
        if not sizing and any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in pod["status"].get("conditions", [])
        ):
            self._stamp("serverPodReady")

    def _deployment(self, _: dict[str, Any]) -> None:
        self._stamp("deploymentCreated")

    def _server(self, server: dict[str, Any]) -> None:
        status = server.get("status", {})
        if status.get("capacity", {}).get("maxTotalTokenNum"):
            self._stamp("numberInStatus")
        for condition in status.get("conditions", []):
            if (condition["type"], condition["status"]) == ("Ready", "True"):
                self._stamp("ready")


def operator_memory(rest: Rest) -> dict[str, int]:
    """The operator container's working set as its kubelet reports it, in bytes."""
    (pod,) = rest.items("/api/v1/namespaces/plimsoll-system/pods")
    text = rest.get(f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/metrics/resource")
    for line in str(text).splitlines():
        name, _, value = line.partition("} ")
        if (
            name.startswith("container_memory_working_set_bytes")
            and pod["metadata"]["name"] in name
        ):
            return {"workingSetBytes": int(float(value.split()[0]))}
    raise LookupError("the kubelet's resource metrics do not know the operator's container")


def image_sizes(archive: Path) -> dict[str, int]:
    """Bytes of the archive as it is, and as a registry would hold it (gzip)."""
    with tempfile.TemporaryFile() as target, archive.open("rb") as source:
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=6) as packed:
            shutil.copyfileobj(source, packed)
        return {"bytes": archive.stat().st_size, "gzipBytes": target.tell()}


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
