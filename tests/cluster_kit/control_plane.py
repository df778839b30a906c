"""Starts etcd, the API server, the controller manager and the scheduler of one cluster."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from . import network, pki
from .errors import KitError
from .process import start_daemon, start_time

_ETCD = "http://127.0.0.1:2379"
_ETCD_PEERS = "http://127.0.0.1:2380"
# The name under which the API server passes requests on to the servers of other API groups.
_FRONT_PROXY = "front-proxy-client"
READY_SECONDS = 90.0


def server_url() -> str:
    """Return the API server's address as everything inside the cluster's network reaches it."""
    return f"https://{network.API_ADDRESS}:{network.API_PORT}"


def audit_policy() -> str:
    """Return the audit policy: who did what to which object, bodies never; the kubelets' heartbeats are left out."""
    noise = [
        {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]},
        {
            "level": "None",
            "userGroups": ["system:nodes"],
            "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
        },
    ]
    return json.dumps(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [*noise, {"level": "Metadata"}],
        }
    )


def prepare(state: Path, nodes: tuple[str, ...]) -> None:
    """Write certificates, tokens, kubeconfigs and the audit policy below ``state``."""
    keys = state / "pki"
    for folder in (keys, state / "log", state / "etcd"):
        folder.mkdir(parents=True, exist_ok=True)
    (state / "etcd").chmod(0o700)
    pki.make_authority(keys)
    pki.issue(
        keys,
        "apiserver",
        "/CN=kube-apiserver",
        (
            f"IP:{network.API_ADDRESS}",
            f"IP:{network.API_SERVICE_ADDRESS}",
            "IP:127.0.0.1",
            "DNS:localhost",
            "DNS:kubernetes.default.svc",
        ),
    )
    pki.issue(keys, "kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    pki.issue(keys, "front-proxy-client", f"/CN={_FRONT_PROXY}")
    issued = pki.tokens(nodes)
    (state / "tokens.csv").write_text(pki.token_file(issued))
    authority = (keys / "ca.crt").read_bytes()
    for name, (token, _) in issued.items():
        path = state / f"{name}.kubeconfig"
        path.write_text(pki.kubeconfig(server_url(), authority, token))
        path.chmod(0o600)
    (state / "audit-policy.json").write_text(audit_policy())


def commands(state: Path) -> dict[str, list[str]]:
    """Return each component's arguments, in the order in which they start."""
    keys = state / "pki"
    return {
        "etcd": [
            f"--data-dir={state}/etcd",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_ETCD_PEERS}",
            f"--initial-advertise-peer-urls={_ETCD_PEERS}",
            f"--initial-cluster=default={_ETCD_PEERS}",
            "--unsafe-no-fsync",  # the state does not outlive the machine anyway
        ],
        "kube-apiserver": [
            f"--etcd-servers={_ETCD}",
            f"--bind-address={network.API_ADDRESS}",
            f"--advertise-address={network.API_ADDRESS}",
            f"--secure-port={network.API_PORT}",
            f"--service-cluster-ip-range={network.SERVICE_CIDR}",
            f"--tls-cert-file={keys}/apiserver.crt",
            f"--tls-private-key-file={keys}/apiserver.key",
            f"--client-ca-file={keys}/ca.crt",
            f"--service-account-key-file={keys}/sa.key",
            f"--service-account-signing-key-file={keys}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--kubelet-client-certificate={keys}/kubelet-client.crt",
            f"--kubelet-client-key={keys}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            # Other API groups, such as that of metrics: straight to the endpoints, for without nodes no proxy
            # answers at the address of a Service.
            "--enable-aggregator-routing=true",
            f"--proxy-client-cert-file={keys}/front-proxy-client.crt",
            f"--proxy-client-key-file={keys}/front-proxy-client.key",
            f"--requestheader-client-ca-file={keys}/ca.crt",
            f"--requestheader-allowed-names={_FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--token-auth-file={state}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",  # beside the default ones, PodSecurity and ResourceQuota
            "--allow-privileged=true",
            f"--audit-policy-file={state}/audit-policy.json",
            f"--audit-log-path={audit_log(state)}",
        ],
        "kube-controller-manager": [
            f"--kubeconfig={state}/kcm.kubeconfig",
            "--secure-port=0",
            f"--service-account-private-key-file={keys}/sa.key",
            f"--root-ca-file={keys}/ca.crt",
            f"--cluster-signing-cert-file={keys}/ca.crt",
            f"--cluster-signing-key-file={keys}/ca.key",
            "--use-service-account-credentials",  # each controller with its own real permissions
            "--kube-api-qps=500",  # making those accounts at the default 20 a second would take seconds
            "--kube-api-burst=1000",
            "--leader-elect=false",
            "--horizontal-pod-autoscaler-sync-period=1s",  # 15 s by default; a test would wait for that
        ],
        "kube-scheduler": [
            f"--kubeconfig={state}/scheduler.kubeconfig",
            "--secure-port=0",
            "--leader-elect=false",
        ],
    }


def audit_log(state: Path) -> Path:
    """Return the file with one JSON audit event a line."""
    return state / "log" / "audit.log"


def start(
    binary: Path, state: Path, namespace: Path, members: Path, ready: Callable[[], bool]
) -> dict[str, int]:
    """Start all four and return their pids by name; the controllers follow when the API server answers.

    Raises:
        KitError: a component ended, or the API server is not ready in time.
    """
    pids: dict[str, int] = {}
    for name, arguments in commands(state).items():
        if name == "kube-controller-manager":
            _wait_ready(state, pids, ready)
        command = network.inside(namespace, binary, name, *arguments)
        pids[name] = start_daemon(command, state / "log" / f"{name}.log", members=members)
    return pids


def _wait_ready(state: Path, pids: dict[str, int], ready: Callable[[], bool]) -> None:
    """Wait until the API server says it is ready.

    Raises:
        KitError: a component ended, or no answer within READY_SECONDS; with the end of its log.
    """
    end = time.monotonic() + READY_SECONDS
    while not ready():
        for name, pid in pids.items():
            if start_time(pid) is None:
                raise KitError(f"{name} ended while the cluster started:\n{log_tail(state, name)}")
        if time.monotonic() > end:
            tail = log_tail(state, "kube-apiserver")
            raise KitError(f"the API server is not ready after {READY_SECONDS:.0f} s:\n{tail}")
        time.sleep(0.05)


def log_tail(state: Path, name: str, size: int = 2000) -> str:
    """Return the end of a component's log, for an error message."""
    return file_tail(state / "log" / f"{name}.log", size)


def file_tail(path: Path, size: int = 1500) -> str:
    """Return the end of a log under its name."""
    text = path.read_text(errors="replace")[-size:] if path.exists() else "(not there)"
    return f"--- {path.name}\n{text}"
