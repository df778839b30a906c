"""A whole local cluster as one object: start it, use it, stop it."""

import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import cgroups, control_plane, network, worker
from .build import kubectl_path
from .cache import Log
from .clean import clean, leftovers, refuse_foreign, state_folder
from .debian import unpack_runtime
from .errors import KitError
from .linux import inside_network
from .lock import name_lock
from .node import Node, check_name
from .nvml import read_state, write_state
from .process import start_time
from .progress import Progress, reminders
from .record import Record, ready_nodes
from .tools import Tools, prepare_tools


class Cluster:
    """A cluster of this name, running or not.

    Args:
        name: prefixes its namespaces, cgroups and folder, so that several can run at once.
        nodes: none means the control plane alone.
        log: takes progress lines; standard error when absent.
    """

    def __init__(
        self, name: str = "demo", nodes: Sequence[Node] = (), log: Log | None = None
    ) -> None:
        check_name("cluster", name)
        self.name = name
        self.nodes = tuple(nodes)
        self._log = log or Progress()
        twice = {n.name for n in nodes if [m.name for m in nodes].count(n.name) > 1}
        if twice or len(self.nodes) > network.MAX_NODES:
            raise KitError(f"cluster {name}: {len(nodes)} nodes, repeated names {sorted(twice)}")

    @property
    def state(self) -> Path:
        """The folder with keys, logs and the nodes' files, while the cluster exists."""
        return state_folder(self.name)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; its server address exists inside :attr:`netns` only."""
        return self.state / "admin.kubeconfig"

    @property
    def netns(self) -> Path:
        """The network namespace in which the API server, and every Service, can be reached."""
        return network.control_namespace(self.name)

    @property
    def audit_log(self) -> Path:
        """One JSON audit event a line, level Metadata: who did what to which object."""
        return control_plane.audit_log(self.state)

    def audit_events(self) -> list[dict[str, Any]]:
        """Return everything in :attr:`audit_log`, oldest first."""
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()]

    def up(self, *, wait: bool = False) -> None:
        """Start the cluster and return when every node is Ready; at once when it already runs like that.

        A dead cluster of this name is removed first. If anything fails, or the caller is interrupted, nothing stays.

        Args:
            wait: for another ``up`` or ``down`` of this name, instead of raising.

        Raises:
            BusyError: another process is changing this cluster.
            KitError: not possible; the sentence says what to do.
        """
        if os.geteuid() != 0:
            raise KitError("the local cluster makes namespaces and mounts: run this as root")
        with name_lock(self.name, "up", wait=wait):
            refuse_foreign(self.name)
            if self._runs():
                return
            tools = prepare_tools(self._log)
            if leftovers(self.name):
                self._log(f"removing what is left of an earlier cluster {self.name}")
                clean(self.name)
            try:
                with reminders(self._log, f"starting {self.name}"):
                    self._start(tools)
            except BaseException:
                with _uninterrupted(), reminders(self._log, f"removing {self.name}"):
                    self._save_logs()
                    clean(self.name)
                raise

    def down(self, *, wait: bool = False) -> None:
        """Stop the cluster and remove everything of it; no error when there is none. Raises as :meth:`up`."""
        with name_lock(self.name, "down", wait=wait), _uninterrupted():
            refuse_foreign(self.name)
            with reminders(self._log, f"stopping {self.name}"):
                clean(self.name)

    def healthy(self) -> bool:
        """Return whether every component runs, the API server is ready, and so is every node."""
        record = self.record()
        if record is None or record.ended():
            return False
        wanted = {node.name for node in record.nodes}
        try:
            status, listed = self.get("/api/v1/nodes")
            reached = self._ready() and status == http.client.OK
            return reached and wanted <= ready_nodes(listed, record.nodes)
        except (OSError, http.client.HTTPException, KitError):
            return False

    def record(self) -> Record | None:
        """Return what runs under this name, whatever this object was given; None when no start was completed."""
        return Record.read(self.state / "cluster.json")

    def get(self, path: str) -> tuple[int, Any]:
        """Ask the API server as the administrator and return (HTTP status, decoded JSON or text). Raises OSError."""
        config = json.loads(self.kubeconfig.read_text())
        token = config["users"][0]["user"]["token"]
        context = ssl.create_default_context(cafile=str(self.state / "pki" / "ca.crt"))
        with self.enter_network():
            connection = http.client.HTTPSConnection(
                network.API_ADDRESS, network.API_PORT, timeout=5, context=context
            )
            try:
                connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
                answer = connection.getresponse()
                body = answer.read()
            finally:
                connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(body) if is_json else body.decode()

    def kubectl(
        self,
        *arguments: str | Path,
        input: str | None = None,  # noqa: A002 - as subprocess.run names it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator and return its output.

        Raises:
            KitError: with ``check``, when it failed; with its own words.
        """
        command = network.inside(self.netns, kubectl_path(), *arguments)
        done = subprocess.run(
            command,
            input=input,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
        )
        if check and done.returncode:
            words = done.stderr.strip() or done.stdout.strip()
            raise KitError(f"kubectl {' '.join(map(str, arguments))}: {words}")
        return done

    def environment(self) -> dict[str, str]:
        """Return the environment for kubectl and clients: KUBECONFIG set, kubectl on the PATH."""
        path = f"{kubectl_path().parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        # kubectl's own place for its cache is shared by the address of the server, which all clusters have in common.
        cache = str(self.state / "kubectl")
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": cache,
            "PATH": path,
        }

    @contextmanager
    def enter_network(self) -> Iterator[None]:
        """Run the block with the calling thread inside the cluster's network. Threads started inside follow."""
        if not self.netns.exists():
            raise KitError(
                f"cluster {self.name} is not up: python -m tests.cluster_kit up --name {self.name}"
            )
        with inside_network(self.netns):
            yield

    def load_image(self, archive: Path) -> None:
        """Import a docker or OCI archive into the containerd of every node, all at once.

        Raises:
            KitError: the cluster is not up, has no node, or containerd refused the archive.
        """
        size = archive.stat().st_size / (1 << 20)
        self._log(f"loading {archive.name} ({size:.0f} MiB) into {len(self._keepers())} nodes")
        began = time.monotonic()
        with reminders(self._log, f"loading {archive.name}"):
            lines = "".join(self._ctr("images", "import", str(archive))).splitlines()
        names = sorted({line.split()[1] for line in lines if line.startswith("unpacking")})
        self._log(f"loaded {', '.join(names) or archive.name} in {time.monotonic() - began:.1f} s")

    def image_exists(self, reference: str) -> bool:
        """Return whether every node has the image. Raises KitError when the cluster is not up or has no node."""
        return all(self._ctr("images", "list", "--quiet", f"name=={reference}"))

    def set_gpu(
        self,
        node: str,
        index: int,
        *,
        used: int | None = None,
        fail: int | None = None,
        total: int | None = None,
    ) -> None:
        """Change what a node's fake NVML answers, at once and for running pods too.

        Args:
            node: name.
            index: of the GPU on that node.
            used: bytes that processes use on it.
            fail: the NVML error code with which every call on that node fails; 0 ends it.
            total: bytes of memory on it.

        Raises:
            KitError: there is no such GPU.
        """
        path = self.state / "nodes" / node / "nvml" / "devices.conf"
        if not path.exists():
            raise KitError(f"cluster {self.name} has no node {node!r} with GPUs")
        now = read_state(path)
        if index not in range(len(now.gpus)):
            raise KitError(f"node {node} has {len(now.gpus)} GPUs, none with index {index}")
        gpus = list(now.gpus)
        gpu = gpus[index]
        gpus[index] = replace(
            gpu,
            used=gpu.used if used is None else used,
            total=gpu.total if total is None else total,
        )
        write_state(path, gpus, driver=now.driver, fail=now.fail if fail is None else fail)

    def set_connected(self, node: str, *, connected: bool) -> None:
        """Cut a node off from everything outside it, or end that. Its containers go on running.

        Raises:
            KitError: the cluster is not up, or has no such node.
        """
        record = self.record()
        names = [each.name for each in record.nodes] if record else []
        if node not in names:
            raise KitError(f"cluster {self.name} has no node {node!r}")
        network.set_connected(self.name, names.index(node), connected=connected)

    def _keepers(self) -> dict[str, int]:
        """Return the keeper process of each running node."""
        record = self.record()
        found = record.keepers() if record else {}
        if not found:
            raise KitError(f"cluster {self.name} is not up, or has no node")
        return found

    def _ctr(self, *arguments: str) -> list[str]:
        """Run containerd's client in every node at once and return the outputs."""
        keepers = self._keepers()
        runtime = unpack_runtime(self._log)
        with ThreadPoolExecutor(len(keepers)) as pool:
            return list(
                pool.map(lambda pid: worker.ctr(pid, runtime, *arguments), keepers.values())
            )

    def _places(self) -> list[worker.Place]:
        return [worker.Place(self.name, self.state, i, node) for i, node in enumerate(self.nodes)]

    def _runs(self) -> bool:
        """Return whether a healthy cluster of this name exists. Raises KitError when it has other nodes."""
        record = self.record()
        if record is None or not self.healthy():
            return False
        if record.nodes != self.nodes:
            raise KitError(
                f"cluster {self.name} runs with other nodes; stop it first: "
                f"python -m tests.cluster_kit down --name {self.name}"
            )
        return True

    def _start(self, tools: Tools) -> None:
        names = tuple(node.name for node in self.nodes)
        self.state.parent.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(mode=0o700)  # it holds keys and tokens
        members = cgroups.create(self.name, names)
        network.make_control(self.name)
        control_plane.prepare(self.state, names)
        self._log(f"starting the control plane of {self.name}")
        go = self.state / "api-ready"
        for place in self._places():
            network.make_node(self.name, place.node.name, place.index)
            worker.prepare(place, tools, go)
        network.connect_nodes(self.name, names)
        keepers = {f"node {p.node.name}": worker.start(p, members) for p in self._places()}
        pids = control_plane.start(tools.kubernetes, self.state, self.netns, members, self._ready)
        go.touch()
        pids |= keepers
        self._log(
            "the API server is ready" + (f"; waiting for {len(names)} nodes" if names else "")
        )
        self._wait_nodes(pids)
        self._wait_settled()
        # Last, so that a half-started cluster is never taken for one that runs.
        Record.now(self.nodes, pids).write(self.state / "cluster.json")
        self._log(f"cluster {self.name} is up: export KUBECONFIG={self.kubeconfig}")

    def _wait_settled(self) -> None:
        """Wait until a pod can be created: the controllers have made the default service account."""
        end = time.monotonic() + control_plane.READY_SECONDS
        while self.get("/api/v1/namespaces/default/serviceaccounts/default")[0] != http.client.OK:
            if time.monotonic() > end:
                tail = control_plane.log_tail(self.state, "kube-controller-manager")
                raise KitError(f"the default service account does not appear:\n{tail}")
            time.sleep(0.1)

    def _wait_nodes(self, pids: dict[str, int]) -> None:
        """Wait until every node is Ready and offers its GPUs."""
        end = time.monotonic() + control_plane.READY_SECONDS
        waiting = {node.name for node in self.nodes}
        while waiting:
            ready = ready_nodes(self.get("/api/v1/nodes")[1], self.nodes)
            for name in sorted(waiting & ready):
                self._log(f"node {name} is ready")
            waiting -= ready
            dead = sorted(name for name, pid in pids.items() if start_time(pid) is None)
            if waiting and (dead or time.monotonic() > end):
                node = min(waiting)
                logs = self.state / "nodes" / node / "log"
                tails = "\n".join(
                    control_plane.file_tail(path) for path in sorted(logs.glob("*.log"))
                )
                raise KitError(f"node {node} is not ready (ended: {dead or 'nothing'}):\n{tails}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _save_logs(self) -> None:
        """Keep the logs of a failed start: everything else of it is removed."""
        kept = self.state.with_name(f".{self.name}.failed")
        shutil.rmtree(kept, ignore_errors=True)
        if (self.state / "log").is_dir() and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            shutil.copytree(self.state / "log", kept)
            for logs in self.state.glob("nodes/*/log"):
                shutil.copytree(logs, kept / logs.parent.name)
            self._log(f"the logs of the failed start are in {kept}")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM during a clean-up: a second one must not leave half of it behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {
        number: signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
