"""A proxy between one operator and the API server that kills the operator right after a chosen write.

The write is forwarded and takes effect; its answer is swallowed and the operator gets SIGKILL. This is the
hardest crash: the cluster has changed and the operator never learned that it did (Sieve's "intermediate
state", OSDI'22).

The operator talks plain HTTP to the proxy on loopback; the proxy adds the bearer token and speaks TLS.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from tests.demo.install import ROOT

if TYPE_CHECKING:
    import http.client
    from collections.abc import Callable
    from pathlib import Path

    from tests.cluster_kit.rest import Rest

WRITES = {"POST", "PATCH", "PUT", "DELETE"}
_NAMED = re.compile(
    r"^/apis?/(?:[^/]+/)?[^/]+/namespaces/(?P<ns>[^/]+)/(?P<resource>[^/?]+)(?:/(?P<name>[^/?]+))?(?:/(?P<sub>[^/?]+))?"
)


@dataclass(frozen=True)
class Write:
    """One write of the operator."""

    verb: str
    namespace: str
    resource: str
    subresource: str
    body: dict[str, Any]


@dataclass
class OperatorUnderFault:
    """An operator process from the work tree behind a proxy; `kill_after` decides on which write it dies."""

    rest: Rest
    folder: Path
    kill_after: Callable[[Write], bool]
    program: tuple[str, ...] = ("-m", "plimsoll.controller")  # arguments of Python
    sizer_image: str = "ghcr.io/plimsoll-dev/sizer:0.1.0"
    killed: threading.Event = field(default_factory=threading.Event)
    writes: list[Write] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert self.server is not None
        self.server.shutdown()
        self.server.server_close()

    def start(self) -> None:
        """Start (or start again) the operator process."""
        assert self.server is not None
        kubeconfig = self.folder / "kubeconfig"
        address = f"http://127.0.0.1:{self.server.server_address[1]}"
        kubeconfig.write_text(json.dumps(_kubeconfig(address)))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": "plimsoll-system",
            "POD_NAME": "operator-under-fault",
            "PLIMSOLL_SIZER_IMAGE": self.sizer_image,
            "PLIMSOLL_HEALTH_PORT": "0",
        }
        log = (self.folder / "operator.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, *self.program], env=env, stdout=log, stderr=log
        )
        log.close()

    def stop(self) -> None:
        """SIGKILL, and reap."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def see(self, write: Write) -> bool:
        """Record a write that took effect; True when the operator dies now."""
        self.writes.append(write)
        if self.killed.is_set() or not self.kill_after(write):
            return False
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.killed.set()
        return True


def _kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "replaced-by-the-proxy"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def _handler(operator: OperatorUnderFault) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Silence."""

        def _forward(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else b""
            upstream = operator.rest._connect(timeout=600)
            headers = {
                k: v
                for k, v in self.headers.items()
                if k.lower() not in {"host", "authorization", "accept-encoding"}
            }
            headers["Authorization"] = f"Bearer {operator.rest.token}"
            try:
                upstream.request(self.command, self.path, body or None, headers)
                response = upstream.getresponse()
                if self.command in WRITES and response.status < 300:
                    data = response.read()
                    if operator.see(_write(self.command, self.path, body)):
                        self.close_connection = True
                        return
                    self._answer(response, data)
                elif "watch=true" in self.path or "watch=1" in self.path:
                    self._stream(response)
                else:
                    self._answer(response, response.read())
            except OSError:
                self.close_connection = True  # the operator is dead, or the API server hung up
            finally:
                upstream.close()

        def _answer(self, response: http.client.HTTPResponse, data: bytes) -> None:
            self.send_response(response.status)
            self.send_header(
                "Content-Type", response.headers.get("Content-Type", "application/json")
            )
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, response: http.client.HTTPResponse) -> None:
            self.send_response(response.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while line := response.readline():
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        # BaseHTTPRequestHandler finds its methods by these names
        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _forward  # noqa: N815

    return Handler


def _write(verb: str, path: str, body: bytes) -> Write:
    match = _NAMED.match(path)
    parts = match.groupdict() if match else {}
    try:
        decoded = json.loads(body) if body else {}
    except ValueError:
        decoded = {}
    return Write(
        verb,
        parts.get("ns") or "",
        parts.get("resource") or "",
        parts.get("sub") or "",
        decoded if isinstance(decoded, dict) else {},
    )
