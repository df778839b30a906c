"""How a server goes: the hook, run by a real shell against a server that says how much it works."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from plimsoll.controller.objects import drain
from plimsoll.core.engines.readback_running import RUNNING
from tests.unit.controller.builders import server
from tests.unit.controller.test_inpod_objects import IMAGES, spec_of
from tests.unit.controller.test_objects import kubelet_expands

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = [engine for engine in IMAGES if engine != "LlamaCpp"]


@contextmanager
def answering(path: str, bodies: list[str]) -> Iterator[int]:
    """A server that gives these answers, the last one again and again; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = (bodies.pop(0) if len(bodies) > 1 else bodies[0]).encode()
            self.send_response(200 if self.path == path else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            del args

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield http.server_port
        http.shutdown()
        thread.join()


def ends(engine: str, port: int, drain_seconds: int = 60) -> float:
    """Seconds that the hook takes, without its sleep; it must never fail."""
    spec = {**spec_of(engine), "rollout": {"drainSeconds": drain_seconds}}
    hook: Any = drain.draining(server(**spec), port)["preStop"]["exec"]["command"]
    words = [kubelet_expands(word, {}) for word in hook]
    assert words[2].startswith("sleep 5;")
    assert "time.sleep(1)" in words[3]
    words[2:] = [
        words[2].replace("sleep 5;", "sleep 0;"),
        words[3].replace("sleep(1)", "sleep(.1)"),
    ]
    begin = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return time.monotonic() - begin


def said(engine: str, running: int) -> str:
    gauge = RUNNING[engine][1]
    return f'# TYPE {gauge} gauge\nother 7\n{gauge}{{rank="0"}} {running}.0\n{gauge}_max 9\n'


@pytest.mark.parametrize("engine", ASKED)
def test_running_requests_are_waited_for(engine: str) -> None:
    bodies = [said(engine, running) for running in (2, 0, 1, 0)]
    with answering(RUNNING[engine][0], bodies) as port:
        assert ends(engine, port) >= 0.3  # one without work is not the end
    assert bodies == [said(engine, 0)]


def test_the_waiting_ends_before_the_grace_period_does() -> None:
    with answering(RUNNING["VLLM"][0], [said("VLLM", 1)]) as port:
        assert 1 <= ends("VLLM", port, drain.ENDING_SECONDS + 1) < 10


@pytest.mark.parametrize("body", ["", "no gauge\n", "<html>"])
def test_a_server_that_tells_nothing_is_not_waited_for(body: str) -> None:
    with answering(RUNNING["VLLM"][0], [body]) as port:
        assert ends("VLLM", port) < 10
    assert ends("VLLM", 1) < 10  # nobody listens


def test_who_cannot_be_asked_only_stops_being_an_endpoint() -> None:
    asleep = {"preStop": {"sleep": {"seconds": 5}}}
    assert drain.draining(server(**spec_of("LlamaCpp")), 8080) == asleep
    short = server(**{**spec_of("VLLM"), "rollout": {"drainSeconds": drain.ENDING_SECONDS}})
    assert drain.draining(short, 8000) == asleep
    assert drain.grace_seconds(short) == 15
