"""A real Prometheus on loopback that scrapes one operator every second."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = Path(__file__).resolve().parents[2] / "charts" / "plimsoll" / "files" / "rules.yaml"
_START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a graph: its labels, and (Unix time, number) where the number is finite."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The HTTP API of a running one."""

    url: str

    def get(self, path: str, **query: str) -> Any:
        """The ``data`` of an answer; an error is the test's."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {query}: {error.read().decode()}") from error

    def value(self, expression: str) -> float | None:
        """The number that an expression has now, None where it has none."""
        found = self.get("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def series(self, expression: str, start: float, end: float, step: float = 1.0) -> list[Series]:
        """The finite numbers of an expression over a time."""
        result = self.get(
            "query_range", query=expression, start=str(start), end=str(end), step=str(step)
        )["result"]
        found = []
        for entry in result:
            points = tuple((float(t), float(v)) for t, v in entry["values"])
            finite = tuple(point for point in points if math.isfinite(point[1]))
            if finite:
                found.append(Series(entry["metric"], finite))
        return found


@contextmanager
def running(
    program: Path, folder: Path, target: str, *, namespace: str, pod: str
) -> Iterator[Prometheus]:
    """Start it in the caller's network and stop it afterwards.

    Args:
        program: the binary.
        folder: for its configuration, log and data.
        target: host:port of the operator.
        namespace: of the operator, as a service discovery would tell it.
        pod: likewise.
    """
    port = _free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "plimsoll",
                "honor_labels": True,
                "static_configs": [
                    {"targets": [target], "labels": {"namespace": namespace, "pod": pod}}
                ],
            }
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    command = [
        str(program),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            found = Prometheus(f"http://127.0.0.1:{port}")
            _await(found, process, folder / "prometheus.log")
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it has scraped once."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError, AssertionError):  # not listening yet, or still reading its log
            if prometheus.value("up") == 1:
                return
        time.sleep(0.2)
    raise AssertionError(f"Prometheus does not scrape the operator:\n{log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
