"""The control plane on which operators are compared, the accounts they use, and the load."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from bench.operator import audit, objects
from tests.cluster_kit import Cluster
from tests.cluster_kit.cache import build_lock, cache_root
from tests.cluster_kit.golang import go
from tests.cluster_kit.network import inside
from tests.cluster_kit.pki import kubeconfig
from tests.cluster_kit.progress import Progress
from tests.cluster_kit.rest import ISRV, Rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
TENANTS: Final = ("tenant-a", "tenant-b")
# The operator's namespace and account as installed; the other two may do everything.
ACCOUNTS: Final = {
    "plimsoll": ("plimsoll-system", "plimsoll-operator"),
    "floor": ("bench", "floor"),
    "stock": ("bench", "stock"),
}
_SKIPPED: Final = frozenset({"Deployment", "NetworkPolicy", "Service"})
_TOKEN_SECONDS: Final = 86400
_GONE_SECONDS: Final = 300.0


class LabError(Exception):
    """The bench cannot go on; the sentence says why."""


def say(text: str) -> None:
    """One progress line with the time."""
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def stamp() -> str:
    """Now, as the audit log writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def floor_binary() -> Path:
    """Build bench/floor where its sources have changed, and return the program."""
    sources = sorted((ROOT / "bench" / "floor").glob("*"))
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    target = cache_root() / "bench" / f"floor-{key}"
    log = Progress()
    with build_lock(cache_root() / "bench" / "floor.lock", log):
        if not target.is_file():
            log("building bench/floor (minutes when nothing of it was ever built here)")
            flags = ("-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o", str(target))
            go(ROOT / "bench" / "floor", "build", *flags, ".", log=log)
    return target


class Lab:
    """A control plane alone, with the CRD, the operator's rights and the tenants' namespaces."""

    def __init__(self, name: str) -> None:
        self.cluster = Cluster(name)
        self.folder = cache_root() / "bench" / f"run-{name}"

    def up(self) -> None:
        """Start it, or join the one that runs."""
        self.floor = floor_binary()
        self.cluster.up(wait=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "objects.json").write_text(json.dumps(objects.children()))
        (self.folder / "server.json").write_text(json.dumps(objects.server()))
        with self.cluster.enter_network():
            self.rest = Rest.from_kubectl(self.cluster.kubectl)
            self._install()
            for who in ACCOUNTS:
                self._account(who)

    def down(self) -> None:
        """Stop it."""
        self.cluster.down(wait=True)

    def again(self) -> None:
        """A fresh one in its place: quicker than the deletion of thousands of objects."""
        self.down()
        self.up()

    def user(self, who: str) -> str:
        """The name by which the audit log knows an operator."""
        return "system:serviceaccount:" + ":".join(ACCOUNTS[who])

    def calls(self, who: str, since: str, until: str = "9") -> dict[str, int]:
        """Its requests of an interval by verb and resource."""
        return dict(audit.calls(self.cluster.audit_log, self.user(who), since, until))

    def pids(self) -> dict[str, int]:
        """The control plane's processes by name."""
        record = self.cluster.record()
        assert record is not None
        return {name: pid for name, (pid, _) in record.pids.items()}

    def config(self, who: str) -> Path:
        """The kubeconfig of an operator."""
        return self.folder / f"{who}.kubeconfig"

    def call(self, method: str, path: str, body: Any = None) -> Any:  # noqa: ANN401
        """One request as the administrator."""
        with self.cluster.enter_network():
            return self.rest.call(method, path, body)

    def revision(self) -> int:
        """The etcd revision of now."""
        listed = self.call("GET", "/api/v1/namespaces?limit=1")
        return int(listed["metadata"]["resourceVersion"])

    def count(self, path: str) -> int:
        """How many objects a collection has."""
        listed = self.call("GET", f"{path}?limit=1")
        rest = listed["metadata"].get("remainingItemCount", 0)
        return len(listed["items"]) + int(rest)

    @contextmanager
    def process(
        self, argv: Sequence[str | Path], env: dict[str, str], log: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program inside the cluster's network; it is ended at the end of the block."""
        command = inside(self.cluster.netns, *argv)
        with (
            log.open("ab") as output,
            subprocess.Popen(
                command, env={**os.environ, **env}, stdout=output, stderr=subprocess.STDOUT
            ) as running,
        ):
            try:
                yield running
            finally:
                running.terminate()
                try:
                    running.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    running.kill()

    def load(  # noqa: PLR0913  # as many as the loader has flags
        self,
        streams: Sequence[tuple[str, int, float]],
        *,
        prefix: str = "s",
        settle: bool = True,
        children: bool = True,
        server: Path | None = None,
        mark: Callable[[str], None] = lambda _: None,
        limit: float = 600,
    ) -> list[dict[str, Any]]:
        """Create servers and watch what becomes of them.

        Args:
            streams: (namespace, number, servers a second or 0: at once) of each tenant.
            prefix: of the names.
            settle: wait until each is told to be rolled out.
            children: wait for each Deployment.
            server: the file with the server; default: mode Fixed, no replicas.
            mark: is called with ``created`` and ``children`` when all are.
            limit: seconds to wait at most.

        Raises:
            LabError: creations failed.
        """
        argv: list[str | Path] = [self.floor, "load", "-prefix", prefix, "-limit", f"{limit:.0f}s"]
        for namespace, number, rate in streams:
            argv += ["-stream", f"{namespace},{number},{rate},50"]
        argv += ["-server", server or self.folder / "server.json"]
        argv += [f"-settle={str(settle).lower()}", f"-children={str(children).lower()}"]
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        with subprocess.Popen(
            inside(self.cluster.netns, *argv),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as loader:
            assert loader.stderr is not None
            assert loader.stdout is not None
            for line in loader.stderr:
                if (word := line.strip()) in {"created", "children"}:
                    mark(word)
                else:
                    say(f"loader: {word}")
            out = loader.stdout.read()
        if loader.returncode:
            raise LabError(f"the loader ended with {loader.returncode}")
        found: list[dict[str, Any]] = json.loads(out)
        if failed := sum(one["failed"] for one in found):
            raise LabError(f"{failed} servers could not be created")
        return found

    def clean(self) -> float:
        """Delete all servers and wait until their children are collected; returns the seconds."""
        began = time.monotonic()
        for namespace in TENANTS:
            self.call("DELETE", f"{ISRV}/namespaces/{namespace}/inferenceservers")
        paths = [f"{ISRV}/inferenceservers"]
        for namespace in TENANTS:
            paths += [
                f"/apis/apps/v1/namespaces/{namespace}/deployments",
                f"/api/v1/namespaces/{namespace}/services",
                f"/apis/apps/v1/namespaces/{namespace}/replicasets",
            ]
        while any(self.count(path) for path in paths):
            if time.monotonic() - began > _GONE_SECONDS:
                raise LabError("the children are not collected")
            time.sleep(0.3)
        return time.monotonic() - began

    def _install(self) -> None:
        """The CRD and the rights of the rendered installation, without the operator's Deployment."""
        text = (ROOT / "manifests" / "install.yaml").read_text()
        kept = [doc for doc in yaml.safe_load_all(text) if doc and doc["kind"] not in _SKIPPED]
        kept += [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            for namespace in ("bench", *TENANTS)
        ]
        kept.append(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "bench"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "cluster-admin",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "namespace": namespace, "name": name}
                    for namespace, name in ACCOUNTS.values()
                    if namespace == "bench"
                ],
            }
        )
        kept += [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": space}}
            for space, name in ACCOUNTS.values()
            if space == "bench"
        ]  # fmt: skip
        text = yaml.safe_dump_all(kept)
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
        wait = ("wait", "--for=condition=Established", "--timeout=60s")
        self.cluster.kubectl(*wait, "crd/inferenceservers.plimsoll.dev")

    def _account(self, who: str) -> None:
        namespace, name = ACCOUNTS[who]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        }
        token = self.rest.call("POST", path, body)["status"]["token"]
        server = f"https://{self.rest.host}:{self.rest.port}"
        target = self.config(who)
        target.write_text(kubeconfig(server, self.rest.authority.encode(), token))
        target.chmod(0o600)

    def wait_watch(self, who: str, since: str, seconds: float = 60) -> float:
        """Wait until an operator watches servers; returns the seconds since ``since``.

        Raises:
            LabError: it does not.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for event in audit.events(self.cluster.audit_log, self.user(who), since):
                if event["verb"] == "watch" and event.get("objectRef", {}).get("resource") == (
                    "inferenceservers"
                ):
                    began = datetime.fromisoformat(since)
                    return (datetime.fromisoformat(event["stageTimestamp"]) - began).total_seconds()
            time.sleep(0.1)
        raise LabError(f"{who} does not watch after {seconds:.0f} s: see {self.folder}/{who}.log")
