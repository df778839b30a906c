"""The HTTP side that all engines share: who runs, who waits, canned completions, hanging and draining."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .switches import Switches

COMPLETIONS = ("/v1/completions", "/v1/chat/completions", "/generate")
TEXT = "text/plain; version=0.0.4; charset=utf-8"
_FOREVER = threading.Event()

Reply = tuple[int, str, str]  # status, content type, body


@dataclass
class Load:
    """What runs and waits; one object for all threads."""

    limit: int
    running: int = 0
    waiting: int = 0
    ready_at: float = field(default_factory=time.monotonic)
    hung: bool = False
    draining: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def begin(self) -> None:
        """Wait until one of ``limit`` places is free, and take it."""
        with self.changed:
            self.waiting += 1
            self.changed.wait_for(lambda: self.running < self.limit)
            self.waiting -= 1
            self.running += 1

    def end(self) -> None:
        """Leave the place."""
        with self.changed:
            self.running -= 1
            self.changed.notify_all()

    def drain(self) -> None:
        """Refuse new requests and return when none runs or waits."""
        with self.changed:
            self.draining = True
            self.changed.wait_for(lambda: not self.running and not self.waiting)


@dataclass(frozen=True)
class Site:
    """What one engine serves.

    Attributes:
        model: name that clients use.
        longest: tokens of the longest request.
        load: what runs and waits.
        switches: what the test asked for.
        health: path -> status while ready.
        pages: path -> reply of everything else that answers to GET.
        out_of_memory: prints the engine's failure on a prompt that is too long for its memory; returns the exit code.
    """

    model: str
    longest: int
    load: Load
    switches: Switches
    health: Mapping[str, int]
    pages: Mapping[str, Callable[[], Reply]]
    out_of_memory: Callable[[], int]

    def hangs(self) -> bool:
        """Whether nothing is answered any more."""
        after = self.switches.hang_after
        if self.switches.hang == "serve" and after is not None:
            return time.monotonic() - self.load.ready_at >= after
        return self.load.hung


def reply_json(document: object, status: int = 200) -> Reply:
    """A JSON reply."""
    return status, "application/json", json.dumps(document)


def model_list(name: str, longest: int) -> Reply:
    """The answer of ``/v1/models``."""
    model = {"id": name, "object": "model", "max_model_len": longest}
    return reply_json({"object": "list", "data": [model]})


def gauge(name: str, value: float, labels: str = "") -> str:
    """One gauge in Prometheus' text format."""
    return f"# HELP {name} {name}.\n# TYPE {name} gauge\n{name}{labels} {float(value)}\n"


def count_tokens(request: Mapping[str, Any]) -> int:
    """Tokens of a prompt: numbers count one each, text by its words."""
    prompt = request.get("prompt", request.get("inputs", request.get("text", "")))
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    texts = [str(one) for one in (prompt if isinstance(prompt, list) else [prompt])]
    texts += [str(message.get("content", "")) for message in request.get("messages", ())]
    return sum(len(text.split()) for text in texts)


def answer(site: Site, path: str, request: Mapping[str, Any]) -> Reply:
    """Serve one completion; returns when the canned answer is due."""
    switches, load = site.switches, site.load
    tokens = count_tokens(request)
    wanted = int(request.get("max_tokens") or 16)
    if load.draining:
        return reply_json({"error": {"message": "The server is shutting down."}}, 503)
    if tokens + wanted > site.longest:
        message = (
            f"This model's maximum context length is {site.longest} tokens. However, you requested "
            f"{wanted} output tokens and your prompt contains {tokens} input tokens."
        )
        return reply_json({"error": {"message": message, "code": 400}}, 400)
    if switches.oom_prompt is not None and tokens >= switches.oom_prompt:
        code = site.out_of_memory()
        sys.stdout.flush()
        os._exit(code)
    if switches.hang == "serve" and switches.hang_after is None:
        load.hung = True
        _FOREVER.wait()
    load.begin()
    try:
        time.sleep(switches.hold_seconds)
    finally:
        load.end()
    text = " ok" * min(wanted, 4)
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    choice |= (
        {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
    )
    usage = {"prompt_tokens": tokens, "completion_tokens": min(wanted, 4)}
    usage["total_tokens"] = sum(usage.values())
    kind = "chat.completion" if "chat" in path else "text_completion"
    return reply_json(
        {
            "id": "cmpl-standin",
            "object": kind,
            "model": site.model,
            "choices": [choice],
            "usage": usage,
        }
    )


class Handler(BaseHTTPRequestHandler):
    """One request; the site is the class attribute of a subclass made per server."""

    site: Site
    protocol_version = "HTTP/1.1"
    server_version = "uvicorn"
    sys_version = ""

    def do_GET(self) -> None:
        """Health and pages."""
        site, path = self.site, self.path.partition("?")[0]
        if site.hangs():
            _FOREVER.wait()
        if path in site.health:
            ready = not site.switches.never_ready and not site.load.draining
            self._send((site.health[path] if ready else 503, "text/plain", ""))
        elif path in site.pages:
            self._send(site.pages[path]())
        else:
            self._send(reply_json({"detail": "Not Found"}, 404))

    do_HEAD = do_GET  # noqa: N815 -- http.server's own name

    def do_POST(self) -> None:
        """Completions."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.site.hangs():
            _FOREVER.wait()
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            request = None
        if self.path not in COMPLETIONS:
            self._send(reply_json({"detail": "Not Found"}, 404))
        elif not isinstance(request, dict):
            self._send(reply_json({"error": {"message": "not a JSON object"}}, 400))
        else:
            self._send(answer(self.site, self.path, request))

    def _send(self, reply: Reply) -> None:
        status, kind, body = reply
        payload = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    def log_message(self, *_: Any) -> None:
        """Say nothing: probes would fill the log."""


class Server(ThreadingHTTPServer):
    """A thread per request; requests that still run do not keep the process alive."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def serve(site: Site, host: str, port: int) -> Server:
    """Listen and serve in a thread. Raises OSError: the port is taken."""
    handler = type("Bound", (Handler,), {"site": site})
    server = Server((host, port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
