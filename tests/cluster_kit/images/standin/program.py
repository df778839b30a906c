"""The frame of every start: count it, parse, load, serve, end. The engines fill it in."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .device import DeviceError, Devices, OutOfMemoryError, open_devices
from .model import Model, ModelError, read_model
from .serving import Site, serve
from .switches import Switches, read_switches

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

TERMINATED = 143  # 128 + SIGTERM
_FOREVER = 1e9


class StoppedError(Exception):
    """SIGTERM while loading."""


class RefusedError(Exception):
    """The command line is refused; ``str`` is the exit code, the text is already printed."""


class StartError(Exception):
    """The engine's own check failed. The text is an exception's, with its class."""


@dataclass(frozen=True)
class Start:
    """What a start works with.

    Attributes:
        args: the parsed flags.
        environ: of the process.
        switches: what the test asked for.
        model: the folder.
        devices: those of all ranks.
        stop: set by SIGTERM.
    """

    args: argparse.Namespace
    environ: Mapping[str, str]
    switches: Switches
    model: Model
    devices: Devices
    stop: threading.Event

    def load_weights(self, size: int) -> float:
        """Take the weights, wait as told, and crash or hang where this start is to; return the seconds.

        Raises:
            OutOfMemoryError: the weights do not fit.
            StartError: a crash was asked for.
            StoppedError: SIGTERM came.
        """
        began = time.monotonic()
        self.devices.take(size)
        self.wait(_FOREVER if self.switches.hang == "load" else self.switches.load_seconds)
        if self.switches.crash == "exit":
            raise StartError("RuntimeError: The stand-in was told to crash while loading.")
        if self.switches.crash == "hostmem":
            self._fill_host_memory()
        return time.monotonic() - began

    def take_pool(self, size: int) -> None:
        """Take the pool. Raises OutOfMemoryError, also where a crash was asked for."""
        if self.switches.crash == "oom":
            size = max(size, self.devices.free + (1 << 20))
        self.devices.take(size)

    def wait(self, seconds: float) -> None:
        """Sleep. Raises StoppedError: SIGTERM came, and is not to be ignored."""
        if self.stop.wait(seconds):
            raise StoppedError

    def _fill_host_memory(self) -> None:
        # Written, and so really there.
        kept = [b"x" * (1 << 20) for _ in range(max(1, self.switches.host_bytes >> 20))]
        print(f"Killed after {len(kept)} MiB", file=sys.stderr, flush=True)
        os._exit(137)


class Engine(Protocol):
    """One engine. ``prog`` is what its argument errors begin with."""

    prog: str

    def parse(self, argv: Sequence[str], version: str) -> argparse.Namespace:
        """Parse. Raises RefusedError with argparse's exit code, after its message."""

    def model_path(self, args: argparse.Namespace) -> str:
        """The model folder."""

    def ranks(self, args: argparse.Namespace) -> int:
        """Devices it needs."""

    def start(self, start: Start) -> Site:
        """Load and size. Raises StartError, OutOfMemoryError or StoppedError."""

    def failed(self, text: str) -> int:
        """Print why the start failed, as the engine does; return the exit code."""

    def serving(self, args: argparse.Namespace) -> None:
        """Print what it says once it serves."""


#: What the engine's log calls an error; a check of its own names its class itself.
_CLASSES: dict[type[Exception], str] = {
    OutOfMemoryError: "torch.OutOfMemoryError: ",
    DeviceError: "RuntimeError: ",
    ModelError: "RuntimeError: ",
    StartError: "",
}


def run(engine: Engine, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """One start, up to its end; returns the exit code."""
    try:
        switches = read_switches(environ)
    except ValueError as error:
        print(f"{engine.prog}: stand-in: {error}", file=sys.stderr, flush=True)
        return 64
    stop = _listen_for_signals(switches)
    words = [*argv, "--standin-was-told-to-crash"] if switches.crash == "flag" else list(argv)
    try:
        args = engine.parse(words, switches.version)
    except RefusedError as refused:
        return int(str(refused))
    try:
        model = read_model(engine.model_path(args))
        devices = open_devices(environ, engine.ranks(args))
        site = engine.start(Start(args, environ, switches, model, devices, stop))
    except StoppedError:
        return TERMINATED
    except tuple(_CLASSES) as error:
        return _failed(engine, switches, f"{_CLASSES[type(error)]}{error}")
    return _serve(engine, args, site, stop)


def traceback_text(text: str, where: str) -> str:
    """A traceback's frame around an exception's text."""
    return f'Traceback (most recent call last):\n  File "{where}", line 1, in <module>\n{text}'


def _failed(engine: Engine, switches: Switches, text: str) -> int:
    if switches.failure_exit is None:
        return engine.failed(text)
    engine.failed(text)
    return switches.failure_exit


def _listen_for_signals(switches: Switches) -> threading.Event:
    stop = threading.Event()

    def stopped(*_: Any) -> None:
        if not switches.ignore_sigterm:
            stop.set()

    # Also needed as process 1, which would ignore a signal without a handler.
    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    return stop


def _serve(engine: Engine, args: argparse.Namespace, site: Site, stop: threading.Event) -> int:
    try:
        serve(site, args.host, args.port)
    except OSError as error:
        print(f"[Errno {error.errno}] {error.strerror}", file=sys.stderr, flush=True)
        return 1
    site.load.ready_at = time.monotonic()
    engine.serving(args)
    stop.wait()
    if site.switches.drain:
        site.load.drain()
        time.sleep(0.1)  # the last answer is on its way
    return 0
